//! Parked events: those that cannot be sent, and later ones of the same aggregate. This module is pure:
//! `postgres::dead_letters` stores them in a table, and the dead-letter sink decides.

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

/// Identifies an event by its transaction and by its number among the transaction's changes, from 1 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The LSN of its transaction's commit record.
    pub final_lsn: Lsn,
    /// The number of the change.
    pub change: u64,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.final_lsn, self.change)
    }
}

/// A value as the table can store it: texts in Postgres cannot contain a zero character.
pub fn text(value: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(value);
    if value.contains(&0) { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { text }
}

/// The decision of a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Send it again.
    Retry,
    /// Discard it.
    Discard,
}

impl Decision {
    /// The word in the table.
    pub fn name(self) -> &'static str {
        match self {
            Decision::Retry => "retry",
            Decision::Discard => "discard",
        }
    }

    /// The decision for a word in the table.
    pub fn of(name: &str) -> Option<Decision> {
        [Decision::Retry, Decision::Discard].into_iter().find(|decision| decision.name() == name)
    }
}

/// One parked event.
#[derive(Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Which event it is.
    pub key: Key,
    /// Its transaction id.
    pub xid: u32,
    /// When its transaction committed.
    pub commit_time: PgTimestamp,
    /// The table that it was written to, or `message:` and the prefix.
    pub source: String,
    /// The event's id.
    pub event_id: Option<String>,
    /// The type of its aggregate.
    pub aggregate_type: Option<String>,
    /// The id of its aggregate, within which order is kept; `None`: it has no aggregate.
    pub aggregate_id: Option<String>,
    /// The event's type.
    pub event_type: Option<String>,
    /// Why it is parked.
    pub reason: Reason,
    /// The reason as a sentence, with a remedy.
    pub detail: String,
    /// The event as it was written.
    pub original: OriginalEvent,
    /// The mark of the reset that sent it again; `None`: it is new.
    pub replay: Option<String>,
}

impl fmt::Debug for DeadLetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetter")
            .field("key", &self.key)
            .field("source", &self.source)
            .field("reason", &self.reason)
            .field("original", &self.original)
            .finish_non_exhaustive()
    }
}

impl DeadLetter {
    /// Roughly the memory it takes.
    pub fn size(&self) -> usize {
        let texts = [&self.event_id, &self.aggregate_type, &self.aggregate_id, &self.event_type];
        let texts: usize = texts.into_iter().flatten().map(String::len).sum();
        size_of::<DeadLetter>() + texts + self.detail.len() + self.original.size()
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
