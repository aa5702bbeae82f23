//! Shows the progress on standard error: a bar on a terminal, otherwise a line every few seconds.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use outbox_router::terminal;

const FRAME: Duration = Duration::from_millis(100);
const LINE_EVERY: Duration = Duration::from_secs(5);

/// The progress display; dropping it removes the bar.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    last_line: Mutex<Instant>,
}

impl Progress {
    /// A display of `steps` measurements.
    pub(crate) fn new(steps: u64) -> Self {
        let bar = terminal::colours(&io::stderr()).then(|| {
            let template = "{spinner} {bar:24.green/dim} {pos} of {len} measurements, {elapsed}; {msg}";
            let style =
                ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = ProgressBar::new(steps).with_style(style.progress_chars("━━╌"));
            bar.enable_steady_tick(FRAME);
            bar
        });
        Progress { bar, last_line: Mutex::new(Instant::now()) }
    }

    /// Prints a line above the bar.
    pub(crate) fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => {
                *self.last_line.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                eprintln!("{text}");
            }
        }
    }

    /// Sets the description of the current activity.
    pub(crate) fn now(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(text.to_owned()),
            None => {
                let mut last_line = self.last_line.lock().unwrap_or_else(PoisonError::into_inner);
                if last_line.elapsed() >= LINE_EVERY {
                    *last_line = Instant::now();
                    eprintln!("{text}");
                }
            }
        }
    }

    /// Counts a finished measurement.
    pub(crate) fn step(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
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
