//! A sink around a sink, which leaves out events that can never be sent, instead of stopping before them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::checkpoint::Checkpoint;
use crate::error::Error;
use crate::pipeline::PipelineOutput;
use crate::progress::{Position, Progress, Sequence};
use crate::relay::{
    Durability, Health, InFlight, LoopState, NotSent, Outcome, Refusal, Sent, Sink, SinkEvent,
};
use crate::unsendable::{Reason, Unsendable};

/// How many events are told apart. Further ones may be counted more than once, if they are read again.
const MAX_KNOWN: usize = 100_000;

/// The events that were left out. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct LeftOut(Arc<Mutex<Events>>);

#[derive(Debug, Default)]
struct Events {
    count: u64,
    known: HashSet<String>,
    first: Option<(String, String)>,
}

impl LeftOut {
    /// Adds an event, with why it cannot be sent.
    pub fn add(&self, event: String, why: String) {
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if events.known.contains(&event) {
            return;
        }
        events.count += 1;
        if events.known.len() < MAX_KNOWN {
            events.known.insert(event.clone());
        }
        events.first.get_or_insert((event, why));
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).count
    }

    /// The first one, and why it cannot be sent.
    pub fn first(&self) -> Option<(String, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).first.clone()
    }
}

/// The sink of one session.
pub struct LeaveOut<K> {
    inner: K,
    left_out: LeftOut,
    /// Why a topic cannot be used, which is no reason to leave out its events.
    unusable_topic: Option<Unsendable>,
}

/// What the end of a session needs.
#[derive(Debug)]
pub struct LeaveOutEnd<L> {
    /// The inner sink's result.
    pub inner: L,
    /// Up to where everything is acknowledged.
    pub position: Position,
    /// Why a topic cannot be used, if the session has ended because of it.
    pub unusable_topic: Option<Unsendable>,
}

impl<K: Sink> LeaveOut<K> {
    /// Wraps `inner`.
    pub fn new(inner: K, left_out: LeftOut) -> Self {
        LeaveOut { inner, left_out, unusable_topic: None }
    }
}

impl<K: Sink> Sink for LeaveOut<K> {
    type End = LeaveOutEnd<K::End>;

    fn is_ready(&self) -> bool {
        self.inner.is_ready()
    }

    fn send(&mut self, output: &PipelineOutput<'_>, sequence: Sequence) -> Result<Sent, NotSent> {
        match self.inner.send(output, sequence) {
            Err(NotSent::Impossible(why)) if why.reason == Reason::Topic => {
                self.unusable_topic = Some(why.clone());
                Err(NotSent::Impossible(why))
            }
            Err(NotSent::Impossible(why)) => {
                self.left_out.add(output.event.row.printable_id(), why.with_reason());
                Ok(Sent::Nothing)
            }
            sent => sent,
        }
    }

    fn looks_ahead(&self) -> bool {
        self.inner.looks_ahead()
    }

    fn look_ahead(&mut self, output: &PipelineOutput<'_>) -> bool {
        self.inner.look_ahead(output)
    }

    fn reports(&mut self, event: &mut impl FnMut(SinkEvent) -> Option<InFlight>) -> Option<Refusal> {
        self.inner.reports(event)
    }

    fn after_dispatch(
        &mut self,
        state: &LoopState<'_>,
        note: &mut dyn FnMut(&mut Checkpoint),
    ) -> Result<bool, Error> {
        self.inner.after_dispatch(state, note)
    }

    fn is_done(&self) -> bool {
        self.inner.is_done()
    }

    fn durability(&self, progress: &Progress) -> Durability {
        self.inner.durability(progress)
    }

    async fn wait(&mut self) -> Result<(), Error> {
        self.inner.wait().await
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    async fn close(
        self,
        outcome: Outcome,
        progress: &mut Progress,
        log_verified: bool,
        note: &mut dyn FnMut(&mut Checkpoint),
    ) -> (Outcome, Self::End) {
        let LeaveOut { inner, unusable_topic, .. } = self;
        let (outcome, inner) = inner.close(outcome, progress, log_verified, note).await;
        (outcome, LeaveOutEnd { inner, position: progress.position(), unusable_topic })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_is_read_again_is_counted_once() {
        let left_out = LeftOut::default();
        for event in ["a", "b", "a"] {
            left_out.add(event.to_owned(), format!("{event} is too large"));
        }
        assert_eq!(left_out.count(), 2);
        assert_eq!(left_out.first(), Some(("a".to_owned(), "a is too large".to_owned())));
    }
}
