//! Counters since the process started.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::report::{ParkedCount, TopicReport, Totals};
use crate::error::Peer;
use crate::unsendable::Reason;

/// A count that any thread may add to.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The counts of one router.
#[derive(Debug, Default)]
pub struct Counts {
    /// Events dropped by a rule, or because no rule matches them.
    pub events_dropped: Counter,
    /// Events whose aggregate id is NULL: sent without a key, so without order.
    pub keyless_events: Counter,
    /// Members of the headers column left out because their name is that of one of the router's own headers.
    pub headers_dropped: Counter,
    /// Timestamps that the topic would have refused and that the commit time replaced.
    pub timestamps_replaced: Counter,
    /// Times that a topic was found to have more partitions than before.
    pub partitions_grown: Counter,
    /// Bulk reads that have ended.
    pub bulk_reads: Counter,
    /// Changes in the stream that are not events: of other tables, or not inserts.
    pub ignored_changes: Counter,
    /// Events sent although their payload violates their contract.
    pub contract_violations: Counter,
    /// Parked events that were sent.
    pub dead_letters_retried: Counter,
    /// Parked events that were discarded.
    pub dead_letters_discarded: Counter,
    parked: [Counter; Reason::ALL.len()],
    pub(super) reconnects_postgres: Counter,
    pub(super) reconnects_kafka: Counter,
}

impl Counts {
    /// An event was parked.
    pub fn event_parked(&self, reason: Reason) {
        if let Some(count) = self.parked.get(reason as usize) {
            count.add(1);
        }
    }

    /// A lost connection to `peer` was restored.
    pub fn reconnected(&self, peer: Peer) {
        let counter = match peer {
            Peer::Postgres => &self.reconnects_postgres,
            Peer::Kafka => &self.reconnects_kafka,
        };
        counter.add(1);
    }

    pub(super) fn parked(&self) -> Vec<ParkedCount> {
        let of = |(reason, count): (Reason, &Counter)| ParkedCount {
            reason: reason.name().to_owned(),
            events: count.get(),
        };
        Reason::ALL.into_iter().zip(&self.parked).map(of).collect()
    }

    /// The totals, with those of the topics.
    pub(super) fn totals(&self, topics: &[TopicReport]) -> Totals {
        Totals {
            events: topics.iter().map(|topic| topic.events).sum(),
            bytes: topics.iter().map(|topic| topic.bytes).sum(),
            events_dropped: self.events_dropped.get(),
            keyless_events: self.keyless_events.get(),
            headers_dropped: self.headers_dropped.get(),
            timestamps_replaced: self.timestamps_replaced.get(),
            partitions_grown: self.partitions_grown.get(),
            bulk_reads: self.bulk_reads.get(),
            contract_violations: self.contract_violations.get(),
            ignored_changes: self.ignored_changes.get(),
        }
    }
}
