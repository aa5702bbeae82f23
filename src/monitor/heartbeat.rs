//! The heartbeat in the status report and the metrics.

use std::time::Duration;

use pg_logical::PgTimestamp;

use super::report::Heartbeat;

/// The state of the heartbeat.
#[derive(Debug)]
pub(super) struct HeartbeatState {
    interval: Duration,
    /// When the newest heartbeat that came back was written; before the first, when the heartbeat was enabled.
    newest: PgTimestamp,
    lag: Option<Duration>,
    pub(super) refused: Option<String>,
}

impl HeartbeatState {
    pub(super) fn new(interval: Duration, now: PgTimestamp) -> Self {
        HeartbeatState { interval, newest: now, lag: None, refused: None }
    }

    /// A heartbeat came back. In a backlog, it may be older than one of an earlier session.
    pub(super) fn seen(&mut self, written: PgTimestamp, lag: Duration) {
        self.newest = self.newest.max(written);
        self.lag = Some(lag);
    }

    pub(super) fn report(&self, now: PgTimestamp) -> Heartbeat {
        Heartbeat {
            interval_seconds: self.interval.as_secs_f64(),
            lag_seconds: self.lag.map(|lag| lag.as_secs_f64()),
            // clocks may be set back
            age_seconds: now.0.saturating_sub(self.newest.0).max(0) as f64 / 1e6,
            problem: self.refused.clone(),
        }
    }
}
