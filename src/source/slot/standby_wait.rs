//! Detects that Postgres withholds changes until standbys confirm them (`synchronized_standby_slots`), which the stream does not
//! show.

use std::time::Duration;

use pg_logical::Lsn;
use tokio::time::Instant;

use crate::postgres::standby_slots::{REMEDY, Unconfirmed, reason};

/// A healthy standby is often behind for a moment.
const GRACE: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct StandbyWait {
    /// The standby slots that had not confirmed the end of the log at the last check.
    unconfirmed: Vec<Unconfirmed>,
    /// The received position, and since when an idle relay has received nothing more.
    received: Lsn,
    since: Instant,
    reason: Option<String>,
}

impl StandbyWait {
    pub(super) fn new(now: Instant) -> Self {
        StandbyWait { unconfirmed: Vec::new(), received: Lsn::INVALID, since: now, reason: None }
    }

    /// Called in each iteration. `ready`: everything received is processed, and the relay could take more.
    pub(super) fn progressed(&mut self, ready: bool, received: Lsn) {
        // avoids reading the clock in each iteration
        if !self.unconfirmed.is_empty() && (!ready || received != self.received) {
            (self.received, self.since) = (received, Instant::now());
        }
    }

    /// Records the result of a catalogue check. `expects`: Postgres has more for the relay.
    pub(super) fn observed(&mut self, now: Instant, unconfirmed: Vec<Unconfirmed>, expects: bool) {
        if self.unconfirmed.is_empty() {
            self.since = now;
        }
        self.unconfirmed = if expects { unconfirmed } else { Vec::new() };
        let lasts = !self.unconfirmed.is_empty() && now - self.since >= GRACE;
        let found = lasts.then(|| reason(&self.unconfirmed));
        if found == self.reason {
            return;
        }
        match &found {
            Some(reason) => tracing::warn!(
                peer = "postgres",
                reason,
                remedy = REMEDY,
                "no events are coming from Postgres"
            ),
            None => tracing::info!(peer = "postgres", "Postgres sends changes again"),
        }
        self.reason = found;
    }

    /// Why no changes arrive.
    pub(super) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }
}
