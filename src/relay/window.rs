//! The window: bounds the records in flight and their memory.

use std::collections::VecDeque;

use pg_logical::PgTimestamp;

use crate::progress::Sequence;

/// A record in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InFlight {
    /// The bytes of its key, value and headers.
    pub bytes: usize,
    /// The memory that it takes until it is acknowledged, in bytes.
    pub memory: usize,
    /// When its transaction was committed.
    pub commit_time: PgTimestamp,
    /// The sink's number for its destination.
    pub target: usize,
}

/// Sent records that are not yet acknowledged.
#[derive(Debug)]
pub struct Window {
    max_records: usize,
    max_bytes: usize,
    records: usize,
    bytes: usize,
    /// The records from the oldest in flight on, by number; `None` once acknowledged. Numbers that were never records have no
    /// entry.
    entries: VecDeque<(Sequence, Option<InFlight>)>,
}

/// How many entries there may be for each record: an acknowledged entry stays until every older record is acknowledged.
const ENTRIES_PER_RECORD: usize = 4;

impl Window {
    /// A window of at most this many records and bytes.
    pub fn new(max_records: usize, max_bytes: usize) -> Self {
        Window { max_records, max_bytes, records: 0, bytes: 0, entries: VecDeque::new() }
    }

    /// Whether nothing more may be sent. A single record is always allowed, whatever its size.
    pub fn is_full(&self) -> bool {
        self.records >= self.max_records
            || self.records > 0 && self.bytes >= self.max_bytes
            || self.entries.len() >= self.max_records.saturating_mul(ENTRIES_PER_RECORD)
    }

    /// Whether no record is in flight.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// The number of records in flight.
    pub fn records(&self) -> usize {
        self.records
    }

    /// The memory that they take, in bytes.
    pub fn memory(&self) -> usize {
        self.bytes
    }

    /// When the transaction of the oldest record in flight was committed.
    pub fn oldest(&self) -> Option<PgTimestamp> {
        self.front().map(|record| record.commit_time)
    }

    /// The destination of the oldest record in flight.
    pub fn oldest_target(&self) -> Option<usize> {
        self.front().map(|record| record.target)
    }

    fn front(&self) -> Option<InFlight> {
        self.entries.front().and_then(|(_, record)| *record)
    }

    /// Adds a record. Its number has to be higher than all before.
    pub fn add(&mut self, sequence: Sequence, record: InFlight) {
        self.entries.push_back((sequence, Some(record)));
        self.records += 1;
        self.bytes += record.memory;
    }

    /// Removes a record. Returns it if it was in flight.
    pub fn remove(&mut self, sequence: Sequence) -> Option<InFlight> {
        let record = self.entry(sequence)?.take()?;
        self.records -= 1;
        self.bytes -= record.memory;
        while let Some((_, None)) = self.entries.front() {
            self.entries.pop_front();
        }
        Some(record)
    }

    fn entry(&mut self, sequence: Sequence) -> Option<&mut Option<InFlight>> {
        let (first, _) = self.entries.front()?;
        let distance = usize::try_from(sequence.0.checked_sub(first.0)?).unwrap_or(usize::MAX);
        // its index is its distance from the first entry, or less where numbers had no entry
        let index = match self.entries.get(distance) {
            Some((at, _)) if *at == sequence => distance,
            _ => self.entries.binary_search_by_key(&sequence, |(at, _)| *at).ok()?,
        };
        self.entries.get_mut(index).map(|(_, record)| record)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    fn record(bytes: usize) -> InFlight {
        InFlight { bytes, memory: bytes, commit_time: PgTimestamp(bytes as i64), target: 0 }
    }

    #[test]
    fn bounded_memory_by_records_by_bytes_and_by_places() {
        let mut window = Window::new(3, 100);
        window.add(Sequence(4), record(100));
        assert!(window.is_full());
        window.remove(Sequence(4));
        for n in 5..8 {
            assert!(!window.is_full());
            window.add(Sequence(n), record(1));
        }
        assert!(window.is_full());
        // the oldest stays in flight while others come and go
        for n in 8..17 {
            window.remove(Sequence(n - 1));
            assert_eq!(window.is_full(), n == 17, "{n}");
            window.add(Sequence(n), record(1));
        }
        window.remove(Sequence(16));
        assert!(window.is_full(), "{} entries for {} records", window.entries.len(), window.records());
        window.remove(Sequence(5));
        assert!(!window.is_full());
    }

    #[test]
    fn a_single_record_of_any_size_is_allowed() {
        let mut window = Window::new(10, 100);
        assert!(!window.is_full());
        window.add(Sequence(0), record(1_000));
        assert!(window.is_full());
    }

    #[test]
    fn numbers_that_are_no_records_leave_gaps() {
        let mut window = Window::new(10, 1_000);
        window.add(Sequence(2), record(10));
        window.add(Sequence(6), record(20));
        assert_eq!(window.remove(Sequence(3)), None);
        assert_eq!(window.remove(Sequence(6)), Some(record(20)));
        assert_eq!(window.remove(Sequence(6)), None, "twice");
        assert_eq!((window.records(), window.memory(), window.oldest()), (1, 10, Some(PgTimestamp(10))));
        window.remove(Sequence(2));
        assert!(window.is_empty() && window.oldest().is_none() && window.entries.is_empty());
    }

    #[test]
    fn bounded_memory_whatever_the_distance_between_two_records() {
        let mut window = Window::new(3, 100);
        window.add(Sequence(7), record(1));
        window.add(Sequence(1 << 40), record(2));
        assert!(!window.is_full() && window.entries.capacity() < 100);
        assert_eq!(window.remove(Sequence(7)), Some(record(1)));
        assert_eq!(window.remove(Sequence(1 << 40)), Some(record(2)));
    }

    proptest! {
        /// Each step adds a record after a gap of numbers, or removes one that is in flight.
        #[test]
        fn records_in_flight_are_known_and_bounded(steps in vec((0_u64..3, any::<Index>()), 0..300)) {
            let mut window = Window::new(5, 20);
            let (mut in_flight, mut next) = (BTreeMap::new(), 0);
            for (gap, choice) in steps {
                let chosen = choice.index(in_flight.len() + 1);
                if let Some(&sequence) = in_flight.keys().nth(chosen) {
                    prop_assert_eq!(window.remove(sequence), in_flight.remove(&sequence));
                    prop_assert_eq!(window.remove(sequence), None);
                } else if !window.is_full() {
                    next += gap + 1;
                    in_flight.insert(Sequence(next), record(gap as usize));
                    window.add(Sequence(next), record(gap as usize));
                }
                prop_assert_eq!(window.remove(Sequence(next + 1)), None);
                prop_assert_eq!(window.records(), in_flight.len());
                prop_assert_eq!(window.memory(), in_flight.values().map(|record| record.memory).sum::<usize>());
                let oldest = in_flight.values().next();
                prop_assert_eq!(window.oldest(), oldest.map(|record| record.commit_time));
                prop_assert!(window.entries.len() <= 5 * ENTRIES_PER_RECORD);
                // acknowledged records make room: nothing waits forever
                prop_assert!(!in_flight.is_empty() || !window.is_full() && window.entries.is_empty());
            }
        }
    }
}
