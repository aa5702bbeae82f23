//! How a session ends: intake stops, records in flight arrive, and the last position is confirmed.

use tokio::time::{Duration, Instant, timeout_at};

use super::{Outcome, Relay, Sink, Source};
use crate::checkpoint::Checkpoint;
use crate::error::Error;
use crate::monitor::State;

/// A stopping router gives its last checkpoint at least this long.
const LAST_CHECKPOINT: Duration = Duration::from_millis(500);

/// The result of a session.
#[derive(Debug)]
pub struct Ended<S, K> {
    /// Why it ended.
    pub outcome: Outcome,
    /// Sent records that are not acknowledged, or not committed.
    pub unacknowledged: usize,
    /// The result of the source.
    pub source: S,
    /// The result of the sink.
    pub sink: K,
}

/// The state after intake has ended.
pub(super) struct Ending {
    outcome: Outcome,
    /// Until when to wait for records in flight; `None` for as long as it takes.
    pub(super) deadline: Option<Instant>,
}

impl<S: Source, K: Sink> Relay<S, K> {
    /// Ends intake; the session ends when no record is in flight. A stop waits only for `shutdown_timeout`. A failure waits as
    /// long as it takes, because its remedy assumes that everything before it has arrived.
    pub(super) fn end_intake(&mut self, outcome: Outcome) {
        let deadline = match &outcome {
            Outcome::Stopped => {
                self.monitor.state(State::Stopping);
                Some(Instant::now() + self.shutdown_timeout)
            }
            Outcome::Failed(reason) => {
                let records = self.window.records();
                if records > 0 {
                    // the whole of it is printed at the end
                    let reason = match reason {
                        Error::Definite(definite) => &definite.what,
                        Error::Transient(transient) => &transient.what,
                    };
                    tracing::warn!(reason, records, "stopping once everything before it is acknowledged");
                }
                None
            }
            Outcome::Refused(_) | Outcome::SourceEnded => None,
        };
        self.ending = Some(Ending { outcome, deadline });
    }

    /// Whether the router was asked to stop.
    pub(super) fn is_stopping(&self) -> bool {
        matches!(self.ending, Some(Ending { outcome: Outcome::Stopped, .. }))
    }

    /// Whether intake has ended and nothing is left to wait for.
    pub(super) fn is_over(&self) -> bool {
        let Some(Ending { deadline, .. }) = &self.ending else { return false };
        let settled = self.window.is_empty() && self.sink.durability(&self.progress).settled;
        settled || deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Writes the last checkpoint, confirms the last position, and closes both ports.
    pub(super) async fn end_in_order(mut self) -> Ended<S::End, K::End> {
        let confirmed = self.confirm_last().await;
        let outcome = self.ending.take().map_or(Outcome::SourceEnded, |ending| ending.outcome);
        match confirmed {
            Ok(()) => self.close(outcome, true).await,
            Err(error) => self.close(Outcome::Failed(error), false).await,
        }
    }

    /// The checkpoint comes before the confirmation, so that the next start repeats nothing.
    async fn confirm_last(&mut self) -> Result<(), Error> {
        if !self.source.is_log_verified() {
            return Ok(());
        }
        let deadline = match self.ending.as_ref().and_then(|ending| ending.deadline) {
            // the rest of the shutdown timeout, but at least a moment
            Some(leave_by) => leave_by.max(Instant::now() + LAST_CHECKPOINT),
            None => Instant::now() + self.shutdown_timeout,
        };
        loop {
            self.notify_ports(false)?;
            let durability = self.sink.durability(&self.progress);
            if !durability.checkpoint_pending || Instant::now() >= deadline {
                return self.source.confirm_last(durability.durable).await;
            }
            if let Ok(changed) = timeout_at(deadline, self.sink.wait()).await {
                changed?;
            }
            // a refusal changes nothing now: its record stays unacknowledged
            let _ = self.take_reports();
        }
    }

    /// Closes the sink and then the source, since another router may start once the source is closed.
    pub(super) async fn close(mut self, outcome: Outcome, orderly: bool) -> Ended<S::End, K::End> {
        let log_verified = self.source.is_log_verified();
        let uncommitted = self.sink.durability(&self.progress).uncommitted;
        let unacknowledged = self.window.records() + uncommitted;
        let source = &self.source;
        let mut note = |checkpoint: &mut Checkpoint| source.note(checkpoint);
        let (outcome, sink) = self.sink.close(outcome, &mut self.progress, log_verified, &mut note).await;
        let source = self.source.close(&outcome, orderly).await;
        Ended { outcome, unacknowledged, source, sink }
    }
}
