//! How far a command is that reads much log or many rows, and how long the rest takes.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use crate::quantity::{bytes, time};

/// How often a line is logged where there is no bar.
const INTERVAL: Duration = Duration::from_secs(5);

/// What is counted.
#[derive(Debug, Clone, Copy)]
enum Unit {
    /// Bytes of log.
    Log,
    Rows,
}

impl Unit {
    /// The template of the bar.
    fn style(self) -> &'static str {
        match self {
            Unit::Log => "{msg}  {bar:30}  {bytes} of {total_bytes} of log, {eta} left",
            Unit::Rows => "{msg}  {bar:30}  {human_pos} of {human_len}, {rate}, {eta} left",
        }
    }

    fn show(self, done: u64, total: u64) -> String {
        match self {
            Unit::Log => format!("{} of {} of log", bytes(done), bytes(total)),
            Unit::Rows => format!("{done} of {total} rows"),
        }
    }
}

/// A bar on a terminal, else a line in the log now and then.
pub(super) struct CommandProgress {
    what: Cow<'static, str>,
    unit: Unit,
    /// How much was done when this process began.
    before: u64,
    begun: Instant,
    logged: Instant,
    /// `None`: lines.
    bar: Option<ProgressBar>,
    quiet: bool,
}

impl CommandProgress {
    /// Of bytes of log. `what` is done, as "counting events". With `quiet` nothing is shown.
    pub(super) fn of_log(what: &'static str, quiet: bool) -> Self {
        Self::lines(what.into(), Unit::Log, quiet).or_bar()
    }

    /// The same without a bar, for a command that logs other lines meanwhile.
    pub(super) fn of_log_in_lines(what: &'static str, quiet: bool) -> Self {
        Self::lines(what.into(), Unit::Log, quiet)
    }

    /// Of rows, of which so many were done before.
    pub(super) fn of_rows(what: String, before: u64, quiet: bool) -> Self {
        let progress = CommandProgress { before, ..Self::lines(what.into(), Unit::Rows, quiet) };
        progress.or_bar()
    }

    fn lines(what: Cow<'static, str>, unit: Unit, quiet: bool) -> Self {
        let now = Instant::now();
        CommandProgress { what, unit, before: 0, begun: now, logged: now, bar: None, quiet }
    }

    /// With a bar on a terminal.
    fn or_bar(self) -> Self {
        let style = ProgressStyle::with_template(self.unit.style());
        // its own rate has four decimals
        let rate = |state: &ProgressState, text: &mut dyn fmt::Write| {
            // a bar that lacks a figure is no failure
            let _ = write!(text, "{:.0}/s", state.per_sec());
        };
        let style = style.map(|style| style.with_key("rate", rate));
        let style = style.ok().filter(|_| io::stderr().is_terminal() && !self.quiet);
        let bar = style.map(|style| ProgressBar::new(0).with_style(style).with_message(self.what.clone()));
        CommandProgress { bar, ..self }
    }

    /// How much is done, of how much.
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
    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// The line, if it is time for one.
    fn line(&mut self, now: Instant, done: u64, total: u64) -> Option<String> {
        if self.quiet || now.duration_since(self.logged) < INTERVAL {
            return None;
        }
        self.logged = now;
        let rest = total.saturating_sub(done) as f64 / done.saturating_sub(self.before) as f64;
        let left = Duration::try_from_secs_f64(now.duration_since(self.begun).as_secs_f64() * rest);
        let left = left.map_or_else(|_| String::new(), |left| format!(", about {} left", time(left)));
        Some(format!("{}: {}{left}", self.what, self.unit.show(done, total)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_now_and_then_says_how_long_the_rest_takes() {
        let mut progress = CommandProgress::of_log_in_lines("counting events", false);
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
    fn rows_that_were_done_before_do_not_shorten_the_rest() {
        let mut progress = CommandProgress::of_rows("replay 7".to_owned(), 500, false);
        let line = progress.line(progress.begun + Duration::from_secs(10), 600, 900);
        assert_eq!(line.as_deref(), Some("replay 7: 600 of 900 rows, about 30 seconds left"));
    }

    #[test]
    fn nothing_is_said_beside_json() {
        let mut progress = CommandProgress::of_log("counting events", true);
        assert_eq!(progress.line(progress.begun + INTERVAL, 1, 2), None);
        assert!(progress.bar.is_none());
    }
}
