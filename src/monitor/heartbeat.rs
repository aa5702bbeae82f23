//! What is shown of the heartbeat.

use std::time::Duration;

use pg_logical::PgTimestamp;

use super::report::Heartbeat;

/// What is known of it.
#[derive(Debug)]
pub(super) struct HeartbeatState {
    interval: Duration,
    /// When the newest that came back was written; before the first, when the heartbeat was switched on.
    newest: PgTimestamp,
    lag: Option<Duration>,
    pub(super) refused: Option<String>,
}

impl HeartbeatState {
    pub(super) fn new(interval: Duration, now: PgTimestamp) -> Self {
        HeartbeatState { interval, newest: now, lag: None, refused: None }
    }

    /// A heartbeat in a backlog shows the lag. It may be older than one that was seen in an earlier session.
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
