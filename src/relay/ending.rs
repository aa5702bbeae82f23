//! How a session ends: intake first, then the records in flight, then the last confirmation.

use std::time::Duration;

use pg_logical::Lsn;
use pg_logical::stream::Transport;
use tokio::time::{Instant, timeout_at};

use super::Relay;
use super::closing::Closing;
use super::parking::Parking;
use super::sending::{Sending, SentAlone};
use crate::checkpoint::{Checkpoint, OtherLog};
use crate::dead_letters::Key;
use crate::error::{Error, Peer};
use crate::monitor::State;
use crate::progress::Partial;
use crate::sink::Refusal;
use crate::sink::kafka::{Ending, Intake, TransactionSize};

/// How long the end waits for a last look at the catalogues, so that the last confirmation covers everything.
const LAST_LOOK: Duration = Duration::from_secs(2);

/// How long a router that was asked to stop waits for its last position at least.
const LAST_WORD: Duration = Duration::from_millis(500);

/// Why a session is over.
#[derive(Debug)]
pub enum Outcome {
    /// As asked.
    Stopped,
    /// Something failed.
    Failed(Error),
    /// The sink refused a record.
    Refused(Refusal),
    /// The slot lags so far that another session reads on in bites.
    FarBehind,
    /// Kafka takes so little that the server would give a bite up: another session streams on.
    TooSlow,
    /// Everything before the end of its part of the log is acknowledged.
    EndOfPart,
    /// The server's log is not the one that was read before. Nothing of it was sent.
    OtherLog(OtherLog),
}

/// What a session leaves behind.
#[derive(Debug)]
pub struct Ended {
    /// Why it is over.
    pub outcome: Outcome,
    /// Where to go on.
    pub remembered: Checkpoint,
    /// Whether the server's log is known to be the one that was read before.
    pub recognized: bool,
    /// Records that were sent and not acknowledged.
    pub unacknowledged: usize,
    /// Whether any change was acknowledged.
    pub advanced: bool,
    /// Whether somebody has ended the server's process.
    pub sent_away: bool,
    /// The last change that may have been refused together with others; for [`Parts::alone_up_to`](super::Parts).
    pub doubtful: Option<Partial>,
    /// The record that was under way alone, if records were sent one at a time.
    pub alone: Option<SentAlone>,
    /// A parked event that was refused, or the first of several, and whether it was under way alone.
    pub retry: Option<(Key, bool)>,
    /// The largest batch that all topics take.
    pub batch_bytes: usize,
    /// How large Kafka transactions are to be.
    pub transaction_size: TransactionSize,
    /// The session of one whose slot another reads on in another way, to take the lock over from.
    pub lock: Option<HeldLock>,
    /// The end of the server's log, as far as it was known.
    pub log_end: Lsn,
}

impl Outcome {
    /// Whether a Kafka transaction that was not committed in time may have ended the session.
    fn may_be_a_timeout(&self) -> bool {
        match self {
            Outcome::Failed(Error::Transient(failure)) => failure.peer == Peer::Kafka,
            Outcome::Refused(refusal) => refusal.transient && !refusal.waits_for_a_person(),
            _ => false,
        }
    }

    /// Whether the next session reads on in another way.
    fn goes_over(&self) -> bool {
        matches!(self, Outcome::FarBehind | Outcome::TooSlow)
    }
}

/// A session that does nothing any more than hold the slot's lock. Dropping it ends it.
pub struct HeldLock(#[expect(dead_code, reason = "it is held")] Box<dyn Send>);

impl std::fmt::Debug for HeldLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HeldLock")
    }
}

impl<S: Transport> Relay<S> {
    /// Reads no more; the session ends when nothing is in flight. A stop waits for that only so long. A failure does as
    /// long as it takes: what it tells a person to do takes for granted that everything before it has arrived.
    pub(super) fn end_intake(&mut self, outcome: Outcome) {
        let deadline = match &outcome {
            Outcome::Stopped => {
                self.monitor.state(State::Stopping);
                self.leave_by = Some(Instant::now() + self.config.delivery.shutdown_timeout);
                self.leave_by
            }
            Outcome::Failed(reason) => {
                let records = self.sending.window.records();
                if records > 0 {
                    tracing::warn!(%reason, records, "stopping, once Kafka has acknowledged what comes before");
                }
                None
            }
            Outcome::FarBehind
            | Outcome::TooSlow
            | Outcome::EndOfPart
            | Outcome::Refused(_)
            | Outcome::OtherLog(_) => None,
        };
        self.ending = Some((outcome, deadline));
    }

    /// Whether the router was asked to stop.
    pub(super) fn is_stopping(&self) -> bool {
        matches!(self.ending, Some((Outcome::Stopped, _)))
    }

    /// Whether intake has ended and there is nothing left to wait for.
    pub(super) fn ended(&mut self) -> Option<Outcome> {
        let (outcome, deadline) = self.ending.take()?;
        let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let settled = self.sending.is_settled() && self.checkpointer.is_settled();
        if late || settled && self.sending.sink.has_producers() {
            return Some(outcome);
        }
        self.ending = Some((outcome, deadline));
        None
    }

    /// Confirms what can be confirmed, and leaves.
    pub(super) async fn end_in_order(mut self, outcome: Outcome) -> Ended {
        match self.confirm_last().await {
            Ok(()) => self.close(outcome, true).await,
            Err(error) => self.close(Outcome::Failed(error), false).await,
        }
    }

    /// The position is written down first, so that the next start repeats nothing. A look at the catalogues has to cover the last confirmation too. Without one it waits for the next start.
    async fn confirm_last(&mut self) -> Result<(), Error> {
        let deadline = match self.leave_by {
            // what is left of it, and a moment in any case
            Some(leave_by) => leave_by.max(Instant::now() + LAST_WORD),
            None => Instant::now() + self.config.delivery.shutdown_timeout,
        };
        if self.recognizing.is_under_way() || !self.sending.sink.has_producers() {
            return Ok(());
        }
        loop {
            // one that was refused is tried again after a while
            let again = self.offer_checkpoint(Intake::Waits)?;
            if again.is_none() && !self.checkpointer.waits() || Instant::now() >= deadline {
                break;
            }
            let until = again.map_or(deadline, |again| again.min(deadline));
            if let Ok(delivered) = timeout_at(until, self.checkpointer.reported()).await {
                self.remembered(delivered?);
            }
        }
        let deadline = Instant::now() + LAST_LOOK;
        while self.confirmation.confirmed() < self.checkpointer.durable(&self.sending.progress) {
            self.watch.look_now();
            match timeout_at(deadline, self.watch.report()).await {
                Ok(report) => self.looked(report)?,
                Err(_) => break,
            }
        }
        self.queue_status(false);
        Ok(())
    }

    /// Closes the producer and reads the reports that closing brought; `orderly` says goodbye to Postgres too.
    pub(super) async fn close(self, outcome: Outcome, orderly: bool) -> Ended {
        let log_end = self.log_end();
        let moved = self.catching_up.closing_move(&self.config, self.confirmation.confirmed());
        let Relay { sending, mut stream, outcomes, mut checkpointer, recognizing, config, .. } = self;
        let mut closing = Closing::new(&outcome, &self.monitor, &self.stop);
        let Sending { sink, mut progress, window, sent_alone: alone, mut parking, .. } = sending;
        let retry = parking.as_ref().and_then(Parking::under_way);
        let batch_bytes = sink.batch_bytes();
        let timed_out =
            outcome.may_be_a_timeout() && !sink.obstacle_is_told() && sink.brokers_down().is_none();
        let (transaction_size, too_large) = checkpointer.transaction_size(timed_out);
        if let Some(reason) = &too_large {
            sink.transaction_timed_out(reason.clone());
        }
        // before the stream ends: another router may start as soon as the slot is free
        closing.wait(sink.close()).await;
        if matches!(outcome, Outcome::Failed(_)) {
            stream.hear_out().await;
        }
        let sent_away = stream.was_sent_away();
        let recognized = !recognizing.is_under_way();
        if recognized {
            checkpointer.recognized(config.outbox.message_prefix.as_deref());
        }
        let mut reports = Vec::new();
        let refusal = outcomes.take(&mut reports);
        for sequence in reports.into_iter().filter(|sequence| !Parking::is_ours(*sequence)) {
            progress.acknowledge(sequence);
        }
        // of a parked event's record there is no change
        let doubtful = refusal.as_ref().filter(|refusal| !Parking::is_ours(refusal.last));
        let doubtful = doubtful.and_then(|refusal| progress.up_to(refusal.last));
        let retry = retry.filter(|_| refusal.as_ref().is_some_and(|refusal| Parking::is_ours(refusal.last)));
        let outcome = match (outcome, refusal) {
            // closing brought the reports of the whole batch
            (Outcome::Refused(_), Some(refusal)) => Outcome::Refused(refusal),
            (outcome, _) => outcome,
        };
        let outcome = match too_large {
            Some(reason) if outcome.may_be_a_timeout() => {
                Outcome::Failed(Error::transient(Peer::Kafka, reason))
            }
            _ => outcome,
        };
        let unacknowledged = window.records() + checkpointer.uncommitted().0;
        let add_parked = |remembered: &mut Checkpoint| {
            if let Some(parking) = &mut parking {
                parking.add_to(remembered, false);
            }
        };
        let wait = async |ending: Ending<'_>| closing.wait(ending).await;
        let (remembered, advanced) = checkpointer.close(&progress, add_parked, wait).await;
        let mut lock = None;
        if orderly {
            match stream.finish(moved.as_deref()).await {
                Ok(session) if outcome.goes_over() => lock = Some(HeldLock(Box::new(session))),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "leaving the replication stream"),
            }
        }
        Ended {
            outcome,
            remembered,
            recognized,
            unacknowledged,
            advanced,
            sent_away,
            doubtful,
            alone,
            retry,
            batch_bytes,
            transaction_size,
            lock,
            log_end,
        }
    }
}
