//! A sink that prints what would be sent. A thread writes, so that a slow reader holds nothing up but the records themselves.

mod reader;
mod show;

use std::fs::File;
use std::future::{Future, pending, ready};
use std::io::{self, Write};
use std::os::fd::AsFd;

use pg_logical::Lsn;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

use crate::checkpoint::Checkpoint;
use crate::error::Error;
use crate::pipeline::PipelineOutput;
use crate::progress::{Progress, Sequence};
use crate::relay::{
    Durability, Health, InFlight, LoopState, NotSent, Outcome, Refusal, Sent, Sink, SinkEvent,
};
use crate::routing::Routed;
use crate::terminal;
use reader::Reader;
pub use show::Style;

/// Prints records.
pub struct StdoutSink {
    style: Style,
    /// Bounded by the loop's window.
    lines: UnboundedSender<(Sequence, String)>,
    written: UnboundedReceiver<Written>,
    /// What has become of lines since the last turn.
    reports: Vec<Sequence>,
    under_way: usize,
    reader: Reader,
    printed: Printed,
    /// Cancelled when nobody reads any more.
    stop: CancellationToken,
}

/// What a session has printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Printed {
    /// How many events were written whole.
    pub events: u64,
    /// Whoever has read them is gone.
    pub unread: bool,
}

/// What has become of a line.
enum Written {
    Whole(Sequence),
    /// Nothing more can be written.
    Failed(io::Error),
    /// It was thrown away after that.
    Not(Sequence),
}

impl StdoutSink {
    /// Writes to `out`, and cancels `stop` when nobody reads that any more.
    ///
    /// # Errors
    /// There is no room for one more thread or open file.
    pub fn new(out: &impl AsFd, style: Style, stop: CancellationToken) -> Result<Self, Error> {
        let no_room = |error| {
            Error::usage(
                format!("Cannot begin to write to standard output: {error}"),
                "Raise the limits of the process on threads and open files",
            )
        };
        // Not the standard library's: the end of the process takes that one's lock, which a write that waits for its reader holds.
        let file = File::from(out.as_fd().try_clone_to_owned().map_err(no_room)?);
        let ((lines, next), (report, written)) = (unbounded_channel(), unbounded_channel());
        let thread = std::thread::Builder::new().name("stdout".to_owned());
        thread.spawn(move || write_lines(file, next, &report)).map_err(no_room)?;
        let (reader, printed) = (Reader::of(out), Printed::default());
        Ok(StdoutSink { style, lines, written, reports: Vec::new(), under_way: 0, reader, printed, stop })
    }

    fn take_in(&mut self, written: Written) -> Result<(), Error> {
        match written {
            Written::Whole(sequence) => {
                self.printed.events += 1;
                self.reports.push(sequence);
            }
            Written::Failed(error) if error.kind() == io::ErrorKind::BrokenPipe => self.left_alone(),
            Written::Failed(error) => terminal::written(Err(error))?,
            Written::Not(sequence) => self.reports.push(sequence),
        }
        Ok(())
    }

    /// Nobody reads any more.
    fn left_alone(&mut self) {
        self.printed.unread = true;
        self.stop.cancel();
    }
}

/// Writes line after line, and reports each. What cannot be written is thrown away, after it was said why.
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
            // the session may be over
            let _ = report.send(if works { Written::Whole(sequence) } else { Written::Not(sequence) });
        }
    }
}

impl Sink for StdoutSink {
    type End = Printed;

    fn is_ready(&self) -> bool {
        true
    }

    fn send(&mut self, made: &PipelineOutput<'_>, sequence: Sequence) -> Result<Sent, NotSent> {
        if let Ok(Routed::Dropped) = &made.routed {
            return Ok(Sent::Nothing);
        }
        let line = self.style.line(made);
        let memory = line.len();
        // the thread ends after the session
        let _ = self.lines.send((sequence, line));
        self.under_way += 1;
        let commit_time = made.event.origin.commit_time;
        Ok(Sent::Record(InFlight { bytes: memory, memory, commit_time, target: 0 }))
    }

    fn reports(&mut self, event: &mut impl FnMut(SinkEvent) -> Option<InFlight>) -> Option<Refusal> {
        for sequence in self.reports.drain(..) {
            self.under_way = self.under_way.saturating_sub(1);
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
        let position = progress.position();
        Durability {
            position,
            durable: position.flush,
            survives: None,
            settled: self.under_way == 0,
            checkpoint_pending: false,
            uncommitted: 0,
            oldest: None,
            is_down: false,
            awaits: None::<Lsn>,
        }
    }

    async fn wait(&mut self) -> Result<(), Error> {
        tokio::select! {
            biased;
            Some(written) = self.written.recv() => self.take_in(written)?,
            () = self.reader.gone(), if !self.printed.unread => self.left_alone(),
            else => pending().await,
        }
        while let Ok(written) = self.written.try_recv() {
            self.take_in(written)?;
        }
        Ok(())
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
        ready((outcome, self.printed))
    }
}

#[cfg(test)]
mod tests;
