//! Whether the slot stands still because the catalogues cannot be looked at: it is not confirmed past the last look that found
//! all well.

use std::time::Duration;

use pg_logical::Lsn;
use tokio::time::Instant;

/// A lock that is held for a moment is no reason.
const STANDS_STILL: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct CatalogCheck {
    /// Why the last look failed.
    reason: Option<String>,
    /// When the last one was made that found all well.
    since: Instant,
    /// The last transaction that an event was sent of, by its `final_lsn`.
    last_event: Lsn,
}

impl CatalogCheck {
    pub(super) fn new(now: Instant) -> Self {
        CatalogCheck { reason: None, since: now, last_event: Lsn::INVALID }
    }

    /// Events of this transaction are under way.
    pub(super) fn delivers(&mut self, final_lsn: Lsn) {
        self.last_event = final_lsn;
    }

    /// A look has found all well.
    pub(super) fn checked(&mut self, now: Instant) {
        (self.reason, self.since) = (None, now);
    }

    /// A look has failed.
    pub(super) fn failed(&mut self, reason: String) {
        self.reason = Some(reason);
    }

    /// Why the slot, which is `confirmed` up to there, is not confirmed up to `durable`. Where no event has come since, nobody
    /// need act.
    pub(super) fn reason(&self, confirmed: Lsn, durable: Lsn) -> Option<String> {
        let reason = self.reason.as_ref()?;
        let event_waits = confirmed < durable && confirmed <= self.last_event;
        let stands_still = event_waits && self.since.elapsed() >= STANDS_STILL;
        stands_still
            .then(|| format!("the slot is not moved, because the catalogues cannot be read: {reason}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_look_that_fails_for_long_while_an_event_waits_is_a_reason() {
        let mut check = CatalogCheck::new(Instant::now());
        check.delivers(Lsn(20));
        tokio::time::advance(STANDS_STILL).await;
        assert_eq!(check.reason(Lsn(10), Lsn(30)), None, "no look has failed");
        check.failed("locked".to_owned());
        let reason = check.reason(Lsn(10), Lsn(30)).unwrap();
        assert!(reason.ends_with("locked"), "{reason}");
        assert_eq!(check.reason(Lsn(21), Lsn(30)), None, "the event is confirmed");
        assert_eq!(check.reason(Lsn(10), Lsn(10)), None, "it is not acknowledged");
        check.checked(Instant::now());
        check.failed("locked".to_owned());
        assert_eq!(check.reason(Lsn(10), Lsn(30)), None, "not for long");
    }
}
