//! The start of one session, in the order that keeps two routers apart: Postgres first, then the producer, then the
//! position, then the stream.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::TURN;
use super::free_slot::free_slot;
use super::memory::Memory;
use crate::config::conninfo::Host;
use crate::config::{Config, DeliveryMode};
use crate::error::{Definite, Error, Exit, Peer};
use crate::lsn::Lsn;
use crate::monitor::{Monitor, State};
use crate::outbox::Outbox;
use crate::positions::{self, Handover, OtherLog, Recognition, Remembered, Start};
use crate::postgres::bites;
use crate::postgres::bookmarks::RollingBookmarks;
use crate::postgres::catalog::{self, Catalog, Columns, Missing, Slot, way_out};
use crate::postgres::connect::{STAYS_OPEN, Startup, VALUE_TEXT};
use crate::postgres::dead_letters::desk::{Desk, Left, Loaded};
use crate::postgres::dead_letters::sql as dead_letters;
use crate::postgres::pgoutput::Oid;
use crate::postgres::replication::{ReplicationStream, StreamOf};
use crate::postgres::session::Session;
use crate::postgres::timeline::System;
use crate::postgres::watch::{self, Watch};
use crate::relay::{Ended, Parts, Relay, begins_with_bites, no_gap_to_accept};
use crate::routing::Router;
use crate::shards::{Ids, Shard};
use crate::sink::Outcomes;
use crate::sink::kafka::KafkaSink;
use crate::sink::kafka::positions::{Positions, look_up};

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
    memory: &mut Memory,
) -> Result<Ended, NoSession> {
    let parts = tokio::select! {
        biased;
        () = stop.cancelled() => return Err(NoSession::Stopped),
        never = turning(monitor) => match never {},
        parts = start(config, monitor, stop, memory) => parts,
    };
    let parts = parts.inspect_err(|_| memory.not_started())?;
    (memory.was_active, memory.goes_over) = (true, None);
    let host = parts.watch.host().clone();
    // for as long as the session lasts
    let _bookmarks = RollingBookmarks::start(config, host);
    Ok(Relay::new(parts).run().await)
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
    memory: &mut Memory,
) -> Result<Parts<crate::postgres::stream::Stream>, Error> {
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
    let looked = look_at_tables(config, &catalog, &outbox, looks, memory);
    let (shard, other_slots) = awake(config, &mut session, looked).await?;
    let outbox = outbox.of_shard(shard);
    let reading = catalog.reading(&config.outbox);
    if memory.reading.as_ref().is_some_and(|before| reading.altered_since(before)) {
        return Err(watch::altered(config, &catalog));
    }

    let failed = matches!(monitor.current_state(), State::Reconnecting { peer: Peer::Kafka, .. });
    if !memory.was_active && !failed {
        monitor.state(State::Connecting { peer: Peer::Kafka });
    }
    let outcomes = Arc::new(Outcomes::default());
    let known = Arc::clone(&memory.topics);
    let sink = KafkaSink::open(Arc::clone(config), Arc::clone(&outcomes), memory.batch_bytes, known);
    let mut sink = opened(awake(config, &mut session, sink).await, memory)?;

    let mut positions = Positions::Off;
    let found = (&catalog, &slot, &system, other_slots.as_slice());
    let other_log = memory.other_log.take();
    let started =
        where_to_start(config, &mut session, memory, found, other_log, (&mut sink, &mut positions)).await;
    let (remembered, recognition) = match started {
        Ok((remembered, recognition)) => (remembered, recognition.filter(|_| !memory.handed_over)),
        Err(error) => {
            close(sink, positions).await;
            return Err(error);
        }
    };
    let parking = match parked_events(config, &mut session, memory, &remembered).await {
        Ok(parking) => parking,
        Err(error) => {
            close(sink, positions).await;
            return Err(error);
        }
    };
    let version = session.parameters().get("server_version").cloned().unwrap_or_default();
    let (place, host) = (session.info().place.clone(), session.info().host.clone());
    let backend_pid = session.backend_pid();
    memory.walsender = Some(backend_pid);
    let position = remembered.position.flush;
    let in_bites = recognition.is_none()
        && slot.waits_for.is_empty()
        && begins_with_bites(config, position, system.flush, memory.stream_until);
    // From here on the server finds out that the router is gone: by wal_sender_timeout if it streams.
    let prepared =
        if in_bites { &bites::prepare(config.postgres.wal_sender_timeout) } else { bites::BEFORE_STREAMING };
    if let Err(error) = session.query(prepared).await {
        close(sink, positions).await;
        return Err(error.into());
    }
    let (stream, unread, _) = session.into_parts();
    let slot_name = &config.postgres.slot;
    let unread_rows = way_out::in_commit_order(config, &catalog.tables);
    let what = StreamOf {
        slot: slot_name,
        publication: &config.postgres.publication,
        start: recognition.as_ref().map_or(remembered.position.flush, Recognition::start),
        messages: config.reads_messages()
            || recognition.as_ref().is_some_and(|look| look.message_prefix().is_some()),
    };
    let stream = ReplicationStream::at_rest(stream, unread, &unread_rows);
    let stream = if in_bites { Ok(stream) } else { stream.start(what).await };
    let stream = match stream {
        Ok(stream) => stream,
        Err(error) => {
            close(sink, positions).await;
            return Err(error.into_error(slot_name));
        }
    };
    if memory.fruitless {
        tracing::debug!("connected again");
    } else {
        tracing::info!(
            postgres = place, version, slot = slot_name, position = %remembered.position.flush,
            again = memory.was_active, "connected; events flow"
        );
    }
    monitor.state(State::Active);
    if recognition.is_none() {
        memory.accepted_gap = None;
    }
    memory.remembered = Some(remembered.clone());
    memory.reading = Some(reading.clone());

    Ok(Parts {
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
        watch: Watch::start(Arc::clone(config), host, reading),
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
    })
}

/// Judges what else the catalogues say of the tables. Returns what [`shards`] does.
async fn look_at_tables(
    config: &Config,
    catalog: &Catalog,
    outbox: &Outbox,
    mut looks: Session,
    memory: &Memory,
) -> Result<(Option<(Shard, Ids)>, Vec<String>), Error> {
    if !memory.was_active {
        for (name, table) in config.outbox.tables.iter().zip(&catalog.tables) {
            let Some(table) = table else { continue };
            let columns = Columns::look(&mut looks, table.oid, &config.postgres).await?;
            columns.verdict(outbox, name)?;
        }
    }
    if !config.dead_letters.park() {
        none_left_parked(config, &mut looks).await?;
    }
    let found = shards(config, catalog, &mut looks, memory).await?;
    looks.close().await;
    Ok(found)
}

/// The shard that this router is of, with what its aggregates' ids are; and the slots of this router that are for another number
/// of shards.
async fn shards(
    config: &Config,
    catalog: &Catalog,
    looks: &mut Session,
    memory: &Memory,
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

/// Where there are slots of it for another number of shards, a router goes on that has delivered before, unless they are
/// handing over. Another one would send what these hold once more, or leave it out.
async fn beside_other_shards(
    config: &Config,
    before: Option<&Remembered>,
    slots: &[String],
) -> Result<(), Error> {
    let handover = match &config.delivery.positions_topic {
        Some(topic) => look_up(&config.of_handover(), topic, None).await?,
        None => None,
    };
    let (others, count) = (slots.join(", "), config.shards.count);
    if Handover::is_under_way(handover.as_ref()) {
        return Err(Error::not_safe(
            format!(
                "`outbox-router shards change` was cut off, and the slots of another number of shards are there: {others}"
            ),
            "Run it again, with the new `[shards] count` and the old number as --from: it goes on where it was",
        ));
    }
    // what is remembered may be of a time before the last change: a slot of the same name can be made again
    let owner = Handover::owner(handover.as_ref(), config.slot_of_all());
    if let Some(owner) = owner.filter(|owner| *owner != count) {
        return Err(Error::not_safe(
            format!(
                "the events of {} were handed over to {owner} shards, whose slots are there ({others}), and this router is one of {count}",
                config.name
            ),
            format!(
                "If this is a configuration from before, set `[shards] count = {owner}`. If the number is to be changed, stop all routers \
                 of the other number and run `outbox-router shards change --from {owner}`: it delivers what their slots hold, and \
                 hands over"
            ),
        ));
    }
    if before.is_some_and(|before| before.slot == config.postgres.slot) {
        return Ok(());
    }
    Err(Error::not_safe(
        format!(
            "the router {} has not delivered from the slot {} yet, and there are slots of it for another number of shards than {count}: \
             {others}",
            config.name, config.postgres.slot
        ),
        "If the number is to be changed, stop all routers of the other number and run `outbox-router shards change --from NUMBER`: it \
         delivers what their slots hold, and hands over. If the slots are left over from something else, drop them: SELECT \
         pg_drop_replication_slot(...)",
    ))
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
    memory: &mut Memory,
    remembered: &Remembered,
) -> Result<Option<(Desk, Loaded)>, Error> {
    if !config.dead_letters.park() {
        return Ok(None);
    }
    let left = Left { sent: remembered.retried.clone(), failed: memory.failed_retry.clone() };
    let host = session.info().host.clone();
    let from = remembered.position.flush;
    let desk = Desk::open(config, host, session.backend_pid(), &left, from);
    let (desk, loaded) = awake(config, session, desk).await?;
    memory.failed_retry = None;
    memory.refused.retain(|event, _| event.final_lsn >= from);
    Ok(Some((desk, loaded)))
}

async fn close(sink: KafkaSink, positions: Positions) {
    sink.close().await;
    positions.close().await;
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
fn opened<T>(result: Result<T, Error>, memory: &Memory) -> Result<T, Error> {
    result.map_err(|error| match error {
        Error::Definite(refused) if memory.was_active && refused.exit != Exit::Unsafe => {
            Error::transient(Peer::Kafka, refused.to_string())
        }
        error => error,
    })
}

/// Reads what is remembered, judges it by what was found, says where a start is not what one would expect, and writes
/// down that a new epoch begins there.
async fn where_to_start(
    config: &Arc<Config>,
    session: &mut Session,
    memory: &Memory,
    (catalog, slot, system, other_slots): (&Catalog, &Slot, &System, &[String]),
    other_log: Option<(u64, OtherLog)>,
    (sink, positions): (&mut KafkaSink, &mut Positions),
) -> Result<(Remembered, Option<Recognition>), Error> {
    *positions = opened(awake(config, session, Positions::open(config)).await, memory)?;
    let confirmed = slot.confirmed_flush_lsn.unwrap_or(Lsn::INVALID);
    let stored = opened(awake(config, session, positions.read(config, confirmed)).await, memory)?;
    let before = memory.or_stored(stored);
    // those of a router that only delivers its last part are there on purpose
    if !other_slots.is_empty() && memory.until.is_none() {
        awake(config, session, beside_other_shards(config, before.as_ref(), other_slots)).await?;
    }
    let history = match &before {
        // an older one has no history that could hold the position
        Some(before) if before.timeline > system.timeline => Some(String::new()),
        Some(before) if before.timeline < system.timeline => Some(system.history(session).await?),
        _ => None,
    };
    let reading = catalog.reading(&config.outbox);
    let way_out = catalog.publication_way_out(config);
    let found = positions::Found {
        router: &config.name,
        slot: &config.postgres.slot,
        confirmed,
        system,
        history: history.as_deref(),
        reading: &reading,
        way_out: &way_out,
        // unless a reset has come in between, which settles it
        other_log: other_log
            .filter(|(epoch, _)| before.as_ref().is_some_and(|before| before.epoch == *epoch))
            .map(|(_, other)| other),
    };
    let start = positions::judge(before.as_ref(), &found, memory.accepted_gap)
        .map_err(|gap| gap.refusal(config.shard))?;
    let position = start.position();
    let (tail, reading, recognition) = positions::begin(before.as_ref(), start, confirmed, reading);
    match start {
        Start::First(_) if config.delivery.positions_topic.is_some() => {
            tracing::info!(
                name = config.name, position = %position.flush,
                "no position is remembered under this name: the router starts at the slot's own"
            );
        }
        Start::Accepted(_) => {
            let before = before.as_ref().map(|before| before.position.flush).unwrap_or_default();
            tracing::warn!(%before, position = %position.flush, "the gap was accepted: going on after it");
        }
        Start::Remembered(_) if memory.accepted_gap.is_some() && recognition.is_none() => no_gap_to_accept(),
        Start::First(_) | Start::Remembered(_) => {}
    }
    let replay = before
        .as_ref()
        .and_then(|before| before.replay_at(position, &config.postgres.slot, &system.identifier));
    if let Some(replay) = &replay {
        tracing::info!(
            position = %position.flush, until = %replay.until.flush, reset = replay.mark,
            "the position was reset: events are sent again, and marked"
        );
    }
    let retried = before.as_ref().map(|before| before.retried.clone()).unwrap_or_default();
    // what was accepted is accepted
    let parked =
        before.as_ref().filter(|_| !matches!(start, Start::Accepted(_))).and_then(|before| before.parked);
    let remembered = Remembered {
        epoch: Remembered::next_epoch(before.as_ref()),
        slot: config.postgres.slot.clone(),
        system_identifier: system.identifier.clone(),
        timeline: system.timeline,
        position,
        tail,
        reading,
        replay,
        parked,
        retried,
        exactly_once: config.delivery.mode == DeliveryMode::ExactlyOnce,
    };
    opened(awake(config, session, positions.begin(&remembered, sink)).await, memory)?;
    Ok((remembered, recognition))
}

/// Adds the remembered position to a finding that stops the router: it is where events may be missing from.
async fn with_position(error: Error, config: &Config, memory: &Memory) -> Error {
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
        ("lock_timeout", "0"),
    ];
    settings.extend(VALUE_TEXT);
    // The same in the other direction, unless the user has chosen. What is sent and not answered is found out first here, as
    // long as the server still keeps the slot for this router.
    let mut conninfo = config.postgres.conninfo.clone();
    conninfo.connect_timeout.get_or_insert(timeout);
    conninfo.tcp.tcp_user_timeout.get_or_insert(timeout / 2);
    let replication = looks_at.is_none();
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
    Ok(session)
}
