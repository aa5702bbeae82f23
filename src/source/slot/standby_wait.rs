//! Whether Postgres withholds changes until standbys have confirmed them, which the stream itself does not tell.

use std::time::Duration;

use pg_logical::Lsn;
use tokio::time::Instant;

use crate::postgres::standby_slots::{REMEDY, Unconfirmed, reason};

/// A standby that follows is behind for a moment again and again.
const STANDS_STILL: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct StandbyWait {
    /// What had not confirmed the end of the log at the last look.
    unconfirmed: Vec<Unconfirmed>,
    /// How much had been received then, and since when a relay that was ready has received nothing more.
    received: Lsn,
    since: Instant,
    reason: Option<String>,
}

impl StandbyWait {
    pub(super) fn new(now: Instant) -> Self {
        StandbyWait { unconfirmed: Vec::new(), received: Lsn::INVALID, since: now, reason: None }
    }

    /// `ready`: everything that has come is dealt with, and more could be.
    pub(super) fn turned(&mut self, ready: bool, received: Lsn) {
        // in order not to read the clock at each turn
        if !self.unconfirmed.is_empty() && (!ready || received != self.received) {
            (self.received, self.since) = (received, Instant::now());
        }
    }

    /// A look has found these; `expects` is whether the relay lacks anything of Postgres.
    pub(super) fn looked(&mut self, now: Instant, unconfirmed: Vec<Unconfirmed>, expects: bool) {
        if self.unconfirmed.is_empty() {
            self.since = now;
        }
        self.unconfirmed = if expects { unconfirmed } else { Vec::new() };
        let stands_still = !self.unconfirmed.is_empty() && now - self.since >= STANDS_STILL;
        let found = stands_still.then(|| reason(&self.unconfirmed));
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

    /// Why nothing comes.
    pub(super) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }
}
