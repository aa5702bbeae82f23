//! Shows the progress on standard error: a line for each fault, and on a terminal a bar.

use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use outbox_router::terminal;

use crate::intake::lock;

/// The progress display.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    start: Instant,
    doing: Mutex<String>,
}

impl Progress {
    pub(crate) fn new(span: Duration) -> Self {
        let bar = terminal::colours(&io::stderr()).then(|| {
            let style = ProgressStyle::with_template("{bar:24.green/dim} {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(span.as_millis() as u64).with_style(style.progress_chars("━━╌"))
        });
        Progress { bar, start: Instant::now(), doing: Mutex::default() }
    }

    /// Prints a line above the bar.
    pub(crate) fn say(&self, text: &str) {
        let seconds = self.start.elapsed().as_secs();
        let line = format!("{:02}:{:02} {text}", seconds / 60, seconds % 60);
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{line}")),
            None => eprintln!("{line}"),
        }
    }

    /// Sets the description of the current activity.
    pub(crate) fn doing(&self, what: &str) {
        *lock(&self.doing) = what.to_owned();
    }

    /// Updates the bar.
    pub(crate) fn show(&self, committed: u64, arrived: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(self.start.elapsed().as_millis() as u64);
            let doing = lock(&self.doing);
            bar.set_message(format!(
                "{} rows committed, {} records read; {doing}",
                HumanCount(committed),
                HumanCount(arrived)
            ));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
