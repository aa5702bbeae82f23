//! A sink that prints what would be sent. A thread writes, so that a slow reader holds nothing up but the records themselves.

mod show;

use std::future::Future;
use std::io::{self, Write};

use pg_logical::Lsn;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

use crate::checkpoint::Checkpoint;
use crate::error::Error;
use crate::pipeline::Made;
use crate::progress::{Progress, Sequence};
use crate::relay::{Certain, Event, Health, InFlight, NotSent, Outcome, Refusal, Sent, Sink, Turn};
use crate::routing::Routed;
use crate::terminal;
pub use show::Style;

/// Prints records.
pub struct StdoutSink {
    style: Style,
    lines: UnboundedSender<(Sequence, String)>,
    written: UnboundedReceiver<Written>,
    /// What has become of lines since the last turn.
    reports: Vec<Sequence>,
    under_way: usize,
    /// How many events were printed.
    shown: u64,
    /// Cancelled when nobody reads any more.
    stop: CancellationToken,
}

/// What has become of a line.
enum Written {
    Line(Sequence),
    /// Nothing more can be written.
    Failed(io::Error),
}

impl StdoutSink {
    /// Writes to `out`, and cancels `stop` when nobody reads that any more.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new(
        out: impl Write + Send + 'static,
        style: Style,
        stop: CancellationToken,
    ) -> Result<Self, Error> {
        let ((lines, next), (report, written)) = (unbounded_channel(), unbounded_channel());
        let thread = std::thread::Builder::new().name("stdout".to_owned());
        thread.spawn(move || write_lines(out, next, &report)).map_err(|error| {
            Error::usage(
                format!("Cannot start a thread: {error}"),
                "Raise the limit of the process on threads",
            )
        })?;
        Ok(StdoutSink { style, lines, written, reports: Vec::new(), under_way: 0, shown: 0, stop })
    }

    fn take_in(&mut self, written: Written) -> Result<(), Error> {
        match written {
            Written::Line(sequence) => self.reports.push(sequence),
            Written::Failed(error) => {
                self.stop.cancel();
                terminal::written(Err(error))?;
            }
        }
        Ok(())
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
            if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
                works = false;
                let _ = report.send(Written::Failed(error));
            }
        }
        for (sequence, _) in batch.drain(..) {
            // the session may be over
            let _ = report.send(Written::Line(sequence));
        }
    }
}

impl Sink for StdoutSink {
    /// How many events were printed.
    type End = u64;

    fn is_ready(&self) -> bool {
        true
    }

    fn send(&mut self, made: &Made<'_>, sequence: Sequence) -> Result<Sent, NotSent> {
        if let Ok(Routed::Dropped) = &made.routed {
            return Ok(Sent::Nothing);
        }
        let line = self.style.line(made);
        let memory = line.len();
        // the thread ends after the session
        let _ = self.lines.send((sequence, line));
        (self.under_way, self.shown) = (self.under_way + 1, self.shown + 1);
        let commit_time = made.event.origin.commit_time;
        Ok(Sent::Record(InFlight { bytes: memory, memory, commit_time, target: 0 }))
    }

    fn reports(&mut self, event: &mut impl FnMut(Event) -> Option<InFlight>) -> Option<Refusal> {
        for sequence in self.reports.drain(..) {
            self.under_way = self.under_way.saturating_sub(1);
            event(Event::Delivered(sequence));
        }
        None
    }

    fn turn(&mut self, _: &Turn<'_>, _: &mut dyn FnMut(&mut Checkpoint)) -> Result<bool, Error> {
        Ok(false)
    }

    fn certain(&self, progress: &Progress) -> Certain {
        let position = progress.position();
        Certain {
            position,
            durable: position.flush,
            survives: None,
            settled: self.under_way == 0,
            checkpoint_waits: false,
            uncommitted: 0,
            oldest: None,
            is_down: false,
            awaits: None::<Lsn>,
        }
    }

    async fn changed(&mut self) -> Result<(), Error> {
        match self.written.recv().await {
            Some(written) => self.take_in(written)?,
            None => std::future::pending().await,
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
    ) -> impl Future<Output = (Outcome, u64)> {
        std::future::ready((outcome, self.shown))
    }
}
