//! Parked events: tried again when they are due.

use std::error::Error as StdError;
use std::time::Duration;

use super::Handler;
use super::error::{ConsumeError, place};
use super::event::Event;
use super::failed::{Failed, INTERRUPTIONS};
use super::partition::Worker;
use super::transaction::{check, xid};
use crate::queue::QueuedEvent;
use crate::session::Open;

/// How long to wait when nothing is due.
const IDLE: Duration = Duration::from_millis(200);

/// How an attempt ended.
enum Tried {
    /// Nothing was due.
    Nothing,
    Ended,
    /// It does not count as an attempt; the event, if one was due.
    NotNow(String, Option<QueuedEvent>),
}

impl<H: Handler> Worker<H> {
    /// Runs until the loop is asked to stop.
    pub(super) async fn retry_parked(&self) -> Result<(), ConsumeError> {
        // how often the same event did not end
        let mut stuck = (String::new(), 0);
        loop {
            let time = match self.retry_one().await? {
                Tried::Ended => Duration::ZERO,
                Tried::Nothing => IDLE,
                Tried::NotNow(reason, event) => {
                    tracing::warn!(error = reason, "parked events cannot be tried now");
                    self.count_stuck(&mut stuck, &reason, event).await;
                    Duration::from_secs(1)
                }
            };
            if self.stops_within(time).await {
                return Ok(());
            }
        }
    }

    /// Puts an event off that keeps others from being tried.
    async fn count_stuck(&self, stuck: &mut (String, u32), reason: &str, event: Option<QueuedEvent>) {
        let Some(event) = event else { return };
        let (id, count) = stuck;
        if *id != event.id {
            (*id, *count) = (event.id.clone(), 0);
        }
        *count += 1;
        if *count >= self.attempts.saturating_mul(INTERRUPTIONS) && self.put_off(&event, reason).await.is_ok()
        {
            *count = 0;
        }
    }

    async fn retry_one(&self) -> Result<Tried, ConsumeError> {
        let open = match self.open().await {
            Ok(open) => open,
            Err(failed) => return Ok(Tried::NotNow(reason(&failed), None)),
        };
        let mut taken = match self.inbox.next(open.client(), 1, None).await {
            Ok(taken) => taken,
            Err(error) => return Ok(Tried::NotNow(in_full(&error), None)),
        };
        let Some(queued) = taken.pop() else {
            let committed = self.commit(open).await;
            return Ok(
                committed.map_or_else(|failed| Tried::NotNow(reason(&failed), None), |()| Tried::Nothing)
            );
        };
        let Some(event) = Event::from_json(&queued.id, &queued.payload) else {
            open.roll_back().await;
            return Ok(self.failed(queued, "it was not put into the queue by this loop").await);
        };
        match self.handle_parked(open, &queued, &event).await {
            Ok(()) => Ok(Tried::Ended),
            Err(Failed::Committed) => Err(ConsumeError::committed_parked(&event)),
            Err(failed @ (Failed::Transient(_) | Failed::NoSession(_) | Failed::Interrupted(..))) => {
                Ok(Tried::NotNow(reason(&failed), Some(queued)))
            }
            Err(failed) => {
                let reason = reason(&failed);
                tracing::warn!(error = reason, event = place(&event), "a parked event failed again");
                Ok(self.failed(queued, &reason).await)
            }
        }
    }

    /// Handles an event that was taken in this transaction.
    async fn handle_parked<'a>(
        &self,
        open: Open,
        queued: &QueuedEvent,
        event: &'a Event,
    ) -> Result<(), Failed<'a>> {
        let xid = xid(&open).await?;
        let handled = match self.handler.handle(open.client(), event).await {
            Err(error) => Err(Failed::of_handler(&open, event, error.into(), true)),
            Ok(()) => match check(&open, &xid, Some(event)).await {
                // all, because of ids in braces
                Ok(()) => match self.inbox.done_all(open.client(), std::slice::from_ref(queued)).await {
                    Ok(1..) => return self.commit(open).await,
                    Ok(_) => {
                        Err(Failed::Transient("an operator or another member has ended the event".into()))
                    }
                    Err(error) => Err(Failed::of(error, Some(event))),
                },
                Err(failed) => Err(failed),
            },
        };
        // the row is locked until then
        open.roll_back().await;
        handled
    }

    async fn failed(&self, queued: QueuedEvent, error: &str) -> Tried {
        match self.put_off(&queued, error).await {
            Ok(()) => Tried::Ended,
            Err(reason) => Tried::NotNow(reason, None),
        }
    }

    async fn put_off(&self, queued: &QueuedEvent, error: &str) -> Result<(), String> {
        let open = self.open().await.map_err(|failed| reason(&failed))?;
        // false: it was ended meanwhile, or another member has it
        self.inbox.fail(open.client(), queued, error).await.map_err(|error| in_full(&error))?;
        self.commit(open).await.map_err(|failed| reason(&failed))
    }
}

fn reason(failed: &Failed<'_>) -> String {
    match failed {
        Failed::Transient(error)
        | Failed::NoSession(error)
        | Failed::Handler(_, error)
        | Failed::Interrupted(_, error) => in_full(&**error),
        Failed::Commit(error) | Failed::Refused(error, _) => in_full(error),
        Failed::Ended(_) | Failed::Committed => "the handler has ended the transaction".to_owned(),
        Failed::Swallowed(_) => "a statement failed, and the handler returned no error".to_owned(),
    }
}

/// An error with its causes: that of a statement says little by itself.
fn in_full(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
