//! Rows that are out of the table because their events were sent. A server that has not heard of that, after a failover, has
//! them again; so they are remembered until the position is past the end of the log that says so.

use std::collections::VecDeque;

use pg_logical::Lsn;

use super::Key;

/// A position has to fit into a record.
const MOST: usize = 500;

/// In the order of their commits.
#[derive(Debug, Default)]
pub struct ResolvedRows(VecDeque<(Lsn, Vec<Key>)>);

impl ResolvedRows {
    /// What an earlier session has left, however many they are.
    pub fn left(keys: Vec<Key>, committed: Lsn) -> Self {
        ResolvedRows(VecDeque::from([(committed, keys)]))
    }

    /// These are out of the table, and the log that says so ends at `committed`. False if there are too many already.
    pub fn add(&mut self, keys: Vec<Key>, committed: Lsn) -> bool {
        let count: usize = self.0.iter().map(|(_, keys)| keys.len()).sum();
        let room = count + keys.len() <= MOST;
        if room && !keys.is_empty() {
            self.0.push_back((committed, keys));
        }
        room
    }

    /// This one is parked again, as after a reset: a row of it is another one.
    pub fn is_back(&mut self, key: Key) {
        for (_, keys) in &mut self.0 {
            keys.retain(|gone| *gone != key);
        }
    }

    /// Those that a server may have again whose log is known to reach as far as `position`.
    pub fn behind(&mut self, position: Lsn) -> impl Iterator<Item = &Key> {
        while self.0.front().is_some_and(|(committed, _)| *committed <= position) {
            self.0.pop_front();
        }
        self.0.iter().flat_map(|(_, keys)| keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(changes: std::ops::Range<u64>) -> Vec<Key> {
        changes.map(|change| Key { final_lsn: Lsn(1), change }).collect()
    }

    #[test]
    fn a_row_is_remembered_until_the_position_is_past_its_deletion() {
        let mut gone = ResolvedRows::default();
        assert!(gone.add(keys(1..3), Lsn(10)) && gone.add(keys(3..4), Lsn(20)));
        let behind =
            |gone: &mut ResolvedRows, position| gone.behind(Lsn(position)).copied().collect::<Vec<_>>();
        assert_eq!(behind(&mut gone, 9), keys(1..4));
        assert_eq!(behind(&mut gone, 10), keys(3..4));
        gone.is_back(keys(3..4)[0]);
        assert_eq!(behind(&mut gone, 10), []);
        assert!(gone.add(keys(4..5), Lsn(30)));
        assert_eq!(behind(&mut gone, 20), keys(4..5));
    }

    #[test]
    fn there_are_no_more_than_a_position_has_room_for() {
        let mut gone = ResolvedRows::default();
        assert!(gone.add(keys(0..MOST as u64), Lsn(10)));
        assert!(!gone.add(keys(0..1), Lsn(20)));
        assert_eq!(gone.behind(Lsn(0)).count(), MOST);
        assert_eq!(gone.behind(Lsn(10)).count(), 0);
        assert!(gone.add(keys(0..1), Lsn(20)));
    }
}
