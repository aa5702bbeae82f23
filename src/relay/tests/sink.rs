//! A sink that stores records in memory, and reports on them as the script says.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::task::Poll;

use pg_logical::Lsn;

use super::world::{Action, Id, Kind, Mode, Shared, World};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Peer};
use crate::outbox::Field;
use crate::pipeline::PipelineOutput;
use crate::progress::{Position, Progress, Sequence};
use crate::relay::{
    Durability, Health, InFlight, Intake, LoopState, NotSent, Outcome, Refusal, Sent, Sink, SinkEvent,
    Stalled,
};
use crate::unsendable::{Reason, Unsendable};

/// How many records a transaction holds.
const TRANSACTION: usize = 4;

pub(super) struct MemorySink {
    world: Shared,
    began: Checkpoint,
    /// The records in flight, by partition, in order.
    in_flight: BTreeMap<u8, VecDeque<(Sequence, Id)>>,
    delivered: Vec<Sequence>,
    refusal: Option<Refusal>,
    /// The open transaction's records, in order.
    open: Vec<Id>,
    /// The open transaction accepts no more records.
    closing: bool,
    committing: Option<(Checkpoint, Vec<Id>)>,
    /// The durable checkpoint.
    stored: Checkpoint,
    checkpointed: bool,
    stalled: bool,
    topics: Topics,
}

/// Each aggregate has its own topic, which is prepared before its first record.
#[derive(Default)]
struct Topics {
    ready: BTreeSet<u8>,
    /// The topic of the event that waits, and that event, unless it is retried.
    needed: Option<(u8, Option<Id>)>,
    /// The topics of events behind it.
    ahead: BTreeSet<u8>,
    /// The event that was shown last.
    shown: Option<Id>,
}

impl Topics {
    fn prepare(&mut self, world: &mut World) -> bool {
        let Some((needed, _)) = self.needed.take() else { return false };
        world.preparations += 1;
        self.ready.insert(needed);
        self.ready.append(&mut self.ahead);
        true
    }
}

impl MemorySink {
    pub(super) fn new(world: &Shared, began: Checkpoint) -> Self {
        MemorySink {
            world: world.clone(),
            stored: began.clone(),
            began,
            in_flight: BTreeMap::new(),
            delivered: Vec::new(),
            refusal: None,
            open: Vec::new(),
            closing: false,
            committing: None,
            checkpointed: false,
            stalled: false,
            topics: Topics::default(),
        }
    }

    fn mode(&self) -> Mode {
        self.world.borrow().mode
    }

    fn has_records(&self) -> bool {
        self.in_flight.values().any(|records| !records.is_empty())
    }

    /// Delivers a record; in exactly-once consumers do not see it yet.
    fn deliver(&mut self, partition: u8) -> bool {
        let record = self.in_flight.get_mut(&partition).and_then(VecDeque::pop_front);
        let Some((sequence, id)) = record else { return false };
        if self.mode() != Mode::ExactlyOnce {
            self.world.borrow_mut().arrives(id);
        }
        self.delivered.push(sequence);
        true
    }

    /// The first partition from `from` on with a record in flight.
    fn partition(&self, from: u8) -> Option<u8> {
        let busy = |(partition, records): (&u8, &VecDeque<_>)| (!records.is_empty()).then_some(*partition);
        self.in_flight.range(from..).find_map(busy).or_else(|| self.in_flight.iter().find_map(busy))
    }

    fn store(&mut self) -> bool {
        let Some((checkpoint, records)) = self.committing.take() else { return false };
        let mut world = self.world.borrow_mut();
        commit(&mut world, &checkpoint, records);
        drop(world);
        self.stored = checkpoint;
        self.checkpointed = true;
        true
    }

    fn act(&mut self) -> Poll<Result<(), Error>> {
        if self.world.borrow().is_draining() {
            let stalled =
                std::mem::take(&mut self.stalled) | self.topics.prepare(&mut self.world.borrow_mut());
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
                let records = partition.and_then(|partition| self.in_flight.get(&partition));
                if let Some((last, _)) = records.and_then(VecDeque::front) {
                    let why = Unsendable::new(Reason::Refused, "refused", "");
                    self.refusal = Some(Refusal { last: *last, transient: true, why });
                }
            }
            Action::Checkpoint => drop(self.store()),
            Action::CheckpointFails(committed) => {
                if self.mode() != Mode::ExactlyOnce {
                    self.store();
                } else if let Some((checkpoint, records)) = self.committing.take() {
                    if committed {
                        commit(&mut self.world.borrow_mut(), &checkpoint, records);
                    }
                    return Poll::Ready(Err(Error::transient(Peer::Kafka, "not known to be committed")));
                }
            }
            Action::SinkFails => return Poll::Ready(Err(Error::transient(Peer::Kafka, "lost"))),
            Action::Stall => self.stalled = !self.stalled,
            Action::Prepare => drop(self.topics.prepare(&mut self.world.borrow_mut())),
            _ => {}
        }
        Poll::Ready(Ok(()))
    }

    /// Records in flight may still arrive when a session ends, in the order of each partition. Those of an open transaction are
    /// aborted.
    fn deliver_rest(&mut self, luck: u8) {
        let partitions: Vec<_> = self.in_flight.keys().copied().collect();
        for (partition, luck) in partitions.into_iter().zip(usize::from(luck)..) {
            for _ in 0..luck % 3 {
                self.deliver(partition);
            }
        }
        // the answer to the commit was lost
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
            self.deliver_rest(luck);
        }
    }
}

/// Makes the checkpoint durable and its records visible.
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
        !self.stalled && self.topics.needed.is_none() && !self.closing && self.open.len() < TRANSACTION
    }

    fn send(&mut self, made: &PipelineOutput<'_>, sequence: Sequence) -> Result<Sent, NotSent> {
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
        // retried events have a bound of their own
        let of_the_log = |(sequence, _): &&(Sequence, Id)| *sequence < Sequence::FIRST_RETRY;
        let in_flight = self.in_flight.values().flatten().filter(of_the_log).count();
        if !made.event.retried && in_flight >= world.window {
            let most = world.window;
            world.wrong(format!("{in_flight} records are under way, and {most} may be"));
        }
        match change.kind {
            Kind::Dropped => return Ok(Sent::Nothing),
            Kind::Unsendable if !world.cured => {
                let why = Unsendable::new(Reason::Unroutable, "it cannot be sent", "Cure it");
                return Err(NotSent::Impossible(why));
            }
            Kind::Event | Kind::Unsendable => {}
        }
        if !self.topics.ready.contains(&change.aggregate) {
            let waits = (!made.event.retried).then_some(id);
            self.topics = Topics {
                ready: std::mem::take(&mut self.topics.ready),
                needed: Some((change.aggregate, waits)),
                ..Topics::default()
            };
            return Err(NotSent::Later);
        }
        if world.mode == Mode::ExactlyOnce {
            self.open.push(id);
        }
        self.in_flight.entry(change.aggregate).or_default().push_back((sequence, id));
        let commit_time = made.event.origin.commit_time;
        Ok(Sent::Record(InFlight { bytes: 1, memory: 1, commit_time, target: 0 }))
    }

    fn looks_ahead(&self) -> bool {
        self.topics.needed.is_some()
    }

    fn look_ahead(&mut self, made: &PipelineOutput<'_>) -> bool {
        let place = made.event.place();
        let mut world = self.world.borrow_mut();
        let id = world.id(place.final_lsn, place.changes);
        let Some((id, change)) = id.and_then(|id| Some((id, world.change(id)?))) else {
            world.wrong(format!("an event at {place:?} was shown that is not there"));
            return false;
        };
        let aggregate = made.event.row.field(Field::AggregateId);
        if aggregate != Some(change.aggregate.to_string().as_bytes()) {
            world.wrong(format!("{id:?} was shown with the place of another event"));
        }
        let before = self.topics.shown.or(self.topics.needed.and_then(|(_, waits)| waits));
        if before >= Some(id) {
            world.wrong(format!("{id:?} was shown behind {before:?}"));
        }
        self.topics.shown = Some(id);
        if change.kind != Kind::Dropped {
            self.topics.ahead.insert(change.aggregate);
        }
        self.topics.ahead.len() < world.ahead
    }

    fn reports(&mut self, event: &mut impl FnMut(SinkEvent) -> Option<InFlight>) -> Option<Refusal> {
        if std::mem::take(&mut self.checkpointed) {
            event(SinkEvent::Committed);
        }
        for sequence in std::mem::take(&mut self.delivered) {
            event(SinkEvent::Delivered(sequence));
        }
        self.refusal.clone()
    }

    fn after_dispatch(
        &mut self,
        state: &LoopState<'_>,
        note: &mut dyn FnMut(&mut Checkpoint),
    ) -> Result<bool, Error> {
        let position = state.progress.position();
        if state.source.intake == Intake::Verifying {
            return Ok(false);
        }
        match self.mode() {
            Mode::SlotOnly => {}
            Mode::AtLeastOnce => {
                if self.committing.is_none() && position != self.stored.position {
                    self.committing = Some((self.now(state.progress, note), Vec::new()));
                }
            }
            Mode::ExactlyOnce => {
                let full = self.open.len() >= TRANSACTION || state.source.intake != Intake::Behind;
                let worth = !self.open.is_empty() || position != self.stored.position;
                self.closing |= full && worth && self.committing.is_none();
                if self.closing && state.window.is_empty() && !self.has_records() {
                    let checkpoint = self.now(state.progress, note);
                    self.committing = Some((checkpoint, std::mem::take(&mut self.open)));
                    self.closing = false;
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn durability(&self, progress: &Progress) -> Durability {
        let mode = self.mode();
        let position = if mode == Mode::ExactlyOnce { self.stored.position } else { progress.position() };
        Durability {
            position,
            durable: if mode == Mode::SlotOnly { position.flush } else { self.stored.position.flush },
            survives: (mode != Mode::SlotOnly).then_some(self.stored.position),
            settled: !self.has_records()
                && self.open.is_empty()
                && (mode != Mode::ExactlyOnce || self.committing.is_none()),
            checkpoint_pending: self.committing.is_some(),
            uncommitted: self.open.len(),
            oldest: None,
            is_down: false,
            awaits: None,
        }
    }

    async fn wait(&mut self) -> Result<(), Error> {
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
        self.deliver_rest(self.in_flight.len() as u8);
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

/// Where a process without checkpoint starts.
pub(super) fn first(confirmed: Lsn) -> Checkpoint {
    Checkpoint {
        position: Position { flush: confirmed, partial: None },
        ..crate::checkpoint::sample_checkpoint()
    }
}
