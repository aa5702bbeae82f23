//! The state that outlives a session: the server's log and slot, the brokers, the table of parked events, and the script.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use pg_logical::{Lsn, PgTimestamp};
use tokio_util::sync::CancellationToken;

use crate::checkpoint::Checkpoint;
use crate::dead_letters::{DeadLetter, Key};
use crate::progress::{Landmark, Position};

/// Where the position is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Only in the slot.
    SlotOnly,
    /// In checkpoints that follow the records.
    AtLeastOnce,
    /// In the transactions of the records.
    ExactlyOnce,
}

/// What a change is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Event,
    /// An event that the sink drops.
    Dropped,
    /// An event that cannot be sent until an operator acts.
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

/// An event: the index of its transaction, and its own index in it.
pub(super) type Id = (usize, usize);

/// A step of the script, for the source or for the sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// This many more messages of the log arrive.
    Arrive(u8),
    /// The source only serves its connection.
    Tick,
    /// The connection to the server is lost.
    SourceFails,
    /// The process dies with its state. The number decides what still arrives.
    Crash(u8),
    /// The router is asked to stop.
    Stop,
    /// This many statements on the table of parked events are executed.
    Table(u8),
    /// Events that could not be sent can be sent from now on, and are to be retried.
    Cure,
    /// The brokers acknowledge a record of this partition, or of the next one that has any.
    Deliver(u8),
    /// They acknowledge all records.
    DeliverAll,
    /// They refuse the first record of this partition.
    Refuse(u8),
    /// The checkpoint is stored, or the transaction committed.
    Checkpoint,
    /// The commit of the transaction gets no answer. `true`: it was committed.
    CheckpointFails(bool),
    /// The connection to the brokers is lost.
    SinkFails,
    /// The sink accepts nothing for a while, or accepts records again.
    Stall,
    /// The topics that the sink prepares are ready.
    Prepare,
}

impl Action {
    pub(super) fn is_for_sink(self) -> bool {
        use Action::{Checkpoint, CheckpointFails, Deliver, DeliverAll, Prepare, Refuse, SinkFails, Stall};
        matches!(
            self,
            Deliver(_)
                | DeliverAll
                | Refuse(_)
                | Checkpoint
                | CheckpointFails(_)
                | SinkFails
                | Stall
                | Prepare
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
    /// Later commits are another router's.
    pub(super) until: Option<Lsn>,
    pub(super) confirmed: Lsn,
    /// The records that consumers see, by aggregate.
    pub(super) partitions: BTreeMap<u8, Vec<Id>>,
    pub(super) stored: Option<Checkpoint>,
    pub(super) table: BTreeMap<Key, DeadLetter>,
    pub(super) cured: bool,
    /// It could be before the session began.
    pub(super) decided_before: bool,
    pub(super) crashed: Option<u8>,
    pub(super) stop: CancellationToken,
    /// Everything is confirmed, which stopped the router.
    pub(super) is_done: bool,
    /// How many records may be in flight.
    pub(super) window: usize,
    /// How many topics of later events the sink prepares with the one that is needed.
    pub(super) ahead: usize,
    /// How often topics were prepared, in all sessions.
    pub(super) preparations: usize,
    /// The first violation.
    pub(super) fault: Option<String>,
}

pub(super) type Shared = Rc<RefCell<World>>;

impl World {
    /// A world with a log of these transactions and a script.
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
            decided_before: false,
            crashed: None,
            stop: CancellationToken::new(),
            is_done: false,
            window,
            ahead: 1,
            preparations: 0,
            fault: None,
        }))
    }

    /// Whether the script is over: from here on nothing fails, until everything is delivered.
    pub(super) fn is_draining(&self) -> bool {
        self.script.is_empty()
    }

    /// The next action, if it is for this port.
    pub(super) fn next(&mut self, for_sink: bool) -> Option<Action> {
        let next = *self.script.front()?;
        (next.is_for_sink() == for_sink).then(|| self.script.pop_front()).flatten()
    }

    /// Records a violation. The first one counts.
    pub(super) fn wrong(&mut self, what: String) {
        self.fault.get_or_insert(what);
    }

    pub(super) fn change(&self, (transaction, change): Id) -> Option<Change> {
        self.log.get(transaction)?.changes.get(change).copied()
    }

    /// The event at a place in the log.
    pub(super) fn id(&self, final_lsn: Lsn, ordinal: u64) -> Option<Id> {
        let transaction = self.log.iter().position(|one| one.itself.final_lsn == final_lsn)?;
        Some((transaction, usize::try_from(ordinal).ok()?.checked_sub(1)?))
    }

    /// Whether an event has arrived, or is parked.
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

    /// Checks that everything before `position` is safe.
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

    /// Checks that everything before the first event that cannot be sent is safe.
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

    /// Confirms the slot up to `position`.
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

    /// The events of this router in commit order, by aggregate.
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

    /// Checks that nothing is lost, each aggregate is in order, and exactly-once has no duplicates.
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
            // another router sends what is still parked
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
