//! The bound on memory: how many records, and bytes for them, are under way.

use std::collections::VecDeque;

use crate::postgres::pgoutput::PgTimestamp;
use crate::progress::Sequence;

/// What is remembered of a record that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InFlight {
    /// Of its key, value and headers.
    pub(super) bytes: usize,
    /// What it takes until it is acknowledged.
    pub(super) memory: usize,
    pub(super) commit_time: PgTimestamp,
    /// Which of the relay's topics it goes to.
    pub(super) topic: usize,
}

/// Records sent and not yet acknowledged.
#[derive(Debug)]
pub(super) struct Window {
    max_records: usize,
    max_bytes: usize,
    records: usize,
    bytes: usize,
    /// How many bytes of records may be sent until [`Window::takes`] is called again, and how many were.
    takes: usize,
    sent_bytes: usize,
    /// One place for each number from `base` on; `None` once acknowledged, or never a record.
    places: VecDeque<Option<InFlight>>,
    base: u64,
}

/// How much longer than the window the run of numbers may get whose first is still under way. Reports of other
/// partitions must not let it grow without end.
const SPAN_PER_RECORD: usize = 4;

impl Window {
    pub(super) fn new(max_records: usize, max_bytes: usize) -> Self {
        let places = VecDeque::new();
        Window {
            max_records,
            max_bytes,
            records: 0,
            bytes: 0,
            takes: usize::MAX,
            sent_bytes: 0,
            places,
            base: 0,
        }
    }

    /// Whether nothing more may be sent. One record always may, however large it is.
    pub(super) fn is_full(&self) -> bool {
        self.records >= self.max_records
            || self.records > 0 && self.bytes >= self.max_bytes
            || self.sent_bytes >= self.takes
            || self.places.len() >= self.max_records.saturating_mul(SPAN_PER_RECORD)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// From here on so many bytes of records may be sent: what the Kafka transaction still takes. The last one may have more
    /// than what is left.
    pub(super) fn takes(&mut self, bytes: usize) {
        (self.takes, self.sent_bytes) = (bytes, 0);
    }

    /// How many were sent since.
    pub(super) fn sent_bytes(&self) -> usize {
        self.sent_bytes
    }

    /// A record was sent for which no place is kept here.
    pub(super) fn sent_besides(&mut self, bytes: usize) {
        self.sent_bytes += bytes;
    }

    pub(super) fn records(&self) -> usize {
        self.records
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// When the transaction of the oldest record under way committed.
    pub(super) fn oldest(&self) -> Option<PgTimestamp> {
        self.places.front().copied().flatten().map(|record| record.commit_time)
    }

    /// The topic of the oldest record under way.
    pub(super) fn oldest_topic(&self) -> Option<usize> {
        self.places.front().copied().flatten().map(|record| record.topic)
    }

    pub(super) fn sent(&mut self, sequence: Sequence, record: InFlight) {
        if self.places.is_empty() {
            self.base = sequence.0;
        }
        // numbers in between were never records
        let index = usize::try_from(sequence.0.saturating_sub(self.base)).unwrap_or(usize::MAX);
        self.places.resize(index.max(self.places.len()), None);
        self.places.push_back(Some(record));
        self.records += 1;
        self.bytes += record.memory;
        self.sent_bytes += record.bytes;
    }

    pub(super) fn acknowledged(&mut self, sequence: Sequence) -> Option<InFlight> {
        let index = usize::try_from(sequence.0.checked_sub(self.base)?).ok()?;
        let record = self.places.get_mut(index)?.take()?;
        self.records -= 1;
        self.bytes -= record.memory;
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.base += 1;
        }
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(bytes: usize) -> InFlight {
        InFlight { bytes, memory: bytes, commit_time: PgTimestamp(bytes as i64), topic: 0 }
    }

    #[test]
    fn bounded_memory_by_records_by_bytes_and_by_the_run_of_numbers() {
        let mut window = Window::new(3, 100);
        window.sent(Sequence(4), record(100));
        assert!(window.is_full());
        window.acknowledged(Sequence(4));
        for n in 5..8 {
            assert!(!window.is_full());
            window.sent(Sequence(n), record(1));
        }
        assert!(window.is_full());
        // the oldest stays while others come and go
        for n in 8..17 {
            window.acknowledged(Sequence(n - 1));
            assert_eq!(window.is_full(), n == 17, "{n}");
            window.sent(Sequence(n), record(1));
        }
        window.acknowledged(Sequence(16));
        assert!(
            window.is_full(),
            "a run of {} numbers for {} records",
            window.places.len(),
            window.records()
        );
        window.acknowledged(Sequence(5));
        assert!(!window.is_full());
    }

    #[test]
    fn one_record_of_any_size_may_always_go() {
        let mut window = Window::new(10, 100);
        assert!(!window.is_full());
        window.sent(Sequence(0), record(1_000));
        assert!(window.is_full());
    }

    #[test]
    fn what_a_transaction_takes_holds_back_and_one_record_may_exceed_it() {
        let mut window = Window::new(10, 1_000);
        window.takes(15);
        for n in 0..2 {
            assert!(!window.is_full());
            window.sent(Sequence(n), record(10));
        }
        assert!(window.is_full() && window.sent_bytes() == 20);
        window.acknowledged(Sequence(0));
        assert!(window.is_full(), "acknowledged, but still of the same transaction");
        window.takes(15);
        window.sent_besides(20);
        assert!(window.is_full());
        window.takes(1);
        assert!(!window.is_full());
    }

    #[test]
    fn numbers_that_are_no_records_leave_gaps() {
        let mut window = Window::new(10, 1_000);
        window.sent(Sequence(2), record(10));
        window.sent(Sequence(6), record(20));
        assert_eq!(window.acknowledged(Sequence(3)), None);
        assert_eq!(window.acknowledged(Sequence(6)), Some(record(20)));
        assert_eq!(window.acknowledged(Sequence(6)), None, "twice");
        assert_eq!((window.records(), window.bytes(), window.oldest()), (1, 10, Some(PgTimestamp(10))));
        window.acknowledged(Sequence(2));
        assert!(window.is_empty() && window.oldest().is_none() && window.places.is_empty());
    }
}
