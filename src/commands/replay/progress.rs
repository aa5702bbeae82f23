//! Shows how far a replay has come: a bar on a terminal, else a line in the log now and then.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How often a line is logged where there is no bar.
const SAY_EVERY: Duration = Duration::from_secs(5);

pub(super) struct Progress {
    id: u64,
    rows: u64,
    bar: Option<ProgressBar>,
    quiet: bool,
    said: Instant,
}

impl Progress {
    /// Of the replay `id` of so many rows. With `quiet` nothing is shown.
    pub(super) fn new(id: u64, rows: u64, quiet: bool) -> Self {
        let style = "{msg}  {bar:30}  {human_pos} of {human_len}, {per_sec}, {eta} left";
        let bar = ProgressStyle::with_template(style).ok().filter(|_| io::stderr().is_terminal() && !quiet);
        let bar =
            bar.map(|style| ProgressBar::new(rows).with_style(style).with_message(format!("replay {id}")));
        Progress { id, rows, bar, quiet, said: Instant::now() }
    }

    /// So many rows are done.
    pub(super) fn show(&mut self, done: u64) {
        match &self.bar {
            Some(bar) => bar.set_position(done),
            None if !self.quiet && self.said.elapsed() >= SAY_EVERY => {
                self.said = Instant::now();
                tracing::info!("replay {}: {done} of {} rows", self.id, self.rows);
            }
            None => {}
        }
    }

    /// Removes the bar.
    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
