//! The parked aggregates: those with rows in the table, or on their way to it.

use std::collections::HashMap;

use super::Key;

/// Counts the rows of each aggregate. It only changes in the relay's loop, between two events.
#[derive(Debug, Default)]
pub struct Parked {
    rows: HashMap<Box<str>, Rows>,
    /// The number of all rows.
    all: u64,
    /// The number of rows without an aggregate; each of these is parked on its own.
    without: usize,
    max_aggregates: usize,
}

/// The rows of one aggregate.
#[derive(Debug, Clone, Copy)]
struct Rows {
    count: u64,
    /// The first of its events. Earlier ones, read again after a reset or a crash, are not held back.
    first: Key,
}

/// Another aggregate would exceed the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("as many aggregates are parked as `[dead_letters] max_aggregates` allows: {0}")]
pub struct TooMany(pub usize);

impl Parked {
    /// Starts with the rows of the table. `max_aggregates` is the maximum number of parked aggregates.
    pub fn new(rows: impl IntoIterator<Item = (Option<String>, u64, Key)>, max_aggregates: usize) -> Self {
        let mut parked = Parked { max_aggregates, ..Parked::default() };
        for (aggregate, count, first) in rows {
            match aggregate {
                Some(aggregate) => drop(parked.rows.insert(aggregate.into(), Rows { count, first })),
                None => parked.without += usize::try_from(count).unwrap_or(usize::MAX),
            }
            parked.all += count;
        }
        parked
    }

    /// Whether this event has to be parked because its aggregate is.
    pub fn holds(&self, aggregate: Option<&str>, event: Key) -> bool {
        aggregate.and_then(|aggregate| self.rows.get(aggregate)).is_some_and(|rows| rows.first <= event)
    }

    /// Adds a row. True if it is the first of its aggregate.
    ///
    /// # Errors
    /// The number of aggregates would exceed the limit; an event without one counts as one.
    pub fn add(&mut self, aggregate: Option<&str>, event: Key) -> Result<bool, TooMany> {
        if let Some(rows) = aggregate.and_then(|aggregate| self.rows.get_mut(aggregate)) {
            rows.count += 1;
            rows.first = rows.first.min(event);
            self.all += 1;
            return Ok(false);
        }
        if self.rows.len() + self.without >= self.max_aggregates {
            return Err(TooMany(self.max_aggregates));
        }
        match aggregate {
            Some(aggregate) => drop(self.rows.insert(aggregate.into(), Rows { count: 1, first: event })),
            None => self.without += 1,
        }
        self.all += 1;
        Ok(true)
    }

    /// Removes a row. True if it was the last of its aggregate, whose events are sent again from now on.
    pub fn remove(&mut self, aggregate: Option<&str>) -> bool {
        let Some(aggregate) = aggregate else {
            (self.all, self.without) = (self.all.saturating_sub(1), self.without.saturating_sub(1));
            return false;
        };
        match self.rows.get_mut(aggregate) {
            Some(rows) if rows.count > 1 => {
                rows.count -= 1;
                self.all = self.all.saturating_sub(1);
                false
            }
            Some(_) => {
                self.all = self.all.saturating_sub(1);
                self.rows.remove(aggregate).is_some()
            }
            None => false,
        }
    }

    /// The number of parked aggregates, and of all rows.
    pub fn count(&self) -> (usize, u64) {
        (self.rows.len(), self.all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aggregate_is_parked_until_its_last_row_is_gone() {
        let key = |change| Key { final_lsn: pg_logical::Lsn(9), change };
        let mut parked = Parked::new([(Some("a".to_owned()), 2, key(5)), (None, 1, key(1))], 4);
        assert!(
            parked.holds(Some("a"), key(5))
                && !parked.holds(Some("b"), key(5))
                && !parked.holds(None, key(5))
        );
        assert!(!parked.holds(Some("a"), key(4)), "it comes before");
        assert_eq!(parked.add(Some("b"), key(6)), Ok(true));
        assert_eq!(parked.add(Some("a"), key(4)), Ok(false));
        assert!(parked.holds(Some("a"), key(4)));
        assert_eq!(parked.add(None, key(7)), Ok(true), "it is parked by itself");
        assert_eq!(parked.add(Some("c"), key(7)), Err(TooMany(4)));
        assert_eq!(parked.add(None, key(8)), Err(TooMany(4)));
        assert_eq!(parked.count(), (2, 6));
        assert_eq!([(); 3].map(|()| parked.remove(Some("a"))), [false, false, true]);
        assert!(!parked.holds(Some("a"), key(9)) && parked.holds(Some("b"), key(9)));
        assert!(!parked.remove(Some("a")) && !parked.remove(None));
        assert_eq!(parked.count(), (1, 2));
    }
}
