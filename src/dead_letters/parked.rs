//! Which aggregates are parked: those of which a row is in the table, or on its way there.

use std::collections::HashMap;

use super::Key;

/// Counts the rows of each aggregate. Only the relay's loop changes it, between two events.
#[derive(Debug, Default)]
pub struct Parked {
    rows: HashMap<Box<str>, Rows>,
    /// All rows.
    all: u64,
    /// Those of events without an aggregate, each of which is parked by itself.
    without: usize,
    most: usize,
}

/// Those of one aggregate.
#[derive(Debug, Clone, Copy)]
struct Rows {
    count: u64,
    /// What comes before it, after a reset or a crash, is not held up by it.
    first: Key,
}

/// One more aggregate would be more than may be parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("as many aggregates are parked as `[dead_letters] max_aggregates` allows: {0}")]
pub struct TooMany(pub usize);

impl Parked {
    /// As the table has them. `most`: how many aggregates may be parked.
    pub fn new(rows: impl IntoIterator<Item = (Option<String>, u64, Key)>, most: usize) -> Self {
        let mut parked = Parked { most, ..Parked::default() };
        for (aggregate, count, first) in rows {
            match aggregate {
                Some(aggregate) => drop(parked.rows.insert(aggregate.into(), Rows { count, first })),
                None => parked.without += usize::try_from(count).unwrap_or(usize::MAX),
            }
            parked.all += count;
        }
        parked
    }

    /// Whether this event of this aggregate has to be parked, whatever it is.
    pub fn holds(&self, aggregate: Option<&str>, event: Key) -> bool {
        aggregate.and_then(|aggregate| self.rows.get(aggregate)).is_some_and(|rows| rows.first <= event)
    }

    /// One more row of it. True for its first one.
    ///
    /// # Errors
    /// It would be one aggregate too many; an event without one counts as one.
    pub fn add(&mut self, aggregate: Option<&str>, event: Key) -> Result<bool, TooMany> {
        if let Some(rows) = aggregate.and_then(|aggregate| self.rows.get_mut(aggregate)) {
            rows.count += 1;
            rows.first = rows.first.min(event);
            self.all += 1;
            return Ok(false);
        }
        if self.rows.len() + self.without >= self.most {
            return Err(TooMany(self.most));
        }
        match aggregate {
            Some(aggregate) => drop(self.rows.insert(aggregate.into(), Rows { count: 1, first: event })),
            None => self.without += 1,
        }
        self.all += 1;
        Ok(true)
    }

    /// One row less. True if it was the last: the aggregate's events flow again.
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

    /// How many aggregates are parked, and how many rows there are in all.
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
