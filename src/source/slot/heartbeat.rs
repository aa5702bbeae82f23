//! The heartbeats that come back in the stream, and the one that does not.

use std::time::Duration;

use pg_logical::PgTimestamp;

use crate::config::Config;
use crate::postgres::heartbeat::{prefix, written_at};

/// One is missed when none has come back for so many intervals.
const MISSED: u32 = 3;

/// What one session knows of its heartbeats. Times are those of this machine's clock.
#[derive(Debug)]
pub(super) struct Heartbeat {
    prefix: String,
    every: Duration,
    /// When the newest one was written that has come back; before the first, the start of the session.
    newest: PgTimestamp,
    /// When the last one was written.
    written: Option<PgTimestamp>,
    missed: bool,
}

/// One that came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    /// When it was written.
    pub(super) written: PgTimestamp,
    /// How long it was under way.
    pub(super) lag: Duration,
    /// One had been missed before, and that was said.
    pub(super) again: bool,
}

impl Heartbeat {
    /// `None`: it is switched off.
    pub(super) fn of(config: &Config, now: PgTimestamp) -> Option<Self> {
        let every = config.heartbeat?;
        Some(Heartbeat { prefix: prefix(&config.name), every, newest: now, written: None, missed: false })
    }

    /// A message of the stream that is no event. `None`: it is no heartbeat, or another router's.
    pub(super) fn seen(&mut self, prefix: &str, content: &[u8], now: PgTimestamp) -> Option<Seen> {
        if prefix != self.prefix {
            return None;
        }
        // Everybody may write messages, and another machine's clock may be ahead: nothing comes from the future.
        let written = written_at(content)?.min(now);
        self.newest = self.newest.max(written);
        let again = self.missed && !self.overdue(now);
        self.missed &= !again;
        Some(Seen { written, lag: elapsed(written, now), again })
    }

    /// The last one was written then.
    pub(super) fn written(&mut self, last: Option<PgTimestamp>) {
        self.written = self.written.max(last);
    }

    /// How long none has come back although one was written, if that is too long. Said once.
    pub(super) fn missed(&mut self, now: PgTimestamp) -> Option<Duration> {
        if self.missed || !self.overdue(now) {
            return None;
        }
        self.missed = true;
        Some(elapsed(self.newest, now))
    }

    fn overdue(&self, now: PgTimestamp) -> bool {
        self.written.is_some_and(|written| written > self.newest)
            && elapsed(self.newest, now) > self.every * MISSED
    }
}

/// Clocks of two machines may differ.
fn elapsed(from: PgTimestamp, to: PgTimestamp) -> Duration {
    Duration::from_micros(u64::try_from(to.0.saturating_sub(from.0)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> PgTimestamp {
        PgTimestamp(seconds * 1_000_000)
    }

    fn heartbeat() -> Heartbeat {
        let config = crate::config::minimal_with("name = \"ours\"\nheartbeat.interval = \"10s\"\n");
        Heartbeat::of(&config, at(1_000)).unwrap()
    }

    fn comes_back(heartbeat: &mut Heartbeat, written: i64, now: i64) -> Option<Seen> {
        heartbeat.seen(&prefix("ours"), at(written).0.to_string().as_bytes(), at(now))
    }

    #[test]
    fn off_unless_configured() {
        assert!(Heartbeat::of(&crate::config::minimal_with(""), at(0)).is_none());
    }

    #[test]
    fn one_that_comes_back_tells_how_long_it_took() {
        let seen = comes_back(&mut heartbeat(), 1_005, 1_007);
        let lag = Duration::from_secs(2);
        assert_eq!(seen, Some(Seen { written: at(1_005), lag, again: false }));
    }

    #[test]
    fn anothers_and_what_is_no_heartbeat_are_ignored() {
        let mut heartbeat = heartbeat();
        let content = at(1_005).0.to_string();
        assert_eq!(heartbeat.seen(&prefix("theirs"), content.as_bytes(), at(1_006)), None);
        assert_eq!(heartbeat.seen("outbox", content.as_bytes(), at(1_006)), None);
        assert_eq!(heartbeat.seen(&prefix("ours"), b"soon", at(1_006)), None);
        assert_eq!(heartbeat.newest, at(1_000));
    }

    #[test]
    fn one_from_the_future_does_not_hide_that_none_comes_back() {
        let mut heartbeat = heartbeat();
        assert_eq!(comes_back(&mut heartbeat, 9_999_999, 1_005).unwrap().lag, Duration::ZERO);
        heartbeat.written(Some(at(1_010)));
        assert_eq!(heartbeat.missed(at(1_036)), Some(Duration::from_secs(31)));
    }

    #[test]
    fn one_that_does_not_come_back_is_missed_once_and_its_return_told_once() {
        let mut heartbeat = heartbeat();
        assert_eq!(heartbeat.missed(at(2_000)), None, "none was written");
        heartbeat.written(Some(at(1_001)));
        assert_eq!(heartbeat.missed(at(1_030)), None, "not yet");
        assert_eq!(heartbeat.missed(at(1_031)), Some(Duration::from_secs(31)));
        assert_eq!(heartbeat.missed(at(1_032)), None, "said already");
        heartbeat.written(Some(at(1_041)));
        assert!(!comes_back(&mut heartbeat, 1_001, 1_050).unwrap().again, "an old one of a backlog");
        assert!(comes_back(&mut heartbeat, 1_041, 1_051).unwrap().again);
        assert!(!comes_back(&mut heartbeat, 1_051, 1_052).unwrap().again);
        assert_eq!(heartbeat.missed(at(1_090)), None, "all that were written have come back");
    }
}
