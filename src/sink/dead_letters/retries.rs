//! What becomes of parked events of which something was decided: one stage for each.
//!
//! ```text
//!   in the table --fetch--> Decided --send--> UnderWay --report--> Arrived --offer--> Committing --commit--> Removing --> gone
//!        ^                     |   \                 \                                                       ^
//!        +--- cannot be sent --+    +-- discard ------+--------------- at-least-once ------------------------+
//! ```
//!
//! A checkpoint names the events of `Committing`, and those of `Removing` and gone ones that a crash could bring back: they are
//! never sent again.

use std::collections::BTreeMap;

use crate::dead_letters::{DeadLetter, Decision, Key};
use crate::postgres::dead_letters::sql::Waiting;
use crate::progress::Sequence;
use crate::relay::InFlight;
use crate::unsendable::Reason;

/// Records of parked events have numbers of their own, above those of changes.
const FIRST: u64 = 1 << 62;

/// The parked events that leave the table, by their places in the log, which is the order in which they are sent.
pub(super) struct Retries {
    events: BTreeMap<Key, Retry>,
    /// The number of the next record.
    next: u64,
    alone: Alone,
    /// Each is sent alone, because a batch of them was refused.
    always_alone: bool,
}

struct Retry {
    aggregate: Option<String>,
    stage: Stage,
}

enum Stage {
    /// It is to be sent or thrown away.
    Decided(Box<Waiting>),
    /// Its record is, under this number.
    UnderWay(u64, InFlight),
    /// Its record has arrived, in the Kafka transaction that is open.
    Arrived,
    /// That transaction is being committed.
    Committing,
    /// Its row is on its way out of the table. `committed`: its event was in a Kafka transaction.
    Removing { committed: bool },
}

/// Whether a record shares a batch with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Alone {
    No,
    /// The next one is not to, and nothing more is sent before it.
    Wanted,
    /// The one under way does not.
    UnderWay,
}

impl Retries {
    pub(super) fn new(always_alone: bool) -> Self {
        Retries { events: BTreeMap::new(), next: FIRST, alone: Alone::No, always_alone }
    }

    /// Whether this number is of a parked event's record.
    pub(super) fn is_ours(sequence: Sequence) -> bool {
        sequence.0 >= FIRST
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Something was decided of it.
    pub(super) fn decided(&mut self, waiting: Waiting) {
        let (key, aggregate) = (waiting.letter.key, waiting.letter.aggregate_id.clone());
        self.events.insert(key, Retry { aggregate, stage: Stage::Decided(Box::new(waiting)) });
    }

    /// The next one of which something is decided.
    fn first(&self) -> Option<&Waiting> {
        self.events.values().find_map(|retry| match &retry.stage {
            Stage::Decided(waiting) => Some(&**waiting),
            _ => None,
        })
    }

    /// The next one, if it is to be thrown away. It is on its way out of the table then.
    pub(super) fn discard(&mut self) -> Option<Key> {
        let key = self.first().filter(|next| next.decision == Some(Decision::Discard))?.letter.key;
        self.remove(key, false);
        Some(key)
    }

    /// The next one to be sent, and whether nothing else may be under way then.
    pub(super) fn to_send(&self) -> Option<(&DeadLetter, bool)> {
        let always = self.always_alone;
        self.first().map(|next| (&next.letter, always || next.letter.reason != Reason::Behind))
    }

    /// The number that the next record bears.
    pub(super) fn number(&self) -> Sequence {
        Sequence(self.next)
    }

    /// The next one has to wait until nothing is under way.
    pub(super) fn wants_alone(&mut self) {
        self.alone = Alone::Wanted;
    }

    /// The next one was sent.
    pub(super) fn sent(&mut self, key: Key, record: InFlight, alone: bool) {
        if let Some(retry) = self.events.get_mut(&key) {
            retry.stage = Stage::UnderWay(self.next, record);
            self.alone = if alone { Alone::UnderWay } else { Alone::No };
            self.next += 1;
        }
    }

    /// The next one makes no record, and is on its way out of the table.
    pub(super) fn dropped(&mut self, key: Key) {
        self.alone = Alone::No;
        self.remove(key, false);
    }

    /// The next one still cannot be sent. What follows of its aggregate stays in the table with it.
    pub(super) fn failed(&mut self, key: Key) {
        self.alone = Alone::No;
        // the topic is looked at again once per number, so the next try needs another
        self.next += 1;
        let Some(Retry { aggregate, .. }) = self.events.remove(&key) else { return };
        self.events.retain(|_, other| {
            let follows = aggregate.is_some() && other.aggregate == aggregate;
            !(follows && matches!(other.stage, Stage::Decided(_)))
        });
    }

    /// A record has arrived. `transactional`: it counts when its transaction is committed; else its row is to be removed.
    pub(super) fn delivered(&mut self, sequence: Sequence, transactional: bool) -> Option<(Key, InFlight)> {
        let found = self.events.iter().find_map(|(key, retry)| match retry.stage {
            Stage::UnderWay(number, record) if number == sequence.0 => Some((*key, record)),
            _ => None,
        });
        let (key, record) = found?;
        self.alone = Alone::No;
        if transactional {
            self.events.get_mut(&key)?.stage = Stage::Arrived;
        } else {
            self.remove(key, false);
        }
        Some((key, record))
    }

    /// A transaction is about to be committed: the events that its checkpoint has to name.
    pub(super) fn in_transaction(&mut self) -> impl Iterator<Item = Key> {
        for retry in self.events.values_mut().filter(|retry| matches!(retry.stage, Stage::Arrived)) {
            retry.stage = Stage::Committing;
        }
        self.events.iter().filter_map(|(key, retry)| {
            matches!(retry.stage, Stage::Committing | Stage::Removing { committed: true }).then_some(*key)
        })
    }

    /// It was committed. Returns the rows that are to be removed by that.
    pub(super) fn committed(&mut self) -> Vec<Key> {
        let committing = |retry: &Retry| matches!(retry.stage, Stage::Committing);
        let keys: Vec<_> =
            self.events.iter().filter(|(_, retry)| committing(retry)).map(|(key, _)| *key).collect();
        for key in &keys {
            self.remove(*key, true);
        }
        keys
    }

    fn remove(&mut self, key: Key, committed: bool) {
        if let Some(retry) = self.events.get_mut(&key) {
            retry.stage = Stage::Removing { committed };
        }
    }

    /// Its row is out of the table. Returns its aggregate, and whether its event was in a Kafka transaction.
    pub(super) fn removed(&mut self, key: Key) -> Option<(Option<String>, bool)> {
        let Some(Retry { stage: Stage::Removing { committed }, .. }) = self.events.get(&key) else {
            return None;
        };
        let committed = *committed;
        self.events.remove(&key).map(|retry| (retry.aggregate, committed))
    }

    /// Whether rows are on their way out of the table.
    pub(super) fn is_removing(&self) -> bool {
        self.events.values().any(|retry| matches!(retry.stage, Stage::Removing { .. }))
    }

    /// Whether no record is under way.
    pub(super) fn is_settled(&self) -> bool {
        self.under_way().is_none()
    }

    /// Whether the record under way is not to share a batch.
    pub(super) fn has_one_alone(&self) -> bool {
        self.alone == Alone::UnderWay
    }

    /// Whether nothing else may be sent now.
    pub(super) fn is_alone(&self) -> bool {
        self.alone != Alone::No
    }

    /// The first event whose record is under way, and whether it is alone.
    pub(super) fn under_way(&self) -> Option<(Key, bool)> {
        let numbers = self.events.iter().filter_map(|(key, retry)| match retry.stage {
            Stage::UnderWay(number, _) => Some((number, *key)),
            _ => None,
        });
        numbers.min().map(|(_, key)| (key, self.has_one_alone()))
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
            whole: OriginalEvent::Columns(Vec::new()),
            replay: None,
        };
        Waiting { letter, decision, attempts: 0 }
    }

    /// Sends what is next.
    fn send(retries: &mut Retries) -> (Key, Sequence) {
        let (letter, alone) = retries.to_send().unwrap();
        let (key, number) = (letter.key, retries.number());
        retries.sent(key, RECORD, alone);
        (key, number)
    }

    #[test]
    fn in_exactly_once_an_event_is_named_from_its_commit_until_its_row_is_gone() {
        let mut retries = Retries::new(false);
        retries.decided(decided(1, "a", Some(Decision::Retry)));
        let (_, number) = send(&mut retries);
        assert!(retries.has_one_alone() && !retries.is_settled());
        assert_eq!(retries.in_transaction().count(), 0, "it has not arrived");
        assert_eq!(retries.delivered(number, true), Some((key(1), RECORD)));
        assert_eq!(retries.in_transaction().collect::<Vec<_>>(), [key(1)]);
        assert_eq!(retries.removed(key(1)), None, "it is not committed");
        assert_eq!(retries.committed(), [key(1)]);
        assert_eq!(retries.in_transaction().collect::<Vec<_>>(), [key(1)], "a crash may bring it back");
        assert_eq!(retries.removed(key(1)), Some((Some("a".to_owned()), true)));
        assert!(retries.is_empty());
    }

    #[test]
    fn in_at_least_once_a_row_is_removed_when_its_record_has_arrived() {
        let mut retries = Retries::new(false);
        retries.decided(decided(1, "a", None));
        let (_, number) = send(&mut retries);
        assert!(!retries.is_alone());
        assert!(retries.delivered(number, false).is_some() && retries.is_removing());
        assert_eq!(retries.in_transaction().count(), 0);
        assert_eq!(retries.removed(key(1)), Some((Some("a".to_owned()), false)));
    }

    #[test]
    fn what_follows_of_the_aggregate_of_one_that_fails_again_stays() {
        let mut retries = Retries::new(false);
        for (change, aggregate) in [(1, "a"), (2, "b"), (3, "a")] {
            retries.decided(decided(change, aggregate, Some(Decision::Retry)));
        }
        let before = retries.number();
        retries.failed(key(1));
        assert_ne!(retries.number(), before);
        assert_eq!(retries.to_send().map(|(letter, _)| letter.key), Some(key(2)));
        assert_eq!(send(&mut retries).0, key(2));
        assert!(retries.to_send().is_none());
    }

    #[test]
    fn what_is_discarded_makes_no_record() {
        let mut retries = Retries::new(true);
        retries.decided(decided(1, "a", Some(Decision::Discard)));
        retries.decided(decided(2, "a", None));
        assert_eq!((retries.discard(), retries.discard()), (Some(key(1)), None));
        assert_eq!(retries.to_send().map(|(letter, alone)| (letter.key, alone)), Some((key(2), true)));
        retries.dropped(key(2));
        assert!(retries.to_send().is_none() && retries.is_settled() && retries.is_removing());
    }
}
