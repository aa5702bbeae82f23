//! A sink that prints records instead of sending them. A thread writes them: a slow reader fills the window and so holds back the
//! stream, but blocks nothing else.

mod reader;
mod show;

use std::fs::File;
use std::future::{Future, pending, ready};
use std::io::{self, Write};
use std::os::fd::AsFd;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

use crate::checkpoint::Checkpoint;
use crate::error::{Error, ErrorCode};
use crate::pipeline::PipelineOutput;
use crate::progress::{Progress, Sequence};
use crate::relay::{
    Durability, Health, InFlight, LoopState, NotSent, Outcome, Refusal, Sent, Sink, SinkEvent,
};
use crate::routing::Routed;
use crate::terminal;
use reader::Reader;
pub use show::Style;

/// Prints records to standard output.
pub struct StdoutSink {
    style: Style,
    /// Bounded by the loop's window.
    lines: UnboundedSender<(Sequence, String)>,
    written: UnboundedReceiver<Written>,
    /// Sequences of lines that were written or discarded, and are not reported yet.
    reports: Vec<Sequence>,
    /// Why writing failed, for [`Sink::wait`] to return.
    failed: Option<io::Error>,
    in_flight: usize,
    reader: Reader,
    printed: Printed,
    /// Cancelled when the reader has closed the pipe.
    stop: CancellationToken,
}

/// What a session has printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Printed {
    /// How many events were written completely.
    pub events: u64,
    /// The reader has closed the pipe.
    pub reader_gone: bool,
}

/// A report of the writing thread.
enum Written {
    /// The line was written.
    Done(Sequence),
    /// Writing failed; no further line is written.
    Failed(io::Error),
    /// The line was discarded after a failure. It counts as delivered, so that the session can end. Only the temporary
    /// slot moves past it.
    Discarded(Sequence),
}

impl StdoutSink {
    /// Writes to `out`, and cancels `stop` when its reader is gone.
    ///
    /// # Errors
    /// The limits on threads or open files are exhausted.
    pub fn new(out: &impl AsFd, style: Style, stop: CancellationToken) -> Result<Self, Error> {
        let no_room = |error| {
            Error::usage(
                ErrorCode::ProcessLimits,
                format!("Cannot start writing to standard output: {error}"),
                "Raise the limits of the process on threads and open files",
            )
        };
        // Not `std::io::stdout`: a write that waits for its reader holds its lock, and the exit of the process takes that
        // lock too.
        let file = File::from(out.as_fd().try_clone_to_owned().map_err(no_room)?);
        let ((lines, next), (report, written)) = (unbounded_channel(), unbounded_channel());
        let thread = std::thread::Builder::new().name("stdout".to_owned());
        thread.spawn(move || write_lines(file, next, &report)).map_err(no_room)?;
        let (reader, printed) = (Reader::of(out), Printed::default());
        let (reports, failed, in_flight) = (Vec::new(), None, 0);
        Ok(StdoutSink { style, lines, written, reports, failed, in_flight, reader, printed, stop })
    }

    fn receive(&mut self, written: Written) {
        match written {
            Written::Done(sequence) => {
                self.printed.events += 1;
                self.reports.push(sequence);
            }
            Written::Failed(error) if error.kind() == io::ErrorKind::BrokenPipe => self.reader_gone(),
            Written::Failed(error) => self.failed = Some(error),
            Written::Discarded(sequence) => self.reports.push(sequence),
        }
    }

    fn reader_gone(&mut self) {
        self.printed.reader_gone = true;
        self.stop.cancel();
    }
}

/// Writes the lines and reports each one. After a failure, which is reported once, the rest is discarded.
fn write_lines(
    mut out: impl Write,
    mut lines: UnboundedReceiver<(Sequence, String)>,
    report: &UnboundedSender<Written>,
) {
    let mut works = true;
    let mut batch = Vec::new();
    while lines.blocking_recv_many(&mut batch, 100) > 0 {
        if works {
            let text: String = batch.iter().map(|(_, line)| line.as_str()).collect();
            if let Err(error) = out.write_all(text.as_bytes()) {
                works = false;
                let _ = report.send(Written::Failed(error));
            }
        }
        for (sequence, _) in batch.drain(..) {
            // fails only when the session has ended
            let _ = report.send(if works { Written::Done(sequence) } else { Written::Discarded(sequence) });
        }
    }
}

impl Sink for StdoutSink {
    type End = Printed;

    fn is_ready(&self) -> bool {
        true
    }

    fn send(&mut self, output: &PipelineOutput<'_>, sequence: Sequence) -> Result<Sent, NotSent> {
        if let Ok(Routed::Dropped) = &output.routed {
            return Ok(Sent::Nothing);
        }
        let line = self.style.line(output);
        let memory = line.len();
        // cannot fail: the thread outlives the session
        let _ = self.lines.send((sequence, line));
        self.in_flight += 1;
        let commit_time = output.event.origin.commit_time;
        Ok(Sent::Record(InFlight { bytes: memory, memory, commit_time, target: 0 }))
    }

    fn reports(&mut self, event: &mut impl FnMut(SinkEvent) -> Option<InFlight>) -> Option<Refusal> {
        while let Ok(written) = self.written.try_recv() {
            self.receive(written);
        }
        for sequence in self.reports.drain(..) {
            self.in_flight = self.in_flight.saturating_sub(1);
            event(SinkEvent::Delivered(sequence));
        }
        None
    }

    fn after_dispatch(
        &mut self,
        _: &LoopState<'_>,
        _: &mut dyn FnMut(&mut Checkpoint),
    ) -> Result<bool, Error> {
        Ok(false)
    }

    fn durability(&self, progress: &Progress) -> Durability {
        Durability::of_acknowledged(progress, self.in_flight == 0)
    }

    async fn wait(&mut self) -> Result<(), Error> {
        if self.failed.is_none() {
            tokio::select! {
                biased;
                Some(written) = self.written.recv() => self.receive(written),
                () = self.reader.gone(), if !self.printed.reader_gone => self.reader_gone(),
                else => pending().await,
            }
        }
        self.failed.take().map_or(Ok(()), |error| terminal::written(Err(error)).map(drop))
    }

    fn health(&self) -> Health {
        Health::Flowing
    }

    fn close(
        self,
        outcome: Outcome,
        _: &mut Progress,
        _: bool,
        _: &mut dyn FnMut(&mut Checkpoint),
    ) -> impl Future<Output = (Outcome, Printed)> {
        // a thread that is still blocked by a reader ends with the process
        ready((outcome, self.printed))
    }
}

#[cfg(test)]
mod tests;
