//! Detects that the slot does not move because the catalogues cannot be read: it is confirmed only up to the last good check.

use std::time::Duration;

use pg_logical::Lsn;
use tokio::time::Instant;

/// A lock that is held only for a moment is no reason.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct CatalogCheck {
    /// Why the last check failed.
    reason: Option<String>,
    /// When the last good check was made.
    since: Instant,
    /// The `final_lsn` of the last transaction that began while records were in flight.
    last_event: Lsn,
}

impl CatalogCheck {
    pub(super) fn new(now: Instant) -> Self {
        CatalogCheck { reason: None, since: now, last_event: Lsn::INVALID }
    }

    /// An event of this transaction is in flight.
    pub(super) fn event_sent(&mut self, final_lsn: Lsn) {
        self.last_event = final_lsn;
    }

    /// The catalogues were checked and are as expected.
    pub(super) fn checked(&mut self, now: Instant) {
        (self.reason, self.since) = (None, now);
    }

    /// The check has failed.
    pub(super) fn failed(&mut self, reason: String) {
        self.reason = Some(reason);
    }

    /// Why the slot is confirmed only up to `confirmed` and not to `durable`. `None` if no event waits for it, since nobody has
    /// to act then.
    pub(super) fn reason(&self, confirmed: Lsn, durable: Lsn) -> Option<String> {
        let reason = self.reason.as_ref()?;
        let event_waits = confirmed < durable && confirmed <= self.last_event;
        let lasts = event_waits && self.since.elapsed() >= GRACE;
        lasts.then(|| format!("the slot is not moved, because the catalogues cannot be read: {reason}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_check_that_fails_for_long_while_an_event_waits_is_a_reason() {
        let mut check = CatalogCheck::new(Instant::now());
        check.event_sent(Lsn(20));
        tokio::time::advance(GRACE).await;
        assert_eq!(check.reason(Lsn(10), Lsn(30)), None, "no check has failed");
        check.failed("locked".to_owned());
        let reason = check.reason(Lsn(10), Lsn(30)).unwrap();
        assert!(reason.ends_with("locked"), "{reason}");
        assert_eq!(check.reason(Lsn(21), Lsn(30)), None, "the event is confirmed");
        assert_eq!(check.reason(Lsn(10), Lsn(10)), None, "the event is not acknowledged");
        check.checked(Instant::now());
        check.failed("locked".to_owned());
        assert_eq!(check.reason(Lsn(10), Lsn(30)), None, "it has not lasted long");
    }
}
