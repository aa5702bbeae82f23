//! Parked events as the loop sees them: which aggregates are parked, what is on its way into the table and out of it, and
//! what is sent again.
//!
//! ```text
//!   event --> desk --> in the table --> acknowledged (without a positions topic, when the stream is past that commit)
//!   in the table --> fetched --> sent --> delivered (committed) --> out of the table --> the aggregate flows again
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pg_logical::Lsn;
use tokio::time::{Duration, Instant};

use crate::checkpoint::Checkpoint;
use crate::dead_letters::{DeadLetter, Decision, Key, Parked, ResolvedRows, TooMany, text};
use crate::monitor::Monitor;
use crate::outbox::printable;
use crate::postgres::dead_letters::sql::Waiting;
use crate::postgres::dead_letters::store::{DeadLetterStore, Loaded, Report};
use crate::progress::{Partial, Position, Sequence};
use crate::relay::InFlight;
use crate::unsendable::{Reason, Unsendable};

/// Records of parked events have numbers of their own, above those of changes.
const FIRST: u64 = 1 << 62;

/// How often somebody may have decided something.
const FETCH_EVERY: Duration = Duration::from_millis(500);

/// How many events are named when they are parked; the counter has the rest.
const NAMED: u32 = 20;

/// A record of a parked event that is under way.
struct Sent {
    key: Key,
    aggregate: Option<String>,
    record: InFlight,
}

/// The parked events of one session.
pub(super) struct Parking {
    desk: DeadLetterStore,
    parked: Parked,
    /// Events that were found to be unsendable.
    refused: BTreeMap<Partial, Unsendable>,
    /// Rows without an aggregate whose events may come again.
    without: BTreeSet<Key>,
    /// Changes whose rows are committed, and the end of the log after that; where they are not acknowledged by it.
    committed: VecDeque<(Lsn, Vec<Sequence>)>,
    /// The same end, where they are: the position says so until it is past that itself.
    rests_on: Option<Lsn>,
    /// What is to be sent or thrown away, in order.
    fetched: VecDeque<Waiting>,
    fetching: bool,
    /// Events on their way into the table.
    on_their_way: usize,
    fetch_at: Instant,
    sent: BTreeMap<u64, Sent>,
    next: u64,
    /// The one under way is not to share a batch.
    alone: bool,
    /// The next one is not to, and nothing more is sent before it.
    wants_alone: bool,
    /// All are sent so, because a batch of them was refused.
    always_alone: bool,
    /// Delivered in the Kafka transaction that is open, and in the one that is being committed.
    open: Vec<(Key, Option<String>)>,
    committing: Vec<(Key, Option<String>)>,
    /// Committed to Kafka, and still in the table.
    done: BTreeSet<Key>,
    /// The same, and out of the table.
    gone: ResolvedRows,
    /// The rows on their way out, with their aggregates.
    deleting: BTreeMap<Key, Option<String>>,
    named: u32,
    room: ParkingRoom,
    /// Why rows cannot be written, if that is so.
    unwritable: Option<String>,
}

/// For one more aggregate, where there are as many as may be.
#[derive(Debug, PartialEq, Eq)]
enum ParkingRoom {
    NotNeeded,
    /// What was decided may make some.
    Wanted,
    /// Nothing is decided.
    None,
}

impl Parking {
    pub(super) fn new(
        desk: DeadLetterStore,
        loaded: Loaded,
        most: usize,
        refused: BTreeMap<Partial, Unsendable>,
        always_alone: bool,
        rests_on: Option<Lsn>,
    ) -> Self {
        Parking {
            desk,
            parked: Parked::new(loaded.aggregates, most),
            refused,
            without: loaded.without.into_iter().collect(),
            wants_alone: false,
            committed: VecDeque::new(),
            rests_on,
            fetched: VecDeque::new(),
            fetching: false,
            on_their_way: 0,
            fetch_at: Instant::now(),
            sent: BTreeMap::new(),
            next: FIRST,
            alone: false,
            always_alone,
            open: Vec::new(),
            committing: Vec::new(),
            done: BTreeSet::new(),
            gone: loaded.gone,
            deleting: BTreeMap::new(),
            named: 0,
            room: ParkingRoom::NotNeeded,
            unwritable: None,
        }
    }

    /// Whether this number is of a parked event's record.
    pub(super) fn is_ours(sequence: Sequence) -> bool {
        sequence.0 >= FIRST
    }

    /// Whether later events of the aggregate have to be parked too.
    pub(super) fn holds(&self, aggregate: Option<&[u8]>, event: Key) -> bool {
        // asked for each event
        self.parked.count().0 > 0 && self.parked.holds(aggregate.map(text).as_deref(), event)
    }

    /// Whether the event without an aggregate is parked already.
    pub(super) fn is_there(&mut self, event: Key) -> bool {
        self.without.remove(&event)
    }

    /// Why the brokers refused this event before, if they did.
    pub(super) fn refused(&mut self, event: Partial) -> Option<Unsendable> {
        self.refused.get(&event).cloned()
    }

    /// Puts an event into the table.
    pub(super) fn park(
        &mut self,
        sequence: Sequence,
        letter: DeadLetter,
        monitor: &Monitor,
    ) -> Result<(), TooMany> {
        self.parked.add(letter.aggregate_id.as_deref(), letter.key)?;
        self.room = ParkingRoom::NotNeeded;
        self.gone.is_back(letter.key);
        monitor.event_parked(letter.reason);
        if letter.reason != Reason::Behind {
            self.named += 1;
            let id =
                letter.event_id.as_deref().map_or_else(|| "NULL".to_owned(), |id| printable(id.as_bytes()));
            let behind = match letter.aggregate_id {
                Some(_) => "; later events of its aggregate wait behind it",
                None => "",
            };
            match self.named {
                ..=NAMED => tracing::error!(
                    reason = letter.reason.name(), position = %letter.key, detail = letter.detail,
                    "the event with id {id} cannot be sent and is parked{behind}: outbox-router dead-letters list"
                ),
                n if n == NAMED + 1 => tracing::error!(
                    "further events that cannot be sent are parked, and counted in events_parked_total"
                ),
                _ => {}
            }
        }
        self.desk.park(sequence, letter);
        self.on_their_way += 1;
        self.show(monitor);
        Ok(())
    }

    /// No more aggregates may be parked. Whether what is decided may change that: then it is to be asked again.
    pub(super) fn may_make_room(&mut self) -> bool {
        if self.room == ParkingRoom::NotNeeded {
            (self.room, self.fetch_at) = (ParkingRoom::Wanted, Instant::now());
        }
        self.room == ParkingRoom::Wanted
    }

    /// Events on their way into the table, which wait for no broker.
    pub(super) fn on_their_way(&self) -> usize {
        self.on_their_way
    }

    /// Why the table cannot be written, if something waits for that.
    pub(super) fn unwritable(&self) -> Option<&str> {
        let waits = self.on_their_way > 0 || !self.deleting.is_empty() || self.room == ParkingRoom::Wanted;
        self.unwritable.as_deref().filter(|_| waits)
    }

    /// Publishes how many events are parked.
    pub(super) fn show(&self, monitor: &Monitor) {
        let (aggregates, rows) = self.parked.count();
        monitor.dead_letters(aggregates, rows);
    }

    /// What the desk has done. May be dropped at any await.
    pub(super) async fn report(&mut self) -> Report {
        self.desk.report().await
    }

    /// These rows are in the table, but for those that were there before. Their changes are acknowledged when the stream has
    /// come past that, or at once: records that were sent behind them are committed with a position that is behind them too,
    /// and the stream may be far from the end of the log.
    pub(super) fn is_parked(
        &mut self,
        rows: Vec<(Sequence, Option<String>, bool)>,
        committed: Lsn,
        at_once: bool,
        monitor: &Monitor,
    ) -> Vec<Sequence> {
        let mut sequences = Vec::with_capacity(rows.len());
        self.on_their_way = self.on_their_way.saturating_sub(rows.len());
        for (sequence, aggregate, new) in rows {
            if !new {
                self.parked.remove(aggregate.as_deref());
            }
            sequences.push(sequence);
        }
        if at_once {
            self.rests_on = self.rests_on.max(Some(committed));
        } else {
            self.committed.push_back((committed, sequences.clone()));
        }
        self.show(monitor);
        sequences
    }

    /// Changes whose rows are as safe as the stream: it is past the commits of them.
    pub(super) fn safe(&mut self, received: Lsn) -> Vec<Sequence> {
        let mut safe = Vec::new();
        while self.committed.front().is_some_and(|(committed, _)| *committed <= received) {
            safe.extend(self.committed.pop_front().into_iter().flat_map(|(_, sequences)| sequences));
        }
        safe
    }

    /// Whether there are any for [`Parking::safe`].
    pub(super) fn has_safe(&self, received: Lsn) -> bool {
        self.committed.front().is_some_and(|(committed, _)| *committed <= received)
    }

    /// Why the table cannot be written; `None`: it can.
    pub(super) fn refused_by_postgres(&mut self, reason: Option<String>, monitor: &Monitor) {
        self.unwritable = reason.map(|reason| format!("events cannot be parked: {reason}"));
        self.unwritable.iter().for_each(|what| monitor.last_problem(what.clone()));
    }

    /// The end of the log that has to be there for rows that a position is past.
    fn rests_on(&mut self, position: Lsn) -> Option<Lsn> {
        self.rests_on = self.rests_on.filter(|committed| *committed > position);
        self.rests_on
    }

    /// What has to be known of parked events where this position is gone on from. Without it the rows stay as they are.
    pub(super) fn add_to(&mut self, remembered: &mut Checkpoint, transactional: bool) {
        let position = remembered.position.flush;
        remembered.parked = self.rests_on(position);
        remembered.retried = if transactional { self.in_transaction(position) } else { Vec::new() };
    }

    /// Rows are out of the table. Aggregates that have none left flow again.
    pub(super) fn is_deleted(&mut self, keys: Vec<Key>, committed: Lsn, monitor: &Monitor) {
        // Where the log does not hold that, they are there again: with what was decided, or to be taken out once more.
        let sent = keys.iter().filter(|key| self.done.remove(key)).copied().collect();
        if !self.gone.add(sent, committed) {
            self.rests_on = self.rests_on.max(Some(committed));
        }
        for key in keys {
            let Some(aggregate) = self.deleting.remove(&key) else { continue };
            if self.parked.remove(aggregate.as_deref()) {
                tracing::info!(position = %key, "an aggregate has no parked events any more: its events flow again");
            }
        }
        self.show(monitor);
    }

    /// Rows are next that no crash brings the stream back to: `survives` is past them.
    pub(super) fn is_fetched(&mut self, rows: Vec<Waiting>, survives: Position) {
        self.fetching = false;
        if rows.is_empty() && self.room == ParkingRoom::Wanted {
            self.room = ParkingRoom::None;
        }
        let mut late = BTreeSet::new();
        for waiting in rows {
            let Key { final_lsn, change } = waiting.letter.key;
            let aggregate = waiting.letter.aggregate_id.clone();
            // else it may come again in the stream when its row is gone
            if late.contains(&aggregate) || !survives.covers(final_lsn, change) {
                late.extend(aggregate.map(Some));
                continue;
            }
            self.fetched.push_back(waiting);
        }
        let pause = if self.fetched.is_empty() { FETCH_EVERY } else { Duration::ZERO };
        self.fetch_at = Instant::now() + pause;
    }

    /// Asks for what is next, if nothing is under way and its time has come. Returns when to ask again.
    pub(super) fn fetch(&mut self) -> Option<Instant> {
        let busy =
            self.fetching || !self.deleting.is_empty() || !self.is_settled() || !self.fetched.is_empty();
        if busy || !self.done.is_empty() || !self.open.is_empty() || !self.committing.is_empty() {
            return None;
        }
        if Instant::now() < self.fetch_at {
            return Some(self.fetch_at);
        }
        self.fetching = true;
        self.desk.fetch((self.on_their_way == 0).then(|| self.parked.count().1));
        None
    }

    /// Throws away what is to be, and returns what is to be sent next, and whether nothing else may be under way then.
    pub(super) fn next(&mut self, monitor: &Monitor) -> Option<(&DeadLetter, bool)> {
        while self.fetched.front().is_some_and(|next| next.decision == Some(Decision::Discard)) {
            if let Some(Waiting { letter, .. }) = self.fetched.pop_front() {
                tracing::warn!(position = %letter.key, "a parked event is thrown away, as decided");
                monitor.dead_letter_discarded();
                self.delete(letter.key, letter.aggregate_id);
            }
        }
        let always = self.always_alone;
        self.fetched.front().map(|next| (&next.letter, always || next.letter.reason != Reason::Behind))
    }

    /// The number that the next record bears.
    pub(super) fn number(&self) -> Sequence {
        Sequence(self.next)
    }

    /// The next one was sent.
    pub(super) fn sent(&mut self, record: InFlight, alone: bool) {
        if let Some(Waiting { letter, .. }) = self.fetched.pop_front() {
            let (key, aggregate) = (letter.key, letter.aggregate_id);
            self.sent.insert(self.next, Sent { key, aggregate, record });
            (self.alone, self.wants_alone) = (alone, false);
            self.next += 1;
        }
    }

    /// The next one makes no record.
    pub(super) fn dropped(&mut self) {
        self.wants_alone = false;
        if let Some(Waiting { letter, .. }) = self.fetched.pop_front() {
            self.delete(letter.key, letter.aggregate_id);
        }
    }

    /// The next one has to wait until nothing is under way.
    pub(super) fn wants_alone(&mut self) {
        self.wants_alone = true;
    }

    /// The next one still cannot be sent, and what follows of its aggregate waits.
    pub(super) fn failed(&mut self, why: &Unsendable) {
        self.wants_alone = false;
        // the topic is looked at again once per number, so the next try needs another
        self.next += 1;
        let Some(Waiting { letter, .. }) = self.fetched.pop_front() else { return };
        tracing::error!(
            reason = why.reason.name(), position = %letter.key, detail = why.detail(),
            "a parked event still cannot be sent"
        );
        self.fetched.retain(|other| {
            letter.aggregate_id.is_none() || other.letter.aggregate_id != letter.aggregate_id
        });
        self.desk.failed(letter.key, why.reason, why.detail());
    }

    fn delete(&mut self, key: Key, aggregate: Option<String>) {
        self.delete_all(vec![(key, aggregate)]);
    }

    /// In one statement.
    fn delete_all(&mut self, rows: Vec<(Key, Option<String>)>) {
        let keys = rows.iter().map(|(key, _)| *key).collect();
        self.deleting.extend(rows);
        self.desk.delete(keys);
    }

    /// A record is acknowledged. `transactional`: it counts when its transaction is committed.
    pub(super) fn delivered(
        &mut self,
        sequence: Sequence,
        transactional: bool,
        monitor: &Monitor,
    ) -> Option<InFlight> {
        let Sent { key, aggregate, record } = self.sent.remove(&sequence.0)?;
        self.alone = false;
        monitor.dead_letter_retried();
        if transactional {
            self.open.push((key, aggregate));
        } else {
            self.delete(key, aggregate);
        }
        Some(record)
    }

    /// A transaction is about to be committed: the keys that its position has to name, so that their events are never sent
    /// again.
    fn in_transaction(&mut self, position: Lsn) -> Vec<Key> {
        self.committing.append(&mut self.open);
        let committing = self.committing.iter().map(|(key, _)| key);
        committing.chain(&self.done).chain(self.gone.behind(position)).copied().collect()
    }

    /// It was committed.
    pub(super) fn is_committed(&mut self) {
        let rows = std::mem::take(&mut self.committing);
        if !rows.is_empty() {
            self.done.extend(rows.iter().map(|(key, _)| *key));
            self.delete_all(rows);
        }
    }

    /// Whether no record of a parked event is under way.
    pub(super) fn is_settled(&self) -> bool {
        self.sent.is_empty()
    }

    /// Whether the record under way is not to share a batch.
    pub(super) fn has_one_alone(&self) -> bool {
        self.alone
    }

    /// Whether nothing else may be sent now.
    pub(super) fn is_alone(&self) -> bool {
        self.alone || self.wants_alone
    }

    /// The event of a record that was under way alone.
    pub(super) fn under_way(&self) -> Option<(Key, bool)> {
        self.sent.values().next().map(|sent| (sent.key, self.alone))
    }
}
