//! The bound on memory: how many records, and bytes for them, are under way.

use std::collections::VecDeque;

use pg_logical::PgTimestamp;

use crate::progress::Sequence;

/// A record that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InFlight {
    /// Of its key, value and headers.
    pub bytes: usize,
    /// What it takes until it is acknowledged.
    pub memory: usize,
    /// When its transaction was committed.
    pub commit_time: PgTimestamp,
    /// The sink's number for where it goes.
    pub target: usize,
}

/// Records sent and not yet acknowledged.
#[derive(Debug)]
pub struct Window {
    max_records: usize,
    max_bytes: usize,
    records: usize,
    bytes: usize,
    /// From the oldest one under way on, by number; `None` once acknowledged. Numbers that were never records take no
    /// place, however many lie in between.
    places: VecDeque<(Sequence, Option<InFlight>)>,
}

/// How many more places than records there may be, as those behind the oldest record are kept after their reports.
const PLACES_PER_RECORD: usize = 4;

impl Window {
    /// Takes so many records at most, and bytes for them.
    pub fn new(max_records: usize, max_bytes: usize) -> Self {
        Window { max_records, max_bytes, records: 0, bytes: 0, places: VecDeque::new() }
    }

    /// Whether nothing more may be sent. One record always may, however large it is.
    pub fn is_full(&self) -> bool {
        self.records >= self.max_records
            || self.records > 0 && self.bytes >= self.max_bytes
            || self.places.len() >= self.max_records.saturating_mul(PLACES_PER_RECORD)
    }

    /// Whether nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// How many records are under way.
    pub fn records(&self) -> usize {
        self.records
    }

    /// The memory that they take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// When the transaction of the oldest record under way committed.
    pub fn oldest(&self) -> Option<PgTimestamp> {
        self.front().map(|record| record.commit_time)
    }

    /// Where the oldest record under way goes.
    pub fn oldest_target(&self) -> Option<usize> {
        self.front().map(|record| record.target)
    }

    fn front(&self) -> Option<InFlight> {
        self.places.front().and_then(|(_, record)| *record)
    }

    /// Numbers grow from one record to the next.
    pub fn sent(&mut self, sequence: Sequence, record: InFlight) {
        self.places.push_back((sequence, Some(record)));
        self.records += 1;
        self.bytes += record.memory;
    }

    /// It is not under way any more. What was known of it, if it was.
    pub fn acknowledged(&mut self, sequence: Sequence) -> Option<InFlight> {
        let record = self.place(sequence)?.take()?;
        self.records -= 1;
        self.bytes -= record.memory;
        while let Some((_, None)) = self.places.front() {
            self.places.pop_front();
        }
        Some(record)
    }

    fn place(&mut self, sequence: Sequence) -> Option<&mut Option<InFlight>> {
        let (first, _) = self.places.front()?;
        let distance = usize::try_from(sequence.0.checked_sub(first.0)?).unwrap_or(usize::MAX);
        // it is at its distance from the first one, or before that where numbers were no records
        let index = match self.places.get(distance) {
            Some((at, _)) if *at == sequence => distance,
            _ => self.places.binary_search_by_key(&sequence, |(at, _)| *at).ok()?,
        };
        self.places.get_mut(index).map(|(_, record)| record)
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
        assert!(window.is_full(), "{} places for {} records", window.places.len(), window.records());
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

    #[test]
    fn bounded_memory_whatever_the_distance_between_two_records() {
        let mut window = Window::new(3, 100);
        window.sent(Sequence(7), record(1));
        window.sent(Sequence(1 << 40), record(2));
        assert!(!window.is_full() && window.places.capacity() < 100);
        assert_eq!(window.acknowledged(Sequence(7)), Some(record(1)));
        assert_eq!(window.acknowledged(Sequence(1 << 40)), Some(record(2)));
    }

    proptest! {
        /// Each step sends a record behind so many changes that are none, or acknowledges one that is under way.
        #[test]
        fn what_is_under_way_is_known_and_bounded(steps in vec((0_u64..3, any::<Index>()), 0..300)) {
            let mut window = Window::new(5, 20);
            let (mut under_way, mut next) = (BTreeMap::new(), 0);
            for (gap, choice) in steps {
                let chosen = choice.index(under_way.len() + 1);
                if let Some(&sequence) = under_way.keys().nth(chosen) {
                    prop_assert_eq!(window.acknowledged(sequence), under_way.remove(&sequence));
                    prop_assert_eq!(window.acknowledged(sequence), None);
                } else if !window.is_full() {
                    next += gap + 1;
                    under_way.insert(Sequence(next), record(gap as usize));
                    window.sent(Sequence(next), record(gap as usize));
                }
                prop_assert_eq!(window.acknowledged(Sequence(next + 1)), None);
                prop_assert_eq!(window.records(), under_way.len());
                prop_assert_eq!(window.bytes(), under_way.values().map(|record| record.memory).sum::<usize>());
                let oldest = under_way.values().next();
                prop_assert_eq!(window.oldest(), oldest.map(|record| record.commit_time));
                prop_assert!(window.places.len() <= 5 * PLACES_PER_RECORD);
                // what is acknowledged makes room: it never waits for ever
                prop_assert!(!under_way.is_empty() || !window.is_full() && window.places.is_empty());
            }
        }
    }
}
