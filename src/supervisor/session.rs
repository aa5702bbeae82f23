//! The start of one session, in the order that keeps two routers apart: Postgres first, then the position (which ends by
//! fencing), then the stream.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use pg_logical::connect::{STAYS_OPEN, Startup, VALUE_TEXT};
use pg_logical::conninfo::Host;
use pg_logical::lock_wait::Watcher;
use pg_logical::replication::{ReplicationStream, StreamOf};
use pg_logical::server_error::QueryError;
use pg_logical::session::Session;
use pg_logical::{Lsn, Oid, bulk_read, lock_wait};
use tokio_util::sync::CancellationToken;

use super::free_slot::free_slot;
use super::session_state::SessionState;
use super::start_position::Looked;
use super::{SETTLED, TURN};
use crate::advice;
use crate::checkpoint::{Checkpoint, ResumeCheck};
use crate::config::{Config, DeliveryMode};
use crate::error::{Definite, Error, Exit, Peer};
use crate::monitor::{Monitor, State};
use crate::outbox::Outbox;
use crate::postgres::bookmarks::RollingBookmarks;
use crate::postgres::catalog::{self, Catalog, Columns, Missing, recovery_sql};
use crate::postgres::dead_letters::sql as dead_letters;
use crate::postgres::dead_letters::store::{DeadLetterStore, Left, Loaded};
use crate::postgres::slot_record::{self, SlotRecord};
use crate::postgres::timeline::System;
use crate::postgres::watch::{self, Watch};
use crate::relay::{Ended, Parts, Relay, begins_with_bites};
use crate::routing::Router;
use crate::shards::{Ids, Shard};
use crate::sink::Outcomes;
use crate::sink::kafka::checkpoint_topic::{CheckpointStore, look_up};
use crate::sink::kafka::{KafkaSink, UNUSED};

/// How long a remembered position is looked for that only makes a message more exact.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a session did not come to run.
pub(super) enum NoSession {
    /// Asked to stop before it did.
    Stopped,
    /// It could not be started.
    Failed(Error),
}

impl<E: Into<Error>> From<E> for NoSession {
    fn from(error: E) -> Self {
        NoSession::Failed(error.into())
    }
}

/// Starts a session and runs it to its end.
pub(super) async fn run(
    config: &Arc<Config>,
    monitor: &Monitor,
    stop: &CancellationToken,
    memory: &mut SessionState,
) -> Result<Ended, NoSession> {
    let parts = tokio::select! {
        biased;
        () = stop.cancelled() => return Err(NoSession::Stopped),
        never = turning(monitor) => match never {},
        parts = start(config, monitor, stop, memory) => parts,
    };
    let (parts, connected) = parts.inspect_err(|_| memory.not_started())?;
    (memory.was_active, memory.goes_over) = (true, None);
    let host = parts.watch.host().clone();
    // for as long as the session lasts
    let _bookmarks = RollingBookmarks::start(config, host);
    let mut relay = pin!(Relay::new(parts).run());
    let ended = if memory.fruitless {
        // the last one ended as soon as this was said
        tokio::select! {
            ended = &mut relay => ended,
            () = tokio::time::sleep(SETTLED) => {
                connected.log();
                relay.await
            }
        }
    } else {
        relay.await
    };
    monitor.session_over();
    Ok(ended)
}

/// What is said of a session.
struct Connected {
    postgres: String,
    version: String,
    slot: String,
    position: Lsn,
    again: bool,
}

impl Connected {
    fn log(&self) {
        let Connected { postgres, version, slot, position, again } = self;
        tracing::info!(postgres, version, slot, %position, again, "connected; events flow");
    }
}

/// A start waits for servers, each answer for so long at most. Meanwhile the main loop turns, and says so.
async fn turning(monitor: &Monitor) -> Infallible {
    loop {
        monitor.turned();
        tokio::time::sleep(TURN).await;
    }
}

async fn start(
    config: &Arc<Config>,
    monitor: &Monitor,
    stop: &CancellationToken,
    memory: &mut SessionState,
) -> Result<(Parts<pg_logical::stream::Stream>, Connected), Error> {
    // an attempt may take long, and the reason why the last one failed is worth more than that one is made
    if !memory.was_active && !matches!(monitor.current_state(), State::Reconnecting { .. }) {
        monitor.state(State::Connecting { peer: Peer::Postgres });
    }
    let mut session = connect(config, None).await?;
    // A catalogue that a walsender has read, it decodes with: a query of pg_publication_tables is enough, and it takes what was
    // written under an earlier publication for unpublished, without a word. So the stream's own session asks for none.
    let looks = connect(config, Some(session.info().host.clone()));
    let mut looks = awake(config, &mut session, looks).await?;
    let (catalog, slot) = match free_slot(&mut session, &mut looks, config, monitor, memory).await {
        Ok(found) => found,
        Err(error) => return Err(with_position(error, config, memory).await),
    };
    // after the wait for the slot, for the end of the log must not be older than the slot's position
    let system = System::identify(&mut session).await?;
    let router = Router::of(config).judging_by(config, memory.contracts.clone());
    let oids = catalog.tables.iter().map(|table| table.as_ref().map(|table| Oid(table.oid)));
    let outbox = Outbox::of(config, router.extra_columns()).known_as(oids);
    let looked = look_at_tables(config, &catalog, &outbox, &mut looks, memory);
    let (shard, other_slots, record) = awake(config, &mut session, looked).await?;
    let outbox = outbox.of_shard(shard);
    let reading = catalog.reading(&config.outbox);
    if memory.reading.as_ref().is_some_and(|before| reading.altered_since(before)) {
        return Err(watch::altered(config, &catalog));
    }

    let state = monitor.current_state();
    let failed = matches!(state, State::Reconnecting { peer: Peer::Kafka, .. });
    if !memory.was_active && !failed || matches!(state, State::Connecting { .. }) {
        monitor.state(State::Connecting { peer: Peer::Kafka });
    }
    let outcomes = Arc::new(Outcomes::default());
    let known = Arc::clone(&memory.topics);
    let sink = KafkaSink::open(Arc::clone(config), Arc::clone(&outcomes), memory.batch_bytes, known);
    let mut sink = opened(awake(config, &mut session, sink).await, memory)?;

    let mut positions = CheckpointStore::Off;
    let other_log = memory.other_log.take();
    let looked = Looked { catalog: &catalog, slot: &slot, system: &system, other_slots, other_log, record };
    let started = looked.begin(config, &mut session, memory, &mut sink, &mut positions).await;
    let (remembered, recognition) = match started {
        Ok((remembered, recognition)) => (remembered, recognition.filter(|_| !memory.handed_over)),
        Err(error) => {
            close(sink, positions).await;
            return Err(error);
        }
    };
    let claimed = claim(config, looks);
    if let Err(error) = awake(config, &mut session, claimed).await {
        close(sink, positions).await;
        return Err(error);
    }
    let parking = match parked_events(config, &mut session, monitor, memory, &remembered).await {
        Ok(parking) => parking,
        Err(error) => {
            close(sink, positions).await;
            return Err(error);
        }
    };
    let version = session.parameters().get("server_version").cloned().unwrap_or_default();
    let (place, host) = (session.info().place.clone(), session.info().host.clone());
    let backend_pid = session.backend_pid();
    let position = remembered.position.flush;
    let in_bites = recognition.is_none()
        && slot.waits_for.is_empty()
        && begins_with_bites(config, position, system.flush, memory.stream_until);
    // From here on the server finds out that the router is gone: by wal_sender_timeout if it streams.
    let prepared = if in_bites {
        &bulk_read::prepare(config.postgres.wal_sender_timeout)
    } else {
        bulk_read::BEFORE_STREAMING
    };
    if let Err(error) = session.query(prepared).await {
        close(sink, positions).await;
        return Err(error.into());
    }
    let (stream, unread, _) = session.into_parts();
    let slot_name = &config.postgres.slot;
    let unread_rows = recovery_sql::in_commit_order(config, &catalog.tables);
    let what = StreamOf {
        slot: slot_name,
        publication: &config.postgres.publication,
        start: recognition.as_ref().map_or(remembered.position.flush, ResumeCheck::start),
        messages: config.reads_messages()
            || recognition.as_ref().is_some_and(|look| look.message_prefix().is_some()),
    };
    let stream = ReplicationStream::at_rest(stream, unread, &unread_rows);
    let stream = if in_bites { Ok(stream) } else { stream.start(what).await };
    let stream = match stream {
        Ok(stream) => stream,
        Err(error) => {
            close(sink, positions).await;
            return Err(advice::not_started(error, slot_name));
        }
    };
    let connected =
        Connected { postgres: place, version, slot: slot_name.clone(), position, again: memory.was_active };
    if memory.fruitless {
        tracing::debug!("connected again");
    } else {
        connected.log();
    }
    monitor.state(State::Active);
    if recognition.is_none() {
        memory.accepted_gap = None;
    }
    memory.remembered = Some(remembered.clone());
    memory.reading = Some(reading.clone());

    let parts = Parts {
        config: Arc::clone(config),
        stream,
        outbox,
        router,
        sink,
        outcomes,
        positions,
        remembered,
        confirmed: slot.confirmed_flush_lsn.unwrap_or(Lsn::INVALID),
        recognition,
        gap_accepted: memory.accepted_gap.is_some_and(|gap| gap != position),
        watch: Watch::start(Arc::clone(config), host, backend_pid, reading),
        transaction_size: memory.transaction_size,
        head: system.flush,
        until: memory.until,
        stream_until: memory.stream_until,
        backend_pid,
        alone_up_to: memory.alone_up_to,
        alone_after_commit: memory.alone_after_commit,
        parking,
        refused: memory.refused.clone(),
        retries_alone: memory.retries_alone,
        monitor: monitor.clone(),
        stop: stop.clone(),
    };
    Ok((parts, connected))
}

/// Judges what else the catalogues say of the tables. Returns what [`shards`] does, and what the router's schema says of the slot, if
/// that matters.
async fn look_at_tables(
    config: &Config,
    catalog: &Catalog,
    outbox: &Outbox,
    looks: &mut Session,
    memory: &SessionState,
) -> Result<(Option<(Shard, Ids)>, Vec<String>, Option<SlotRecord>), Error> {
    if !memory.was_active {
        for (name, table) in config.outbox.tables.iter().zip(&catalog.tables) {
            let Some(table) = table else { continue };
            let columns = Columns::look(looks, table.oid, &config.postgres).await?;
            columns.verdict(outbox, name)?;
        }
        for (what, remedy) in catalog::unwatched(config, &catalog.tables) {
            tracing::warn!(remedy, "{what}");
        }
    }
    if !config.dead_letters.park() {
        none_left_parked(config, looks).await?;
    }
    let (shard, other_slots) = shards(config, catalog, looks, memory).await?;
    let record = match config.delivery.mode {
        DeliveryMode::ExactlyOnce => Some(SlotRecord::read(looks, &config.postgres.slot).await?),
        DeliveryMode::AtLeastOnce => None,
    };
    Ok((shard, other_slots, record))
}

/// Records in the router's schema who reads the slot, before the first event is read. At-least-once goes on without it.
async fn claim(config: &Config, mut looks: Session) -> Result<(), Error> {
    let claimed = slot_record::claim(&mut looks, &config.postgres.slot, &config.name).await;
    looks.close().await;
    match (claimed, config.delivery.mode) {
        (Ok(()), _) => Ok(()),
        (Err(QueryError::Server { error, .. }), DeliveryMode::AtLeastOnce) => {
            tracing::warn!(peer = "postgres", %error, "{} cannot be written; events flow without it", slot_record::TABLE);
            Ok(())
        }
        (Err(error), _) => {
            let what = format!("{} cannot be written: {error}", slot_record::TABLE);
            Err(Error::transient(Peer::Postgres, what))
        }
    }
}

/// The shard that this router is of, with what its aggregates' ids are; and the slots of this router that are for another number
/// of shards.
async fn shards(
    config: &Config,
    catalog: &Catalog,
    looks: &mut Session,
    memory: &SessionState,
) -> Result<(Option<(Shard, Ids)>, Vec<String>), Error> {
    let shard = match config.shard {
        Some(shard) => {
            let missing = if memory.was_active { Missing::WhileRunning } else { Missing::AtStart };
            Some((shard, catalog::shards_verdict(looks, &[(config, catalog)], missing).await?))
        }
        None => None,
    };
    Ok((shard, catalog::slots_of_other_shards(looks, config).await?))
}

/// Events that come after parked ones of their aggregate must not be sent past them.
async fn none_left_parked(config: &Config, looks: &mut Session) -> Result<(), Error> {
    match looks.query_one(dead_letters::READABLE).await?.as_deref() {
        Some("t") => {}
        // it may be there for another router
        Some(_) => {
            tracing::warn!(
                remedy = "If this router has ever parked events: GRANT USAGE ON SCHEMA outbox_router TO ROLE; GRANT SELECT ON \
                          outbox_router.dead_letters TO ROLE",
                "whether events are parked cannot be told: {} is there, and the router's role may not read it",
                dead_letters::TABLE
            );
            return Ok(());
        }
        None => return Ok(()),
    }
    let count = looks.query_one(&dead_letters::count(&config.name, "true")).await?.unwrap_or_default();
    if count == "0" {
        return Ok(());
    }
    let (what, remedy) = dead_letters::left(&count);
    Err(Error::not_safe(what, remedy))
}

/// What is parked has to be known before the first event comes.
async fn parked_events(
    config: &Arc<Config>,
    session: &mut Session,
    monitor: &Monitor,
    memory: &mut SessionState,
    remembered: &Checkpoint,
) -> Result<Option<(DeadLetterStore, Loaded)>, Error> {
    if !config.dead_letters.park() {
        return Ok(None);
    }
    let left = Left { sent: remembered.retried.clone(), failed: memory.failed_retry.clone() };
    let host = session.info().host.clone();
    let from = remembered.position.flush;
    let locked = |reason: String| {
        monitor.last_problem(reason.clone());
        monitor.state(State::Reconnecting { peer: Peer::Postgres, reason });
    };
    let desk = DeadLetterStore::open(config, host, session.backend_pid(), &left, from, locked);
    let (desk, loaded) = awake(config, session, desk).await?;
    memory.failed_retry = None;
    memory.refused.retain(|event, _| event.final_lsn >= from);
    Ok(Some((desk, loaded)))
}

/// No event was sent yet.
async fn close(sink: KafkaSink, positions: CheckpointStore) {
    sink.close_unused().await;
    let _ = tokio::time::timeout(UNUSED, positions.close()).await;
}

/// Waits for what may take long, and asks the server for something now and then: it ends a session that asks for nothing.
pub(super) async fn awake<T>(
    config: &Config,
    session: &mut Session,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let every = config.postgres.wal_sender_timeout / 4;
    let mut work = std::pin::pin!(work);
    loop {
        if let Ok(done) = tokio::time::timeout(every, &mut work).await {
            return done;
        }
        // an answer that is not waited for would be taken for that of the next question
        let mut asked = std::pin::pin!(session.query("SELECT 1"));
        let mut done = None;
        loop {
            tokio::select! {
                answer = &mut asked => break drop(answer?),
                result = &mut work, if done.is_none() => done = Some(result),
            }
        }
        if let Some(done) = done {
            return done;
        }
    }
}

/// Credentials and privileges are changed under running routers.
pub(super) fn opened<T>(result: Result<T, Error>, memory: &SessionState) -> Result<T, Error> {
    result.map_err(|error| match error {
        Error::Definite(refused) if memory.was_active && refused.exit != Exit::Unsafe => {
            Error::transient(Peer::Kafka, refused.to_string())
        }
        error => error,
    })
}

/// Adds the remembered position to a finding that stops the router: it is where events may be missing from.
async fn with_position(error: Error, config: &Config, memory: &SessionState) -> Error {
    let Error::Definite(Definite { exit: Exit::Unsafe, what, remedy }) = error else { return error };
    let stored = match &config.delivery.positions_topic {
        Some(topic) => tokio::time::timeout(LOOK_UP_TIMEOUT, look_up(config, topic, None)).await,
        None => Ok(Ok(None)),
    };
    // what was found matters more than a broker that does not answer
    let what = match memory.or_stored(stored.ok().and_then(Result::ok).flatten()) {
        Some(remembered) => {
            format!("{what}; Kafka has everything before {}", remembered.position.flush)
        }
        None => what,
    };
    Error::not_safe(what, remedy)
}

/// A session for the stream, or one to look at the catalogues of this server.
async fn connect(config: &Config, looks_at: Option<Host>) -> Result<Session, Error> {
    let timeout = config.postgres.wal_sender_timeout;
    let millis = timeout.as_millis().to_string();
    // A router that is cut off must not keep the slot for the two hours that TCP would wait.
    let mut settings = vec![
        ("wal_sender_timeout", millis.as_str()),
        ("tcp_user_timeout", millis.as_str()),
        ("tcp_keepalives_idle", "5"),
        ("tcp_keepalives_interval", "2"),
        ("tcp_keepalives_count", "3"),
        // what limits a statement of an application is not meant for these
        ("statement_timeout", "0"),
    ];
    settings.extend(VALUE_TEXT);
    // The same in the other direction, unless the user has chosen. What is sent and not answered is found out first here, as
    // long as the server still keeps the slot for this router.
    let mut conninfo = config.postgres.conninfo.clone();
    conninfo.connect_timeout.get_or_insert(timeout);
    conninfo.tcp.tcp_user_timeout.get_or_insert(timeout / 2);
    let replication = looks_at.is_none();
    let patience = lock_wait::patience(timeout);
    let lock_timeout = if replication { 0 } else { patience.as_millis() }.to_string();
    settings.push(("lock_timeout", &lock_timeout));
    if replication {
        // Nor must one that stands still keep the slot's lock. What streams is not idle, and of what bites are read by something is
        // asked now and then.
        settings.push(("idle_session_timeout", millis.as_str()));
    } else {
        // that of a standby waits until the active router is gone
        settings.push(STAYS_OPEN);
    }
    if let Some(host) = looks_at {
        // another of several hosts has another idea of slot and log
        conninfo.hosts = vec![host];
    }
    let name = if replication { config.name.clone() } else { format!("{} watch", config.name) };
    let startup = Startup { replication, application_name: &name, settings: &settings };
    let mut session = Session::connect(&conninfo, &startup).await?;
    // a server that takes a connection and then says nothing is lost too
    session.answers_within(Some(timeout));
    if !replication {
        session.watched_by(
            Watcher::new(&conninfo, session.info(), &name).in_words(advice::in_words).within(patience),
        );
    }
    Ok(session)
}
