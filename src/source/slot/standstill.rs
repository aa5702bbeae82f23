//! Detects that Postgres sends nothing although its log has more, which neither the stream nor a bulk read shows: it waits for
//! standbys (`synchronized_standby_slots`), or for something else.

use std::time::Duration;

use pg_logical::Lsn;
use tokio::time::Instant;

use crate::postgres::standby_slots::{REMEDY, STANDBY_GRACE, Unconfirmed, reason};

/// Postgres may need a moment to decode its log. With up to a second before the first check and another before the last one,
/// the reason is there after ten seconds.
const GRACE: Duration = Duration::from_secs(8);

#[derive(Debug)]
pub(super) struct Standstill {
    /// The server process of the stream.
    backend_pid: i32,
    /// The received position, and whether the stream has progressed since the last check, or the relay was busy.
    received: Lsn,
    progressed: bool,
    /// Since when Postgres has had more and sent nothing.
    since: Instant,
    /// The standbys that Postgres waits for, by the last check of the catalogues.
    unconfirmed: Vec<Unconfirmed>,
    reason: Option<String>,
}

/// What Postgres has for the relay, by the last check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    /// Nothing.
    Nothing,
    /// Only the answer to a move of the slot, which waits for standbys too.
    Answer,
    /// Changes, or at least a later position.
    Log,
}

impl Standstill {
    pub(super) fn new(now: Instant, backend_pid: i32) -> Self {
        Standstill {
            backend_pid,
            received: Lsn::INVALID,
            progressed: false,
            since: now,
            unconfirmed: Vec::new(),
            reason: None,
        }
    }

    /// Called in each iteration. `ready`: everything received is processed, and the relay could take more.
    pub(super) fn progressed(&mut self, ready: bool, received: Lsn) {
        self.progressed |= !ready || received != self.received;
        self.received = received;
    }

    /// Postgres waits for these standbys.
    pub(super) fn waits_for_standbys(&mut self, unconfirmed: Vec<Unconfirmed>) {
        self.unconfirmed = unconfirmed;
    }

    /// Records how far the log goes.
    pub(super) fn observed(&mut self, now: Instant, awaited: Awaited) {
        if std::mem::take(&mut self.progressed) || awaited == Awaited::Nothing {
            self.since = now;
        }
        let lasts = now - self.since;
        let found = if !self.unconfirmed.is_empty() && lasts >= STANDBY_GRACE {
            Some((reason(&self.unconfirmed), REMEDY.to_owned()))
        } else if awaited == Awaited::Log && lasts >= GRACE {
            Some(self.unexplained())
        } else {
            None
        };
        if found.as_ref().map(|(reason, _)| reason) == self.reason.as_ref() {
            return;
        }
        match &found {
            Some((reason, remedy)) => {
                tracing::warn!(peer = "postgres", reason, remedy, "no events are coming from Postgres");
            }
            None => tracing::info!(peer = "postgres", "Postgres sends changes again"),
        }
        self.reason = found.map(|(reason, _)| reason);
    }

    /// The reason and what to do if no standby is to blame.
    fn unexplained(&self) -> (String, String) {
        let pid = self.backend_pid;
        let reason = format!(
            "Postgres has more log and has sent nothing for {} s: its process {pid} waits, or decodes a large transaction",
            GRACE.as_secs()
        );
        let remedy = format!(
            "SELECT wait_event_type, wait_event, pg_blocking_pids(pid) FROM pg_stat_activity WHERE pid = {pid} shows what it \
             waits for; if that is nothing, it decodes"
        );
        (reason, remedy)
    }

    /// Why no changes arrive.
    pub(super) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn later(now: Instant, seconds: u64) -> Instant {
        now + Duration::from_secs(seconds)
    }

    #[tokio::test]
    async fn a_stream_that_progresses_or_has_nothing_to_send_does_not_stand_still() {
        let start = Instant::now();
        let mut standstill = Standstill::new(start, 7);
        for (second, received, awaited) in
            [(10, 5, Awaited::Log), (20, 6, Awaited::Log), (30, 6, Awaited::Nothing)]
        {
            standstill.progressed(true, Lsn(received));
            standstill.observed(later(start, second), awaited);
            assert_eq!(standstill.reason(), None, "{second}");
        }
        standstill.observed(later(start, 37), Awaited::Log);
        assert_eq!(standstill.reason(), None);
        standstill.progressed(false, Lsn(6));
        standstill.observed(later(start, 39), Awaited::Log);
        assert_eq!(standstill.reason(), None, "the relay was busy");
        standstill.observed(later(start, 47), Awaited::Answer);
        assert_eq!(standstill.reason(), None, "no event waits for the slot to move");
        standstill.observed(later(start, 47), Awaited::Log);
        assert!(standstill.reason().unwrap().contains("its process 7"));
        standstill.progressed(true, Lsn(7));
        standstill.observed(later(start, 48), Awaited::Log);
        assert_eq!(standstill.reason(), None);
    }
}
