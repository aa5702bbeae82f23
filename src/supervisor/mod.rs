//! Runs sessions one after another, and decides after each failure whether to retry or to stop with an error.

mod acquire_slot;
mod backfill;
pub(crate) mod backoff;
pub(crate) mod connections;
mod idle_end;
mod parked;
mod polling;
pub(crate) mod resume_facts;
mod session;
mod session_state;
mod shard_runner;
pub(crate) mod start_position;
mod startup;
mod stop_reason;
mod stored_state;
mod tables;

use std::sync::Arc;
use std::time::{Duration, Instant};

use pg_logical::Lsn;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::contracts::Contracts;
use crate::dead_letters::Key;
use crate::error::{Definite, Error, ErrorCode, Exit, Peer, Transient};
use crate::monitor::{Monitor, State};
use crate::postgres::administrator::init_command;
use crate::progress::Partial;
use crate::relay::{Outcome, Refusal};
use crate::sink::kafka::{SentAlone, Suspect};
use crate::source::slot::{SlotEnd, SlotLeft};
use crate::unsendable::with_parking;
pub(crate) use backoff::Backoff;
use idle_end::is_idle_end;
use session::{SessionEnded, StartError};
use session_state::SessionState;
pub use shard_runner::{Router, run_all};

/// How often a waiting router reports to the monitor that it is alive.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(1);

/// A session that lasted this long counts as a success, even if it delivered nothing.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// What the command line says besides the configuration.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunOptions {
    /// Resume at this position, although events before it may be missing.
    pub accept_gap: Option<Lsn>,
    /// Deliver everything that was committed before this position, then stop.
    pub until: Option<Lsn>,
    /// Other shards take over afterwards, so their slots exist on purpose.
    pub hands_over: bool,
}

/// What to do after a session.
#[derive(Debug, PartialEq, Eq)]
enum NextStep {
    Stop,
    Restart,
    Retry(Transient),
    Fail(Definite),
}

/// Runs the router until it is asked to stop, has done what `options` ask for, or fails for good.
///
/// # Errors
/// The definite failure that stopped it. Transient failures are retried here.
pub async fn run(
    config: Arc<Config>,
    contracts: Option<Arc<Contracts>>,
    options: RunOptions,
    monitor: Monitor,
    stop: CancellationToken,
) -> Result<(), Definite> {
    let RunOptions { accept_gap: accepted_gap, until, hands_over } = options;
    let mut state = SessionState { contracts, accepted_gap, until, hands_over, ..SessionState::default() };
    let mut backoff = Backoff::default();
    loop {
        monitor.main_loop_ran();
        let started = Instant::now();
        let quiet = state.no_progress;
        let (mut ran, mut idle) = (false, false);
        let session = match config.polling {
            None => session::run(&config, &monitor, &stop, &mut state).await,
            Some(_) => polling::run(&config, &monitor, &stop, &mut state).await,
        };
        let next = match session {
            Ok(ended) => {
                // a session that ends at once proves nothing
                if ended.kafka.advanced || started.elapsed() >= STABLE_AFTER {
                    backoff.reset();
                }
                ran = true;
                let terminated = ended.slot.as_ref().is_some_and(|slot| slot.terminated);
                let park = config.dead_letters.park() || config.polling.is_some();
                let unacknowledged = ended.unacknowledged;
                let next = after_session(ended, park, &mut state);
                if let (NextStep::Retry(failure), None) = (&next, &config.polling) {
                    idle = is_idle_end(failure, started.elapsed(), unacknowledged);
                }
                // A command that moves the slot may have ended the session. Without a positions topic only the slot says where to
                // resume.
                if terminated && config.delivery.positions_topic.is_none() {
                    state.checkpoint = None;
                }
                next
            }
            Err(StartError::Stopped) => return stopped_without_session(),
            Err(StartError::Failed(error)) => after_failure(error, &state),
        };
        match next {
            NextStep::Stop => {
                if !stop.is_cancelled() {
                    monitor.ended();
                }
                return Ok(());
            }
            NextStep::Restart => {}
            NextStep::Fail(definite) => {
                let definite = match config.dead_letters.park() || config.polling.is_some() {
                    true => definite,
                    false => with_parking(definite, &init_command(&config.postgres.conninfo), config.shard),
                };
                if let Some(checkpoint) = &state.checkpoint {
                    if checkpoint.backfill.is_none() {
                        tracing::info!(position = %checkpoint.position.flush, "stopped; every event before this position is in Kafka or parked");
                    }
                    if ran && definite.exit == Exit::Unsafe {
                        stop_reason::store(&config, checkpoint, &definite).await;
                    }
                }
                monitor.state(State::Refused { code: definite.code, reason: definite.what.clone() });
                return Err(definite);
            }
            NextStep::Retry(failure) if idle => {
                monitor.counts().reconnected(failure.peer);
                monitor.last_problem(failure.what.clone());
                state.idle_end = Some(failure);
                if stop.run_until_cancelled(pause(backoff.next(), &monitor)).await.is_none() {
                    return stopped_without_session();
                }
            }
            NextStep::Retry(failure) => {
                if let Some(earlier) = state.idle_end.take() {
                    backoff.log(&earlier, true);
                }
                monitor.state(State::Reconnecting {
                    peer: failure.peer,
                    code: failure.refusal.as_ref().map(|refusal| refusal.code),
                    reason: failure.what.clone(),
                });
                monitor.counts().reconnected(failure.peer);
                monitor.last_problem(failure.what.clone());
                if state.topics.stall_reason().as_ref() != Some(&failure.what) {
                    let again = backoff.log(&failure, ran && !quiet);
                    state.no_progress |= again && ran;
                }
                if let Some(()) = stop.run_until_cancelled(pause(backoff.next(), &monitor)).await {
                    continue;
                }
                return stopped_without_session();
            }
        }
    }
}

fn stopped_without_session() -> Result<(), Definite> {
    tracing::info!("stopped; no events were in flight");
    Ok(())
}

async fn pause(mut left: Duration, monitor: &Monitor) {
    while !left.is_zero() {
        monitor.main_loop_ran();
        let step = left.min(LIVENESS_INTERVAL);
        tokio::time::sleep(step).await;
        left -= step;
    }
}

/// Updates the session state and decides what to do next. `park`: an event that cannot be sent does not stop the router.
fn after_session(ended: SessionEnded, park: bool, state: &mut SessionState) -> NextStep {
    let SessionEnded { outcome, unacknowledged, slot, kafka, retry } = ended;
    let (position, epoch) = (kafka.checkpoint.position.flush, kafka.checkpoint.epoch);
    if slot.is_some() {
        state.checkpoint = Some(kafka.checkpoint);
    }
    if slot.as_ref().is_some_and(|slot| slot.log_verified) {
        state.accepted_gap = None;
    }
    state.batch_bytes = kafka.batch_bytes;
    state.transaction_size = kafka.transaction_size;
    state.no_progress = !kafka.advanced && matches!(outcome, Outcome::Refused(_));
    match outcome {
        Outcome::Stopped => {
            if unacknowledged > 0 {
                tracing::warn!(
                    records = unacknowledged,
                    "stopped before Kafka acknowledged all records in flight; the next start sends them again"
                );
            }
            match slot {
                Some(_) => tracing::info!(%position, "stopped"),
                None => tracing::info!("stopped"),
            }
            NextStep::Stop
        }
        Outcome::Failed(error) => after_failure(error, state),
        Outcome::Refused(refusal) => match retry {
            Some(retry) => after_retry(&refusal, retry, state),
            None => after_refusal(&refusal, kafka.last_suspect, kafka.alone, park, state),
        },
        Outcome::SourceEnded => slot.map_or(NextStep::Stop, |slot| after_source(slot, epoch, state)),
    }
}

/// The source has ended on its own.
fn after_source(slot: SlotLeft, epoch: u64, state: &mut SessionState) -> NextStep {
    match slot.end {
        Some(SlotEnd::EndOfPart) | None => return NextStep::Stop,
        Some(SlotEnd::FarBehind) => {
            (state.lock, state.switch_to_bulk) = (slot.lock, Some(slot.log_end));
        }
        Some(SlotEnd::BackfillDone) => (state.lock, state.suspect) = (slot.lock, Suspect::None),
        Some(SlotEnd::SinkTooSlow) => (state.lock, state.stream_until) = (slot.lock, slot.log_end),
        // the next start decides what that means
        Some(SlotEnd::LogMismatch(other)) => state.log_mismatch = Some((epoch, other)),
    }
    NextStep::Restart
}

fn after_failure(error: Error, state: &SessionState) -> NextStep {
    match error {
        Error::Transient(transient) => NextStep::Retry(transient),
        // A password may be rotated while the router runs: its file is read again at each attempt. `transient_if_active` has
        // already made Kafka's refusals transient.
        Error::Definite(definite) if state.was_active && definite.exit == Exit::Refused => {
            NextStep::Retry(Transient::from_refusal(definite))
        }
        // only the start that prepared the stream knows how the rows at its end are found
        Error::Definite(definite) if definite.code == ErrorCode::StreamUnreadable => {
            NextStep::Fail(Definite { remedy: state.recovery.clone(), ..definite })
        }
        Error::Definite(definite) => NextStep::Fail(definite),
    }
}

/// Kafka refuses a batch as a whole because of one record, so only a record that is refused alone is to blame.
fn after_refusal(
    refusal: &Refusal,
    last_suspect: Option<Partial>,
    alone: Option<SentAlone>,
    park: bool,
    state: &mut SessionState,
) -> NextStep {
    let reason = &refusal.why.what;
    match alone {
        _ if refusal.waits_for_a_person() => {
            // Sends it alone, so that retries do not repeat later records to topics that accept them.
            state.suspect = state.suspect.or_up_to(last_suspect);
            NextStep::Retry(Transient::new(Peer::Kafka, reason))
        }
        _ if refusal.transient => producer_failed(reason),
        Some(SentAlone { .. }) if park => {
            // It stays listed until the position is past it, since the stream may repeat it.
            state.refused.extend(last_suspect.map(|event| (event, refusal.why.clone())));
            NextStep::Restart
        }
        Some(SentAlone { all_before_durable: false, .. }) => {
            // Records before it in its Kafka transaction were aborted with it, and are sent first now. Only after that is it safe
            // to advise skipping it.
            state.suspect = last_suspect.map_or(Suspect::None, Suspect::This);
            NextStep::Restart
        }
        Some(SentAlone { event, how_to_skip, .. }) => {
            let code = refusal.why.reason.code();
            NextStep::Fail(Definite {
                code,
                exit: Exit::Unsafe,
                what: format!("Kafka refuses the event with id {event}: {reason}"),
                events: code.into(),
                remedy: refusal.why.remedy_or(how_to_skip),
            })
        }
        None => {
            tracing::warn!(
                peer = "kafka",
                reason,
                "Kafka refused a batch; the router sends its records one at a time to find the refused one"
            );
            state.suspect = last_suspect.map_or(Suspect::None, Suspect::UpTo);
            NextStep::Restart
        }
    }
}

/// Another producer may succeed where this one was refused.
fn producer_failed(reason: &str) -> NextStep {
    let what = format!("the producer failed and is replaced: {reason}");
    NextStep::Retry(Transient::new(Peer::Kafka, what))
}

/// A retried parked event was refused again.
fn after_retry(refusal: &Refusal, (key, alone): (Key, bool), state: &mut SessionState) -> NextStep {
    if refusal.transient && !refusal.waits_for_a_person() {
        return producer_failed(&refusal.why.what);
    }
    if alone {
        let detail = refusal.why.detail();
        tracing::error!(
            reason = refusal.why.reason.name(), position = %key, detail,
            "a parked event still cannot be sent"
        );
        state.failed_retry = Some((key, refusal.why.reason, detail));
    } else {
        state.retry_alone = true;
    }
    NextStep::Restart
}

#[cfg(test)]
mod tests;
