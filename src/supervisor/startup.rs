//! The start of a session, step by step, in the order that keeps two routers apart: first the slot, then the checkpoint (which ends
//! by shutting others out), then the stream.
//!
//! | step | may end the start with |
//! |---|---|
//! | `Servers::connect` | Postgres is away, or refuses the role |
//! | `Servers::take_slot` | the slot is missing, lost, or another's; waits while a router has it |
//! | `Servers::read_tables` | the tables or the publication cannot be read, or have been altered |
//! | `Kafka::open` | no broker answers, or none lets the router in |
//! | `Kafka::begin` | the checkpoint does not fit the slot, or cannot be written |
//! | `claim` | another router has taken the slot over |
//! | `parked_events` | they cannot be read |
//! | `open_stream` | the server does not stream the slot |

use std::sync::Arc;
use std::time::Duration;

use pg_logical::conninfo::Host;
use pg_logical::replication::{ReplicationStream, StreamOf};
use pg_logical::session::Session;
use pg_logical::stream::Stream;
use pg_logical::{Lsn, Oid, bulk_read};
use tokio_util::sync::CancellationToken;

use super::connections::{awake, connect, opened};
use super::free_slot::free_slot;
use super::session_state::SessionState;
use super::start_position::Looked;
use super::tables::{claim, look_at_tables};
use crate::advice;
use crate::checkpoint::{Checkpoint, Reading, ResumeCheck, SlotRecord, System, latest};
use crate::config::{Config, DeliveryMode};
use crate::error::{Definite, Error, Exit, Peer};
use crate::monitor::{Monitor, State};
use crate::outbox::Outbox;
use crate::pipeline::Pipeline;
use crate::postgres::catalog::{Catalog, Slot, recovery_sql};
use crate::postgres::dead_letters::store::{DeadLetterStore, Unfinished};
use crate::postgres::timeline;
use crate::postgres::watch::{self, Watch};
use crate::routing::Router;
use crate::sink::dead_letters::DeadLetterParts;
use crate::sink::kafka::checkpoint_topic::{CheckpointStore, look_up};
use crate::sink::kafka::properties::transaction_timeout;
use crate::sink::kafka::{DeliveryReports, KafkaParts, Publisher, UNUSED_CLIENT_TIMEOUT};
use crate::source::slot::{SlotParts, begins_with_bulk_reads};

/// How long a checkpoint is looked for that only makes a message more exact.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(10);

/// A session that is ready to run.
pub(super) struct Started {
    pub(super) source: SlotParts<Stream>,
    pub(super) pipeline: Pipeline,
    pub(super) kafka: KafkaParts,
    /// `None`: the router stops at an event that cannot be sent.
    pub(super) dead_letters: Option<DeadLetterParts>,
    pub(super) connected: Connected,
    /// The server that is read.
    pub(super) host: Host,
}

/// What is logged of a session.
#[derive(Clone)]
pub(super) struct Connected {
    postgres: String,
    version: String,
    slot: String,
    position: Lsn,
    again: bool,
}

impl Connected {
    pub(super) fn log(&self) {
        let Connected { postgres, version, slot, position, again } = self;
        tracing::info!(postgres, version, slot, %position, again, "connected; events flow");
    }
}

/// The sessions with Postgres.
struct Servers {
    /// Holds the slot's lock, and will stream.
    stream: Session,
    /// Looks at the catalogues. What a walsender has read of them it decodes with: a query of pg_publication_tables is enough, and
    /// it takes what was written under an earlier publication for unpublished, without a word. So the stream's own session asks
    /// for none.
    looks: Session,
}

/// What Postgres has, once the slot is this router's.
struct Found {
    catalog: Catalog,
    slot: Slot,
    system: System,
}

/// What the tables are read with.
struct Tables {
    outbox: Outbox,
    router: Router,
    reading: Reading,
    /// The router's slots for another number of shards.
    other_slots: Vec<String>,
    /// What the router's schema says of the slot; `None` where events may come twice.
    record: Option<SlotRecord>,
}

/// The clients with which the session will send. No event was sent yet.
struct Kafka {
    publisher: Publisher,
    delivery_reports: Arc<DeliveryReports>,
    store: CheckpointStore,
}

/// Starts a session.
pub(super) async fn start(
    config: &Arc<Config>,
    monitor: &Monitor,
    stop: &CancellationToken,
    memory: &mut SessionState,
) -> Result<Started, Error> {
    // an attempt may take long, and the reason why the last one failed is worth more than that one is made
    if !memory.was_active && !matches!(monitor.current_state(), State::Reconnecting { .. }) {
        monitor.state(State::Connecting { peer: Peer::Postgres });
    }
    let mut servers = Servers::connect(config).await?;
    let found = match servers.take_slot(config, monitor, memory).await {
        Ok(found) => found,
        Err(error) => return Err(with_position(error, config, memory).await),
    };
    let tables = servers.read_tables(config, &found, memory).await?;
    connecting_to_kafka(monitor, memory);
    let mut kafka = Kafka::open(config, &mut servers.stream, memory).await?;
    let begun = begin(config, servers, &found, &tables, &mut kafka, monitor, memory).await;
    let Begun { checkpoint, resume_check, dead_letters, stream, connected, host, backend_pid } = match begun {
        Ok(begun) => begun,
        Err(error) => {
            kafka.close().await;
            return Err(error);
        }
    };
    if memory.fruitless {
        tracing::debug!("connected again");
    } else {
        connected.log();
    }
    monitor.state(State::Active);
    if resume_check.is_none() {
        memory.accepted_gap = None;
    }
    memory.remembered = Some(checkpoint.clone());
    memory.reading = Some(tables.reading.clone());
    let position = checkpoint.position.flush;
    let pipeline = Pipeline::new(
        tables.outbox,
        tables.router,
        checkpoint.replay.clone(),
        found.system.flush,
        config.outbox.on_update,
        monitor.clone(),
    );
    let source = SlotParts {
        config: Arc::clone(config),
        stream,
        watch: Watch::start(
            &config.name,
            config.source(),
            config.heartbeat,
            host.clone(),
            backend_pid,
            tables.reading,
        ),
        confirmed: found.confirmed(),
        resume_check,
        gap_accepted: memory.accepted_gap.is_some_and(|gap| gap != position),
        head: found.system.flush,
        until: memory.until,
        stream_until: memory.stream_until,
        backend_pid,
        monitor: monitor.clone(),
    };
    let kafka = KafkaParts {
        publisher: kafka.publisher,
        delivery_reports: kafka.delivery_reports,
        store: kafka.store,
        resumed_from: checkpoint,
        transaction_size: memory.transaction_size,
        transaction_timeout: transaction_timeout(config),
        suspect: memory.suspect,
        message_prefix: config.outbox.message_prefix.clone(),
        monitor: monitor.clone(),
        stop: stop.clone(),
    };
    Ok(Started { source, pipeline, kafka, dead_letters, connected, host })
}

/// Where the session begins, and what it reads from.
struct Begun {
    checkpoint: Checkpoint,
    /// What has to come first, if the slot may be of another log.
    resume_check: Option<ResumeCheck>,
    dead_letters: Option<DeadLetterParts>,
    stream: ReplicationStream<Stream>,
    connected: Connected,
    host: Host,
    backend_pid: i32,
}

/// The steps after which Kafka's clients have to be closed if one fails.
async fn begin(
    config: &Arc<Config>,
    mut servers: Servers,
    found: &Found,
    tables: &Tables,
    kafka: &mut Kafka,
    monitor: &Monitor,
    memory: &mut SessionState,
) -> Result<Begun, Error> {
    let (checkpoint, resume_check) = kafka.begin(config, &mut servers.stream, found, tables, memory).await?;
    let claimed = claim(config, servers.looks);
    awake(config, &mut servers.stream, claimed).await?;
    let session = &mut servers.stream;
    let dead_letters = parked_events(config, session, tables, monitor, memory, &checkpoint).await?;
    let connected = Connected {
        postgres: session.info().place.clone(),
        version: session.parameters().get("server_version").cloned().unwrap_or_default(),
        slot: config.postgres.slot.clone(),
        position: checkpoint.position.flush,
        again: memory.was_active,
    };
    let (host, backend_pid) = (session.info().host.clone(), session.backend_pid());
    let stream =
        open_stream(config, servers.stream, found, &checkpoint, resume_check.as_ref(), memory).await?;
    Ok(Begun { checkpoint, resume_check, dead_letters, stream, connected, host, backend_pid })
}

impl Servers {
    async fn connect(config: &Config) -> Result<Self, Error> {
        let mut stream = connect(config, None).await?;
        let looks = connect(config, Some(stream.info().host.clone()));
        let looks = awake(config, &mut stream, looks).await?;
        Ok(Servers { stream, looks })
    }

    /// Waits until no other router has the slot, and takes it.
    async fn take_slot(
        &mut self,
        config: &Config,
        monitor: &Monitor,
        memory: &mut SessionState,
    ) -> Result<Found, Error> {
        let (catalog, slot) = free_slot(&mut self.stream, &mut self.looks, config, monitor, memory).await?;
        // after the wait for the slot, for the end of the log must not be older than the slot's position
        let system = timeline::identify(&mut self.stream).await?;
        Ok(Found { catalog, slot, system })
    }

    async fn read_tables(
        &mut self,
        config: &Config,
        found: &Found,
        memory: &SessionState,
    ) -> Result<Tables, Error> {
        let catalog = &found.catalog;
        let router = Router::of(config).with_contracts(config, memory.contracts.clone());
        let oids = catalog.tables.iter().map(|table| table.as_ref().map(|table| Oid(table.oid)));
        let outbox = Outbox::of(config, router.extra_columns()).known_as(oids);
        let looked = look_at_tables(config, catalog, &outbox, &mut self.looks, memory);
        let (shard, other_slots, record) = awake(config, &mut self.stream, looked).await?;
        let reading = catalog.reading(&config.outbox);
        if memory.reading.as_ref().is_some_and(|before| reading.altered_since(before)) {
            return Err(watch::altered(config.source(), catalog));
        }
        Ok(Tables { outbox: outbox.of_shard(shard), router, reading, other_slots, record })
    }
}

impl Found {
    fn confirmed(&self) -> Lsn {
        self.slot.confirmed_flush_lsn.unwrap_or(Lsn::INVALID)
    }
}

/// Shows that Kafka is waited for, unless a better reason is shown.
fn connecting_to_kafka(monitor: &Monitor, memory: &SessionState) {
    let state = monitor.current_state();
    let failed = matches!(state, State::Reconnecting { peer: Peer::Kafka, .. });
    if !memory.was_active && !failed || matches!(state, State::Connecting { .. }) {
        monitor.state(State::Connecting { peer: Peer::Kafka });
    }
}

impl Kafka {
    async fn open(config: &Arc<Config>, session: &mut Session, memory: &SessionState) -> Result<Self, Error> {
        let delivery_reports = Arc::new(DeliveryReports::default());
        let known = Arc::clone(&memory.topics);
        let publisher =
            Publisher::open(Arc::clone(config), Arc::clone(&delivery_reports), memory.batch_bytes, known);
        let publisher = opened(awake(config, session, publisher).await, memory)?;
        Ok(Kafka { publisher, delivery_reports, store: CheckpointStore::Off })
    }

    /// Decides where the session begins, and writes that down.
    async fn begin(
        &mut self,
        config: &Arc<Config>,
        session: &mut Session,
        found: &Found,
        tables: &Tables,
        memory: &mut SessionState,
    ) -> Result<(Checkpoint, Option<ResumeCheck>), Error> {
        let looked = Looked {
            catalog: &found.catalog,
            slot: &found.slot,
            system: &found.system,
            other_slots: &tables.other_slots,
            other_log: memory.other_log.take(),
            record: tables.record.as_ref(),
        };
        let (checkpoint, resume_check) =
            looked.begin(config, session, memory, &mut self.publisher, &mut self.store).await?;
        Ok((checkpoint, resume_check.filter(|_| !memory.handed_over)))
    }

    async fn close(self) {
        self.publisher.close_unused().await;
        let _ = tokio::time::timeout(UNUSED_CLIENT_TIMEOUT, self.store.close()).await;
    }
}

/// What is parked has to be known before the first event comes.
async fn parked_events(
    config: &Arc<Config>,
    session: &mut Session,
    tables: &Tables,
    monitor: &Monitor,
    memory: &mut SessionState,
    checkpoint: &Checkpoint,
) -> Result<Option<DeadLetterParts>, Error> {
    if !config.dead_letters.park() {
        return Ok(None);
    }
    let unfinished = Unfinished { sent: checkpoint.retried.clone(), failed: memory.failed_retry.clone() };
    let host = session.info().host.clone();
    let from = checkpoint.position.flush;
    let locked = |reason: String| {
        monitor.last_problem(reason.clone());
        monitor.state(State::Reconnecting { peer: Peer::Postgres, reason });
    };
    let store = DeadLetterStore::open(
        &config.name,
        &config.postgres,
        host,
        session.backend_pid(),
        &unfinished,
        from,
        locked,
    );
    let (store, loaded) = awake(config, session, store).await?;
    memory.failed_retry = None;
    memory.refused.retain(|event, _| event.final_lsn >= from);
    let router = Router::of(config).with_contracts(config, memory.contracts.clone());
    let outbox = Outbox::of(config, tables.router.extra_columns());
    Ok(Some(DeadLetterParts {
        store,
        loaded,
        max_aggregates: config.dead_letters.max_aggregates,
        refused: memory.refused.clone(),
        retry_alone: memory.retry_alone,
        required_log_end: checkpoint.parked,
        pipeline: (outbox, router),
        transactional: config.delivery.mode == DeliveryMode::ExactlyOnce,
        with_checkpoints: config.delivery.positions_topic.is_some(),
        monitor: monitor.clone(),
    }))
}

/// Makes the session one that streams, or that reads in bulk. From here on the server finds out that the router is gone: by
/// wal_sender_timeout if it streams.
async fn open_stream(
    config: &Config,
    mut session: Session,
    found: &Found,
    checkpoint: &Checkpoint,
    resume_check: Option<&ResumeCheck>,
    memory: &SessionState,
) -> Result<ReplicationStream<Stream>, Error> {
    let position = checkpoint.position.flush;
    let in_bulk = resume_check.is_none()
        && found.slot.waits_for.is_empty()
        && begins_with_bulk_reads(config, position, found.system.flush, memory.stream_until);
    let prepared = if in_bulk {
        &bulk_read::prepare(config.postgres.wal_sender_timeout)
    } else {
        bulk_read::BEFORE_STREAMING
    };
    session.query(prepared).await?;
    let (stream, unread, _) = session.into_parts();
    let unread_rows = recovery_sql::in_commit_order(config.source(), &found.catalog.tables);
    let stream = ReplicationStream::at_rest(stream, unread, &unread_rows);
    if in_bulk {
        return Ok(stream);
    }
    let slot = &config.postgres.slot;
    let what = StreamOf {
        slot,
        publication: &config.postgres.publication,
        start: resume_check.map_or(position, ResumeCheck::start),
        messages: config.reads_messages() || resume_check.is_some_and(|look| look.message_prefix().is_some()),
    };
    stream.start(what).await.map_err(|error| advice::not_started(error, slot))
}

/// Adds the remembered position to a finding that stops the router: it is where events may be missing from.
async fn with_position(error: Error, config: &Config, memory: &SessionState) -> Error {
    let Error::Definite(Definite { exit: Exit::Unsafe, what, remedy }) = error else { return error };
    let stored = tokio::time::timeout(LOOK_UP_TIMEOUT, look_up(config, None)).await;
    // what was found matters more than a broker that does not answer
    let what = match latest(memory.remembered.as_ref(), stored.ok().and_then(Result::ok).flatten()) {
        Some(remembered) => {
            format!("{what}; Kafka has everything before {}", remembered.position.flush)
        }
        None => what,
    };
    Error::not_safe(what, remedy)
}
