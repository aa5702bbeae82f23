//! The parked events at the start of a session.

use std::sync::Arc;

use pg_logical::session::Session;

use super::connections::keep_alive;
use super::session_state::SessionState;
use crate::checkpoint::Checkpoint;
use crate::config::{Config, DeliveryMode};
use crate::error::{Error, Peer};
use crate::monitor::{Monitor, State};
use crate::outbox::{ExtraColumn, Outbox};
use crate::postgres::backfills::Backfill;
use crate::postgres::dead_letters::messages::Unfinished;
use crate::postgres::dead_letters::{sql, worker};
use crate::routing::Router;
use crate::sink::dead_letters::DeadLetterParts;
use crate::source::table::backfilled::BackfilledRows;

/// Loads the parked events, which have to be known before the first event.
pub(super) async fn open(
    config: &Arc<Config>,
    session: &mut Session,
    columns: &[ExtraColumn],
    monitor: &Monitor,
    state: &mut SessionState,
    checkpoint: &Checkpoint,
    backfill: Option<&Backfill>,
) -> Result<Option<DeadLetterParts>, Error> {
    if !config.dead_letters.park() {
        return Ok(None);
    }
    let unfinished = Unfinished { sent: checkpoint.retried.clone(), failed: state.failed_retry.clone() };
    let host = session.info().host.clone();
    let start = backfill.map(|backfill| BackfilledRows::start(backfill.done.rows));
    let from = start.unwrap_or(checkpoint.position).flush;
    if backfill.is_some() {
        // these rows are read again, and their numbers may be different now
        session.query(&sql::forget_of_table_from(&config.name, from)).await?;
    }
    let locked = |reason: String| {
        monitor.last_problem(reason.clone());
        monitor.state(State::Stalled { peer: Peer::Postgres, reason });
    };
    let store =
        worker::open(&config.name, &config.postgres, host, session.backend_pid(), &unfinished, from, locked);
    let (store, loaded) = keep_alive(config, session, store).await?;
    state.failed_retry = None;
    state.refused.retain(|event, _| event.final_lsn >= from);
    let router = Router::of(config).with_contracts(config, state.contracts.clone());
    let outbox = Outbox::of(config, columns);
    let rows = config.for_rows(None).ok().map(|(rows, _)| rows);
    Ok(Some(DeadLetterParts {
        store,
        loaded,
        max_aggregates: config.dead_letters.max_aggregates,
        refused: state.refused.clone(),
        retry_alone: state.retry_alone,
        required_log_end: checkpoint.parked,
        of_rows: rows.map(|rows| Router::of(&rows).with_contracts(&rows, state.contracts.clone())),
        pipeline: (outbox, router),
        transactional: config.delivery.mode == DeliveryMode::ExactlyOnce,
        // a parked row of a backfill is in the same database as the progress of the backfill
        with_checkpoints: config.delivery.positions_topic.is_some() || backfill.is_some(),
        monitor: monitor.clone(),
    }))
}
