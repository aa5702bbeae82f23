//! Runs the loop from a temporary slot into any sink. The router's own slot and checkpoint stay as they are.

use std::sync::Arc;
use std::time::Duration;

use pg_logical::QueryError;
use pg_logical::lock_wait::LockWatcher;
use pg_logical::quoting::literal;
use pg_logical::replication::{ReplicationStream, StreamOf};
use pg_logical::session::Session;
use pg_logical::stream::Stream;
use pg_logical::{Lsn, Oid, bulk_read};
use tokio_util::sync::CancellationToken;

use super::init::say_slot_wait;
use crate::advice::{self, OrRemedy};
use crate::cli::shards::ShardArgs;
use crate::config::{CatchUp, Config, OnUpdate};
use crate::contracts::Contracts;
use crate::error::{Effect, Error, ErrorCode, Peer};
use crate::monitor::Monitor;
use crate::outbox::Outbox;
use crate::pipeline::Pipeline;
use crate::postgres::administrator;
use crate::postgres::catalog::{self, Catalog, Missing};
use crate::postgres::slot_functions;
use crate::postgres::timeline;
use crate::postgres::watch::Watch;
use crate::progress::Position;
use crate::relay::{Outcome, Relay, Sink, Window};
use crate::routing::Router;
use crate::source::slot::{SlotParts, SlotSource};
use crate::supervisor::connections::connect;

/// How many events may be in flight, and how many bytes of them.
const WINDOW: (usize, usize) = (1_000, 8 << 20);

/// How long to wait at the end for the sink to accept the last records.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// What to read, and for which command.
pub(super) struct TemporarySlot<'a> {
    /// The command's name, for messages, sessions and the slot.
    pub(super) command: &'static str,
    pub(super) shards: &'a ShardArgs,
    /// The position to start from. Otherwise only later transactions are read.
    pub(super) since: Option<Lsn>,
}

/// Sends what is committed from now on, or from a given position on, to the sink until `stop`. Returns the sink's result, or `None`
/// if it was stopped before it began.
///
/// # Errors
/// Postgres cannot be reached or refuses, the slot no longer has the log at the position, or the sink failed.
pub(super) async fn run<K: Sink>(
    config: &Config,
    what: TemporarySlot<'_>,
    sink: K,
    stop: &CancellationToken,
) -> Result<Option<K::End>, Error> {
    let relay = tokio::select! {
        relay = open(one_shard(config, &what)?, &what, sink) => relay?,
        () = stop.cancelled() => return Ok(None),
    };
    let ended = relay.run(stop).await;
    match ended.outcome {
        Outcome::Failed(Error::Transient(failure)) => Err(Error::refused(
            failure.code(),
            failure.what,
            "Start the command again; it does not reconnect by itself",
        )),
        Outcome::Failed(error) => Err(error),
        Outcome::Refused(refusal) => {
            Err(Error::refused(ErrorCode::InputOutput, refusal.why.what, refusal.why.remedy))
        }
        Outcome::Stopped | Outcome::SourceEnded => Ok(Some(ended.sink)),
    }
}

/// The configuration of the one shard to read, without settings that only apply to a router.
fn one_shard(config: &Config, what: &TemporarySlot<'_>) -> Result<Config, Error> {
    let command = what.command;
    let shards = super::chosen_shards(config, what.shards)?;
    let [shard] = shards.as_slice() else {
        return Err(Error::usage(
            ErrorCode::CommandLine,
            format!("{command} reads one shard at a time"),
            "Add --shard with its number",
        ));
    };
    let mut config = shard.clone();
    // distinguishes its sessions from the router's in pg_stat_activity
    config.name = format!("{} {command}", config.name);
    config.heartbeat = None;
    config.postgres.catch_up = CatchUp::Stream;
    if config.outbox.on_update == OnUpdate::Stop {
        config.outbox.on_update = OnUpdate::Warn;
    }
    Ok(config)
}

/// Creates the slot, and connects its stream with the sink.
async fn open<K: Sink>(
    mut config: Config,
    what: &TemporarySlot<'_>,
    sink: K,
) -> Result<Relay<SlotSource<Stream>, K>, Error> {
    let since = what.since;
    let mut session = connect(&config, None).await?;
    session.query(&bulk_read::prepare(config.postgres.wal_sender_timeout)).await?;
    let mut catalog_session = connect(&config, Some(session.info().host.clone())).await?;
    let catalog = Catalog::query(&mut catalog_session, &config.postgres, &config.outbox).await?;
    catalog.check_prepared(config.source())?;
    catalog.check_publication(config.source(), Missing::AtStart)?;
    if since.is_some() {
        catalog.check_slot(config.source())?;
    }
    let shard = match config.shard {
        Some(shard) => {
            let ids =
                catalog::check_shards(&mut catalog_session, &[(config.source(), &catalog)], Missing::AtStart)
                    .await?;
            Some((shard, ids))
        }
        None => None,
    };
    let slot = format!("outbox_router_{}_{}", what.command, session.backend_pid());
    let slot_start = create_slot(&mut session, &slot, &config, what).await?;
    let system = timeline::identify(&mut session).await?;
    let from = match since {
        Some(since) => check_since(what.command, since, slot_start, system.flush, &config.postgres.slot)?,
        None => slot_start,
    };
    config.postgres.slot = slot;
    let config = Arc::new(config);
    let contracts = Contracts::configured(&config)?.map(Arc::new);
    let router = Router::of(&config).with_contracts(&config, contracts);
    let oids = catalog.tables.iter().map(|table| table.as_ref().map(|table| Oid(table.oid)));
    let outbox = Outbox::of(&config, router.extra_columns()).with_oids(oids).of_shard(shard);
    let monitor = Monitor::new(config.name.as_str());
    let on_update = config.outbox.on_update;
    let pipeline = Pipeline::new(outbox, router, None, system.flush, on_update, monitor.clone());
    let (host, backend_pid) = (session.info().host.clone(), session.backend_pid());
    let stream = stream(&config, session, from).await?;
    let definition = catalog.stream_definition(&config.outbox);
    let unwatched = catalog::unwatched(config.source(), &catalog.tables);
    let slot = SlotParts {
        stream,
        watch: Watch::start(&config.name, config.source(), None, host, backend_pid, definition, unwatched),
        confirmed: slot_start,
        resume_check: None,
        gap_accepted: false,
        head: system.flush,
        until: None,
        stream_until: Lsn::INVALID,
        backend_pid,
        monitor: monitor.clone(),
        config: Arc::clone(&config),
    };
    let start = Position { flush: from, partial: None };
    let window = Window::new(WINDOW.0, WINDOW.1);
    tracing::info!(
        publication = config.postgres.publication, position = %start.flush,
        "reading what is committed from here on; the router's position stays as it is"
    );
    Ok(Relay::new(SlotSource::new(slot, start), pipeline, sink, start, window, monitor, DRAIN_TIMEOUT))
}

/// Creates a temporary slot, at the end of the log or as a copy of the router's. Returns its position.
async fn create_slot(
    session: &mut Session,
    slot: &str,
    config: &Config,
    what: &TemporarySlot<'_>,
) -> Result<Lsn, Error> {
    let copied = what.since.is_some();
    let sql = if copied { slot_functions::copy(&config.postgres.slot, slot, true) } else { create(slot) };
    if !copied {
        // Postgres first waits until all open transactions end, however long that takes
        session.set_answer_timeout(None);
    }
    let watcher = LockWatcher::new(&config.postgres.conninfo, session.info(), &config.name);
    session.set_watcher(watcher.describing_errors_with(advice::in_words).reporting_to(say_slot_wait));
    let created = session.query_one(&sql).await;
    let created = created.map_err(|error| not_created(error, what.command))?.unwrap_or_default();
    session.set_answer_timeout(Some(config.postgres.wal_sender_timeout));
    created.parse().map_err(|_| {
        Error::transient(Peer::Postgres, format!("the position of the slot {slot} cannot be read: {created}"))
    })
}

/// Why the slot could not be created.
fn not_created(error: QueryError, command: &str) -> Error {
    match error.code().map(|code| code.code()) {
        Some("53400") => Error::refused(
            ErrorCode::NoFreeSlot,
            format!("all replication slots are in use, and {command} needs one while it runs"),
            administrator::free_slot(),
        )
        .meaning(Effect::None, ""),
        Some("55000") => error.or_remedy("Run `outbox-router check`, which checks wal_level and the slot"),
        _ => error.into(),
    }
}

fn create(slot: &str) -> String {
    format!(
        "SELECT lsn FROM pg_catalog.pg_create_logical_replication_slot({}, 'pgoutput', true)",
        literal(slot)
    )
}

/// The position to start from, if the log from there on is still available.
fn check_since(command: &str, since: Lsn, earliest: Lsn, end: Lsn, slot: &str) -> Result<Lsn, Error> {
    if since < earliest {
        return Err(Error::refused(
            ErrorCode::PositionUnusable,
            format!("--since {since} is before the position of the slot {slot}"),
            format!("The earliest position is {earliest}: outbox-router {command} --since {earliest}"),
        ));
    }
    if since > end {
        return Err(Error::refused(
            ErrorCode::PositionUnusable,
            format!("--since {since} is past the end of the server's log, {end}"),
            "Omit --since to see events committed from now on",
        ));
    }
    Ok(since)
}

async fn stream(
    config: &Config,
    mut session: Session,
    start: Lsn,
) -> Result<ReplicationStream<Stream>, Error> {
    session.query(bulk_read::BEFORE_STREAMING).await?;
    let (stream, unread, _) = session.into_parts();
    let slot = &config.postgres.slot;
    let publication = &config.postgres.publication;
    let what = StreamOf { slot, publication, start, messages: config.reads_messages() };
    let stream = ReplicationStream::new(stream, unread);
    stream.start(what).await.map_err(|error| advice::not_started(error, slot))
}
