//! The stages of a parked event for which a retry or a discard was decided.
//!
//! ```text
//!   in the table --fetch--> Decided --send--> Sent --report--> Delivered --close--> Committing --commit--> Deleting --> gone
//!        ^                     |   \             \                                                         ^
//!        +--- cannot be sent --+    +-- discard --+------------------- at-least-once -----------------------+
//! ```
//!
//! Checkpoints name the events in `Committing`, and those in `Deleting` or already deleted that a crash could bring back.
//! They are never sent again.

use std::collections::BTreeMap;

use crate::dead_letters::{DeadLetter, Decision, Key};
use crate::outbox::printable_id;
use crate::postgres::dead_letters::sql::Waiting;
use crate::progress::Sequence;
use crate::relay::InFlight;
use crate::unsendable::Reason;

/// The parked events that are leaving the table, in log order, which is the order in which they are sent.
pub(super) struct Retries {
    events: BTreeMap<Key, Retry>,
    /// The sequence number of the next record.
    next: u64,
    alone: Alone,
    /// Sends each event alone, because a batch of them was refused.
    always_alone: bool,
}

struct Retry {
    /// The event's id.
    id: Option<String>,
    aggregate: Option<String>,
    stage: Stage,
}

/// An event whose row was deleted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Deleted {
    pub(super) id: Option<String>,
    pub(super) aggregate: Option<String>,
    /// Whether it was part of a committed Kafka transaction.
    pub(super) committed: bool,
}

enum Stage {
    /// It is to be sent again or discarded.
    Decided(Box<Waiting>),
    /// Its record is in flight under this sequence number.
    Sent(u64, InFlight),
    /// Its record was acknowledged within the open Kafka transaction.
    Delivered,
    /// That transaction is being committed.
    Committing,
    /// Its row is being deleted. `committed`: the event was part of a committed Kafka transaction.
    Deleting { committed: bool },
}

/// Whether a retried record must not share a batch with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Alone {
    No,
    /// The next record waits until nothing else is in flight, and holds back everything else.
    Waiting,
    /// The record in flight was sent alone.
    InFlight,
}

impl Retries {
    pub(super) fn new(always_alone: bool) -> Self {
        Retries { events: BTreeMap::new(), next: Sequence::FIRST_RETRY.0, alone: Alone::No, always_alone }
    }

    /// Whether the sequence number belongs to a retried event.
    pub(super) fn is_retry(sequence: Sequence) -> bool {
        sequence >= Sequence::FIRST_RETRY
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Adds an event with a decision.
    pub(super) fn decided(&mut self, waiting: Waiting) {
        let (key, id) = (waiting.letter.key, waiting.letter.event_id.clone());
        let aggregate = waiting.letter.aggregate_id.clone();
        self.events.insert(key, Retry { id, aggregate, stage: Stage::Decided(Box::new(waiting)) });
    }

    /// The id of an event, as log lines have it.
    pub(super) fn id(&self, key: Key) -> String {
        printable_id(self.events.get(&key).and_then(|retry| retry.id.as_deref()).map(str::as_bytes))
    }

    /// The first event that is to be sent or discarded.
    fn next_decided(&self) -> Option<&Waiting> {
        self.events.values().find_map(|retry| match &retry.stage {
            Stage::Decided(waiting) => Some(&**waiting),
            _ => None,
        })
    }

    /// If the next event is to be discarded, starts deleting its row.
    pub(super) fn discard(&mut self) -> Option<Key> {
        let key = self.next_decided().filter(|next| next.decision == Some(Decision::Discard))?.letter.key;
        self.start_deletion(key, false);
        Some(key)
    }

    /// The next event to send, and whether it has to be sent alone.
    pub(super) fn to_send(&self) -> Option<(&DeadLetter, bool)> {
        let always = self.always_alone;
        self.next_decided().map(|next| (&next.letter, always || next.letter.reason != Reason::Behind))
    }

    /// The sequence number of the next record.
    pub(super) fn next_sequence(&self) -> Sequence {
        Sequence(self.next)
    }

    /// The next event waits until nothing is in flight.
    pub(super) fn wait_to_send_alone(&mut self) {
        self.alone = Alone::Waiting;
    }

    /// The next event was sent.
    pub(super) fn sent(&mut self, key: Key, record: InFlight, alone: bool) {
        if let Some(retry) = self.events.get_mut(&key) {
            retry.stage = Stage::Sent(self.next, record);
            self.alone = if alone { Alone::InFlight } else { Alone::No };
            self.next += 1;
        }
    }

    /// Routing drops the next event; its row is being deleted.
    pub(super) fn dropped(&mut self, key: Key) {
        self.alone = Alone::No;
        self.start_deletion(key, false);
    }

    /// The next event still cannot be sent. Later events of its aggregate stay in the table too.
    pub(super) fn failed(&mut self, key: Key) {
        self.alone = Alone::No;
        // a topic is checked again only once per sequence number, so the next attempt needs a new one
        self.next += 1;
        let Some(Retry { aggregate, .. }) = self.events.remove(&key) else { return };
        self.events.retain(|_, other| {
            let follows = aggregate.is_some() && other.aggregate == aggregate;
            !(follows && matches!(other.stage, Stage::Decided(_)))
        });
    }

    /// A record was acknowledged. If not `transactional`, its row is deleted now; otherwise after the commit.
    pub(super) fn delivered(&mut self, sequence: Sequence, transactional: bool) -> Option<(Key, InFlight)> {
        let found = self.events.iter().find_map(|(key, retry)| match retry.stage {
            Stage::Sent(number, record) if number == sequence.0 => Some((*key, record)),
            _ => None,
        });
        let (key, record) = found?;
        self.alone = Alone::No;
        if transactional {
            self.events.get_mut(&key)?.stage = Stage::Delivered;
        } else {
            self.start_deletion(key, false);
        }
        Some((key, record))
    }

    /// A transaction is about to be committed. Returns the events that its checkpoint has to name.
    pub(super) fn start_committing(&mut self) -> impl Iterator<Item = Key> {
        for retry in self.events.values_mut().filter(|retry| matches!(retry.stage, Stage::Delivered)) {
            retry.stage = Stage::Committing;
        }
        self.events.iter().filter_map(|(key, retry)| {
            matches!(retry.stage, Stage::Committing | Stage::Deleting { committed: true }).then_some(*key)
        })
    }

    /// The transaction was committed. Returns the rows to delete.
    pub(super) fn committed(&mut self) -> Vec<Key> {
        let committing = |retry: &Retry| matches!(retry.stage, Stage::Committing);
        let keys: Vec<_> =
            self.events.iter().filter(|(_, retry)| committing(retry)).map(|(key, _)| *key).collect();
        for key in &keys {
            self.start_deletion(*key, true);
        }
        keys
    }

    fn start_deletion(&mut self, key: Key, committed: bool) {
        if let Some(retry) = self.events.get_mut(&key) {
            retry.stage = Stage::Deleting { committed };
        }
    }

    /// Its row was deleted.
    pub(super) fn deleted(&mut self, key: Key) -> Option<Deleted> {
        let Some(Retry { stage: Stage::Deleting { committed }, .. }) = self.events.get(&key) else {
            return None;
        };
        let committed = *committed;
        self.events.remove(&key).map(|Retry { id, aggregate, .. }| Deleted { id, aggregate, committed })
    }

    /// Whether rows are being deleted.
    pub(super) fn is_deleting(&self) -> bool {
        self.events.values().any(|retry| matches!(retry.stage, Stage::Deleting { .. }))
    }

    /// Whether no retried record is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.first_in_flight().is_none()
    }

    /// Whether the record in flight was sent alone.
    pub(super) fn sent_alone(&self) -> bool {
        self.alone == Alone::InFlight
    }

    /// Whether nothing else may be sent now.
    pub(super) fn blocks_others(&self) -> bool {
        self.alone != Alone::No
    }

    /// The first event in flight, and whether it was sent alone.
    pub(super) fn first_in_flight(&self) -> Option<(Key, bool)> {
        let numbers = self.events.iter().filter_map(|(key, retry)| match retry.stage {
            Stage::Sent(number, _) => Some((number, *key)),
            _ => None,
        });
        numbers.min().map(|(_, key)| (key, self.sent_alone()))
    }
}

#[cfg(test)]
mod tests {
    use pg_logical::{Lsn, PgTimestamp};

    use super::*;
    use crate::dead_letters::OriginalEvent;

    const RECORD: InFlight = InFlight { bytes: 1, memory: 1, commit_time: PgTimestamp(0), target: 0 };

    fn key(change: u64) -> Key {
        Key { final_lsn: Lsn(1), change }
    }

    fn deleted(aggregate: &str, committed: bool) -> Deleted {
        Deleted { id: None, aggregate: Some(aggregate.to_owned()), committed }
    }

    fn decided(change: u64, aggregate: &str, decision: Option<Decision>) -> Waiting {
        let reason = if decision.is_some() { Reason::Refused } else { Reason::Behind };
        let letter = DeadLetter {
            key: key(change),
            xid: 1,
            commit_time: PgTimestamp(0),
            source: "public.outbox".to_owned(),
            event_id: None,
            aggregate_type: None,
            aggregate_id: Some(aggregate.to_owned()),
            event_type: None,
            reason,
            detail: String::new(),
            original: OriginalEvent::Columns(Vec::new()),
            replay: None,
        };
        Waiting { letter, decision, attempts: 0 }
    }

    /// Sends the next event.
    fn send(retries: &mut Retries) -> (Key, Sequence) {
        let (letter, alone) = retries.to_send().unwrap();
        let (key, number) = (letter.key, retries.next_sequence());
        retries.sent(key, RECORD, alone);
        (key, number)
    }

    #[test]
    fn in_exactly_once_an_event_is_named_from_its_commit_until_its_row_is_gone() {
        let mut retries = Retries::new(false);
        retries.decided(decided(1, "a", Some(Decision::Retry)));
        let (_, number) = send(&mut retries);
        assert!(retries.sent_alone() && !retries.is_idle());
        assert_eq!(retries.start_committing().count(), 0, "it has not arrived");
        assert_eq!(retries.delivered(number, true), Some((key(1), RECORD)));
        assert_eq!(retries.start_committing().collect::<Vec<_>>(), [key(1)]);
        assert_eq!(retries.deleted(key(1)), None, "it is not committed");
        assert_eq!(retries.committed(), [key(1)]);
        assert_eq!(retries.start_committing().collect::<Vec<_>>(), [key(1)], "a crash may bring it back");
        assert_eq!(retries.deleted(key(1)), Some(deleted("a", true)));
        assert!(retries.is_empty());
    }

    #[test]
    fn in_at_least_once_a_row_is_removed_when_its_record_has_arrived() {
        let mut retries = Retries::new(false);
        retries.decided(decided(1, "a", None));
        let (_, number) = send(&mut retries);
        assert!(!retries.blocks_others());
        assert!(retries.delivered(number, false).is_some() && retries.is_deleting());
        assert_eq!(retries.start_committing().count(), 0);
        assert_eq!(retries.deleted(key(1)), Some(deleted("a", false)));
    }

    #[test]
    fn later_events_wait_behind_a_failed_retry() {
        let mut retries = Retries::new(false);
        for (change, aggregate) in [(1, "a"), (2, "b"), (3, "a")] {
            retries.decided(decided(change, aggregate, Some(Decision::Retry)));
        }
        let before = retries.next_sequence();
        retries.failed(key(1));
        assert_ne!(retries.next_sequence(), before);
        assert_eq!(retries.to_send().map(|(letter, _)| letter.key), Some(key(2)));
        assert_eq!(send(&mut retries).0, key(2));
        assert!(retries.to_send().is_none());
    }

    #[test]
    fn discarded_and_dropped_events_are_deleted_without_a_record() {
        let mut retries = Retries::new(true);
        retries.decided(decided(1, "a", Some(Decision::Discard)));
        retries.decided(decided(2, "a", None));
        assert_eq!((retries.discard(), retries.discard()), (Some(key(1)), None));
        assert_eq!(retries.to_send().map(|(letter, alone)| (letter.key, alone)), Some((key(2), true)));
        retries.dropped(key(2));
        assert!(retries.to_send().is_none() && retries.is_idle() && retries.is_deleting());
    }
}
