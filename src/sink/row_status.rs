//! A sink around a sink, for rows that are polled. It reports what has become of each row. After a refusal, it keeps back later rows
//! of the aggregate that were claimed before the refusal was stored.

use std::collections::HashMap;

use pg_logical::Lsn;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::checkpoint::Checkpoint;
use crate::error::Error;
use crate::outbox::Field;
use crate::pipeline::PipelineOutput;
use crate::postgres::polling::messages::{RefusalStored, RowResult};
use crate::progress::{Position, Progress, Sequence};
use crate::relay::{
    Durability, Health, InFlight, LoopState, NotSent, Outcome, Refusal, Sent, Sink, SinkEvent,
};

/// The sink of one session.
pub struct RowStatus<K> {
    inner: K,
    results: UnboundedSender<RowResult>,
    stored: UnboundedReceiver<RefusalStored>,
    refused: Refused,
}

/// Aggregates whose rows are kept back.
#[derive(Debug, Default)]
struct Refused(HashMap<Box<[u8]>, KeptBack>);

#[derive(Debug)]
struct KeptBack {
    /// The row that was refused.
    refused: Sequence,
    /// The first row that is not kept back, once the refusal is stored.
    resumes_at: Option<Sequence>,
}

impl Refused {
    fn add(&mut self, aggregate: Option<&[u8]>, row: Sequence) {
        if let Some(aggregate) = aggregate {
            self.0.insert(aggregate.into(), KeptBack { refused: row, resumes_at: None });
        }
    }

    /// `row` is the next one.
    fn stored(&mut self, RefusalStored { refused, next }: RefusalStored, row: Sequence) {
        for kept in self.0.values_mut().filter(|kept| kept.refused == refused) {
            kept.resumes_at = Some(next);
        }
        self.0.retain(|_, kept| kept.resumes_at.is_none_or(|resumes_at| row < resumes_at));
    }

    /// Whether a row of this aggregate has to wait for one that was refused.
    fn keeps_back(&mut self, aggregate: Option<&[u8]>, row: Sequence) -> bool {
        let Some(aggregate) = aggregate else { return false };
        match self.0.get(aggregate) {
            None => false,
            Some(KeptBack { resumes_at: Some(resumes_at), .. }) if row >= *resumes_at => {
                self.0.remove(aggregate);
                false
            }
            Some(_) => true,
        }
    }
}

/// What the end of a session needs.
#[derive(Debug)]
pub struct RowStatusEnd<L> {
    /// The inner sink's result.
    pub inner: L,
    /// For what is found out about rows at the end. The session is over once it is dropped.
    pub results: UnboundedSender<RowResult>,
    /// How many rows were settled without a gap.
    pub settled: u64,
}

impl<K: Sink> RowStatus<K> {
    /// Wraps `inner`.
    pub fn new(
        inner: K,
        results: UnboundedSender<RowResult>,
        stored: UnboundedReceiver<RefusalStored>,
    ) -> Self {
        RowStatus { inner, results, stored, refused: Refused::default() }
    }

    fn report(&self, result: RowResult) {
        // a worker that has ended has told the source
        let _ = self.results.send(result);
    }
}

impl<K: Sink> Sink for RowStatus<K> {
    type End = RowStatusEnd<K::End>;

    fn is_ready(&self) -> bool {
        self.inner.is_ready()
    }

    fn send(&mut self, output: &PipelineOutput<'_>, sequence: Sequence) -> Result<Sent, NotSent> {
        let aggregate = output.event.row.field(Field::AggregateId);
        while let Ok(stored) = self.stored.try_recv() {
            self.refused.stored(stored, sequence);
        }
        if self.refused.keeps_back(aggregate, sequence) {
            self.report(RowResult::NotSent(sequence));
            return Ok(Sent::Nothing);
        }
        match self.inner.send(output, sequence) {
            Ok(Sent::Nothing) => {
                self.report(RowResult::Published(sequence));
                Ok(Sent::Nothing)
            }
            Err(NotSent::Impossible(why)) => {
                self.refused.add(aggregate, sequence);
                self.report(RowResult::Refused(sequence, why.with_reason()));
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
        let results = &self.results;
        self.inner.reports(&mut |reported| {
            if let SinkEvent::Delivered(sequence) = reported {
                let _ = results.send(RowResult::Published(sequence));
            }
            event(reported)
        })
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
        // numbers of rows are no positions in the log
        Durability { position: Position::default(), durable: Lsn::INVALID, ..self.inner.durability(progress) }
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
        let RowStatus { inner, results, .. } = self;
        let before = progress.acknowledged();
        let (outcome, inner) = inner.close(outcome, progress, log_verified, note).await;
        // what was acknowledged meanwhile is known as far as there is no gap; the worker ignores rows that it knows about
        for number in before..progress.acknowledged() {
            let _ = results.send(RowResult::Published(Sequence(number)));
        }
        (outcome, RowStatusEnd { inner, results, settled: progress.acknowledged() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_were_claimed_before_a_refusal_was_stored_are_kept_back() {
        let (a, b) = (Some(&b"a"[..]), Some(&b"b"[..]));
        let mut refused = Refused::default();
        refused.add(None, Sequence(1));
        refused.add(a, Sequence(2));
        assert!(!refused.keeps_back(None, Sequence(3)) && !refused.keeps_back(b, Sequence(3)));
        assert!(refused.keeps_back(a, Sequence(3)) && refused.keeps_back(a, Sequence(9)));
        // that of another row says nothing about this one
        refused.stored(RefusalStored { refused: Sequence(1), next: Sequence(4) }, Sequence(3));
        assert!(refused.keeps_back(a, Sequence(9)));
        refused.stored(RefusalStored { refused: Sequence(2), next: Sequence(6) }, Sequence(4));
        assert!(refused.keeps_back(a, Sequence(5)));
        // it is tried again, and refused again
        assert!(!refused.keeps_back(a, Sequence(6)) && !refused.keeps_back(a, Sequence(7)));
        refused.add(a, Sequence(7));
        assert!(refused.keeps_back(a, Sequence(8)));
    }
}
