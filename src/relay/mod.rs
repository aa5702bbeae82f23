//! The loop between a source and a sink.
//!
//! ```text
//!   source --> pipeline --> sink          changes become records
//!     ^                       |
//!     +---- durable position -+           only positions come back
//! ```
//!
//! A change stays in the source until it is processed. When the window is full or the sink accepts nothing, the loop stops
//! reading, while source and sink go on answering their servers.

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

/// The largest distance in changes between the oldest unacknowledged one and the newest. Each change takes one bit, even if it is
/// no event.
const MAX_SPAN: u64 = 1 << 27;

/// The loop of one session.
pub struct Relay<S, K> {
    source: S,
    pipeline: Pipeline,
    sink: K,
    /// The acknowledged changes.
    progress: Progress,
    /// The records in flight.
    window: Window,
    /// The number already given to a change that could not be sent yet.
    pending: Option<progress::Change>,
    /// The source has reached its end. The session ends once the sink is done.
    at_end: bool,
    /// The health that was shown last.
    last_health: Health,
    ending: Option<ending::Ending>,
    monitor: Monitor,
    /// How long a stop waits for records in flight.
    shutdown_timeout: Duration,
}

/// The result of a dispatch.
enum Dispatched {
    /// Everything received was dispatched.
    All,
    /// Nothing more can be dispatched now, or in this session.
    HeldBack,
}

impl<S: Source, K: Sink> Relay<S, K> {
    /// Creates the loop of a session that resumes at `start`.
    pub fn new(
        source: S,
        pipeline: Pipeline,
        sink: K,
        start: Position,
        window: Window,
        monitor: Monitor,
        shutdown_timeout: Duration,
    ) -> Self {
        Relay {
            source,
            pipeline,
            sink,
            progress: Progress::new(start),
            window,
            pending: None,
            at_end: false,
            last_health: Health::Flowing,
            ending: None,
            monitor,
            shutdown_timeout,
        }
    }

    /// Runs until the session is over. Afterwards none of its records is in flight.
    pub async fn run(mut self, stop: &CancellationToken) -> Ended<S::End, K::End> {
        match self.run_loop(stop).await {
            Ok(()) => self.end_in_order().await,
            Err(error) => self.close(Outcome::Failed(error), false).await,
        }
    }

    /// Runs until intake has ended and nothing is left to wait for. After an error of either port, the session ends without a last
    /// confirmation.
    async fn run_loop(&mut self, stop: &CancellationToken) -> Result<(), Error> {
        let mut source_first = false;
        loop {
            self.monitor.main_loop_ran();
            if let Some(refusal) = self.take_reports() {
                self.end_intake(Outcome::Refused(refusal));
                return Ok(());
            }
            let idle = matches!(self.dispatch()?, Dispatched::All);
            let (reading, more) = self.notify_ports(idle)?;
            self.show_state();
            self.publish_status(reading.received);
            if self.is_over() {
                return Ok(());
            }
            if reading.again || more {
                continue;
            }
            if reading.gathered {
                // lets the runtime serve timers and sockets
                tokio::task::yield_now().await;
            }
            let deadline = self.ending.as_ref().and_then(|ending| ending.deadline);
            source_first = !source_first;
            tokio::select! {
                biased;
                () = stop.cancelled(), if !self.is_stopping() => self.end_intake(Outcome::Stopped),
                () = until(deadline) => {}
                changed = self.wait_for_ports(source_first) => changed?,
            }
        }
    }

    /// Waits for either port. Which one is polled first alternates, so that a busy port does not keep the other from its server.
    async fn wait_for_ports(&mut self, source_first: bool) -> Result<(), Error> {
        let (source, sink) = (self.source.wait(), self.sink.wait());
        if source_first {
            tokio::select! { biased; changed = source => changed, changed = sink => changed }
        } else {
            tokio::select! { biased; changed = sink => changed, changed = source => changed }
        }
    }

    /// Tells source and sink the state after dispatch. Returns the source's state, and whether the sink wants the next
    /// iteration at once.
    fn notify_ports(&mut self, idle: bool) -> Result<(SourceState, bool), Error> {
        let ending = self.ending.is_some();
        let reading = self.source.after_dispatch(&DeliveryState {
            idle,
            ending,
            position: self.progress.position(),
            complete: self.progress.span() == 0,
            in_flight: !self.window.is_empty(),
            durability: self.sink.durability(&self.progress),
        })?;
        if reading.restarted {
            self.progress.restart_stream();
        }
        if reading.ended && !ending && !self.at_end {
            self.end_intake(Outcome::SourceEnded);
        }
        let intake = match reading.intake {
            Intake::Verifying => Intake::Verifying,
            _ if self.ending.is_some() || self.at_end => Intake::Paused,
            intake => intake,
        };
        let reading = SourceState { intake, ..reading };
        let state = LoopState {
            progress: &self.progress,
            window: &self.window,
            elsewhere: 0,
            idle,
            ending: self.ending.is_some(),
            source: reading,
        };
        let source = &self.source;
        let more = self.sink.after_dispatch(&state, &mut |checkpoint| source.note(checkpoint))?;
        Ok((reading, more))
    }

    /// Applies the sink's reports.
    fn take_reports(&mut self) -> Option<Refusal> {
        let Relay { sink, progress, window, .. } = self;
        sink.reports(&mut |event| match event {
            SinkEvent::Delivered(sequence) => {
                progress.acknowledge(sequence);
                window.remove(sequence)
            }
            SinkEvent::Released(sequence) => window.remove(sequence),
            SinkEvent::Settled(sequence) => {
                progress.acknowledge(sequence);
                None
            }
            SinkEvent::Committed => None,
        })
    }

    /// Dispatches the source's items until there are none or dispatch has to wait.
    fn dispatch(&mut self) -> Result<Dispatched, Error> {
        loop {
            if self.at_end && self.ending.is_none() && self.sink.is_done() {
                self.end_intake(Outcome::SourceEnded);
            }
            if self.ending.is_some() || self.at_end || !self.sink.is_ready() {
                return Ok(Dispatched::HeldBack);
            }
            match self.source.next()? {
                Read::Nothing => return Ok(Dispatched::All),
                Read::Begin(transaction) => {
                    self.pipeline.begin(transaction);
                    self.progress.begin(transaction).map_err(out_of_sequence)?;
                }
                Read::Change(change) => {
                    if self.window.is_full() || self.progress.span() >= MAX_SPAN {
                        return Ok(Dispatched::HeldBack);
                    }
                    let number = match self.pending.take() {
                        Some(number) => number,
                        None => self.progress.change().map_err(out_of_sequence)?,
                    };
                    let Relay { pipeline, sink, progress, window, monitor, .. } = self;
                    match send_change(change, number, pipeline, sink, progress, window, monitor) {
                        Ok(()) => {}
                        Err(Unsent::Later) => {
                            self.pending = Some(number);
                            self.look_ahead();
                            return Ok(Dispatched::HeldBack);
                        }
                        Err(Unsent::Never(error)) => {
                            self.end_intake(Outcome::Failed(error));
                            return Ok(Dispatched::HeldBack);
                        }
                    }
                }
                Read::Other { message, already_delivered } => {
                    let already_delivered = already_delivered || self.progress.is_replaying();
                    if let Err(error) = self.pipeline.metadata(&message, already_delivered) {
                        self.end_intake(Outcome::Failed(error));
                        return Ok(Dispatched::HeldBack);
                    }
                }
                Read::Commit(end) => self.progress.commit(end).map_err(out_of_sequence)?,
                Read::Reached(position) => self.progress.reached(position),
                Read::Skipped => {}
                Read::End(Some(position)) => {
                    self.progress.reached(position);
                    self.at_end = true;
                    continue;
                }
                Read::End(None) => {
                    self.end_intake(Outcome::SourceEnded);
                    return Ok(Dispatched::HeldBack);
                }
            }
            self.source.consume();
        }
    }

    /// Shows the sink the events behind the one that waits, if it can prepare for them.
    fn look_ahead(&mut self) {
        if !self.sink.looks_ahead() {
            return;
        }
        let Relay { source, pipeline, sink, .. } = self;
        let mut origin = pipeline.origin();
        source.look_ahead(&mut |item| {
            match item {
                Read::Begin(transaction) => origin = transaction.into(),
                Read::Change(change) => {
                    origin.ordinal += 1;
                    return pipeline.preview(change, origin).is_none_or(|output| sink.look_ahead(&output));
                }
                _ => {}
            }
            true
        });
    }
}

/// Why a change was not sent.
enum Unsent {
    Later,
    Never(Error),
}

/// Sends one change. Takes the parts of the loop one by one, because `change` borrows the source.
fn send_change<K: Sink>(
    change: Change<'_>,
    number: progress::Change,
    pipeline: &mut Pipeline,
    sink: &mut K,
    progress: &mut Progress,
    window: &mut Window,
    monitor: &Monitor,
) -> Result<(), Unsent> {
    let progress::Change::New(sequence) = number else { return Ok(()) };
    let Some(output) = pipeline.process(change, progress.ordinal(sequence)).map_err(Unsent::Never)? else {
        progress.acknowledge(sequence);
        return Ok(());
    };
    match sink.send(&output, sequence) {
        Ok(Sent::Record(record)) => {
            window.add(sequence, record);
            output.count_sent(monitor);
        }
        Ok(Sent::Held(record)) => window.add(sequence, record),
        Ok(Sent::Nothing) => {
            progress.acknowledge(sequence);
            output.count_dropped(monitor);
        }
        Err(NotSent::Later) => return Err(Unsent::Later),
        Err(NotSent::Impossible(why)) => return Err(Unsent::Never(output.event.stop_error(&why))),
    }
    Ok(())
}

fn out_of_sequence(error: OutOfStep) -> Error {
    Error::transient(Peer::Postgres, format!("the replication stream is out of sequence: {error}"))
}
