//! The one loop between a source and a sink.
//!
//! ```text
//!   source --> pipeline --> sink          changes become records, one way
//!     ^                       |
//!     +---- what is durable --+           only positions come back
//! ```
//!
//! A change stays in the source until it is dealt with. When the window is full, or the sink takes nothing, the loop stops
//! reading, and source and sink go on answering their servers.

mod deadline;
mod ending;
mod outcome;
mod ports;
mod publish_status;
#[cfg(test)]
mod tests;
mod window;

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::{Error, Peer};
use crate::monitor::Monitor;
use crate::pipeline::{Change, Pipeline};
use crate::progress::{self, OutOfStep, Position, Progress};
pub use deadline::until;
pub use ending::Ended;
pub use outcome::{Outcome, Refusal};
pub use ports::*;
pub use window::{InFlight, Window};

/// How many changes there may be between the oldest that is not acknowledged and the newest. One bit is kept for each,
/// also for those that are no events.
const MAX_SPAN: u64 = 1 << 27;

/// One session.
pub struct Relay<S, K> {
    source: S,
    pipeline: Pipeline,
    sink: K,
    /// What is acknowledged.
    progress: Progress,
    /// What is under way.
    window: Window,
    /// The change that `source` shows, once it has a number.
    pending: Option<progress::Change>,
    /// What keeps events from flowing, as it is shown.
    shown: Health,
    ending: Option<ending::Ending>,
    monitor: Monitor,
    /// How long records under way are waited for by a router that is asked to stop.
    patience: Duration,
}

/// Whether the loop can go on with what the source shows.
enum Dispatched {
    /// Everything that has come is dealt with.
    All,
    /// Something has to happen first; reading on would only fill memory.
    HeldBack,
}

impl<S: Source, K: Sink> Relay<S, K> {
    /// Joins the parts of a session that goes on at `start`.
    pub fn new(
        source: S,
        pipeline: Pipeline,
        sink: K,
        start: Position,
        window: Window,
        monitor: Monitor,
        patience: Duration,
    ) -> Self {
        Relay {
            source,
            pipeline,
            sink,
            progress: Progress::new(start),
            window,
            pending: None,
            shown: Health::Flowing,
            ending: None,
            monitor,
            patience,
        }
    }

    /// Runs until the session is over, one way or another. By then nothing of it is under way.
    pub async fn run(mut self, stop: &CancellationToken) -> Ended<S::End, K::End> {
        match self.turns(stop).await {
            Ok(()) => self.end_in_order().await,
            Err(error) => self.close(Outcome::Failed(error), false).await,
        }
    }

    /// Runs until intake has ended and nothing is left to wait for. An error ends it while the source cannot be told any more,
    /// or must not be.
    async fn turns(&mut self, stop: &CancellationToken) -> Result<(), Error> {
        let mut source_first = false;
        loop {
            self.monitor.turned();
            if let Some(refusal) = self.take_reports() {
                self.end_intake(Outcome::Refused(refusal));
                return Ok(());
            }
            let idle = matches!(self.dispatch()?, Dispatched::All);
            let (reading, more) = self.turn(idle)?;
            self.show_state();
            self.publish_status(reading.received);
            if self.is_over() {
                return Ok(());
            }
            if reading.again || more {
                continue;
            }
            if reading.gathered {
                // the runtime looks after its timers and sockets in between
                tokio::task::yield_now().await;
            }
            let deadline = self.ending.as_ref().and_then(|ending| ending.deadline);
            source_first = !source_first;
            tokio::select! {
                biased;
                () = stop.cancelled(), if !self.is_stopping() => self.end_intake(Outcome::Stopped),
                () = until(deadline) => {}
                changed = self.changed(source_first) => changed?,
            }
        }
    }

    /// Waits for either port. They take turns at being polled first, so that a port which is always ready cannot starve the other.
    async fn changed(&mut self, source_first: bool) -> Result<(), Error> {
        let (source, sink) = (self.source.changed(), self.sink.changed());
        if source_first {
            tokio::select! { biased; changed = source => changed, changed = sink => changed }
        } else {
            tokio::select! { biased; changed = sink => changed, changed = source => changed }
        }
    }

    /// Tells source and sink what this turn has brought. Returns how the source goes on, and whether the sink takes more now.
    fn turn(&mut self, idle: bool) -> Result<(Reading, bool), Error> {
        let ending = self.ending.is_some();
        let reading = self.source.turn(&Delivered {
            idle,
            ending,
            position: self.progress.position(),
            complete: self.progress.span() == 0,
            in_flight: !self.window.is_empty(),
            certain: self.sink.certain(&self.progress),
        })?;
        if reading.begins_again {
            self.progress.begin_again();
        }
        if reading.ended && !ending {
            self.end_intake(Outcome::SourceEnded);
        }
        let intake = match reading.intake {
            Intake::Recognizing => Intake::Recognizing,
            _ if self.ending.is_some() => Intake::Waits,
            intake => intake,
        };
        let reading = Reading { intake, ..reading };
        let turn = Turn {
            progress: &self.progress,
            window: &self.window,
            elsewhere: 0,
            idle,
            ending: self.ending.is_some(),
            reading,
        };
        let more = self.sink.turn(&turn, &mut |_| {})?;
        Ok((reading, more))
    }

    /// Takes in what the sink has reported.
    fn take_reports(&mut self) -> Option<Refusal> {
        let Relay { sink, progress, window, .. } = self;
        sink.reports(&mut |event| match event {
            Event::Delivered(sequence) => {
                progress.acknowledge(sequence);
                window.acknowledged(sequence)
            }
            Event::Released(sequence) => window.acknowledged(sequence),
            Event::Settled(sequence) => {
                progress.acknowledge(sequence);
                None
            }
            Event::Checkpointed => None,
        })
    }

    /// Deals with what the source has until there is nothing left or something has to happen first.
    fn dispatch(&mut self) -> Result<Dispatched, Error> {
        loop {
            if self.ending.is_some() || !self.sink.is_ready() {
                return Ok(Dispatched::HeldBack);
            }
            match self.source.next()? {
                Read::Nothing => return Ok(Dispatched::All),
                Read::Begin(transaction) => {
                    self.pipeline.begin(transaction);
                    self.progress.begin(transaction).map_err(out_of_step)?;
                }
                Read::Change(change) => {
                    if self.window.is_full() || self.progress.span() >= MAX_SPAN {
                        return Ok(Dispatched::HeldBack);
                    }
                    let number = match self.pending.take() {
                        Some(number) => number,
                        None => self.progress.change().map_err(out_of_step)?,
                    };
                    let Relay { pipeline, sink, progress, window, monitor, .. } = self;
                    match deliver(change, number, pipeline, sink, progress, window, monitor) {
                        Ok(()) => {}
                        Err(NotDelivered::Later) => {
                            self.pending = Some(number);
                            return Ok(Dispatched::HeldBack);
                        }
                        Err(NotDelivered::Never(error)) => {
                            self.end_intake(Outcome::Failed(error));
                            return Ok(Dispatched::HeldBack);
                        }
                    }
                }
                Read::Other { message, passed } => {
                    let passed = passed || self.progress.repeats();
                    if let Err(error) = self.pipeline.other(&message, passed) {
                        self.end_intake(Outcome::Failed(error));
                        return Ok(Dispatched::HeldBack);
                    }
                }
                Read::Commit(end) => self.progress.commit(end).map_err(out_of_step)?,
                Read::Reached(position) => self.progress.reached(position),
                Read::Skipped => {}
                Read::End(reached) => {
                    if let Some(position) = reached {
                        self.progress.reached(position);
                    }
                    self.end_intake(Outcome::SourceEnded);
                    return Ok(Dispatched::HeldBack);
                }
            }
            self.source.dealt_with();
        }
    }
}

/// Why a change was not delivered.
enum NotDelivered {
    Later,
    Never(Error),
}

/// Takes one change on its way. Those parts of the loop that the source does not lend to `change`.
fn deliver<K: Sink>(
    change: Change<'_>,
    number: progress::Change,
    pipeline: &mut Pipeline,
    sink: &mut K,
    progress: &mut Progress,
    window: &mut Window,
    monitor: &Monitor,
) -> Result<(), NotDelivered> {
    let progress::Change::New(sequence) = number else { return Ok(()) };
    let Some(made) = pipeline.make(change, progress.ordinal(sequence)).map_err(NotDelivered::Never)? else {
        progress.acknowledge(sequence);
        return Ok(());
    };
    match sink.send(&made, sequence) {
        Ok(Sent::Record(record)) => {
            window.sent(sequence, record);
            made.was_sent(monitor);
        }
        Ok(Sent::Held(record)) => window.sent(sequence, record),
        Ok(Sent::Nothing) => {
            progress.acknowledge(sequence);
            made.was_dropped(monitor);
        }
        Err(NotSent::Later) => return Err(NotDelivered::Later),
        Err(NotSent::Impossible(why)) => return Err(NotDelivered::Never(made.event.stops_the_router(&why))),
    }
    Ok(())
}

fn out_of_step(error: OutOfStep) -> Error {
    Error::transient(Peer::Postgres, format!("the replication stream is out of step: {error}"))
}
