//! Whether the server's log is the one that the router has read: a data directory that was put back from a copy looks the
//! same as before, and may have grown past the position again. So the stream starts at the last transaction that was
//! acknowledged, which must come again, and before the position nothing else. Nothing is confirmed until then.

use crate::lsn::Lsn;
use crate::progress::{Landmark, Position};
use crate::utc::Utc;

/// A look under way. Ask before each change, and after each commit and keepalive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recognition {
    landmark: Landmark,
    /// Whether it is yet to come.
    expected: bool,
    /// Where the stream is to be started.
    start: Lsn,
    /// What begins its commit before it is known.
    known_up_to: Lsn,
}

/// What was found instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherLog {
    landmark: Landmark,
    /// A transaction that the router has not seen there, or none at all.
    found: Option<Landmark>,
}

impl Recognition {
    /// Of a position that ends with `landmark`, and a slot that is confirmed up to `confirmed`. `None` if the slot itself
    /// vouches for all of it.
    pub fn new(landmark: Landmark, position: Position, confirmed: Lsn) -> Option<Self> {
        let start = confirmed.max(landmark.final_lsn.min(position.flush));
        let known_up_to = position.flush.max(Lsn(landmark.final_lsn.0.saturating_add(1)));
        let expected = landmark.final_lsn >= start;
        (start < known_up_to).then_some(Recognition { landmark, expected, start, known_up_to })
    }

    /// Where the stream is to be started.
    pub fn start(&self) -> Lsn {
        self.start
    }

    /// A change of `transaction` has come. Whether that settles it.
    pub fn change(&mut self, transaction: Landmark) -> Result<bool, OtherLog> {
        if transaction == self.landmark {
            self.expected = false;
        } else if self.expected || transaction.final_lsn < self.known_up_to {
            return Err(OtherLog { landmark: self.landmark, found: Some(transaction) });
        }
        Ok(transaction.final_lsn >= self.known_up_to)
    }

    /// Everything up to there has come, outside of a transaction. Whether that settles it.
    pub fn reached(&self, lsn: Lsn) -> Result<bool, OtherLog> {
        if lsn < self.known_up_to {
            return Ok(false);
        }
        if self.expected {
            return Err(OtherLog { landmark: self.landmark, found: None });
        }
        Ok(true)
    }
}

impl std::fmt::Display for OtherLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Landmark { final_lsn, xid, commit_time } = self.landmark;
        let time = Utc(commit_time.unix_micros());
        write!(f, "the last transaction that was delivered is {xid}, committed {time} at {final_lsn}, and ")?;
        match self.found {
            Some(found) => {
                let time = Utc(found.commit_time.unix_micros());
                write!(f, "the log has {}, committed {time} at {}, instead", found.xid, found.final_lsn)
            }
            None => f.write_str("the log does not have it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::pgoutput::PgTimestamp;
    use crate::progress::Partial;

    fn transaction(final_lsn: u64) -> Landmark {
        Landmark { final_lsn: Lsn(final_lsn), xid: 742, commit_time: PgTimestamp(1) }
    }

    /// Of a router that has delivered up to 0x200, and last of all the transaction at 0x100.
    fn recognition(confirmed: u64) -> Option<Recognition> {
        Recognition::new(transaction(0x100), Position { flush: Lsn(0x200), partial: None }, Lsn(confirmed))
    }

    #[test]
    fn what_the_slot_vouches_for_need_not_be_looked_for() {
        assert_eq!(recognition(0x200), None);
        assert_eq!(recognition(0x80).map(|look| look.start()), Some(Lsn(0x100)));
        assert_eq!(recognition(0x180).map(|look| look.start()), Some(Lsn(0x180)));
    }

    #[test]
    fn the_log_is_known_when_the_last_transaction_comes_again_and_nothing_else_before_the_position() {
        let mut look = recognition(0x80).unwrap();
        assert_eq!(look.reached(Lsn(0xF0)), Ok(false));
        assert_eq!(look.change(transaction(0x100)), Ok(false));
        assert_eq!(look.change(transaction(0x100)), Ok(false));
        assert_eq!(look.reached(Lsn(0x140)), Ok(false));
        let mut other = look.clone();
        assert_eq!(look.reached(Lsn(0x200)), Ok(true));
        assert_eq!(other.change(transaction(0x200)), Ok(true));
    }

    #[test]
    fn no_guessing_about_a_log_that_has_something_else_there() {
        let other = |found| OtherLog { landmark: transaction(0x100), found };
        for found in [
            // earlier, later but before the position, after it, and at the same place
            transaction(0x90),
            transaction(0x180),
            transaction(0x300),
            Landmark { xid: 741, ..transaction(0x100) },
            Landmark { commit_time: PgTimestamp(2), ..transaction(0x100) },
        ] {
            assert_eq!(recognition(0x80).unwrap().change(found), Err(other(Some(found))), "{found:?}");
        }
        assert_eq!(recognition(0x80).unwrap().reached(Lsn(0x200)), Err(other(None)));
        let mut seen = recognition(0x80).unwrap();
        assert_eq!(seen.change(transaction(0x100)), Ok(false));
        let found = transaction(0x180);
        assert_eq!(seen.change(found), Err(other(Some(found))));
        // the slot is past the landmark: only what is between it and the position is looked for
        let mut past = recognition(0x180).unwrap();
        assert_eq!(past.clone().reached(Lsn(0x200)), Ok(true));
        assert_eq!(past.clone().change(transaction(0x200)), Ok(true));
        assert_eq!(past.change(found), Err(other(Some(found))));
        for (found, words) in [(None, "does not have it"), (Some(found), "has 742, committed")] {
            assert!(other(found).to_string().contains(words));
        }
    }

    #[test]
    fn a_transaction_that_was_under_way_is_a_landmark_too() {
        let partial = Some(Partial { final_lsn: Lsn(0x300), changes: 7 });
        let position = Position { flush: Lsn(0x200), partial };
        // the slot vouches for what comes before it only
        for confirmed in [0x80, 0x200] {
            let mut look = Recognition::new(transaction(0x300), position, Lsn(confirmed)).unwrap();
            assert_eq!(look.start(), Lsn(0x200));
            assert!(look.clone().change(transaction(0x280)).is_err());
            assert!(look.reached(Lsn(0x301)).is_err());
            assert_eq!(look.change(transaction(0x300)), Ok(false));
            assert_eq!(look.reached(Lsn(0x330)), Ok(true));
        }
    }
}
