//! A session of a router that polls.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use pg_logical::Lsn;
use pg_logical::connect::Startup;
use pg_logical::session::Session;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::connections::transient_if_active;
use super::session::{SessionEnded, StartError, until_stopped};
use super::session_state::SessionState;
use super::startup::{connecting_to_kafka, connecting_to_postgres};
use crate::config::Config;
use crate::error::{Error, Peer};
use crate::monitor::{Monitor, State};
use crate::outbox::Outbox;
use crate::pipeline::Pipeline;
use crate::postgres::polling::messages::{RouterChannels, RowResult};
use crate::postgres::polling::sql::PolledTable;
use crate::postgres::polling::table::Found;
use crate::postgres::polling::worker::{self, WorkerParts};
use crate::progress::Position;
use crate::relay::{Ended, Outcome, Relay, Window};
use crate::routing::Router;
use crate::sink::kafka::{
    DeliveryReports, KafkaEnd, KafkaParts, KafkaSink, Publisher, Suspect, UNUSED_CLIENT_TIMEOUT,
};
use crate::sink::row_status::{RowStatus, RowStatusEnd};
use crate::source::table::polled::PolledRows;
use crate::source::table::rows::{place_of_first, rows_up_to};

/// How long one attempt to connect to Postgres may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How many rows may be claimed and not yet marked: enough for Kafka to be busy while rows are claimed and marked.
const MAX_ROWS: usize = 5_000;

/// How long the worker may take to end.
const WORKER_TIMEOUT: Duration = Duration::from_secs(8);

/// A session that is ready to run.
struct Started {
    source: PolledRows,
    pipeline: Pipeline,
    sink: RowStatus<KafkaSink>,
    worker: JoinHandle<()>,
}

/// How to read the table.
struct Table {
    found: Found,
    statements: PolledTable,
    columns: Vec<String>,
    router: Router,
    outbox: Outbox,
    token: String,
}

/// Starts a session and runs it to its end. In a box, since otherwise the stack of a router would have room for sessions of both kinds.
pub(super) fn run<'a>(
    config: &'a Arc<Config>,
    monitor: &'a Monitor,
    stop: &'a CancellationToken,
    state: &'a mut SessionState,
) -> Pin<Box<dyn Future<Output = Result<SessionEnded, StartError>> + 'a>> {
    Box::pin(session(config, monitor, stop, state))
}

async fn session(
    config: &Arc<Config>,
    monitor: &Monitor,
    stop: &CancellationToken,
    state: &mut SessionState,
) -> Result<SessionEnded, StartError> {
    let started = {
        let starting = pin!(start(config, monitor, stop, state));
        until_stopped(monitor, stop, starting).await?
    };
    let Started { source, pipeline, sink, worker } = started?;
    state.was_active = true;
    let delivery = &config.delivery;
    let window = Window::new(delivery.window_records, delivery.window_bytes);
    let timeout = delivery.shutdown_timeout;
    let relay = Relay::new(source, pipeline, sink, Position::default(), window, monitor.clone(), timeout);
    let Ended { outcome, unacknowledged, source: (), sink } = relay.run(stop).await;
    let RowStatusEnd { inner, results, settled } = sink;
    state.suspect = remaining(state.suspect, settled);
    let kafka = blame(inner, &outcome, results, unacknowledged);
    // it stores what is known of the rows
    let mut worker = worker;
    if tokio::time::timeout(WORKER_TIMEOUT, &mut worker).await.is_err() {
        worker.abort();
    }
    monitor.session_ended();
    Ok(SessionEnded { outcome, unacknowledged, slot: None, kafka, retry: None })
}

/// The suspects of the next session, which numbers rows anew: those that this one has not settled.
fn remaining(suspect: Suspect, settled: u64) -> Suspect {
    let Suspect::UpTo(place) = suspect else { return Suspect::None };
    match rows_up_to(place).saturating_sub(settled) {
        0 => Suspect::None,
        left => Suspect::UpTo(place_of_first(left)),
    }
}

/// After a refusal: stores it if the record was sent alone. Otherwise the next session sends as many rows one at a time as were in
/// flight; it numbers rows anew.
fn blame(
    mut kafka: KafkaEnd,
    outcome: &Outcome,
    results: UnboundedSender<RowResult>,
    in_flight: usize,
) -> KafkaEnd {
    let Outcome::Refused(refusal) = outcome else { return kafka };
    if kafka.alone.is_some() && !refusal.transient {
        let _ = results.send(RowResult::Refused(refusal.last, refusal.why.with_reason()));
    }
    kafka.last_suspect = kafka.last_suspect.map(|_| place_of_first(in_flight as u64));
    kafka
}

async fn start(
    config: &Arc<Config>,
    monitor: &Monitor,
    stop: &CancellationToken,
    state: &mut SessionState,
) -> Result<Started, Error> {
    connecting_to_postgres(monitor, state);
    let mut session = connect(config).await?;
    let table = transient_if_active(table(config, &mut session, state).await, state)?;
    connecting_to_kafka(monitor, state);
    let delivery_reports = Arc::new(DeliveryReports::default());
    let publisher = Publisher::open(
        Arc::clone(config),
        Arc::clone(&delivery_reports),
        state.batch_bytes,
        Arc::clone(&state.topics),
    );
    let publisher = transient_if_active(publisher.await, state)?;
    let (postgres, version) =
        (session.info().place.clone(), session.parameters().get("server_version").cloned());
    let listens = config.polling.as_ref().is_some_and(|polling| polling.notify);
    if listens && !table.found.wakes() {
        tracing::warn!(
            remedy = "outbox-router check",
            "`[source] notify` is set, but no trigger on the outbox table wakes this router: it finds rows up to 200 ms later"
        );
    }
    let started = worker::start(WorkerParts {
        listens: listens && table.found.wakes(),
        session,
        table: table.statements,
        columns: table.columns.clone(),
        token: table.token.clone(),
        last_token: state.token.clone(),
        lease: config.polling.as_ref().map_or(Duration::ZERO, |polling| polling.lease),
        max_rows: config.delivery.window_records.min(MAX_ROWS),
        max_bytes: config.delivery.window_bytes,
    });
    let (channels, worker) = match started.await {
        Ok(started) => started,
        Err(error) => {
            let _ = tokio::time::timeout(UNUSED_CLIENT_TIMEOUT, publisher.close_unused()).await;
            return Err(error);
        }
    };
    state.token = Some(table.token);
    let RouterChannels { from_worker, stopping, results, stored } = channels;
    let name = config.outbox.table_names();
    tracing::info!(postgres, version, table = name, again = state.was_active, "connected; events flow");
    monitor.state(State::Active);
    let (oid, messages) = (table.found.layout.oid(), table.found.layout.messages(&table.columns));
    let source =
        PolledRows::new(from_worker, stopping, oid, messages, state.until.is_some(), monitor.clone());
    let on_update = config.outbox.on_update;
    let pipeline = Pipeline::new(table.outbox, table.router, None, Lsn::INVALID, on_update, monitor.clone());
    let sending = (publisher, delivery_reports);
    let kafka =
        KafkaParts::without_checkpoints(config, sending, state.suspect, monitor.clone(), stop.clone());
    Ok(Started { source, pipeline, sink: RowStatus::new(KafkaSink::new(kafka), results, stored), worker })
}

async fn connect(config: &Config) -> Result<Session, Error> {
    let mut conninfo = config.postgres.conninfo.clone();
    conninfo.connect_timeout.get_or_insert(CONNECT_TIMEOUT);
    let startup = Startup { application_name: &config.name, pooled: true, ..Startup::default() };
    let mut session = Session::connect(&conninfo, &startup).await?;
    // a server that accepts a connection but never answers counts as lost
    session.set_answer_timeout(config.polling.as_ref().map(|polling| polling.lease));
    Ok(session)
}

async fn table(config: &Config, session: &mut Session, state: &SessionState) -> Result<Table, Error> {
    let router = Router::of(config).with_contracts(config, state.contracts.clone());
    let outbox = Outbox::of(config, router.extra_columns());
    let Some(polling) = &config.polling else { return Err(no_table()) };
    let found = Found::usable(session, &config.outbox, polling, &config.postgres.conninfo).await?;
    let token = session.query_one("SELECT pg_catalog.gen_random_uuid()").await?;
    let token = token.ok_or_else(|| Error::transient(Peer::Postgres, "the server has given no answer"))?;
    let statements = found.statements(&config.outbox, polling).ok_or_else(no_table)?;
    let columns = found.layout.of_events(&config.outbox, router.extra_columns());
    let oids = [Some(found.layout.oid())];
    Ok(Table { found, statements, columns, router, outbox: outbox.with_oids(oids), token })
}

/// The configuration makes sure that there is one.
fn no_table() -> Error {
    Error::transient(Peer::Postgres, "there is no table to poll")
}
