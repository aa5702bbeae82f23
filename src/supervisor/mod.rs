//! Decides what a failure means: go on at the remembered position, or stop and say why.

mod backoff;
pub(crate) mod connections;
mod free_slot;
mod session;
mod session_state;
mod shard_runner;
mod start_position;
mod startup;
mod stored_state;
mod tables;

use std::sync::Arc;
use std::time::{Duration, Instant};

use pg_logical::Lsn;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::contracts::Contracts;
use crate::dead_letters::Key;
use crate::error::{Definite, Error, Exit, Peer, Transient};
use crate::monitor::{Monitor, State};
use crate::progress::Partial;
use crate::relay::{Outcome, Refusal};
use crate::sink::kafka::{SentAlone, Suspect};
use crate::source::slot::SlotEnd;
use backoff::Backoff;
use session::{NoSession, SessionEnded};
use session_state::SessionState;
pub use shard_runner::{Router, run_all};

/// While waiting the main loop still turns, and says so this often.
const TURN: Duration = Duration::from_secs(1);

/// A session that lasted this long was a good one, even if nothing was to be done.
const SETTLED: Duration = Duration::from_secs(10);

/// What a person has said besides the configuration.
#[derive(Debug, Clone, Copy, Default)]
pub struct Orders {
    /// Go on here although events may be missing before.
    pub accept_gap: Option<Lsn>,
    /// Deliver what was committed before this position, and end.
    pub until: Option<Lsn>,
}

/// What follows the end of a session.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Stop,
    Again,
    Later(Transient),
    Never(Definite),
}

/// Runs the router until it is asked to stop, or must, or has done what it was ordered to.
///
/// # Errors
/// The definite failure that stopped it. What may pass by itself is waited out here.
pub async fn run(
    config: Arc<Config>,
    contracts: Option<Arc<Contracts>>,
    orders: Orders,
    monitor: Monitor,
    stop: CancellationToken,
) -> Result<(), Definite> {
    let Orders { accept_gap: accepted_gap, until } = orders;
    let mut memory = SessionState { contracts, accepted_gap, until, ..SessionState::default() };
    let mut backoff = Backoff::default();
    loop {
        monitor.turned();
        let started = Instant::now();
        let quiet = memory.fruitless;
        let mut ran = false;
        let next = match session::run(&config, &monitor, &stop, &mut memory).await {
            Ok(ended) => {
                // one that ends as soon as it has started is no sign that all is well
                if ended.kafka.advanced || started.elapsed() >= SETTLED {
                    backoff.reset();
                }
                ran = true;
                let sent_away = ended.slot.sent_away;
                let next = after_session(ended, config.dead_letters.park(), &mut memory);
                // It was perhaps a command that moves the slot. Where positions are not in Kafka nothing else tells, so
                // what the slot says counts.
                if sent_away && config.delivery.positions_topic.is_none() {
                    memory.remembered = None;
                }
                next
            }
            Err(NoSession::Stopped) => Next::Stop,
            Err(NoSession::Failed(error)) => after_failure(error, &memory),
        };
        match next {
            Next::Stop => return Ok(()),
            Next::Again => {}
            Next::Never(definite) => {
                if let Some(remembered) = &memory.remembered {
                    tracing::info!(position = %remembered.position.flush, "stopped; Kafka has everything before this position");
                }
                monitor.state(State::Refused { reason: definite.what.clone() });
                return Err(definite);
            }
            Next::Later(failure) => {
                monitor.state(State::Reconnecting { peer: failure.peer, reason: failure.what.clone() });
                monitor.counts().reconnected(failure.peer);
                monitor.last_problem(failure.what.clone());
                if memory.topics.stall_reason().as_ref() != Some(&failure.what) {
                    let again = backoff.log(&failure, ran && !quiet);
                    memory.fruitless |= again && ran;
                }
                if let Some(()) = stop.run_until_cancelled(pause(backoff.next(), &monitor)).await {
                    continue;
                }
                return Ok(());
            }
        }
    }
}

async fn pause(mut left: Duration, monitor: &Monitor) {
    while !left.is_zero() {
        monitor.turned();
        let step = left.min(TURN);
        tokio::time::sleep(step).await;
        left -= step;
    }
}

/// Takes in what a session leaves behind. `park`: an event that cannot be sent does not stop the router.
fn after_session(ended: SessionEnded, park: bool, memory: &mut SessionState) -> Next {
    let SessionEnded { outcome, unacknowledged, slot, kafka, retry } = ended;
    let (position, epoch) = (kafka.checkpoint.position.flush, kafka.checkpoint.epoch);
    memory.remembered = Some(kafka.checkpoint);
    if slot.recognized {
        memory.accepted_gap = None;
    }
    memory.batch_bytes = kafka.batch_bytes;
    memory.transaction_size = kafka.transaction_size;
    memory.fruitless = !kafka.advanced && matches!(outcome, Outcome::Refused(_));
    match outcome {
        Outcome::Stopped => {
            if unacknowledged > 0 {
                tracing::warn!(
                    records = unacknowledged,
                    "stopped before Kafka acknowledged everything in flight; the next start sends it again"
                );
            }
            tracing::info!(%position, "stopped");
            Next::Stop
        }
        Outcome::Failed(error) => after_failure(error, memory),
        Outcome::Refused(refusal) => match retry {
            Some(retry) => after_retry(&refusal, retry, memory),
            None => after_refusal(&refusal, kafka.last_suspect, kafka.alone, park, memory),
        },
        Outcome::SourceEnded => match slot.end {
            Some(SlotEnd::EndOfPart) | None => Next::Stop,
            Some(SlotEnd::FarBehind) => {
                (memory.lock, memory.goes_over) = (slot.lock, Some(slot.log_end));
                Next::Again
            }
            Some(SlotEnd::TooSlow) => {
                (memory.lock, memory.stream_until) = (slot.lock, slot.log_end);
                Next::Again
            }
            // judged where everything else about a start is
            Some(SlotEnd::OtherLog(other)) => {
                memory.other_log = Some((epoch, other));
                Next::Again
            }
        },
    }
}

fn after_failure(error: Error, memory: &SessionState) -> Next {
    match error {
        Error::Transient(transient) => Next::Later(transient),
        // A password may be rotated under a running router: its file is read again at each attempt. What Kafka refuses
        // has been made transient before.
        Error::Definite(definite) if memory.was_active && definite.exit == Exit::Refused => {
            let what = definite.to_string();
            Next::Later(Transient::new(Peer::Postgres, what))
        }
        Error::Definite(definite) => Next::Never(definite),
    }
}

/// A batch is refused as a whole, because of one record in it: only a record that is refused alone is to blame.
fn after_refusal(
    refusal: &Refusal,
    last_suspect: Option<Partial>,
    alone: Option<SentAlone>,
    park: bool,
    memory: &mut SessionState,
) -> Next {
    let reason = &refusal.why.what;
    match alone {
        _ if refusal.waits_for_a_person() => {
            // Alone, so that not each attempt repeats what follows it to topics that take it.
            memory.suspect = memory.suspect.or_up_to(last_suspect);
            Next::Later(Transient::new(Peer::Kafka, reason))
        }
        _ if refusal.transient => made_anew(reason),
        Some(SentAlone { .. }) if park => {
            // until a position is past it: it may come again
            memory.refused.extend(last_suspect.map(|event| (event, refusal.why.clone())));
            Next::Again
        }
        Some(SentAlone { nothing_before: false, .. }) => {
            // What came before it in its Kafka transaction was taken back with it, and comes first now. Only then is it safe
            // to follow the advice to leave it out.
            memory.suspect = last_suspect.map_or(Suspect::None, Suspect::This);
            Next::Again
        }
        Some(SentAlone { event, how_to_skip, .. }) => Next::Never(Definite {
            exit: Exit::Unsafe,
            what: format!("Kafka refuses the event with id {event}: {reason}"),
            remedy: format!("Nothing was skipped. {}, or {how_to_skip}", refusal.why.remedy),
        }),
        None => {
            tracing::warn!(
                peer = "kafka",
                reason,
                "a batch was refused; its records are sent one at a time to find the one to blame"
            );
            memory.suspect = last_suspect.map_or(Suspect::None, Suspect::UpTo);
            Next::Again
        }
    }
}

/// What was refused may be taken by another producer.
fn made_anew(reason: &str) -> Next {
    let what = format!("the producer gave up, and is made anew: {reason}");
    Next::Later(Transient::new(Peer::Kafka, what))
}

/// A parked event was refused once more.
fn after_retry(refusal: &Refusal, (key, alone): (Key, bool), memory: &mut SessionState) -> Next {
    if refusal.transient && !refusal.waits_for_a_person() {
        return made_anew(&refusal.why.what);
    }
    if alone {
        let detail = refusal.why.detail();
        tracing::error!(
            reason = refusal.why.reason.name(), position = %key, detail,
            "a parked event still cannot be sent"
        );
        memory.failed_retry = Some((key, refusal.why.reason, detail));
    } else {
        memory.retry_alone = true;
    }
    Next::Again
}

#[cfg(test)]
mod tests;
