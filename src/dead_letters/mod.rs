//! Parked events: what cannot be sent, and what came after it of the same aggregate. Pure; `postgres::dead_letters` keeps
//! them in a table, and the relay decides.

mod original_event;
mod parked;
mod resolved_rows;

use std::borrow::Cow;
use std::fmt;

use pg_logical::{Lsn, PgTimestamp};

use crate::unsendable::Reason;
pub use original_event::{Column, NotAnEvent, OriginalEvent};
pub use parked::{Parked, TooMany};
pub use resolved_rows::ResolvedRows;

/// Which event: its transaction, and its number among the changes of that, from 1 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Where its transaction's commit begins.
    pub final_lsn: Lsn,
    /// Its number.
    pub change: u64,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.final_lsn, self.change)
    }
}

/// A value as the table can hold it: no text of Postgres has a zero character.
pub fn text(value: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(value);
    if value.contains(&0) { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { text }
}

/// What a person has decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It is sent again.
    Retry,
    /// It is thrown away.
    Discard,
}

impl Decision {
    /// As the table has it.
    pub fn name(self) -> &'static str {
        match self {
            Decision::Retry => "retry",
            Decision::Discard => "discard",
        }
    }

    /// That of a name.
    pub fn of(name: &str) -> Option<Decision> {
        [Decision::Retry, Decision::Discard].into_iter().find(|decision| decision.name() == name)
    }
}

/// One parked event.
#[derive(Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Which.
    pub key: Key,
    /// Its transaction's number.
    pub xid: u32,
    /// When that was committed.
    pub commit_time: PgTimestamp,
    /// The table that it was written to, or `message:` and the prefix.
    pub source: String,
    /// Its id.
    pub event_id: Option<String>,
    /// Its aggregate's type.
    pub aggregate_type: Option<String>,
    /// Its aggregate, by which order is kept; `None`: it has none.
    pub aggregate_id: Option<String>,
    /// Its type.
    pub event_type: Option<String>,
    /// Why it is parked.
    pub reason: Reason,
    /// The same as a sentence, with what to do.
    pub detail: String,
    /// The event as it was written.
    pub whole: OriginalEvent,
    /// The mark of the reset that asked for it again; `None`: it is new.
    pub replay: Option<String>,
}

impl fmt::Debug for DeadLetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetter")
            .field("key", &self.key)
            .field("source", &self.source)
            .field("reason", &self.reason)
            .field("whole", &self.whole)
            .finish_non_exhaustive()
    }
}

impl DeadLetter {
    /// About what it takes in memory.
    pub fn size(&self) -> usize {
        let texts = [&self.event_id, &self.aggregate_type, &self.aggregate_id, &self.event_type];
        let texts: usize = texts.into_iter().flatten().map(String::len).sum();
        size_of::<DeadLetter>() + texts + self.detail.len() + self.whole.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for decision in [Decision::Retry, Decision::Discard] {
            assert_eq!(Decision::of(decision.name()), Some(decision));
        }
        assert_eq!(Decision::of("new"), None);
        assert_eq!(Key { final_lsn: Lsn(0x1_0000_00ab), change: 3 }.to_string(), "1/AB:3");
    }
}
