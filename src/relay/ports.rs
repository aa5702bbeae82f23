//! The two ports of the loop: where changes come from, and where records go.
//!
//! Both are driven by one task. A method that is not `async` never waits. A future that a port returns may be dropped at
//! any await, and loses nothing by that: what it has learnt is in the port, and the next call goes on from there.

use std::future::Future;

use pg_logical::pgoutput::Message;
use pg_logical::{Lsn, PgTimestamp};

use super::outcome::{Outcome, Refusal};
use super::window::{InFlight, Window};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Peer};
use crate::pipeline::{Change, Made};
use crate::progress::{Landmark, Position, Progress, Sequence};
use crate::unsendable::Unsendable;

/// Where changes come from, in the order in which they are to be delivered.
///
/// Each turn of the loop calls `next` and `dealt_with` as often as there is something to deal with, then `turn` once, then
/// waits for `changed`.
pub trait Source {
    /// What it leaves behind.
    type End;

    /// What comes next. The same again until [`Source::dealt_with`] is called.
    ///
    /// # Errors
    /// The session is over, and nothing more may be sent.
    fn next(&mut self) -> Result<Read<'_>, Error>;

    /// What [`Source::next`] returned last is dealt with.
    fn dealt_with(&mut self);

    /// Takes in what is delivered, confirms what may be, and says how it goes on.
    ///
    /// # Errors
    /// As for [`Source::next`].
    fn turn(&mut self, delivered: &Delivered) -> Result<Reading, Error>;

    /// Waits until there may be more to read, or to do in the next turn.
    ///
    /// # Errors
    /// As for [`Source::next`].
    fn changed(&mut self) -> impl Future<Output = Result<(), Error>>;

    /// Why nothing comes, or nothing is confirmed, if that is so.
    fn health(&self) -> Option<Stalled>;

    /// Whether what it reads is known to be what was read before. Until then nothing is confirmed, and no checkpoint written.
    fn is_recognized(&self) -> bool;

    /// Everything that can be is delivered: confirms up to `durable`, as far as that is possible soon.
    ///
    /// # Errors
    /// As for [`Source::next`].
    fn confirm_last(&mut self, durable: Lsn) -> impl Future<Output = Result<(), Error>>;

    /// Ends it, after the sink. `outcome`: why. `orderly`: the server can still be told.
    fn close(self, outcome: &Outcome, orderly: bool) -> impl Future<Output = Self::End>;
}

/// What a source has read.
pub enum Read<'a> {
    /// Everything that has come is dealt with.
    Nothing,
    /// A transaction begins.
    Begin(Landmark),
    /// A change of it.
    Change(Change<'a>),
    /// What is no change but says how changes are to be read, or what else was done to the tables. `passed`: it belongs to
    /// what was delivered earlier.
    Other {
        /// As the server sent it.
        message: Message<'a>,
        /// Whether it was judged before.
        passed: bool,
    },
    /// The transaction is complete: its `end_lsn`.
    Commit(Lsn),
    /// Nothing is missing before this position, outside of a transaction.
    Reached(Lsn),
    /// It concerns the source alone.
    Skipped,
    /// Nothing more comes, and nothing is missing before this position, if there is one.
    End(Option<Lsn>),
}

/// What a source learns in each turn.
#[derive(Debug, Clone, Copy)]
pub struct Delivered {
    /// Everything that has come was dealt with.
    pub idle: bool,
    /// The loop deals with nothing any more.
    pub ending: bool,
    /// What is acknowledged without a hole.
    pub position: Position,
    /// Every change that was read is acknowledged.
    pub complete: bool,
    /// Records are under way.
    pub in_flight: bool,
    /// What the sink says of it.
    pub certain: Certain,
}

/// How a source goes on.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// What it does.
    pub intake: Intake,
    /// Everything before this position has come.
    pub received: Lsn,
    /// What it has confirmed.
    pub confirmed: Lsn,
    /// Everything is delivered that was there when the session began.
    pub caught_up: bool,
    /// Every change so far is acknowledged, and the same position is read from anew.
    pub begins_again: bool,
    /// It has ended by itself.
    pub ended: bool,
    /// There is more to deal with already.
    pub again: bool,
    /// More has come just now, so the next turn follows at once.
    pub gathered: bool,
}

/// What a source does, for a sink that decides when a checkpoint is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intake {
    /// It is not known yet whether what comes is what was read before: no checkpoint may be written.
    Recognizing,
    /// Nothing more comes before what was sent is certain.
    Waits,
    /// Everything that has come is sent, and more may come at any time.
    Live,
    /// There is more than can be sent at once.
    Behind,
}

/// Where records go.
///
/// Each turn of the loop calls `reports`, then `send` as often as there is something to send, then `turn` once, then waits
/// for `changed`. Records with one key arrive in the order in which they were sent.
pub trait Sink {
    /// What it leaves behind.
    type End;

    /// Whether a record may be sent now. If not, wait for [`Sink::changed`].
    fn is_ready(&self) -> bool;

    /// Takes what the pipeline has made of a change. Each number is used once, and they grow.
    ///
    /// # Errors
    /// It is to be sent again later, or can never be sent.
    fn send(&mut self, made: &Made<'_>, sequence: Sequence) -> Result<Sent, NotSent>;

    /// What has become of records since the last call, each to `event`, which returns what was known of the record. If one was
    /// refused, nothing more is sent, and what is queued is thrown away.
    fn reports(&mut self, event: &mut impl FnMut(Event) -> Option<InFlight>) -> Option<Refusal>;

    /// Everything that could be sent is: writes a checkpoint if one is due. `note` adds to it what others want to find with it.
    /// Says whether more may be sent by that.
    ///
    /// # Errors
    /// The session is over.
    fn turn(&mut self, turn: &Turn<'_>, note: &mut dyn FnMut(&mut Checkpoint)) -> Result<bool, Error>;

    /// What is certain of what is acknowledged.
    fn certain(&self, progress: &Progress) -> Certain;

    /// Waits until there is something to take in, or to do in the next turn.
    ///
    /// # Errors
    /// The session is over.
    fn changed(&mut self) -> impl Future<Output = Result<(), Error>>;

    /// Whether records flow.
    fn health(&self) -> Health;

    /// Ends it, and acknowledges what it hears of until then. After that nothing of this session is under way. Returns why the
    /// session is over, which it may know better.
    fn close(
        self,
        outcome: Outcome,
        progress: &mut Progress,
        recognized: bool,
        note: &mut dyn FnMut(&mut Checkpoint),
    ) -> impl Future<Output = (Outcome, Self::End)>;
}

/// What becomes of something that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// A record is under way.
    Record(InFlight),
    /// No record is, but something that has to arrive all the same.
    Held(InFlight),
    /// There is nothing to wait for.
    Nothing,
}

/// Why a record was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotSent {
    /// Not now.
    Later,
    /// It can never be sent.
    Impossible(Unsendable),
}

/// What has become of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It has arrived.
    Delivered(Sequence),
    /// It takes no memory any more, and has not arrived for certain.
    Released(Sequence),
    /// It has arrived that was released before.
    Settled(Sequence),
    /// The last checkpoint is durable.
    Checkpointed,
}

/// What a sink learns when a turn has sent everything that it could.
pub struct Turn<'a> {
    /// What is acknowledged.
    pub progress: &'a Progress,
    /// What is under way.
    pub window: &'a Window,
    /// How many of the records in the window wait for something other than this sink.
    pub elsewhere: usize,
    /// Everything that has come was dealt with.
    pub idle: bool,
    /// The loop sends nothing more.
    pub ending: bool,
    /// What the source does.
    pub reading: Reading,
}

/// What is certain of what is acknowledged.
#[derive(Debug, Clone, Copy)]
pub struct Certain {
    /// Where the next session begins.
    pub position: Position,
    /// What may be confirmed to the source.
    pub durable: Lsn,
    /// What a crash cannot take back; `None`: what the source has confirmed.
    pub survives: Option<Position>,
    /// Nothing is under way that was not in the window, and nothing can yet be taken back.
    pub settled: bool,
    /// A checkpoint is under way, or about to be.
    pub checkpoint_waits: bool,
    /// How many acknowledged records can yet be taken back.
    pub uncommitted: usize,
    /// When the oldest of them was committed.
    pub oldest: Option<PgTimestamp>,
    /// Nothing can be delivered at all.
    pub is_down: bool,
    /// It waits for the source to get there.
    pub awaits: Option<Lsn>,
}

impl Certain {
    /// Of a sink without transactions and checkpoints, where everything acknowledged is durable. `settled`: no record is in flight.
    pub fn of_acknowledged(progress: &Progress, settled: bool) -> Self {
        let position = progress.position();
        Certain {
            position,
            durable: position.flush,
            survives: None,
            settled,
            checkpoint_waits: false,
            uncommitted: 0,
            oldest: None,
            is_down: false,
            awaits: None,
        }
    }
}

/// Whether records flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Nothing stands in the way.
    Flowing,
    /// Nothing can be delivered, which explains everything else.
    Down(Stalled),
    /// Something stands still.
    Stalled(Stalled),
}

/// Why something stands still.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stalled {
    /// Who is waited for.
    pub peer: Peer,
    /// In a sentence.
    pub reason: String,
}
