//! The two ports of the loop: where changes come from, and where records go.
//!
//! One task drives both. A method that is not `async` never blocks. The loop may drop the future of `wait` at any await: the port
//! keeps what it has learned, and the next call continues from there.

use std::future::Future;

use pg_logical::pgoutput::Message;
use pg_logical::{Lsn, PgTimestamp};

use super::outcome::{Outcome, Refusal};
use super::window::{InFlight, Window};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Peer};
use crate::pipeline::{Change, PipelineOutput};
use crate::progress::{Landmark, Position, Progress, Sequence};
use crate::unsendable::Unsendable;

/// Where changes come from, in the order of delivery.
///
/// In each iteration the loop calls `next` and `consume` until there is nothing to dispatch, then `after_dispatch` once. Then it
/// usually awaits `wait`. At the end of a session it may repeat `after_dispatch` alone.
pub trait Source {
    /// The result of the source.
    type End;

    /// The next item. A change that could not be sent yet is returned again until [`Source::consume`] is called.
    ///
    /// # Errors
    /// The session is over, and nothing more may be sent.
    fn next(&mut self) -> Result<Read<'_>, Error>;

    /// Marks the last item as processed.
    fn consume(&mut self);

    /// Passes the items behind the last one to `see`, as far as they have arrived, until it returns false. Only
    /// [`Read::Begin`] and [`Read::Change`] matter. Stops before anything that changes how later changes are read. Consumes
    /// nothing: `next` returns each of them later.
    fn look_ahead(&self, see: &mut dyn FnMut(Read<'_>) -> bool);

    /// Takes the delivery state, which bounds what the source may confirm, now or later, and returns the source's state.
    ///
    /// # Errors
    /// As for [`Source::next`].
    fn after_dispatch(&mut self, delivered: &DeliveryState) -> Result<SourceState, Error>;

    /// Adds to a checkpoint what the source stores in it. One whose positions are not those of the log replaces the position.
    fn note(&self, _checkpoint: &mut Checkpoint) {}

    /// Waits until there may be something to read, or to do in the next iteration.
    ///
    /// # Errors
    /// As for [`Source::next`].
    fn wait(&mut self) -> impl Future<Output = Result<(), Error>>;

    /// Why no changes arrive or none are confirmed, if so.
    fn health(&self) -> Option<Stalled>;

    /// Whether the log is verified to be the one that was read before. Until then nothing is confirmed and no checkpoint is
    /// written.
    fn is_log_verified(&self) -> bool;

    /// Called at the end of a session: confirms up to `durable` if that is possible soon.
    ///
    /// # Errors
    /// As for [`Source::next`].
    fn confirm_last(&mut self, durable: Lsn) -> impl Future<Output = Result<(), Error>>;

    /// Ends the source, after the sink. `orderly`: the loop ended without an error.
    fn close(self, outcome: &Outcome, orderly: bool) -> impl Future<Output = Self::End>;
}

/// An item of a source.
pub enum Read<'a> {
    /// There is no item now.
    Nothing,
    /// A transaction begins.
    Begin(Landmark),
    /// A change of the current transaction.
    Change(Change<'a>),
    /// A message about tables, types or other operations on tables.
    Other {
        /// As the server sent it.
        message: Message<'a>,
        /// Whether it belongs to a part of the log that was delivered earlier.
        already_delivered: bool,
    },
    /// The transaction is complete; its `end_lsn`.
    Commit(Lsn),
    /// Everything before this position was read, and no transaction is open.
    Reached(Lsn),
    /// Something that concerns only the source.
    Skipped,
    /// Nothing more will be read; everything before the position, if any, was read. A source that decides to end when everything is
    /// delivered says so in [`SourceState::ended`] instead.
    End(Option<Lsn>),
}

/// What the loop tells the source in each iteration.
#[derive(Debug, Clone, Copy)]
pub struct DeliveryState {
    /// Everything received was dispatched.
    pub idle: bool,
    /// The loop dispatches nothing more.
    pub ending: bool,
    /// The position: everything before it is acknowledged.
    pub position: Position,
    /// Every change that was read is acknowledged.
    pub complete: bool,
    /// Records are in flight.
    pub in_flight: bool,
    /// The sink's durability.
    pub durability: Durability,
}

/// The state of a source after an iteration.
#[derive(Debug, Clone, Copy)]
pub struct SourceState {
    /// What the source does.
    pub intake: Intake,
    /// Everything before this position was received.
    pub received: Lsn,
    /// The confirmed position.
    pub confirmed: Lsn,
    /// Everything that the log held when the session began has been delivered.
    pub caught_up: bool,
    /// Reading restarts at the position; every change so far is acknowledged.
    pub restarted: bool,
    /// The source has ended on its own.
    pub ended: bool,
    /// There is more to dispatch now.
    pub again: bool,
    /// More was received just now. The loop yields to the runtime before it waits.
    pub gathered: bool,
}

/// What a source does. A sink uses it to decide when a checkpoint is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intake {
    /// The log is not verified yet: no checkpoint may be written.
    Verifying,
    /// Nothing more is read, at least until everything sent is durable.
    Paused,
    /// Everything received was sent, and more may arrive at any time.
    Live,
    /// There is a backlog.
    Behind,
}

/// Where records go.
///
/// In each iteration the loop calls `reports`, then `send` for each event, perhaps `look_ahead`, then `after_dispatch` once. Then
/// it usually awaits `wait`. At the end of a session it sends nothing more.
///
/// The sink keeps the order: records of one destination with the same key arrive in the order of `send`. The loop bounds what is
/// in flight by its window, except for parked events that a sink around this one sends again. A sink that serves `run` counts
/// what it delivers in the metrics.
///
/// An error ends the session: a transient one is retried, a definite one stops the router. A [`Refusal`] says that records
/// were refused; the supervisor then finds out which one is to blame.
pub trait Sink {
    /// The result of the sink.
    type End;

    /// Whether a record may be sent now. If not, [`Sink::wait`] returns when it is worth asking again.
    fn is_ready(&self) -> bool;

    /// Sends the pipeline's output, which borrows the receive buffer: the sink copies what it keeps. An event that routing drops is
    /// [`Sent::Nothing`].
    ///
    /// Sequence numbers increase, and each is sent at most once; one that was answered with `Later` was not sent. Parked events that are sent
    /// again have numbers of their own, from [`Sequence::FIRST_RETRY`] on, which increase among themselves.
    ///
    /// # Errors
    /// `Later`: the loop offers the same event with the same number again in a later iteration. `Impossible`: it can never be sent.
    /// If `output.routed` is an error, that error is the reason. A sink around this one may park the event.
    fn send(&mut self, output: &PipelineOutput<'_>, sequence: Sequence) -> Result<Sent, NotSent>;

    /// Whether to call [`Sink::look_ahead`] now: the destination of the event that was just answered with `Later` has to be
    /// prepared, and those of later events can be prepared with it.
    fn looks_ahead(&self) -> bool {
        false
    }

    /// Shows an event behind the one that waits. It is sent in its turn, so the sink only prepares for it. Returns whether to show the
    /// next one.
    fn look_ahead(&mut self, _output: &PipelineOutput<'_>) -> bool {
        false
    }

    /// Passes each report since the last call to `event`, which returns the record in flight, if it was known. The loop may call this
    /// without having waited in between. After a refusal the sink sends nothing more and discards its queue.
    fn reports(&mut self, event: &mut impl FnMut(SinkEvent) -> Option<InFlight>) -> Option<Refusal>;

    /// Called after dispatch. Writes a checkpoint if one is due; `note` adds to it what the sinks around this one store with it.
    /// Returns true if the loop should begin the next iteration without waiting.
    ///
    /// # Errors
    /// The session is over.
    fn after_dispatch(
        &mut self,
        state: &LoopState<'_>,
        note: &mut dyn FnMut(&mut Checkpoint),
    ) -> Result<bool, Error>;

    /// Whether it has acted on everything that was asked of it besides the events of the loop. A source that has come to the end of its
    /// part waits for this.
    fn is_done(&self) -> bool {
        true
    }

    /// How durable the acknowledged records are.
    fn durability(&self, progress: &Progress) -> Durability;

    /// Waits until there is a report, or something to do in the next iteration.
    ///
    /// # Errors
    /// The session is over.
    fn wait(&mut self) -> impl Future<Output = Result<(), Error>>;

    /// Whether records flow.
    fn health(&self) -> Health;

    /// Ends the sink: discards what it has not handed over, and returns once no record of this session can arrive any more. Late
    /// reports go into `progress`, for the checkpoint in `End`; the last confirmation, if there was one, came before.
    /// `log_verified`: the source's answer; `note` as in [`Sink::after_dispatch`]. Returns the outcome, which the
    /// sink may correct.
    fn close(
        self,
        outcome: Outcome,
        progress: &mut Progress,
        log_verified: bool,
        note: &mut dyn FnMut(&mut Checkpoint),
    ) -> impl Future<Output = (Outcome, Self::End)>;
}

/// The result of sending an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// A record is in flight.
    Record(InFlight),
    /// No record, but something else that has to become durable: the row of an event that is parked.
    Held(InFlight),
    /// Nothing to wait for.
    Nothing,
}

/// Why a record was not sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotSent {
    /// Not now; try again.
    Later,
    /// It can never be sent.
    Impossible(Unsendable),
}

/// A report of the sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkEvent {
    /// The record is acknowledged. Its transaction, if it has one, may still be aborted.
    Delivered(Sequence),
    /// The event no longer takes memory, but is not known to be durable yet.
    Released(Sequence),
    /// A released event is durable now.
    Settled(Sequence),
    /// A transaction and its checkpoint are committed. Only for sinks around the one that commits.
    Committed,
}

/// What the loop tells the sink after dispatch.
pub struct LoopState<'a> {
    /// The acknowledged changes.
    pub progress: &'a Progress,
    /// The records in flight.
    pub window: &'a Window,
    /// How many records of the window wait for a sink around this one; the loop passes 0.
    pub elsewhere: usize,
    /// Everything received was dispatched.
    pub idle: bool,
    /// The loop dispatches nothing more.
    pub ending: bool,
    /// What the source does.
    pub source: SourceState,
}

/// How durable the acknowledged records are.
#[derive(Debug, Clone, Copy)]
pub struct Durability {
    /// Where the next session of this process resumes; another process resumes at `survives`.
    pub position: Position,
    /// Up to where the source may confirm.
    pub durable: Lsn,
    /// The position that survives a crash; `None` if only what the source has confirmed does.
    pub survives: Option<Position>,
    /// No record is in flight, and nothing acknowledged can still be aborted.
    pub settled: bool,
    /// A checkpoint is in flight or due.
    pub checkpoint_pending: bool,
    /// How many acknowledged records are in an open transaction.
    pub uncommitted: usize,
    /// When the oldest of them was committed in Postgres.
    pub oldest: Option<PgTimestamp>,
    /// Nothing can be delivered at all.
    pub is_down: bool,
    /// The position that the source has to reach before the sink can go on.
    pub awaits: Option<Lsn>,
}

impl Durability {
    /// Of a sink without transactions and checkpoints, where everything acknowledged is durable. `settled`: no record is in flight.
    pub fn of_acknowledged(progress: &Progress, settled: bool) -> Self {
        let position = progress.position();
        Durability {
            position,
            durable: position.flush,
            survives: None,
            settled,
            checkpoint_pending: false,
            uncommitted: 0,
            oldest: None,
            is_down: false,
            awaits: None,
        }
    }
}

/// Whether a sink delivers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Records flow.
    Flowing,
    /// They will flow once the sink has done this, which goes on.
    Busy(String),
    /// Nothing can be delivered, which explains any other stall.
    Down(Stalled),
    /// Something is stalled.
    Stalled(Stalled),
}

/// The reason of a stall.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stalled {
    /// The server that is waited for.
    pub peer: Peer,
    /// The reason as a sentence.
    pub reason: String,
}
