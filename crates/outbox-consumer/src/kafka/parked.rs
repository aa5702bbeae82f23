//! Parked events: tried again when they are due.

use std::time::Duration;

use super::Handler;
use super::error::place;
use super::event::Event;
use super::partition::{Failed, Worker};
use crate::queue::QueuedEvent;

/// How long to wait when nothing is due.
const IDLE: Duration = Duration::from_millis(200);

impl<H: Handler> Worker<H> {
    /// Runs until the loop is asked to stop.
    pub(super) async fn retry_parked(&self) {
        loop {
            let time = match self.retry_one().await {
                Ok(true) => Duration::ZERO,
                Ok(false) => IDLE,
                Err(error) => {
                    tracing::warn!(error, "parked events cannot be tried now");
                    Duration::from_secs(1)
                }
            };
            if self.stops_within(time).await {
                return;
            }
        }
    }

    /// Whether an event was due.
    async fn retry_one(&self) -> Result<bool, String> {
        let open = self.open().await.map_err(|failed| reason(&failed))?;
        let mut taken = self.inbox.next(open.client(), 1, None).await.map_err(|error| error.to_string())?;
        let Some(queued) = taken.pop() else {
            self.commit(open).await.map_err(|failed| reason(&failed))?;
            return Ok(false);
        };
        let Some(event) = Event::from_json(&queued.id, &queued.payload) else {
            open.roll_back().await;
            self.put_off(&queued, "it was not put into the queue by this loop").await?;
            return Ok(true);
        };
        let handled = match self.handler.handle(open.client(), &event).await {
            Err(error) => Err(Failed::of_handler(&open, &event, error.into())),
            Ok(()) => match self.inbox.done(open.client(), &queued).await {
                Ok(true) => Ok(()),
                Ok(false) => {
                    Err(Failed::Transient("an operator or another member has ended the event".into()))
                }
                Err(error) => Err(Failed::of(error, Some(&event))),
            },
        };
        let failed = match handled {
            Ok(()) => match self.commit(open).await {
                Ok(()) => return Ok(true),
                Err(failed) => failed,
            },
            Err(failed) => {
                // the row is locked until then
                open.roll_back().await;
                failed
            }
        };
        let reason = reason(&failed);
        if matches!(failed, Failed::Transient(_) | Failed::NoSession(_)) {
            return Err(reason);
        }
        tracing::warn!(error = reason, event = place(&event), "a parked event failed again");
        self.put_off(&queued, &reason).await?;
        Ok(true)
    }

    async fn put_off(&self, queued: &QueuedEvent, error: &str) -> Result<(), String> {
        let open = self.open().await.map_err(|failed| reason(&failed))?;
        // false: an operator has decided meanwhile
        self.inbox.fail(open.client(), queued, error).await.map_err(|error| error.to_string())?;
        self.commit(open).await.map_err(|failed| reason(&failed))
    }
}

fn reason(failed: &Failed<'_>) -> String {
    match failed {
        Failed::Transient(error) | Failed::NoSession(error) | Failed::Handler(_, error) => error.to_string(),
        Failed::Commit(error) | Failed::Refused(error, _) => error.to_string(),
        Failed::Ended(_) => "the handler has ended the transaction".to_owned(),
        Failed::Swallowed(_) => "a statement failed, and the handler returned no error".to_owned(),
    }
}
