//! Which aggregates are parked, and what is on its way into the table. `retries` has the way out.
//!
//! ```text
//!   event --> store --> in the table --> acknowledged (without a positions topic, when the stream is past that commit)
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pg_logical::Lsn;
use tokio::time::{Duration, Instant};

use super::retries::Retries;
use crate::checkpoint::Checkpoint;
use crate::dead_letters::{DeadLetter, Key, Parked, ResolvedRows, TooMany, text};
use crate::monitor::Monitor;
use crate::outbox::printable;
use crate::postgres::dead_letters::sql::Waiting;
use crate::postgres::dead_letters::store::{DeadLetterStore, Loaded, Report};
use crate::progress::{Partial, Position, Sequence};
use crate::relay::InFlight;
use crate::unsendable::{Reason, Unsendable};

/// How often somebody may have decided something.
const FETCH_EVERY: Duration = Duration::from_millis(500);

/// How many events are named when they are parked; the counter has the rest.
const NAMED: u32 = 20;

/// The parked events of one session.
pub(super) struct Parking {
    store: DeadLetterStore,
    parked: Parked,
    /// Events that were found to be unsendable.
    refused: BTreeMap<Partial, Unsendable>,
    /// Rows without an aggregate whose events may come again.
    without: BTreeSet<Key>,
    /// Changes whose rows are committed, and the end of the log after that; where they are not acknowledged by it.
    committed: VecDeque<(Lsn, Vec<Sequence>)>,
    /// The same end, where they are: the position says so until it is past that itself.
    rests_on: Option<Lsn>,
    fetching: bool,
    /// Events on their way into the table.
    on_their_way: usize,
    fetch_at: Instant,
    /// What leaves the table.
    retries: Retries,
    /// What has left it, and a server may have again.
    gone: ResolvedRows,
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
        store: DeadLetterStore,
        loaded: Loaded,
        most: usize,
        refused: BTreeMap<Partial, Unsendable>,
        always_alone: bool,
        rests_on: Option<Lsn>,
    ) -> Self {
        Parking {
            store,
            parked: Parked::new(loaded.aggregates, most),
            refused,
            without: loaded.without.into_iter().collect(),
            committed: VecDeque::new(),
            rests_on,
            fetching: false,
            on_their_way: 0,
            fetch_at: Instant::now(),
            retries: Retries::new(always_alone),
            gone: loaded.gone,
            named: 0,
            room: ParkingRoom::NotNeeded,
            unwritable: None,
        }
    }

    /// What leaves the table.
    pub(super) fn retries(&self) -> &Retries {
        &self.retries
    }

    /// What leaves the table.
    pub(super) fn retries_mut(&mut self) -> &mut Retries {
        &mut self.retries
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
        monitor.counts().event_parked(letter.reason);
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
        self.store.park(sequence, letter);
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
        let waits = self.on_their_way > 0 || self.retries.is_removing() || self.room == ParkingRoom::Wanted;
        self.unwritable.as_deref().filter(|_| waits)
    }

    /// Whether no retry is under way. One whose row is still in the table would be sent again by the next session; where the table
    /// cannot be written, waiting for that does not help.
    pub(super) fn is_settled(&self) -> bool {
        self.retries.is_settled() && (!self.retries.is_removing() || self.unwritable.is_some())
    }

    /// Publishes how many events are parked.
    pub(super) fn show(&self, monitor: &Monitor) {
        let (aggregates, rows) = self.parked.count();
        monitor.dead_letters(aggregates, rows);
    }

    /// What the desk has done. May be dropped at any await.
    pub(super) async fn report(&mut self) -> Report {
        self.store.report().await
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
        remembered.retried = if transactional {
            self.retries.in_transaction().chain(self.gone.behind(position).copied()).collect()
        } else {
            Vec::new()
        };
    }

    /// Rows are out of the table. Aggregates that have none left flow again.
    pub(super) fn is_deleted(&mut self, keys: Vec<Key>, committed: Lsn, monitor: &Monitor) {
        let removed: Vec<_> =
            keys.into_iter().filter_map(|key| Some((key, self.retries.removed(key)?))).collect();
        // Where the log does not hold that, they are there again: with what was decided, or to be taken out once more.
        let committed_to_kafka = removed.iter().filter(|(_, (_, sent))| *sent).map(|(key, _)| *key).collect();
        if !self.gone.add(committed_to_kafka, committed) {
            self.rests_on = self.rests_on.max(Some(committed));
        }
        for (key, (aggregate, _)) in removed {
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
            self.retries.decided(waiting);
        }
        let pause = if self.retries.is_empty() { FETCH_EVERY } else { Duration::ZERO };
        self.fetch_at = Instant::now() + pause;
    }

    /// Asks for what is next, if nothing is under way and its time has come. Returns when to ask again.
    pub(super) fn fetch(&mut self) -> Option<Instant> {
        if self.fetching || !self.retries.is_empty() {
            return None;
        }
        if Instant::now() < self.fetch_at {
            return Some(self.fetch_at);
        }
        self.fetching = true;
        self.store.fetch((self.on_their_way == 0).then(|| self.parked.count().1));
        None
    }

    /// Throws away what is decided to be, as far as nothing comes before it.
    pub(super) fn discard(&mut self, monitor: &Monitor) {
        while let Some(key) = self.retries.discard() {
            tracing::warn!(position = %key, "a parked event is thrown away, as decided");
            monitor.counts().dead_letters_discarded.add(1);
            self.store.delete(vec![key]);
        }
    }

    /// The next one makes no record.
    pub(super) fn dropped(&mut self, key: Key) {
        self.retries.dropped(key);
        self.store.delete(vec![key]);
    }

    /// The next one still cannot be sent, and what follows of its aggregate waits.
    pub(super) fn failed(&mut self, key: Key, why: &Unsendable) {
        let detail = why.detail();
        tracing::error!(
            reason = why.reason.name(), position = %key, detail,
            "a parked event still cannot be sent"
        );
        self.retries.failed(key);
        self.store.failed(key, why.reason, detail);
    }

    /// A record is acknowledged. `transactional`: it counts when its transaction is committed.
    pub(super) fn delivered(
        &mut self,
        sequence: Sequence,
        transactional: bool,
        monitor: &Monitor,
    ) -> Option<InFlight> {
        let (key, record) = self.retries.delivered(sequence, transactional)?;
        monitor.counts().dead_letters_retried.add(1);
        if !transactional {
            self.store.delete(vec![key]);
        }
        Some(record)
    }

    /// The checkpoint that named them is durable.
    pub(super) fn is_committed(&mut self) {
        let keys = self.retries.committed();
        if !keys.is_empty() {
            self.store.delete(keys);
        }
    }
}
