//! How a session ends: intake first, then the records in flight, then the last confirmation.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};

use super::Relay;
use crate::error::Error;
use crate::monitor::State;
use crate::progress::{Partial, Position};
use crate::sink::Refusal;

/// How long the end waits for a last look at the catalogues, so that the last confirmation covers everything.
const LAST_LOOK: Duration = Duration::from_secs(2);

/// Why a session is over.
#[derive(Debug)]
pub enum Outcome {
    /// As asked.
    Stopped,
    /// Something failed.
    Failed(Error),
    /// The sink refused a record.
    Refused(Refusal),
}

/// What a session leaves behind.
#[derive(Debug)]
pub struct Ended {
    /// Why it is over.
    pub outcome: Outcome,
    /// Where to go on.
    pub position: Position,
    /// Records that were sent and not acknowledged.
    pub unacknowledged: usize,
    /// Whether any change was acknowledged.
    pub advanced: bool,
    /// The last change that may have been refused together with others; for [`Parts::alone_up_to`](super::Parts).
    pub doubtful: Option<Partial>,
    /// The record that was under way alone, if records were sent one at a time.
    pub alone: Option<String>,
    /// The largest batch that all topics take.
    pub batch_bytes: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Relay<S> {
    /// Reads no more; the session ends when nothing is in flight.
    pub(super) fn end_intake(&mut self, outcome: Outcome) {
        if self.ending.is_none() {
            if let Outcome::Stopped = outcome {
                self.monitor.state(State::Stopping);
            }
            self.ending = Some((outcome, Instant::now() + self.config.delivery.shutdown_timeout));
        }
    }

    /// Whether intake has ended and there is nothing left to wait for.
    pub(super) fn ended(&mut self) -> Option<Outcome> {
        let (outcome, deadline) = self.ending.take()?;
        if self.window.is_empty() || Instant::now() >= deadline {
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

    /// A look at the catalogues has to cover the last confirmation too. Without one it waits for the next start.
    async fn confirm_last(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + LAST_LOOK;
        while self.confirmation.confirmed() < self.progress.position().flush {
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
        let Relay { sink, stream, outcomes, mut progress, window, alone, preparing, .. } = self;
        if let Some(preparing) = preparing {
            preparing.task.abort();
        }
        let batch_bytes = sink.batch_bytes();
        // before the stream ends: another router may start as soon as the slot is free
        sink.close().await;
        if orderly && let Err(error) = stream.finish().await {
            tracing::debug!(%error, "leaving the replication stream");
        }
        let mut reports = Vec::new();
        let refusal = outcomes.take(&mut reports);
        for sequence in reports {
            progress.acknowledge(sequence);
        }
        let doubtful = refusal.as_ref().and_then(|refusal| progress.up_to(refusal.last));
        let outcome = match (outcome, refusal) {
            // closing brought the reports of the whole batch
            (Outcome::Refused(_), Some(refusal)) => Outcome::Refused(refusal),
            (outcome, _) => outcome,
        };
        let (position, unacknowledged) = (progress.position(), window.records());
        let advanced = progress.has_advanced();
        Ended { outcome, position, unacknowledged, advanced, doubtful, alone, batch_bytes }
    }
}
