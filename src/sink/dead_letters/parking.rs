//! Which aggregates are parked, and which rows are being inserted. `retries` covers rows that leave the table.
//!
//! ```text
//!   event --> store --> in the table --> acknowledged (without a positions topic, when the stream is past that commit)
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pg_logical::Lsn;
use tokio::time::{Duration, Instant};

use super::retries::{Deleted, Retries};
use crate::checkpoint::Checkpoint;
use crate::dead_letters::{DeadLetter, Key, Parked, ResolvedRows, TooMany, text};
use crate::error::with_config_file;
use crate::monitor::Monitor;
use crate::outbox::printable_id;
use crate::postgres::dead_letters::messages::{Loaded, Report};
use crate::postgres::dead_letters::sql::Waiting;
use crate::postgres::dead_letters::store::DeadLetterStore;
use crate::progress::{Partial, Position, Sequence};
use crate::relay::InFlight;
use crate::unsendable::{Reason, Unsendable};

/// How often the table is checked for new decisions.
const FETCH_EVERY: Duration = Duration::from_millis(500);

/// How many events the log names. Further ones only count in the metric.
const NAMED: u32 = 20;

/// The parked events of one session.
pub(super) struct Parking {
    store: DeadLetterStore,
    parked: Parked,
    /// Events that the brokers refused in an earlier session.
    refused: BTreeMap<Partial, Unsendable>,
    /// Rows without an aggregate whose events the stream may contain again.
    without_aggregate: BTreeSet<Key>,
    /// Without stored checkpoints: changes whose rows are committed, with the end of the log after each commit. They are
    /// acknowledged when the stream has passed it.
    committed: VecDeque<(Lsn, Vec<Sequence>)>,
    /// With stored checkpoints: the end of the log after the last insert. Checkpoints name it until their own position has
    /// passed it.
    required_log_end: Option<Lsn>,
    fetching: bool,
    /// The last fetch has found nothing to send or discard.
    nothing_decided: bool,
    /// The number of events being inserted.
    inserting: usize,
    fetch_at: Instant,
    /// Rows that leave the table.
    retries: Retries,
    /// Rows that were deleted and that another server may still have after a failover.
    resolved: ResolvedRows,
    named: u32,
    capacity: Capacity,
    /// Why the table cannot be written.
    unwritable: Option<String>,
}

/// Whether another aggregate can be parked once the limit is reached.
#[derive(Debug, PartialEq, Eq)]
enum Capacity {
    Available,
    /// Rows with a decision may free a place; the table is being checked.
    Checking,
    /// No row has a decision.
    Exhausted,
}

impl Parking {
    pub(super) fn new(
        store: DeadLetterStore,
        loaded: Loaded,
        max_aggregates: usize,
        refused: BTreeMap<Partial, Unsendable>,
        always_alone: bool,
        required_log_end: Option<Lsn>,
    ) -> Self {
        Parking {
            store,
            parked: Parked::new(loaded.aggregates, max_aggregates),
            refused,
            without_aggregate: loaded.without_aggregate.into_iter().collect(),
            committed: VecDeque::new(),
            required_log_end,
            fetching: false,
            nothing_decided: false,
            inserting: 0,
            fetch_at: Instant::now(),
            retries: Retries::new(always_alone),
            resolved: loaded.resolved,
            named: 0,
            capacity: Capacity::Available,
            unwritable: None,
        }
    }

    pub(super) fn retries(&self) -> &Retries {
        &self.retries
    }

    pub(super) fn retries_mut(&mut self) -> &mut Retries {
        &mut self.retries
    }

    /// Whether later events of the aggregate have to be parked too.
    pub(super) fn holds(&self, aggregate: Option<&[u8]>, event: Key) -> bool {
        // this runs for each event
        self.parked.count().0 > 0 && self.parked.holds(aggregate.map(text).as_deref(), event)
    }

    /// Whether the event without an aggregate is parked already. It arrives again once, so it is forgotten then.
    pub(super) fn take_parked(&mut self, event: Key) -> bool {
        self.without_aggregate.remove(&event)
    }

    /// Whether the event is parked, or will be, whatever the sink inside makes of it.
    pub(super) fn parks(&self, aggregate: Option<&[u8]>, event: Key) -> bool {
        let Key { final_lsn, change } = event;
        self.refused.contains_key(&Partial { final_lsn, changes: change })
            || self.without_aggregate.contains(&event)
            || self.holds(aggregate, event)
    }

    /// Why the brokers refused this event before, if they did.
    pub(super) fn refused(&self, event: Partial) -> Option<Unsendable> {
        self.refused.get(&event).cloned()
    }

    /// Parks an event.
    pub(super) fn park(
        &mut self,
        sequence: Sequence,
        letter: DeadLetter,
        monitor: &Monitor,
    ) -> Result<(), TooMany> {
        self.parked.add(letter.aggregate_id.as_deref(), letter.key)?;
        self.capacity = Capacity::Available;
        self.resolved.parked_again(letter.key);
        monitor.counts().event_parked(letter.reason);
        if letter.reason != Reason::Behind {
            self.named += 1;
            let id = printable_id(letter.event_id.as_deref().map(str::as_bytes));
            let behind = match letter.aggregate_id {
                Some(_) => "; later events of its aggregate wait behind it",
                None => "",
            };
            let list = with_config_file("outbox-router dead-letters list");
            match self.named {
                ..=NAMED => tracing::error!(
                    reason = letter.reason.name(), position = %letter.key, detail = letter.detail,
                    "the event with id {id} cannot be sent and is parked{behind}: {list}"
                ),
                n if n == NAMED + 1 => tracing::error!(
                    "further unsendable events are parked without a log line; events_parked_total counts them"
                ),
                _ => {}
            }
        }
        self.store.park(sequence, letter);
        self.inserting += 1;
        self.show(monitor);
        Ok(())
    }

    /// Starts to look whether rows with a decision free a place, when no more aggregates may be parked. True while it looks: then
    /// try again.
    pub(super) fn check_for_capacity(&mut self) -> bool {
        if self.capacity == Capacity::Available {
            (self.capacity, self.fetch_at) = (Capacity::Checking, Instant::now());
        }
        self.capacity == Capacity::Checking
    }

    /// The number of events being inserted. They wait for Postgres, not for a broker.
    pub(super) fn inserting(&self) -> usize {
        self.inserting
    }

    /// Why the table cannot be written, if anything waits for it.
    pub(super) fn unwritable(&self) -> Option<&str> {
        let waits = self.inserting > 0 || self.retries.is_deleting() || self.capacity == Capacity::Checking;
        self.unwritable.as_deref().filter(|_| waits)
    }

    /// Whether no retry is in flight and no row is being deleted: the next session would send an event again whose row is still in
    /// the table. Rows do not count while the table cannot be written, because waiting would not help.
    pub(super) fn is_settled(&self) -> bool {
        self.retries.is_idle() && (!self.retries.is_deleting() || self.unwritable.is_some())
    }

    /// Whether the router has acted on every decision, or cannot because the table cannot be used, which is logged.
    pub(super) fn is_done(&self) -> bool {
        self.unwritable.is_some() || (self.nothing_decided && self.retries.is_empty())
    }

    /// Publishes how many events are parked.
    pub(super) fn show(&self, monitor: &Monitor) {
        let (aggregates, rows) = self.parked.count();
        monitor.dead_letters(aggregates, rows);
    }

    /// The store's next result. Cancel-safe.
    pub(super) async fn report(&mut self) -> Report {
        self.store.report().await
    }

    /// Rows were inserted; those with `false` already existed. Their changes are acknowledged `at_once` if checkpoints are
    /// stored: records sent after them may be committed with a position that is past them, while the stream may be far from
    /// the end of the log. Otherwise they are acknowledged when the stream has passed the commit.
    pub(super) fn inserted(
        &mut self,
        rows: Vec<(Sequence, Option<String>, bool)>,
        committed: Lsn,
        at_once: bool,
        monitor: &Monitor,
    ) -> Vec<Sequence> {
        let mut sequences = Vec::with_capacity(rows.len());
        self.inserting = self.inserting.saturating_sub(rows.len());
        for (sequence, aggregate, new) in rows {
            if !new {
                self.parked.remove(aggregate.as_deref());
            }
            sequences.push(sequence);
        }
        if at_once {
            self.required_log_end = self.required_log_end.max(Some(committed));
        } else {
            self.committed.push_back((committed, sequences.clone()));
        }
        self.show(monitor);
        sequences
    }

    /// Takes the changes whose rows are durable because the stream has passed their commits.
    pub(super) fn take_durable(&mut self, received: Lsn) -> Vec<Sequence> {
        let mut durable = Vec::new();
        while self.committed.front().is_some_and(|(committed, _)| *committed <= received) {
            durable.extend(self.committed.pop_front().into_iter().flat_map(|(_, sequences)| sequences));
        }
        durable
    }

    /// Whether [`Parking::take_durable`] would return any.
    pub(super) fn has_durable(&self, received: Lsn) -> bool {
        self.committed.front().is_some_and(|(committed, _)| *committed <= received)
    }

    /// The table cannot be written for this reason; `None`: it can be again.
    pub(super) fn set_unwritable(&mut self, reason: Option<String>, monitor: &Monitor) {
        self.unwritable = reason.map(|reason| format!("events cannot be parked: {reason}"));
        self.unwritable.iter().for_each(|what| monitor.last_problem(what.clone()));
    }

    /// The end of the log that a server needs to have the rows of which `position` is already past.
    fn required_log_end(&mut self, position: Lsn) -> Option<Lsn> {
        self.required_log_end = self.required_log_end.filter(|committed| *committed > position);
        self.required_log_end
    }

    /// Adds to a checkpoint what a session that resumes from it has to know of parked events. Retries that are committed with it are
    /// committing from then on. The table itself does not change.
    pub(super) fn commit_retries_with(&mut self, remembered: &mut Checkpoint, transactional: bool) {
        let position = remembered.position.flush;
        remembered.parked = self.required_log_end(position);
        remembered.retried = if transactional {
            self.retries.start_committing().chain(self.resolved.beyond(position).copied()).collect()
        } else {
            Vec::new()
        };
    }

    /// Rows were deleted. Aggregates without rows are sent again.
    pub(super) fn deleted(&mut self, keys: Vec<Key>, committed: Lsn, monitor: &Monitor) {
        let removed: Vec<_> =
            keys.into_iter().filter_map(|key| Some((key, self.retries.deleted(key)?))).collect();
        // A server whose log lacks this deletion has the rows again. Checkpoints name the events that were sent; if there
        // are too many, they require this part of the log instead.
        let committed_to_kafka =
            removed.iter().filter(|(_, deleted)| deleted.committed).map(|(key, _)| *key).collect();
        if !self.resolved.add(committed_to_kafka, committed) {
            self.required_log_end = self.required_log_end.max(Some(committed));
        }
        for (key, Deleted { id, aggregate, .. }) in removed {
            if self.parked.remove(aggregate.as_deref()) {
                let id = printable_id(id.as_deref().map(str::as_bytes));
                tracing::info!(
                    position = %key,
                    "the event with id {id} was the last parked one of its aggregate, whose later events are sent directly again"
                );
            }
        }
        self.show(monitor);
    }

    /// The store has fetched rows to send or discard. Only rows that no crash makes the stream repeat are used: `survives`
    /// is past them. With checkpoints it will be past the others soon; without, only when the stream is past the end of the log.
    pub(super) fn fetched(&mut self, rows: Vec<Waiting>, survives: Position, with_checkpoints: bool) {
        self.fetching = false;
        let none = rows.is_empty();
        if rows.is_empty() && self.capacity == Capacity::Checking {
            self.capacity = Capacity::Exhausted;
        }
        let mut late = BTreeSet::new();
        for waiting in rows {
            let Key { final_lsn, change } = waiting.letter.key;
            let aggregate = waiting.letter.aggregate_id.clone();
            // otherwise the stream may contain the event again after its row is deleted
            if late.contains(&aggregate) || !survives.covers(final_lsn, change) {
                late.extend(aggregate.map(Some));
                continue;
            }
            self.retries.decided(waiting);
        }
        self.nothing_decided = none || (!with_checkpoints && self.retries.is_empty());
        let pause = if self.retries.is_empty() { FETCH_EVERY } else { Duration::ZERO };
        self.fetch_at = Instant::now() + pause;
    }

    /// Fetches the next rows, unless rows are being fetched or sent, or it is too early. Returns when to try again.
    pub(super) fn fetch(&mut self) -> Option<Instant> {
        if self.fetching || !self.retries.is_empty() {
            return None;
        }
        if Instant::now() < self.fetch_at {
            return Some(self.fetch_at);
        }
        self.fetching = true;
        self.store.fetch((self.inserting == 0).then(|| self.parked.count().1));
        None
    }

    /// Discards events as decided, up to the first that is to be sent.
    pub(super) fn discard(&mut self, monitor: &Monitor) {
        while let Some(key) = self.retries.discard() {
            tracing::warn!(position = %key, "discarding the parked event with id {}, as decided", self.retries.id(key));
            monitor.counts().dead_letters_discarded.add(1);
            self.store.delete(vec![key]);
        }
    }

    /// Routing drops the next event.
    pub(super) fn dropped(&mut self, key: Key) {
        self.retries.dropped(key);
        self.store.delete(vec![key]);
    }

    /// The next event still cannot be sent. Later events of its aggregate wait.
    pub(super) fn failed(&mut self, key: Key, why: &Unsendable) {
        let detail = why.detail();
        tracing::error!(
            reason = why.reason.name(), position = %key, detail,
            "the parked event with id {} still cannot be sent", self.retries.id(key)
        );
        self.retries.failed(key);
        self.store.failed(key, why.reason, detail);
    }

    /// A retried record was acknowledged. If `transactional`, it counts only after the commit.
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

    /// The transaction with the checkpoint was committed.
    pub(super) fn transaction_committed(&mut self) {
        let keys = self.retries.committed();
        if !keys.is_empty() {
            self.store.delete(keys);
        }
    }
}
