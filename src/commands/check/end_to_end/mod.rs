//! `check --end-to-end`: sends one event through table, slot and topic, and measures how long each takes.

mod event;

use std::time::{Duration, Instant};

use pg_logical::connect::Startup;
use pg_logical::quoting::literal;
use pg_logical::session::Session;
use pg_logical::{Environment, Lsn};
use tokio::time::{sleep, timeout};

use super::finding::Findings;
use crate::cli::CheckArgs;
use crate::commands::{connect, connection_of, log_end};
use crate::config::Config;
use crate::error::{Definite, Error, ErrorCode, Remedy, Step, Transient};
use crate::postgres::catalog::{Catalog, Missing, check_shards};
use crate::postgres::slot_lock;
use crate::shards::{self, Ids};
use crate::sink::kafka::cluster_info::ClusterInfo;
use crate::sink::kafka::topic_reader::TopicReader;
use event::{TestEvent, unsuitable};

/// The name of the check.
const NAME: &str = "end_to_end";

/// How often the slot's position is read.
const INTERVAL: Duration = Duration::from_millis(50);

/// Sends the event, one for each shard, unless there are errors: it could stop the router, or wait for ever.
pub(super) async fn check(config: &Config, args: &CheckArgs, env: &Environment, findings: &mut Findings) {
    if findings.has_error() {
        return findings.skipped(NAME, "no event was written, because of the errors above");
    }
    let shards = match shards(config, args, env).await {
        Ok(shards) => shards,
        Err(error) => return findings.failure(NAME, error, "Run check again"),
    };
    for (shard, ids) in shards {
        let of = shard.shard.map_or_else(String::new, |shard| format!("{shard}: "));
        match send(config, &shard, ids, args, env).await {
            Ok(what) => findings.ok(NAME, of + &what),
            Err(Error::Definite(error)) => {
                findings.failure(NAME, Definite { what: of + &error.what, ..error }.into(), "");
            }
            Err(Error::Transient(error)) => {
                findings.failure(
                    NAME,
                    Transient { what: of + &error.what, ..error }.into(),
                    "Run check again",
                );
            }
        }
    }
}

/// The configurations of the shards that run here, with the type of their aggregate ids. Without shards, the only configuration.
async fn shards(
    config: &Config,
    args: &CheckArgs,
    env: &Environment,
) -> Result<Vec<(Config, Option<Ids>)>, Error> {
    if config.shards.count == 1 {
        return Ok(vec![(config.clone(), None)]);
    }
    let mut session = connect(&writer(config, args, env)?, "check", Startup::default()).await?;
    let every = config.every_shard();
    let mut catalogs = Vec::new();
    for shard in &every {
        catalogs.push(Catalog::query(&mut session, &shard.postgres, &shard.outbox).await?);
    }
    let found: Vec<_> = every.iter().map(Config::source).zip(&catalogs).collect();
    let ids = check_shards(&mut session, &found, Missing::AtStart).await?;
    session.close().await;
    Ok(config.local_shards().into_iter().map(|shard| (shard, Some(ids))).collect())
}

/// The configuration with the connection of the role that writes.
fn writer(config: &Config, args: &CheckArgs, env: &Environment) -> Result<Config, Error> {
    let mut writer = config.clone();
    if let Some(url) = &args.url {
        writer.postgres.conninfo = connection_of(url, config, env)?;
    }
    Ok(writer)
}

/// Sends the event through this shard.
async fn send(
    config: &Config,
    shard: &Config,
    ids: Option<Ids>,
    args: &CheckArgs,
    env: &Environment,
) -> Result<String, Error> {
    let writer = writer(config, args, env)?;
    let limit = Duration::from_secs(args.timeout);
    // a lock is named before the limit is reached
    let mut event = TestEvent::new(&writer, &args.aggregate_type, limit * 3 / 4).await?;
    if let (Some(shard), Some(ids)) = (shard.shard, ids) {
        event.belong_to(shard, ids).await?;
    }
    let slot = &shard.postgres.slot;
    let start = Step::new("Start the router, and run check again")
        .typing(format!("outbox-router run{}", shards::argument(shard.shard)));
    if slot_lock::holder(&mut event.session, slot).await?.is_none() {
        let what = format!("no router reads the slot {slot}, so no event was written");
        return Err(not_confirmed(what, Remedy::steps([start])));
    }
    // the search for the row has no limit of its own
    let Ok(rehearsed) = timeout(limit, event.rehearse()).await else {
        let what = format!("a row of {} was not routed within {} s", event.place, args.timeout);
        return Err(unsuitable(&what, "Raise --timeout, or create an index on the column with the id"));
    };
    let topic = rehearsed?;
    check_topic(config, &topic).await?;
    let reader = TopicReader::at_end(config, &topic).await?;

    let begin = Instant::now();
    event.write().await?;
    let written = begin.elapsed();
    let place = event.place.clone();
    let after_write = |error| but_written(&place, error);
    let end = log_end(&mut event.session).await.map_err(after_write)?;
    let deadline = begin + limit;
    let (found, confirmed) = tokio::join!(
        reader.find(event.mark.clone(), deadline),
        wait_until_confirmed(&mut event.session, slot, end, deadline)
    );
    let held = slot_lock::holder(&mut event.session, slot).await;
    let held = held.map_err(|error| after_write(error.into()))?.is_some();
    event.session.close().await;
    let after = |at: Instant| format!("after {} ms", at.duration_since(begin).as_millis());
    let late = format!("within {} s", args.timeout);
    match (found.map_err(after_write)?, confirmed.map_err(after_write)?) {
        (Some(found), Some(confirmed)) => Ok(format!(
            "an event was written to {place} in {} ms, was in the topic {topic} {}, and the slot {slot} was confirmed {}",
            written.as_millis(),
            after(found),
            after(confirmed)
        )),
        (None, Some(confirmed)) => Err(Error::refused(
            ErrorCode::EndToEndNotFound,
            format!(
                "the router has confirmed the event {}, but it was not found in the topic {topic} {late}",
                after(confirmed)
            ),
            Remedy::steps([
                Step::new("Check whether the event is parked")
                    .typing(format!("outbox-router dead-letters list --id {}", event.id)),
                Step::new(
                    "Compare the configuration of the running router with this one: brokers, routes and rules",
                ),
            ]),
        )),
        (_, None) if !held => Err(not_confirmed(
            format!("the event was written to {place}, but no router reads the slot {slot} any more"),
            Remedy::steps([start]),
        )),
        (found, None) => {
            let sent =
                found.map_or_else(String::new, |at| format!(", was in the topic {topic} {}", after(at)));
            Err(not_confirmed(
                format!("the event was written to {place}{sent}, but the router has not confirmed it {late}"),
                Remedy::steps([Step::new(
                    "See what the router waits for; it sends the event once it goes on",
                )
                .typing("outbox-router status")]),
            ))
        }
    }
}

/// The error of what follows the write.
fn but_written(place: &str, error: Error) -> Error {
    let but = |what: &str| format!("the event was written to {place}, but {what}");
    match error {
        Error::Transient(transient) => Transient { what: but(&transient.what), ..transient }.into(),
        Error::Definite(definite) => Definite { what: but(&definite.what), ..definite }.into(),
    }
}

fn not_confirmed(what: String, remedy: Remedy) -> Error {
    Error::refused(ErrorCode::EndToEndNotConfirmed, what, remedy)
}

/// Checks that the router finds the topic, or can create it: it would stop at the event.
async fn check_topic(config: &Config, topic: &str) -> Result<(), Error> {
    let cluster_info = ClusterInfo::open(config).await?;
    if cluster_info.cluster().await?.topics.iter().any(|known| known.name == *topic) {
        return Ok(());
    }
    if config.topics.create {
        return cluster_info.may_create(topic).await;
    }
    Err(Error::refused(
        ErrorCode::EndToEndNotWritten,
        format!("the topic {topic} does not exist and `[topics] create` is false, so no event was written"),
        "Create it, or choose the aggregate type of an existing topic with --aggregate-type",
    ))
}

/// When the slot was confirmed up to `end`; `None` if it was not before `deadline`.
async fn wait_until_confirmed(
    session: &mut Session,
    slot: &str,
    end: Lsn,
    deadline: Instant,
) -> Result<Option<Instant>, Error> {
    let sql = format!(
        "SELECT confirmed_flush_lsn FROM pg_catalog.pg_replication_slots WHERE slot_name = {}",
        literal(slot)
    );
    while Instant::now() < deadline {
        let confirmed: Option<Lsn> = session.query_one(&sql).await?.and_then(|lsn| lsn.parse().ok());
        if confirmed.is_some_and(|confirmed| confirmed >= end) {
            return Ok(Some(Instant::now()));
        }
        sleep(INTERVAL).await;
    }
    Ok(None)
}
