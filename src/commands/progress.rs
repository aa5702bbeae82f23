//! How far a command is that reads much log, and how long the rest takes.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::quantity::{bytes, time};

/// How often a line is logged where there is no bar.
const INTERVAL: Duration = Duration::from_secs(5);

/// A bar on a terminal, else a line in the log now and then.
pub(super) struct LogProgress {
    what: &'static str,
    begun: Instant,
    logged: Instant,
    /// `None`: lines.
    bar: Option<ProgressBar>,
    quiet: bool,
}

impl LogProgress {
    /// `what` is done, as "counting events". With `quiet` nothing is shown.
    pub(super) fn new(what: &'static str, quiet: bool) -> Self {
        let style = "{msg}  {bar:30}  {bytes} of {total_bytes} of log, {eta} left";
        let bar = ProgressStyle::with_template(style).ok().filter(|_| io::stderr().is_terminal() && !quiet);
        let bar = bar.map(|style| ProgressBar::new(0).with_style(style).with_message(what));
        LogProgress { bar, ..Self::lines(what, quiet) }
    }

    /// The same without a bar, for a command that logs other lines meanwhile.
    pub(super) fn lines(what: &'static str, quiet: bool) -> Self {
        let now = Instant::now();
        LogProgress { what, begun: now, logged: now, bar: None, quiet }
    }

    /// `done` and `total` are bytes of log.
    pub(super) fn show(&mut self, done: u64, total: u64) {
        match &self.bar {
            Some(bar) => {
                // which draws the bar, and a message of the stream mostly does not change it
                if bar.length() != Some(total) {
                    bar.set_length(total);
                }
                bar.set_position(done);
            }
            None => {
                if let Some(line) = self.line(Instant::now(), done, total) {
                    tracing::info!("{line}");
                }
            }
        }
    }

    /// Removes the bar.
    pub(super) fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }

    /// The line, if it is time for one.
    fn line(&mut self, now: Instant, done: u64, total: u64) -> Option<String> {
        if self.quiet || now.duration_since(self.logged) < INTERVAL {
            return None;
        }
        self.logged = now;
        let rest = total.saturating_sub(done) as f64 / done as f64;
        let left = Duration::try_from_secs_f64(now.duration_since(self.begun).as_secs_f64() * rest);
        let left = left.map_or_else(|_| String::new(), |left| format!(", about {} left", time(left)));
        Some(format!("{}: {} of {} of log{left}", self.what, bytes(done), bytes(total)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_now_and_then_says_how_long_the_rest_takes() {
        let mut progress = LogProgress::lines("counting events", false);
        let after = |seconds| progress.begun + Duration::from_secs(seconds);
        let (soon, first, next, last) = (after(1), after(10), after(12), after(20));
        assert_eq!(progress.line(soon, 1 << 20, 4 << 20), None);
        let line = progress.line(first, 1 << 20, 4 << 20);
        assert_eq!(
            line.as_deref(),
            Some("counting events: 1.0 MiB of 4.0 MiB of log, about 30 seconds left")
        );
        assert_eq!(progress.line(next, 2 << 20, 4 << 20), None);
        assert_eq!(
            progress.line(last, 0, 4 << 20).as_deref(),
            Some("counting events: 0 B of 4.0 MiB of log")
        );
    }

    #[test]
    fn nothing_is_said_beside_json() {
        let mut progress = LogProgress::new("counting events", true);
        assert_eq!(progress.line(progress.begun + INTERVAL, 1, 2), None);
        assert!(progress.bar.is_none());
    }
}
