//! Shows the progress on standard error: a bar on a terminal, otherwise a line every few seconds.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use outbox_router::terminal;

const FRAME: Duration = Duration::from_millis(100);
const LINE_EVERY: Duration = Duration::from_secs(5);

/// The progress display.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    rows: u64,
    committed: Arc<AtomicU64>,
    read: Arc<AtomicU64>,
}

impl Progress {
    /// A display of how many of `rows` are `committed`, and how many were `read`.
    pub(crate) fn new(rows: u64, committed: Arc<AtomicU64>, read: Arc<AtomicU64>) -> Self {
        let bar = terminal::colours(&io::stderr()).then(|| {
            let template = "{bar:32.green/dim} {human_pos:>8} of {human_len} rows committed, {msg}";
            let style =
                ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(rows).with_style(style.progress_chars("━━╌"))
        });
        Progress { bar, rows, committed, read }
    }

    /// Prints a line above the bar.
    pub(crate) fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }

    /// Shows the counters until it is dropped.
    pub(crate) async fn show(&self) {
        let mut last_line = Instant::now();
        loop {
            tokio::time::sleep(FRAME).await;
            let committed = self.committed.load(Ordering::Relaxed);
            let read = self.read.load(Ordering::Relaxed);
            match &self.bar {
                Some(bar) => {
                    bar.set_position(committed.min(self.rows));
                    bar.set_message(format!("{} read", HumanCount(read)));
                }
                None if last_line.elapsed() >= LINE_EVERY => {
                    last_line = Instant::now();
                    let [committed, rows, read] = [committed, self.rows, read].map(HumanCount);
                    eprintln!("{committed} of {rows} rows committed, {read} read");
                }
                None => {}
            }
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
