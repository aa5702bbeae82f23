//! What a person sees while it is measured: a bar on a terminal, a line now and then elsewhere. On standard error.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use outbox_router::terminal;

const FRAME: Duration = Duration::from_millis(100);
const LINE_EVERY: Duration = Duration::from_secs(5);

/// The bar, or what stands for it. Dropped, it is gone.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    last_line: Mutex<Instant>,
}

impl Progress {
    /// Shows how many of so many measurements are done.
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

    /// One line that stays.
    pub(crate) fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => {
                *self.last_line.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                eprintln!("{text}");
            }
        }
    }

    /// What goes on at the moment.
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

    /// A measurement is done.
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
