//! A sink that keeps its records in memory, and reports on them as the script says.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::task::Poll;

use pg_logical::Lsn;

use super::world::{Action, Id, Kind, Mode, Shared, World};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Peer};
use crate::pipeline::Made;
use crate::progress::{Position, Progress, Sequence};
use crate::relay::{
    Certain, Event, Health, InFlight, Intake, NotSent, Outcome, Refusal, Sent, Sink, Stalled, Turn,
};
use crate::unsendable::{Reason, Unsendable};

/// How many records a transaction takes.
const TRANSACTION: usize = 4;

pub(super) struct MemorySink {
    world: Shared,
    began: Checkpoint,
    /// With the brokers, by partition, in order.
    under_way: BTreeMap<u8, VecDeque<(Sequence, Id)>>,
    delivered: Vec<Sequence>,
    refusal: Option<Refusal>,
    /// Of the transaction that takes records, in the order in which they were sent.
    open: Vec<Id>,
    /// It takes no more.
    closing: bool,
    under_commit: Option<(Checkpoint, Vec<Id>)>,
    /// What is durable.
    stored: Checkpoint,
    checkpointed: bool,
    stalled: bool,
}

impl MemorySink {
    pub(super) fn new(world: &Shared, began: Checkpoint) -> Self {
        MemorySink {
            world: world.clone(),
            stored: began.clone(),
            began,
            under_way: BTreeMap::new(),
            delivered: Vec::new(),
            refusal: None,
            open: Vec::new(),
            closing: false,
            under_commit: None,
            checkpointed: false,
            stalled: false,
        }
    }

    fn mode(&self) -> Mode {
        self.world.borrow().mode
    }

    fn has_records(&self) -> bool {
        self.under_way.values().any(|records| !records.is_empty())
    }

    /// A record has arrived; in exactly-once consumers do not see it yet.
    fn deliver(&mut self, partition: u8) -> bool {
        let record = self.under_way.get_mut(&partition).and_then(VecDeque::pop_front);
        let Some((sequence, id)) = record else { return false };
        if self.mode() != Mode::ExactlyOnce {
            self.world.borrow_mut().arrives(id);
        }
        self.delivered.push(sequence);
        true
    }

    /// From the one that was named, the first partition in which a record is under way.
    fn partition(&self, from: u8) -> Option<u8> {
        let busy = |(partition, records): (&u8, &VecDeque<_>)| (!records.is_empty()).then_some(*partition);
        self.under_way.range(from..).find_map(busy).or_else(|| self.under_way.iter().find_map(busy))
    }

    fn store(&mut self) -> bool {
        let Some((checkpoint, records)) = self.under_commit.take() else { return false };
        let mut world = self.world.borrow_mut();
        commit(&mut world, &checkpoint, records);
        drop(world);
        self.stored = checkpoint;
        self.checkpointed = true;
        true
    }

    fn act(&mut self) -> Poll<Result<(), Error>> {
        if self.world.borrow().is_draining() {
            let stalled = std::mem::take(&mut self.stalled);
            let acted = match self.partition(0) {
                Some(partition) => self.deliver(partition),
                None => self.store(),
            };
            return if acted || stalled { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        let action = self.world.borrow_mut().next(true);
        let Some(action) = action else { return Poll::Pending };
        match action {
            Action::Deliver(from) => {
                if let Some(partition) = self.partition(from) {
                    self.deliver(partition);
                }
            }
            Action::DeliverAll => {
                while let Some(partition) = self.partition(0) {
                    self.deliver(partition);
                }
            }
            Action::Refuse(from) => {
                let partition = self.partition(from);
                let records = partition.and_then(|partition| self.under_way.get(&partition));
                if let Some((last, _)) = records.and_then(VecDeque::front) {
                    let why = Unsendable::new(Reason::Refused, "refused", "");
                    self.refusal = Some(Refusal { last: *last, transient: true, why });
                }
            }
            Action::Checkpoint => drop(self.store()),
            Action::CheckpointFails(committed) => {
                if self.mode() != Mode::ExactlyOnce {
                    self.store();
                } else if let Some((checkpoint, records)) = self.under_commit.take() {
                    if committed {
                        commit(&mut self.world.borrow_mut(), &checkpoint, records);
                    }
                    return Poll::Ready(Err(Error::transient(Peer::Kafka, "not known to be committed")));
                }
            }
            Action::SinkFails => return Poll::Ready(Err(Error::transient(Peer::Kafka, "lost"))),
            Action::Stall => self.stalled = !self.stalled,
            _ => {}
        }
        Poll::Ready(Ok(()))
    }

    /// What is under way when a session ends may still arrive, in the order of each partition. In a transaction that is
    /// taken back.
    fn left_alone(&mut self, luck: u8) {
        let partitions: Vec<_> = self.under_way.keys().copied().collect();
        for (partition, luck) in partitions.into_iter().zip(usize::from(luck)..) {
            for _ in 0..luck % 3 {
                self.deliver(partition);
            }
        }
        // nobody has heard whether it was committed
        if luck % 2 == 1 {
            self.store();
        }
    }

    fn now(&self, progress: &Progress, note: &mut dyn FnMut(&mut Checkpoint)) -> Checkpoint {
        let mut checkpoint = Checkpoint { position: progress.position(), ..self.began.clone() };
        note(&mut checkpoint);
        checkpoint
    }
}

impl Drop for MemorySink {
    fn drop(&mut self) {
        let crashed = self.world.borrow().crashed;
        if let Some(luck) = crashed {
            self.left_alone(luck);
        }
    }
}

/// It is durable, and consumers see its records.
fn commit(world: &mut World, checkpoint: &Checkpoint, records: Vec<Id>) {
    for id in records {
        world.arrives(id);
    }
    world.stored = Some(checkpoint.clone());
    world.check_covered(checkpoint.position, "the checkpoint");
}

impl Sink for MemorySink {
    type End = Checkpoint;

    fn is_ready(&self) -> bool {
        !self.stalled && !self.closing && self.open.len() < TRANSACTION
    }

    fn send(&mut self, made: &Made<'_>, sequence: Sequence) -> Result<Sent, NotSent> {
        let place = made.event.place();
        let mut world = self.world.borrow_mut();
        let id = world.id(place.final_lsn, place.changes);
        let Some((id, change)) = id.and_then(|id| Some((id, world.change(id)?))) else {
            world.wrong(format!("there is no event at {place:?}"));
            return Ok(Sent::Nothing);
        };
        if self.refusal.is_some() {
            world.wrong(format!("{id:?} was sent behind a refused record"));
        }
        // a fetch of parked events is bounded by itself
        let of_the_log = |(sequence, _): &&(Sequence, Id)| sequence.0 < 1 << 62;
        let under_way = self.under_way.values().flatten().filter(of_the_log).count();
        if !made.event.retried && under_way >= world.window {
            let most = world.window;
            world.wrong(format!("{under_way} records are under way, and {most} may be"));
        }
        match change.kind {
            Kind::Dropped => return Ok(Sent::Nothing),
            Kind::Unsendable if !world.cured => {
                let why = Unsendable::new(Reason::Unroutable, "it cannot be sent", "Cure it");
                return Err(NotSent::Impossible(why));
            }
            Kind::Event | Kind::Unsendable => {}
        }
        if world.mode == Mode::ExactlyOnce {
            self.open.push(id);
        }
        self.under_way.entry(change.aggregate).or_default().push_back((sequence, id));
        let commit_time = made.event.origin.commit_time;
        Ok(Sent::Record(InFlight { bytes: 1, memory: 1, commit_time, target: 0 }))
    }

    fn reports(&mut self, event: &mut impl FnMut(Event) -> Option<InFlight>) -> Option<Refusal> {
        if std::mem::take(&mut self.checkpointed) {
            event(Event::Checkpointed);
        }
        for sequence in std::mem::take(&mut self.delivered) {
            event(Event::Delivered(sequence));
        }
        self.refusal.clone()
    }

    fn turn(&mut self, turn: &Turn<'_>, note: &mut dyn FnMut(&mut Checkpoint)) -> Result<bool, Error> {
        let position = turn.progress.position();
        if turn.reading.intake == Intake::Recognizing {
            return Ok(false);
        }
        match self.mode() {
            Mode::SlotOnly => {}
            Mode::AtLeastOnce => {
                if self.under_commit.is_none() && position != self.stored.position {
                    self.under_commit = Some((self.now(turn.progress, note), Vec::new()));
                }
            }
            Mode::ExactlyOnce => {
                let full = self.open.len() >= TRANSACTION || turn.reading.intake != Intake::Behind;
                let worth = !self.open.is_empty() || position != self.stored.position;
                self.closing |= full && worth && self.under_commit.is_none();
                if self.closing && turn.window.is_empty() && !self.has_records() {
                    let checkpoint = self.now(turn.progress, note);
                    self.under_commit = Some((checkpoint, std::mem::take(&mut self.open)));
                    self.closing = false;
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn certain(&self, progress: &Progress) -> Certain {
        let mode = self.mode();
        let position = if mode == Mode::ExactlyOnce { self.stored.position } else { progress.position() };
        Certain {
            position,
            durable: if mode == Mode::SlotOnly { position.flush } else { self.stored.position.flush },
            survives: (mode != Mode::SlotOnly).then_some(self.stored.position),
            settled: !self.has_records()
                && self.open.is_empty()
                && (mode != Mode::ExactlyOnce || self.under_commit.is_none()),
            checkpoint_waits: self.under_commit.is_some(),
            uncommitted: self.open.len(),
            oldest: None,
            is_down: false,
            awaits: None,
        }
    }

    async fn changed(&mut self) -> Result<(), Error> {
        poll_fn(|_| self.act()).await
    }

    fn health(&self) -> Health {
        match self.stalled {
            true => Health::Stalled(Stalled { peer: Peer::Kafka, reason: "stalled".to_owned() }),
            false => Health::Flowing,
        }
    }

    async fn close(
        mut self,
        outcome: Outcome,
        progress: &mut Progress,
        _: bool,
        note: &mut dyn FnMut(&mut Checkpoint),
    ) -> (Outcome, Checkpoint) {
        self.left_alone(self.under_way.len() as u8);
        for sequence in std::mem::take(&mut self.delivered) {
            progress.acknowledge(sequence);
        }
        let left = match self.mode() {
            Mode::ExactlyOnce => self.stored.clone(),
            Mode::SlotOnly | Mode::AtLeastOnce => self.now(progress, note),
        };
        (outcome, left)
    }
}

/// Where a process begins that remembers nothing.
pub(super) fn first(confirmed: Lsn) -> Checkpoint {
    Checkpoint { position: Position { flush: confirmed, partial: None }, ..crate::checkpoint::remembered() }
}
