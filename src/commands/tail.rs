//! `tail`: shows the records that `run` would send. It reads a temporary slot, and changes nothing else.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use pg_logical::QueryError;
use pg_logical::lock_wait::LockWatcher;
use pg_logical::quoting::literal;
use pg_logical::replication::{ReplicationStream, StreamOf};
use pg_logical::session::Session;
use pg_logical::stream::Stream;
use pg_logical::{Lsn, Oid, bulk_read};
use tokio::signal::unix::SignalKind;

use super::init::say_slot_wait;
use super::server::SLOTS_REMEDY;
use super::signals::cancelled_by;
use crate::advice::{self, OrRemedy};
use crate::cli::tail::TailArgs;
use crate::config::{CatchUp, Config, OnUpdate};
use crate::contracts::Contracts;
use crate::error::{Error, Peer};
use crate::monitor::Monitor;
use crate::outbox::Outbox;
use crate::pipeline::Pipeline;
use crate::postgres::catalog::{self, Catalog, Missing, recovery_sql};
use crate::postgres::slot_functions;
use crate::postgres::timeline;
use crate::postgres::watch::Watch;
use crate::progress::Position;
use crate::relay::{Outcome, Relay, Window};
use crate::routing::Router;
use crate::sink::stdout::{Printed, StdoutSink, Style};
use crate::source::slot::{SlotParts, SlotSource};
use crate::supervisor::connections::connect;
use crate::terminal;

/// The prefix of the names of its temporary slots.
const SLOT_PREFIX: &str = "outbox_router_tail_";

/// How many events may wait to be printed, and how many bytes of them.
const WINDOW: (usize, usize) = (1_000, 8 << 20);

/// How long to wait at the end for standard output to accept the last records.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Prints what is committed from now on, or from a given position on, until it is stopped.
///
/// # Errors
/// Postgres cannot be reached or refuses, or the slot no longer has the log at the position.
pub async fn tail(config: &Config, args: &TailArgs) -> Result<(), Error> {
    let stop = cancelled_by(&[SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()])?;
    let style = Style { json: args.json, payload: args.payload, colours: terminal::colours(&io::stdout()) };
    let sink = StdoutSink::new(&io::stdout(), style, stop.clone())?;
    let relay = tokio::select! {
        relay = open(one_shard(config, args)?, args, sink) => relay?,
        () = stop.cancelled() => {
            log_end(Printed::default());
            return Ok(());
        }
    };
    let ended = relay.run(&stop).await;
    match ended.outcome {
        Outcome::Failed(Error::Transient(failure)) => {
            Err(Error::refused(failure.what, "Start the command again; it does not reconnect by itself"))
        }
        Outcome::Failed(error) => Err(error),
        Outcome::Refused(refusal) => Err(Error::refused(refusal.why.what, refusal.why.remedy)),
        Outcome::Stopped | Outcome::SourceEnded => {
            log_end(ended.sink);
            Ok(())
        }
    }
}

/// Logs how many events were printed, unless the reader has closed standard output, as `head` does.
fn log_end(printed: Printed) {
    match printed {
        Printed { reader_gone: true, .. } => {}
        Printed { events: 1, .. } => tracing::info!("stopped; 1 event was shown"),
        Printed { events, .. } => tracing::info!("stopped; {events} events were shown"),
    }
}

/// The configuration of the one shard to show, without settings that only apply to a router that sends.
fn one_shard(config: &Config, args: &TailArgs) -> Result<Config, Error> {
    let shards = super::chosen_shards(config, &args.shards)?;
    let [shard] = shards.as_slice() else {
        return Err(Error::usage("tail shows one shard at a time", "Add --shard with its number"));
    };
    let mut config = shard.clone();
    // distinguishes its sessions from the router's in pg_stat_activity
    config.name.push_str(" tail");
    config.heartbeat = None;
    config.postgres.catch_up = CatchUp::Stream;
    if config.outbox.on_update == OnUpdate::Stop {
        config.outbox.on_update = OnUpdate::Warn;
    }
    Ok(config)
}

/// Creates the slot, and connects its stream with the sink.
async fn open(
    mut config: Config,
    args: &TailArgs,
    sink: StdoutSink,
) -> Result<Relay<SlotSource<Stream>, StdoutSink>, Error> {
    let mut session = connect(&config, None).await?;
    session.query(&bulk_read::prepare(config.postgres.wal_sender_timeout)).await?;
    let mut catalog_session = connect(&config, Some(session.info().host.clone())).await?;
    let catalog = Catalog::query(&mut catalog_session, &config.postgres, &config.outbox).await?;
    catalog.check_publication(config.source(), Missing::AtStart)?;
    if args.since.is_some() {
        catalog.check_slot(config.source())?;
    }
    let unread_rows = recovery_sql::in_commit_order(config.source(), &catalog.tables);
    let shard = match config.shard {
        Some(shard) => {
            let ids =
                catalog::check_shards(&mut catalog_session, &[(config.source(), &catalog)], Missing::AtStart)
                    .await?;
            Some((shard, ids))
        }
        None => None,
    };
    let slot = format!("{SLOT_PREFIX}{}", session.backend_pid());
    let slot_start = create_slot(&mut session, &slot, &config, args.since.is_some()).await?;
    let system = timeline::identify(&mut session).await?;
    let from = match args.since {
        Some(since) => check_since(since, slot_start, system.flush, &config.postgres.slot)?,
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
    let stream = stream(&config, session, from, &unread_rows).await?;
    let definition = catalog.stream_definition(&config.outbox);
    let slot = SlotParts {
        stream,
        watch: Watch::start(&config.name, config.source(), None, host, backend_pid, definition),
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
        "showing what is committed from here on; nothing is sent or moved"
    );
    Ok(Relay::new(SlotSource::new(slot, start), pipeline, sink, start, window, monitor, DRAIN_TIMEOUT))
}

/// Creates a temporary slot, at the end of the log or as a copy of the router's. Returns its position.
async fn create_slot(session: &mut Session, slot: &str, config: &Config, copied: bool) -> Result<Lsn, Error> {
    let sql = if copied { slot_functions::copy(&config.postgres.slot, slot, true) } else { create(slot) };
    if !copied {
        // Postgres first waits until all open transactions end, however long that takes
        session.set_answer_timeout(None);
    }
    let watcher = LockWatcher::new(&config.postgres.conninfo, session.info(), &config.name);
    session.set_watcher(watcher.describing_errors_with(advice::in_words).reporting_to(say_slot_wait));
    let created = session.query_one(&sql).await.map_err(not_created)?.unwrap_or_default();
    session.set_answer_timeout(Some(config.postgres.wal_sender_timeout));
    created.parse().map_err(|_| {
        Error::transient(Peer::Postgres, format!("the position of the slot {slot} cannot be read: {created}"))
    })
}

/// Why the slot could not be created.
fn not_created(error: QueryError) -> Error {
    match error.code().map(|code| code.code()) {
        Some("53400") => {
            Error::refused("all replication slots are in use, and tail needs one while it runs", SLOTS_REMEDY)
        }
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
fn check_since(since: Lsn, earliest: Lsn, end: Lsn, slot: &str) -> Result<Lsn, Error> {
    if since < earliest {
        return Err(Error::refused(
            format!("--since {since} is before the position of the slot {slot}"),
            format!("The earliest position is {earliest}: outbox-router tail --since {earliest}"),
        ));
    }
    if since > end {
        return Err(Error::refused(
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
    unread_rows: &str,
) -> Result<ReplicationStream<Stream>, Error> {
    session.query(bulk_read::BEFORE_STREAMING).await?;
    let (stream, unread, _) = session.into_parts();
    let slot = &config.postgres.slot;
    let publication = &config.postgres.publication;
    let what = StreamOf { slot, publication, start, messages: config.reads_messages() };
    let stream = ReplicationStream::new(stream, unread, unread_rows);
    stream.start(what).await.map_err(|error| advice::not_started(error, slot))
}
