//! What is shown of parked events.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::report::{DeadLetters, ParkedFor};
use crate::unsendable::Reason;

/// What is counted.
#[derive(Debug, Default)]
pub(super) struct Counts {
    parked: [AtomicU64; Reason::ALL.len()],
    retried: AtomicU64,
    discarded: AtomicU64,
    aggregates: AtomicU64,
    events: AtomicU64,
}

impl Counts {
    pub(super) fn parked(&self, reason: Reason) {
        if let Some(count) = self.parked.get(reason as usize) {
            count.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn now(&self, aggregates: usize, events: u64) {
        self.aggregates.store(aggregates as u64, Relaxed);
        self.events.store(events, Relaxed);
    }

    pub(super) fn retried(&self) {
        self.retried.fetch_add(1, Relaxed);
    }

    pub(super) fn discarded(&self) {
        self.discarded.fetch_add(1, Relaxed);
    }

    pub(super) fn report(&self) -> DeadLetters {
        let of = |(reason, count): (Reason, &AtomicU64)| ParkedFor {
            reason: reason.name().to_owned(),
            events: count.load(Relaxed),
        };
        DeadLetters {
            aggregates: self.aggregates.load(Relaxed),
            events: self.events.load(Relaxed),
            parked: Reason::ALL.into_iter().zip(&self.parked).map(of).collect(),
            retried: self.retried.load(Relaxed),
            discarded: self.discarded.load(Relaxed),
        }
    }
}
