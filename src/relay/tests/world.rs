//! What outlives a session: the server's log and slot, the brokers, the table of parked events, and the script of what happens.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use pg_logical::{Lsn, PgTimestamp};
use tokio_util::sync::CancellationToken;

use crate::checkpoint::Checkpoint;
use crate::dead_letters::{DeadLetter, Key};
use crate::progress::{Landmark, Position};

/// How what is delivered is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// In the slot alone.
    SlotOnly,
    /// In checkpoints that follow the records.
    AtLeastOnce,
    /// In the transactions of the records.
    ExactlyOnce,
}

/// What becomes of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Event,
    /// It is no event for this sink.
    Dropped,
    /// It cannot be sent before somebody has done something.
    Unsendable,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Change {
    pub(super) aggregate: u8,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) struct Transaction {
    pub(super) itself: Landmark,
    pub(super) end: Lsn,
    pub(super) changes: Vec<Change>,
}

/// An event: the number of its transaction, and its own in that.
pub(super) type Id = (usize, usize);

/// What happens next. Each is for the source or for the sink, whichever is asked first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// So many more messages of the log arrive.
    Arrive(u8),
    /// The source looks after its connection, and nothing else.
    Tick,
    /// The connection to the server is lost.
    SourceFails,
    /// The process dies, and all that it knows.
    Crash(u8),
    /// The router is asked to stop.
    Stop,
    /// So many statements about parked events are carried out.
    Table(u8),
    /// What could not be sent can be from now on, and that is decided.
    Cure,
    /// The brokers report a record of this partition, or the next one that has any.
    Deliver(u8),
    /// They report all.
    DeliverAll,
    /// They refuse what is first in this partition.
    Refuse(u8),
    /// The checkpoint is stored, or the transaction committed.
    Checkpoint,
    /// The transaction is not known to be committed. `true`: it is.
    CheckpointFails(bool),
    /// The connection to the brokers is lost.
    SinkFails,
    /// The sink takes nothing for a while, or takes records again.
    Stall,
}

impl Action {
    pub(super) fn is_for_sink(self) -> bool {
        use Action::{Checkpoint, CheckpointFails, Deliver, DeliverAll, Refuse, SinkFails, Stall};
        matches!(
            self,
            Deliver(_) | DeliverAll | Refuse(_) | Checkpoint | CheckpointFails(_) | SinkFails | Stall
        )
    }
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) mode: Mode,
    pub(super) script: VecDeque<Action>,
    pub(super) log: Vec<Transaction>,
    /// The end of the log.
    pub(super) end: Lsn,
    /// What was committed from there on is for another router.
    pub(super) until: Option<Lsn>,
    pub(super) confirmed: Lsn,
    /// What consumers read, by aggregate.
    pub(super) partitions: BTreeMap<u8, Vec<Id>>,
    pub(super) stored: Option<Checkpoint>,
    pub(super) table: BTreeMap<Key, DeadLetter>,
    pub(super) cured: bool,
    pub(super) crashed: Option<u8>,
    pub(super) stop: CancellationToken,
    /// Everything is confirmed, and the router was stopped for that.
    pub(super) is_done: bool,
    /// How many records may be under way.
    pub(super) window: usize,
    /// The first thing that went wrong.
    pub(super) fault: Option<String>,
}

pub(super) type Shared = Rc<RefCell<World>>;

impl World {
    /// A log of these transactions, and what happens to the router that reads it.
    pub(super) fn new(mode: Mode, log: Vec<Vec<Change>>, script: Vec<Action>, window: usize) -> Shared {
        let log: Vec<_> = log
            .into_iter()
            .zip(1_u32..)
            .map(|(changes, number)| Transaction {
                itself: Landmark {
                    final_lsn: Lsn(u64::from(number) * 100),
                    xid: number,
                    commit_time: PgTimestamp(i64::from(number)),
                },
                end: Lsn(u64::from(number) * 100 + 10),
                changes,
            })
            .collect();
        let end = log.last().map_or(Lsn(50), |last| Lsn(last.end.0 + 5));
        Rc::new(RefCell::new(World {
            mode,
            script: script.into(),
            log,
            end,
            until: None,
            confirmed: Lsn(20),
            partitions: BTreeMap::new(),
            stored: None,
            table: BTreeMap::new(),
            cured: false,
            crashed: None,
            stop: CancellationToken::new(),
            is_done: false,
            window,
            fault: None,
        }))
    }

    /// Whether the script is over: from here on all goes well, until everything is delivered.
    pub(super) fn is_draining(&self) -> bool {
        self.script.is_empty()
    }

    /// The next action, if it is for the sink or for the source.
    pub(super) fn next(&mut self, for_sink: bool) -> Option<Action> {
        let next = *self.script.front()?;
        (next.is_for_sink() == for_sink).then(|| self.script.pop_front()).flatten()
    }

    /// What went wrong. The first is told.
    pub(super) fn wrong(&mut self, what: String) {
        self.fault.get_or_insert(what);
    }

    pub(super) fn change(&self, (transaction, change): Id) -> Option<Change> {
        self.log.get(transaction)?.changes.get(change).copied()
    }

    /// The event of a place in the log.
    pub(super) fn id(&self, final_lsn: Lsn, ordinal: u64) -> Option<Id> {
        let transaction = self.log.iter().position(|one| one.itself.final_lsn == final_lsn)?;
        Some((transaction, usize::try_from(ordinal).ok()?.checked_sub(1)?))
    }

    /// Whether an event has arrived, or is in the table until it can be sent.
    fn is_safe(&self, id: Id) -> bool {
        let Some(change) = self.change(id) else { return false };
        let arrived = self.partitions.get(&change.aggregate).is_some_and(|there| there.contains(&id));
        arrived || change.kind == Kind::Dropped || self.parked(id)
    }

    /// Whether an event is in the table.
    fn parked(&self, (transaction, change): Id) -> bool {
        let final_lsn = Lsn((transaction as u64 + 1) * 100);
        self.table.contains_key(&Key { final_lsn, change: change as u64 + 1 })
    }

    /// Everything before `position` has to be safe.
    pub(super) fn check_covered(&mut self, position: Position, what: &str) {
        let missing = self.log.iter().enumerate().find_map(|(number, one)| {
            let safe = |change: &usize| {
                !position.covers(one.itself.final_lsn, *change as u64 + 1) || self.is_safe((number, *change))
            };
            (0..one.changes.len()).find(|change| !safe(change)).map(|change| (number, change))
        });
        if let Some(id) = missing {
            self.wrong(format!("{what} {position:?} is past the event {id:?}, which is not safe"));
        }
    }

    /// Everything before the first event that cannot be sent has to be safe.
    pub(super) fn check_before_unsendable(&mut self) {
        let ids = self
            .log
            .iter()
            .enumerate()
            .flat_map(|(number, one)| (0..one.changes.len()).map(move |change| (number, change)));
        let unsafe_ids: Vec<_> = ids.filter(|id| !self.is_safe(*id)).collect();
        let first = unsafe_ids.first().copied();
        if let Some(id) = first.filter(|id| self.change(*id).is_some_and(|of| of.kind == Kind::Event)) {
            self.wrong(format!("the router has stopped, and {id:?} before that has not arrived"));
        }
    }

    /// The slot is confirmed so far.
    pub(super) fn confirm(&mut self, position: Lsn) {
        if position < self.confirmed {
            self.wrong(format!("the slot is moved back from {} to {position}", self.confirmed));
        }
        let ends_a_transaction = |lsn| self.log.iter().any(|one| one.end == lsn);
        let inside = self.log.iter().any(|one| one.itself.final_lsn < position && position < one.end);
        if inside && !ends_a_transaction(position) {
            self.wrong(format!("{position} is inside a transaction"));
        }
        self.confirmed = position;
        self.check_covered(Position { flush: position, partial: None }, "the confirmed position");
    }

    /// Consumers see this event.
    pub(super) fn arrives(&mut self, id: Id) {
        let Some(change) = self.change(id) else { return };
        self.partitions.entry(change.aggregate).or_default().push(id);
    }

    /// The events for this router, in the order of commits, by aggregate.
    fn expected(&self) -> BTreeMap<u8, Vec<Id>> {
        let mut expected: BTreeMap<u8, Vec<Id>> = BTreeMap::new();
        for (number, one) in self.log.iter().enumerate() {
            if self.until.is_some_and(|until| one.itself.final_lsn >= until) {
                continue;
            }
            for (change, of) in one.changes.iter().enumerate().filter(|(_, of)| of.kind != Kind::Dropped) {
                expected.entry(of.aggregate).or_default().push((number, change));
            }
        }
        expected
    }

    /// Nothing is lost, each aggregate is in order, and with exactly-once nothing comes twice.
    pub(super) fn check_delivered(&mut self) {
        let expected = self.expected();
        for (aggregate, wanted) in &expected {
            let there = self.partitions.get(aggregate).cloned().unwrap_or_default();
            let mut first = Vec::new();
            for id in &there {
                if !first.contains(id) {
                    first.push(*id);
                }
            }
            // the router of another part sends what is still parked
            let parked = wanted.iter().copied().filter(|id| self.parked(*id) && !there.contains(id));
            first.extend(parked);
            if first != *wanted {
                self.wrong(format!("aggregate {aggregate}: {there:?} instead of {wanted:?}"));
            }
            let once = there.iter().collect::<std::collections::BTreeSet<_>>().len();
            if self.mode == Mode::ExactlyOnce && there.len() != once {
                self.wrong(format!("aggregate {aggregate}: twice in exactly-once: {there:?}"));
            }
        }
        for aggregate in self.partitions.keys().copied().collect::<Vec<_>>() {
            if !expected.contains_key(&aggregate) {
                self.wrong(format!("aggregate {aggregate} is not this router's"));
            }
        }
    }
}
