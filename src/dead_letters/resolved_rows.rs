//! Rows deleted from the table because their events were sent. After a failover, a server may not know of the deletion and
//! have the rows again. So they are remembered until the position is past the end of the log with the deletion.

use std::collections::VecDeque;

use pg_logical::Lsn;

use super::Key;

/// The limit, because a checkpoint has to fit into a record.
const MAX_ROWS: usize = 500;

/// In the order of the deletions' commits.
#[derive(Debug, Default)]
pub struct ResolvedRows(VecDeque<(Lsn, Vec<Key>)>);

impl ResolvedRows {
    /// The rows that an earlier session has left, however many there are.
    pub fn from_earlier_session(keys: Vec<Key>, committed: Lsn) -> Self {
        ResolvedRows(VecDeque::from([(committed, keys)]))
    }

    /// Adds rows whose deletion is in the log before `committed`. False if there are too many already.
    pub fn add(&mut self, keys: Vec<Key>, committed: Lsn) -> bool {
        let count: usize = self.0.iter().map(|(_, keys)| keys.len()).sum();
        let room = count + keys.len() <= MAX_ROWS;
        if room && !keys.is_empty() {
            self.0.push_back((committed, keys));
        }
        room
    }

    /// The event is parked again, for example after a reset; its new row is a different one.
    pub fn parked_again(&mut self, key: Key) {
        for (_, keys) in &mut self.0 {
            keys.retain(|resolved| *resolved != key);
        }
    }

    /// Rows that may exist again on a server whose log is known to reach at least `position`.
    pub fn beyond(&mut self, position: Lsn) -> impl Iterator<Item = &Key> {
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
    fn a_row_is_kept_until_the_position_is_past_its_deletion() {
        let mut resolved = ResolvedRows::default();
        assert!(resolved.add(keys(1..3), Lsn(10)) && resolved.add(keys(3..4), Lsn(20)));
        let beyond = |resolved: &mut ResolvedRows, position| {
            resolved.beyond(Lsn(position)).copied().collect::<Vec<_>>()
        };
        assert_eq!(beyond(&mut resolved, 9), keys(1..4));
        assert_eq!(beyond(&mut resolved, 10), keys(3..4));
        resolved.parked_again(keys(3..4)[0]);
        assert_eq!(beyond(&mut resolved, 10), []);
        assert!(resolved.add(keys(4..5), Lsn(30)));
        assert_eq!(beyond(&mut resolved, 20), keys(4..5));
    }

    #[test]
    fn the_number_of_rows_is_limited() {
        let mut resolved = ResolvedRows::default();
        assert!(resolved.add(keys(0..MAX_ROWS as u64), Lsn(10)));
        assert!(!resolved.add(keys(0..1), Lsn(20)));
        assert_eq!(resolved.beyond(Lsn(0)).count(), MAX_ROWS);
        assert_eq!(resolved.beyond(Lsn(10)).count(), 0);
        assert!(resolved.add(keys(0..1), Lsn(20)));
    }
}
