//! Detects heartbeats that do not come back in the stream.

use std::time::Duration;

use pg_logical::PgTimestamp;

use crate::config::Config;
use crate::postgres::heartbeat::{prefix, written_at};

/// A heartbeat is overdue after this many intervals without one.
const MISSED: u32 = 3;

/// The heartbeats of one session. Times are by this machine's clock.
#[derive(Debug)]
pub(super) struct Heartbeat {
    prefix: String,
    every: Duration,
    /// When the newest received heartbeat was written; at first the start of the session.
    newest: PgTimestamp,
    /// When the last heartbeat was written.
    written: Option<PgTimestamp>,
    missed: bool,
}

/// A heartbeat that came back in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received {
    /// When it was written.
    pub(super) written: PgTimestamp,
    /// How long it took to come back.
    pub(super) lag: Duration,
    /// Whether it is the first after a heartbeat that was reported as missed.
    pub(super) after_miss: bool,
}

impl Heartbeat {
    /// `None` without `[heartbeat] interval`.
    pub(super) fn of(config: &Config, now: PgTimestamp) -> Option<Self> {
        let every = config.heartbeat?;
        Some(Heartbeat { prefix: prefix(&config.name), every, newest: now, written: None, missed: false })
    }

    /// Handles a logical message that is no event. `None` if it is not a heartbeat of this router.
    pub(super) fn received(&mut self, prefix: &str, content: &[u8], now: PgTimestamp) -> Option<Received> {
        if prefix != self.prefix {
            return None;
        }
        // Any role may write messages, and another machine's clock may be ahead: times in the future count as now.
        let written = written_at(content)?.min(now);
        self.newest = self.newest.max(written);
        let after_miss = self.missed && !self.overdue(now);
        self.missed &= !after_miss;
        Some(Received { written, lag: elapsed(written, now), after_miss })
    }

    /// Records when the last heartbeat was written.
    pub(super) fn written(&mut self, last: Option<PgTimestamp>) {
        self.written = self.written.max(last);
    }

    /// How long no heartbeat has come back although one was written, if that is too long. Returned once per miss.
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

/// Zero if the clocks of two machines disagree.
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

    fn receive(heartbeat: &mut Heartbeat, written: i64, now: i64) -> Option<Received> {
        heartbeat.received(&prefix("ours"), at(written).0.to_string().as_bytes(), at(now))
    }

    #[test]
    fn off_unless_configured() {
        assert!(Heartbeat::of(&crate::config::minimal_with(""), at(0)).is_none());
    }

    #[test]
    fn a_heartbeat_that_comes_back_shows_its_lag() {
        let seen = receive(&mut heartbeat(), 1_005, 1_007);
        let lag = Duration::from_secs(2);
        assert_eq!(seen, Some(Received { written: at(1_005), lag, after_miss: false }));
    }

    #[test]
    fn heartbeats_of_others_and_other_messages_are_ignored() {
        let mut heartbeat = heartbeat();
        let content = at(1_005).0.to_string();
        assert_eq!(heartbeat.received(&prefix("theirs"), content.as_bytes(), at(1_006)), None);
        assert_eq!(heartbeat.received("outbox", content.as_bytes(), at(1_006)), None);
        assert_eq!(heartbeat.received(&prefix("ours"), b"soon", at(1_006)), None);
        assert_eq!(heartbeat.newest, at(1_000));
    }

    #[test]
    fn a_heartbeat_from_the_future_does_not_hide_a_missing_one() {
        let mut heartbeat = heartbeat();
        assert_eq!(receive(&mut heartbeat, 9_999_999, 1_005).unwrap().lag, Duration::ZERO);
        heartbeat.written(Some(at(1_010)));
        assert_eq!(heartbeat.missed(at(1_036)), Some(Duration::from_secs(31)));
    }

    #[test]
    fn a_missing_heartbeat_and_its_return_are_reported_once() {
        let mut heartbeat = heartbeat();
        assert_eq!(heartbeat.missed(at(2_000)), None, "none was written");
        heartbeat.written(Some(at(1_001)));
        assert_eq!(heartbeat.missed(at(1_030)), None, "not yet");
        assert_eq!(heartbeat.missed(at(1_031)), Some(Duration::from_secs(31)));
        assert_eq!(heartbeat.missed(at(1_032)), None, "already reported");
        heartbeat.written(Some(at(1_041)));
        assert!(!receive(&mut heartbeat, 1_001, 1_050).unwrap().after_miss, "an old one of a backlog");
        assert!(receive(&mut heartbeat, 1_041, 1_051).unwrap().after_miss);
        assert!(!receive(&mut heartbeat, 1_051, 1_052).unwrap().after_miss);
        assert_eq!(heartbeat.missed(at(1_090)), None, "all that were written have come back");
    }
}
