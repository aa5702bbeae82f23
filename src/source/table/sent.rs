//! Which rows were sent, and up to where they are acknowledged.

use std::collections::VecDeque;

use super::rows::rows_before;
use crate::outbox::Cursor;
use crate::progress::Position;

/// Up to where the rows are acknowledged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Acknowledged {
    /// How many rows.
    pub rows: u64,
    /// The last of them.
    pub last: Option<Cursor>,
}

/// The rows that are consumed and not acknowledged, and how many were before them.
#[derive(Debug, Default)]
pub struct SentRows {
    acknowledged: Acknowledged,
    rest: VecDeque<Cursor>,
}

impl SentRows {
    /// After these rows.
    pub fn after(acknowledged: Acknowledged) -> Self {
        SentRows { acknowledged, rest: VecDeque::new() }
    }

    /// Adds a row.
    pub fn extend(&mut self, row: Option<Cursor>) {
        self.rest.extend(row);
    }

    /// Takes the position up to which everything is acknowledged. Returns whether that is new.
    pub fn acknowledge(&mut self, position: Position) -> bool {
        let more = self.more(position);
        let last = self.rest.drain(..more).next_back();
        let moved = last.is_some();
        if moved {
            self.acknowledged = Acknowledged { rows: self.acknowledged.rows + more as u64, last };
        }
        moved
    }

    /// Up to where rows were acknowledged at this position.
    pub fn at(&self, position: Position) -> Acknowledged {
        let more = self.more(position);
        match more.checked_sub(1).and_then(|index| self.rest.get(index)) {
            Some(last) => {
                Acknowledged { rows: self.acknowledged.rows + more as u64, last: Some(last.clone()) }
            }
            None => self.acknowledged.clone(),
        }
    }

    /// How many of the rest are acknowledged at this position.
    fn more(&self, position: Position) -> usize {
        let more = rows_before(position).saturating_sub(self.acknowledged.rows);
        usize::try_from(more).unwrap_or(usize::MAX).min(self.rest.len())
    }

    /// Up to where they are acknowledged.
    pub fn acknowledged(&self) -> &Acknowledged {
        &self.acknowledged
    }

    /// The first one that is not acknowledged.
    pub fn first(&self) -> Option<&Cursor> {
        self.rest.front()
    }

    /// How many are not acknowledged.
    pub fn len(&self) -> usize {
        self.rest.len()
    }

    /// Whether all are acknowledged.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::table::rows::position_after;

    #[test]
    fn the_last_acknowledged_row_is_found_again() {
        let row = |micros| Cursor { micros, created_at: micros.to_string(), ties: Vec::new() };
        let done = |rows, micros| Acknowledged { rows, last: Some(row(micros)) };
        let mut sent = SentRows::after(done(5, 50));
        [60, 70, 80].into_iter().for_each(|micros| sent.extend(Some(row(micros))));
        assert_eq!(sent.at(position_after(5)), done(5, 50));
        assert_eq!(sent.at(position_after(7)), done(7, 70));
        assert!(sent.acknowledge(position_after(6)) && !sent.acknowledge(position_after(6)));
        assert_eq!((sent.acknowledged(), sent.first(), sent.len()), (&done(6, 60), Some(&row(70)), 2));
        // an earlier position tells nothing new
        assert_eq!(sent.at(position_after(5)), done(6, 60));
        assert_eq!(sent.at(position_after(8)), done(8, 80));
        // one whose row is not among them yet
        assert_eq!(sent.at(position_after(9)), done(8, 80));
        assert!(sent.acknowledge(position_after(9)));
        assert_eq!(sent.acknowledged(), &done(8, 80));
    }
}
