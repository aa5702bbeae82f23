//! How a session ends: intake first, then the records in flight, then the last confirmation.

use tokio::time::{Duration, Instant, timeout_at};

use super::{Outcome, Relay, Sink, Source};
use crate::error::Error;
use crate::monitor::State;

/// How long a router that was asked to stop waits for its last checkpoint at least.
const LAST_CHECKPOINT: Duration = Duration::from_millis(500);

/// What a session leaves behind.
#[derive(Debug)]
pub struct Ended<S, K> {
    /// Why it is over.
    pub outcome: Outcome,
    /// Records that were sent and not acknowledged.
    pub unacknowledged: usize,
    /// What the source leaves.
    pub source: S,
    /// What the sink leaves.
    pub sink: K,
}

/// Intake has ended.
pub(super) struct Ending {
    outcome: Outcome,
    /// How long the records in flight are waited for; `None`: as long as it takes.
    pub(super) deadline: Option<Instant>,
}

impl<S: Source, K: Sink> Relay<S, K> {
    /// Reads no more; the session ends when nothing is in flight. A stop waits for that only so long. A failure does as
    /// long as it takes: what it tells a person to do takes for granted that everything before it has arrived.
    pub(super) fn end_intake(&mut self, outcome: Outcome) {
        let deadline = match &outcome {
            Outcome::Stopped => {
                self.monitor.state(State::Stopping);
                Some(Instant::now() + self.patience)
            }
            Outcome::Failed(reason) => {
                let records = self.window.records();
                if records > 0 {
                    tracing::warn!(%reason, records, "stopping, once everything before it is acknowledged");
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

    /// Whether intake has ended and there is nothing left to wait for.
    pub(super) fn is_over(&self) -> bool {
        let Some(Ending { deadline, .. }) = &self.ending else { return false };
        let settled = self.window.is_empty() && self.sink.certain(&self.progress).settled;
        settled || deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Writes the last checkpoint, confirms what can be confirmed, and leaves.
    pub(super) async fn end_in_order(mut self) -> Ended<S::End, K::End> {
        let confirmed = self.confirm_last().await;
        let outcome = self.ending.take().map_or(Outcome::SourceEnded, |ending| ending.outcome);
        match confirmed {
            Ok(()) => self.close(outcome, true).await,
            Err(error) => self.close(Outcome::Failed(error), false).await,
        }
    }

    /// The checkpoint comes first, so that the next start repeats nothing.
    async fn confirm_last(&mut self) -> Result<(), Error> {
        if !self.source.is_recognized() {
            return Ok(());
        }
        let deadline = match self.ending.as_ref().and_then(|ending| ending.deadline) {
            // what is left of it, and a moment in any case
            Some(leave_by) => leave_by.max(Instant::now() + LAST_CHECKPOINT),
            None => Instant::now() + self.patience,
        };
        loop {
            self.turn(false)?;
            let certain = self.sink.certain(&self.progress);
            if !certain.checkpoint_waits || Instant::now() >= deadline {
                return self.source.confirm_last(certain.durable).await;
            }
            if let Ok(changed) = timeout_at(deadline, self.sink.changed()).await {
                changed?;
            }
            // a refusal is told again when the sink closes
            let _ = self.take_reports();
        }
    }

    /// Closes the sink, and then the source: another router may start as soon as that is free.
    pub(super) async fn close(mut self, outcome: Outcome, orderly: bool) -> Ended<S::End, K::End> {
        let recognized = self.source.is_recognized();
        let uncommitted = self.sink.certain(&self.progress).uncommitted;
        let unacknowledged = self.window.records() + uncommitted;
        let (outcome, sink) = self.sink.close(outcome, &mut self.progress, recognized, &mut |_| {}).await;
        let source = self.source.close(&outcome, orderly).await;
        Ended { outcome, unacknowledged, source, sink }
    }
}
