//! The start of a session, step by step, in the order that keeps two routers apart: first the slot, then the checkpoint (see
//! `start_position`), then the stream.
//!
//! | step | may end the start with |
//! |---|---|
//! | `Sessions::connect` | Postgres is unreachable or refuses the role |
//! | `Sessions::take_slot` | the slot is missing, lost or owned by another router; waits while another router holds it |
//! | `Sessions::read_tables` | the tables or the publication cannot be read, or were altered |
//! | `Kafka::open` | no broker answers, or none accepts the router |
//! | `Kafka::begin` | the checkpoint does not match the slot, or cannot be written |
//! | `claim` | the claim cannot be written (exactly-once), or the connection is lost |
//! | `parked::open` | the parked events cannot be read |
//! | `open_stream` | the server does not stream the slot |
//! | `backfill::connect` | instead, if rows from before the slot are not sent yet: they cannot be read |

use std::sync::Arc;
use std::time::Duration;

use pg_logical::conninfo::Host;
use pg_logical::replication::{ReplicationStream, StreamOf};
use pg_logical::session::Session;
use pg_logical::stream::Stream;
use pg_logical::{Lsn, Oid, bulk_read};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::acquire_slot::{Acquired, acquire_slot};
use super::connections::{connect, keep_alive, transient_if_active};
use super::session_state::SessionState;
use super::start_position::StartInputs;
use super::tables::{CheckedTables, check_tables, claim};
use super::{backfill, parked};
use crate::advice;
use crate::checkpoint::{Alteration, Checkpoint, ResumeCheck, SlotRecord, StreamDefinition, System, latest};
use crate::config::Config;
use crate::error::{Definite, Error, Exit, Peer};
use crate::monitor::{Monitor, State};
use crate::outbox::Outbox;
use crate::pipeline::{Pipeline, PresentColumns};
use crate::postgres::alteration;
use crate::postgres::backfills::Backfill;
use crate::postgres::catalog::{self, Catalog, Slot};
use crate::postgres::log_comparison::compare;
use crate::postgres::timeline;
use crate::postgres::watch::Watch;
use crate::routing::Router;
use crate::sink::dead_letters::DeadLetterParts;
use crate::sink::kafka::checkpoint_topic::{CheckpointStore, look_up};
use crate::sink::kafka::properties::transaction_timeout;
use crate::sink::kafka::{DeliveryReports, KafkaParts, Publisher, UNUSED_CLIENT_TIMEOUT};
use crate::source::slot::{SlotParts, begins_with_bulk_reads};
use crate::source::table::backfilled::{BackfillParts, BackfilledRows};

/// How long to look for a checkpoint that only makes an error message more precise.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(10);

/// A session that is ready to run.
pub(super) struct Started {
    pub(super) source: StartedSource,
    pub(super) pipeline: Pipeline,
    pub(super) kafka: KafkaParts,
    /// `None`: an event that cannot be sent stops the router.
    pub(super) dead_letters: Option<DeadLetterParts>,
    pub(super) connected: Connected,
    /// The server of the stream.
    pub(super) host: Host,
}

/// What the session reads.
pub(super) enum StartedSource {
    Slot(Box<SlotParts<Stream>>),
    /// Rows from before it, first.
    Backfill(Box<BackfillParts>),
}

/// The fields of the log line of a session.
#[derive(Clone)]
pub(super) struct Connected {
    postgres: String,
    version: String,
    slot: String,
    position: Lsn,
    again: bool,
    /// Why the server has ended the last session, if that was no failure.
    reason: Option<String>,
}

impl Connected {
    pub(super) fn log(&self) {
        let Connected { postgres, version, slot, position, again, reason } = self;
        tracing::info!(postgres, version, slot, %position, again, reason, "connected; events flow");
    }
}

/// The two Postgres sessions of a router.
struct Sessions {
    /// Holds the slot's lock, and streams later.
    stream: Session,
    /// Queries the catalogues. A walsender decodes with the catalogue contents that it has cached: after a query of
    /// pg_publication_tables it silently treats changes under an earlier publication as unpublished. So the streaming session
    /// runs no such query.
    catalog: Session,
}

/// The state of the server once this router holds the slot.
struct ServerState {
    catalog: Catalog,
    slot: Slot,
    /// The lock was taken over from the last session, so the server and its log are the same as before.
    handed_over: bool,
    system: System,
}

/// How to read the outbox tables.
struct Tables {
    outbox: Outbox,
    router: Router,
    definition: StreamDefinition,
    /// This router's slots for another number of shards.
    other_slots: Vec<String>,
    /// The slot's row in the router's schema, if it could be read and counts.
    record: Option<SlotRecord>,
    present: PresentColumns,
    /// Rows from before the slot that are not sent yet.
    backfill: Option<Box<Backfill>>,
}

/// The Kafka clients of the session, before the first event.
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
    state: &mut SessionState,
) -> Result<Started, Error> {
    connecting_to_postgres(monitor, state);
    let mut sessions = timed("connect to Postgres", Sessions::connect(config)).await?;
    let found = match timed("take the slot", sessions.take_slot(config, monitor, state)).await {
        Ok(found) => found,
        Err(error) => return Err(with_position(error, config, state).await),
    };
    let tables = timed("read the tables", sessions.read_tables(config, &found, state)).await?;
    connecting_to_kafka(monitor, state);
    let mut kafka = timed("connect to Kafka", Kafka::open(config, &mut sessions.stream, state)).await?;
    let begun = begin(config, sessions, &found, &tables, &mut kafka, monitor, state).await;
    let SessionParts { checkpoint, resume_check, dead_letters, opened, connected, host, backend_pid } =
        match begun {
            Ok(begun) => begun,
            Err(error) => {
                kafka.close().await;
                return Err(error);
            }
        };
    if state.no_progress {
        tracing::debug!("connected again");
    } else {
        connected.log();
    }
    monitor.state(State::Active);
    if resume_check.is_none() {
        state.accepted_gap = None;
    }
    state.checkpoint = Some(checkpoint.clone());
    state.definition = Some(tables.definition.clone());
    state.unwatched = catalog::unwatched(config.source(), &found.catalog.tables);
    let position = checkpoint.position.flush;
    let (source, pipeline, start) = match opened {
        Opened::Stream(stream) => {
            state.streamed = true;
            let pipeline = Pipeline::new(
                tables.outbox,
                tables.router,
                checkpoint.replay.clone(),
                found.system.flush,
                config.outbox.on_update,
                monitor.clone(),
            )
            .with_present_columns(tables.present);
            let source = SlotParts {
                config: Arc::clone(config),
                stream: *stream,
                watch: Watch::start(
                    &config.name,
                    config.source(),
                    config.heartbeat,
                    host.clone(),
                    backend_pid,
                    tables.definition,
                    state.unwatched.clone(),
                ),
                confirmed: found.confirmed(),
                resume_check,
                gap_accepted: state.accepted_gap.is_some_and(|gap| gap != position),
                head: found.system.flush,
                until: state.until,
                stream_until: state.stream_until,
                backend_pid,
                monitor: monitor.clone(),
            };
            (StartedSource::Slot(Box::new(source)), pipeline, checkpoint.position)
        }
        Opened::Backfill(opened) => {
            let (parts, pipeline) = *opened;
            let start = BackfilledRows::start(parts.backfill.done.rows);
            (StartedSource::Backfill(Box::new(parts)), pipeline, start)
        }
    };
    let kafka = KafkaParts {
        publisher: kafka.publisher,
        delivery_reports: kafka.delivery_reports,
        store: kafka.store,
        start,
        resumed_from: checkpoint,
        transaction_size: state.transaction_size,
        transaction_timeout: transaction_timeout(config),
        suspect: state.suspect,
        message_prefix: config.outbox.message_prefix.clone(),
        monitor: monitor.clone(),
        stop: stop.clone(),
    };
    Ok(Started { source, pipeline, kafka, dead_letters, connected, host })
}

/// Logs how long a step of the start takes.
async fn timed<T>(step: &str, running: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let done = running.await;
    tracing::debug!(step, ms = begun.elapsed().as_secs_f64() * 1000.0, "a step of the start is over");
    done
}

/// What is read.
enum Opened {
    Stream(Box<ReplicationStream<Stream>>),
    Backfill(Box<(BackfillParts, Pipeline)>),
}

/// The parts of a session that the last steps of a start create.
struct SessionParts {
    checkpoint: Checkpoint,
    /// The resume check, if the slot may belong to another log.
    resume_check: Option<ResumeCheck>,
    dead_letters: Option<DeadLetterParts>,
    opened: Opened,
    connected: Connected,
    host: Host,
    backend_pid: i32,
}

/// The last steps. If one fails, the caller closes the Kafka clients.
async fn begin(
    config: &Arc<Config>,
    mut sessions: Sessions,
    found: &ServerState,
    tables: &Tables,
    kafka: &mut Kafka,
    monitor: &Monitor,
    state: &mut SessionState,
) -> Result<SessionParts, Error> {
    let resumed = kafka.begin(config, &mut sessions.stream, found, tables, state);
    let (checkpoint, resume_check) = timed("read and write the checkpoint", resumed).await?;
    let claimed = claim(config, sessions.catalog);
    timed("claim the slot", keep_alive(config, &mut sessions.stream, claimed)).await?;
    // unless it turned out that they were sent
    let backfill = tables.backfill.clone().filter(|_| checkpoint.backfill.is_some());
    let backfill = backfill.map(|backfill| backfill.with_checkpoint(checkpoint.backfill.as_ref()));
    let session = &mut sessions.stream;
    let dead_letters = parked::open(
        config,
        session,
        tables.router.extra_columns(),
        monitor,
        state,
        &checkpoint,
        backfill.as_deref(),
    );
    let dead_letters = timed("read the parked events", dead_letters).await?;
    let connected = Connected {
        postgres: session.info().place.clone(),
        version: session.parameters().get("server_version").cloned().unwrap_or_default(),
        slot: config.postgres.slot.clone(),
        position: checkpoint.position.flush,
        again: state.was_active,
        reason: state.idle_end.as_ref().map(|end| end.what.clone()),
    };
    let (host, backend_pid) = (session.info().host.clone(), session.backend_pid());
    let opened = match backfill {
        None => {
            let stream =
                open_stream(config, sessions.stream, found, &checkpoint, resume_check.as_ref(), state);
            Opened::Stream(Box::new(timed("start the stream", stream).await?))
        }
        Some(backfill) => {
            let reading = backfill::connect(config, backfill, host.clone(), state);
            let reading = keep_alive(config, &mut sessions.stream, reading).await?;
            let place = (checkpoint.clone(), tables.definition.clone(), found.system.flush);
            let rows = backfill::start(config, reading, sessions.stream, place, state, monitor);
            Opened::Backfill(Box::new(timed("begin to read rows", rows).await?))
        }
    };
    Ok(SessionParts { checkpoint, resume_check, dead_letters, opened, connected, host, backend_pid })
}

impl Sessions {
    async fn connect(config: &Config) -> Result<Self, Error> {
        let mut stream = connect(config, None).await?;
        let catalog = connect(config, Some(stream.info().host.clone()));
        let catalog = keep_alive(config, &mut stream, catalog).await?;
        Ok(Sessions { stream, catalog })
    }

    /// Waits until no other router has the slot, and takes it.
    async fn take_slot(
        &mut self,
        config: &Config,
        monitor: &Monitor,
        state: &mut SessionState,
    ) -> Result<ServerState, Error> {
        let Acquired { catalog, slot, handed_over } =
            acquire_slot(&mut self.stream, &mut self.catalog, config, monitor, state).await?;
        // only after the wait, since the end of the log must not be older than the slot's position
        let system = timeline::identify(&mut self.stream).await?;
        Ok(ServerState { catalog, slot, handed_over, system })
    }

    async fn read_tables(
        &mut self,
        config: &Config,
        found: &ServerState,
        state: &SessionState,
    ) -> Result<Tables, Error> {
        let catalog = &found.catalog;
        let router = Router::of(config).with_contracts(config, state.contracts.clone());
        let oids = catalog.tables.iter().map(|table| table.as_ref().map(|table| Oid(table.oid)));
        let outbox = Outbox::of(config, router.extra_columns()).with_oids(oids);
        let checked = check_tables(config, catalog, &outbox, &mut self.catalog, state);
        let CheckedTables { shard, other_slots, record, present } =
            keep_alive(config, &mut self.stream, checked).await?;
        let definition = catalog.stream_definition(&config.outbox);
        if let Some(before) = &state.definition {
            let hosts = vec![self.stream.info().host.clone()];
            let unaltered = unaltered(config, catalog, before, &definition, hosts);
            keep_alive(config, &mut self.stream, unaltered).await?;
        }
        let unfinished = backfill::unfinished(config, &mut self.catalog, state);
        let backfill = keep_alive(config, &mut self.stream, unfinished).await?;
        Ok(Tables {
            outbox: outbox.of_shard(shard),
            router,
            definition,
            other_slots,
            record,
            present,
            backfill,
        })
    }
}

/// Refuses to go on in a process whose last session had the definition `before`, if rows are missing since.
async fn unaltered(
    config: &Config,
    catalog: &Catalog,
    before: &StreamDefinition,
    definition: &StreamDefinition,
    hosts: Vec<Host>,
) -> Result<(), Error> {
    let source = config.source();
    match definition.alteration_since(before) {
        Alteration::None => Ok(()),
        Alteration::Replaced => {
            Err(alteration::altered(source, catalog, &definition.missing_since(before, None)))
        }
        Alteration::Renamed | Alteration::Touched => {
            let left_out = Box::pin(compare(source, &catalog.tables, hosts, None)).await?;
            alteration::judge(source, catalog, before, &left_out)
        }
    }
}

impl ServerState {
    fn confirmed(&self) -> Lsn {
        self.slot.confirmed_flush_lsn.unwrap_or(Lsn::INVALID)
    }
}

/// Shows that the router connects to Postgres.
pub(super) fn connecting_to_postgres(monitor: &Monitor, state: &SessionState) {
    // the reason of the last failure is worth more than "connecting", and an attempt may take long
    if !state.was_active && !matches!(monitor.current_state(), State::Reconnecting { .. }) {
        monitor.state(State::Connecting { peer: Peer::Postgres });
    }
}

/// Shows that the router connects to Kafka, unless a failure of Kafka is shown.
pub(super) fn connecting_to_kafka(monitor: &Monitor, state: &SessionState) {
    let shown = monitor.current_state();
    let failed = matches!(shown, State::Reconnecting { peer: Peer::Kafka, .. });
    if !state.was_active && !failed || matches!(shown, State::Connecting { .. }) {
        monitor.state(State::Connecting { peer: Peer::Kafka });
    }
}

impl Kafka {
    async fn open(config: &Arc<Config>, session: &mut Session, state: &SessionState) -> Result<Self, Error> {
        let delivery_reports = Arc::new(DeliveryReports::default());
        let known = Arc::clone(&state.topics);
        let publisher =
            Publisher::open(Arc::clone(config), Arc::clone(&delivery_reports), state.batch_bytes, known);
        let publisher = transient_if_active(keep_alive(config, session, publisher).await, state)?;
        Ok(Kafka { publisher, delivery_reports, store: CheckpointStore::Off })
    }

    /// Decides where the session resumes, and writes its first checkpoint.
    async fn begin(
        &mut self,
        config: &Arc<Config>,
        session: &mut Session,
        found: &ServerState,
        tables: &Tables,
        state: &mut SessionState,
    ) -> Result<(Checkpoint, Option<ResumeCheck>), Error> {
        let inputs = StartInputs {
            catalog: &found.catalog,
            slot: &found.slot,
            system: &found.system,
            other_slots: &tables.other_slots,
            log_mismatch: state.log_mismatch.take(),
            record: tables.record.as_ref(),
            backfill: tables.backfill.as_deref(),
            left_out: OnceCell::new(),
        };
        let (checkpoint, resume_check) =
            inputs.begin(config, session, state, &mut self.publisher, &mut self.store).await?;
        Ok((checkpoint, resume_check.filter(|_| !found.handed_over)))
    }

    async fn close(self) {
        self.publisher.close_unused().await;
        let _ = tokio::time::timeout(UNUSED_CLIENT_TIMEOUT, self.store.close()).await;
    }
}

/// Starts the stream, or prepares the session for bulk reads. From here on the server notices a dead router, by
/// wal_sender_timeout if it streams.
async fn open_stream(
    config: &Config,
    mut session: Session,
    found: &ServerState,
    checkpoint: &Checkpoint,
    resume_check: Option<&ResumeCheck>,
    state: &mut SessionState,
) -> Result<ReplicationStream<Stream>, Error> {
    let position = checkpoint.position.flush;
    let in_bulk = resume_check.is_none()
        && found.slot.waits_for.is_empty()
        && begins_with_bulk_reads(config, position, found.system.flush, state.stream_until);
    let prepared = if in_bulk {
        &bulk_read::prepare(config.postgres.wal_sender_timeout)
    } else {
        bulk_read::BEFORE_STREAMING
    };
    session.query(prepared).await?;
    let (stream, unread, _) = session.into_parts();
    state.recovery = found.catalog.recovery_steps(config.source(), position);
    let stream = ReplicationStream::new(stream, unread);
    if in_bulk {
        return Ok(stream);
    }
    let slot = &config.postgres.slot;
    let what = StreamOf {
        slot,
        publication: &config.postgres.publication,
        start: resume_check.map_or(position, ResumeCheck::start),
        messages: config.reads_messages()
            || resume_check.is_some_and(|check| check.message_prefix().is_some()),
    };
    stream.start(what).await.map_err(|error| advice::not_started(error, slot))
}

/// Adds the stored position to an error that stops the router: events after it may be missing.
async fn with_position(error: Error, config: &Config, state: &SessionState) -> Error {
    let Error::Definite(mut definite @ Definite { exit: Exit::Unsafe, .. }) = error else { return error };
    let stored = tokio::time::timeout(LOOK_UP_TIMEOUT, look_up(config, None)).await;
    // what was found matters more than a broker that does not answer
    if let Some(checkpoint) = latest(state.checkpoint.as_ref(), stored.ok().and_then(Result::ok).flatten()) {
        // rows from before the slot come first
        if checkpoint.backfill.is_none() {
            definite.what +=
                &format!("; every event before {} is in Kafka or parked", checkpoint.position.flush);
        }
    }
    definite.into()
}
