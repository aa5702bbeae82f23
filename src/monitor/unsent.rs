//! How long the server has had log that it has not sent.

use std::sync::Mutex;
use std::time::Duration;

use pg_logical::{Lsn, PgTimestamp};

use super::lock;

/// The stream of a healthy server is often behind for a moment.
const GRACE: Duration = Duration::from_secs(3);

/// The end of the server's log at a check, and when that was, until the stream gets there. It outlives sessions.
#[derive(Debug, Default)]
pub(super) struct Unsent(Mutex<Option<(Lsn, PgTimestamp)>>);

impl Unsent {
    /// The log ended at `end` just now, and was received up to `received`.
    pub(super) fn checked(&self, end: Lsn, received: Lsn, now: PgTimestamp) {
        let mut unsent = lock(&self.0);
        // after a failover, the log may end earlier than before
        if unsent.is_none_or(|(until, _)| until <= received || until > end) {
            *unsent = (received < end).then_some((end, now));
        }
    }

    /// Another session reads the slot.
    pub(super) fn forget(&self) {
        *lock(&self.0) = None;
    }

    /// How long the server has not sent something, at least; zero if that is normal.
    pub(super) fn lasts(&self, now: PgTimestamp) -> Duration {
        let since = lock(&self.0).map_or(now, |(_, since)| since);
        let micros = u64::try_from(now.0.saturating_sub(since.0)).unwrap_or(0);
        Some(Duration::from_micros(micros)).filter(|lasts| *lasts >= GRACE).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> PgTimestamp {
        PgTimestamp(seconds * 1_000_000)
    }

    #[test]
    fn the_time_counts_from_the_first_check_that_found_what_is_unsent() {
        let unsent = Unsent::default();
        let lasts = |seconds| unsent.lasts(at(seconds)).as_secs();
        unsent.checked(Lsn(20), Lsn(20), at(0));
        assert_eq!(lasts(9), 0, "everything was sent");
        unsent.checked(Lsn(30), Lsn(20), at(10));
        assert_eq!([lasts(12), lasts(13)], [0, 3]);
        unsent.checked(Lsn(40), Lsn(29), at(15));
        assert_eq!(lasts(16), 6, "30 has not been received");
        unsent.checked(Lsn(50), Lsn(30), at(17));
        assert_eq!([lasts(19), lasts(20)], [0, 3], "50 has not been received since 17");
        unsent.checked(Lsn(45), Lsn(30), at(21));
        assert_eq!([lasts(23), lasts(24)], [0, 3], "the log of another timeline");
        unsent.checked(Lsn(45), Lsn(45), at(25));
        assert_eq!(lasts(99), 0);
    }
}
