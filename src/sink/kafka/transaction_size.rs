//! The size of Kafka transactions in bytes, adapted to the rate of the brokers.
//!
//! A transaction that is not committed within `transaction.timeout.ms` is aborted, and all of it is sent again. So it has
//! to take only a small share of that time, even if a producer quota or a slow link allows a few kilobytes a second. As
//! with TCP's congestion window, the size starts small, doubles while transactions are quick, and follows the measured rate
//! when they are slow.

use tokio::time::Duration;

/// The size of a process's first transaction.
const INITIAL_SIZE: usize = 64 << 10;

/// The size after a transaction that timed out before any of it was acknowledged.
const UNKNOWN_RATE_SIZE: usize = 4 << 10;

/// The share of the time-out that a transaction should take, but no more than [`MAX_DURATION`]: consumers see its records only
/// after the commit.
const SHARE: u32 = 10;

const MAX_DURATION: Duration = Duration::from_secs(3);

/// The size of transactions. It outlives sessions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TransactionSize {
    /// `None` before the first transaction.
    limit: Option<usize>,
    /// The rate in bytes per second when the brokers were last slow; `None` once transactions are as large as the first one
    /// again.
    slow: Option<u64>,
}

/// A transaction that timed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimedOut {
    pub(crate) records: usize,
    /// The size of its records.
    pub(crate) bytes: usize,
    /// How many of these bytes were acknowledged.
    pub(crate) acknowledged: usize,
    pub(crate) took: Duration,
}

impl TransactionSize {
    /// A transaction of this size takes no further record.
    pub(crate) fn limit(self) -> usize {
        self.limit.unwrap_or(INITIAL_SIZE)
    }

    /// Adapts the size after a commit. `took` is the time from the first record to the commit.
    pub(crate) fn committed(&mut self, bytes: usize, took: Duration, timeout: Duration) {
        let target = target(timeout);
        // a small one may have waited for a coordinator or for the previous commit, which says nothing about the rate
        if took > target && bytes >= self.limit().min(INITIAL_SIZE) {
            let limit = bytes_in(bytes, took, target).clamp(1, self.limit());
            *self = TransactionSize { limit: Some(limit), slow: Some(rate(bytes, took)) };
        } else if took <= target / 2 {
            if bytes >= self.limit() {
                self.limit = Some(self.limit().saturating_mul(2));
            }
            // with a quota, some transactions are quick and later ones have to wait
            self.slow = self.slow.filter(|_| self.limit() < INITIAL_SIZE);
        }
    }

    /// Adapts the size after a timeout: the next transaction is at most half as large. Returns the message.
    pub(crate) fn timed_out(&mut self, it: TimedOut, timeout: Duration) -> String {
        let fits = match it.acknowledged {
            0 => UNKNOWN_RATE_SIZE,
            bytes => bytes_in(bytes, it.took, target(timeout)),
        };
        self.limit = Some(fits.min(it.bytes / 2).clamp(1, self.limit()));
        let taken = if it.acknowledged > 0 {
            let rate = rate(it.acknowledged, it.took);
            self.slow = Some(rate);
            format!("the brokers accept {}", per_second(rate))
        } else {
            "the brokers acknowledged nothing of it".to_owned()
        };
        let (bytes, seconds) = (it.bytes, timeout.as_secs_f32());
        if it.records == 1 {
            return format!(
                "a single record of {bytes} bytes did not fit into transaction.timeout.ms ({seconds} s): {taken}; raise \
                 transaction.timeout.ms under `[kafka]`, or the producer quota"
            );
        }
        format!(
            "a transaction of {bytes} bytes did not fit into transaction.timeout.ms ({seconds} s): {taken}; the next ones are \
             smaller"
        )
    }

    /// Why commits are slow, if the cause is the rate of the brokers.
    pub(crate) fn slow(self) -> Option<String> {
        self.slow.map(|rate| {
            format!(
                "the brokers accept {}: a producer quota throttles the router, or the link to them is slow",
                per_second(rate)
            )
        })
    }
}

fn target(timeout: Duration) -> Duration {
    (timeout / SHARE).min(MAX_DURATION)
}

/// How many bytes the brokers accept in `target`, if `bytes` took `took`.
fn bytes_in(bytes: usize, took: Duration, target: Duration) -> usize {
    (bytes as f64 * target.as_secs_f64() / took.as_secs_f64()) as usize
}

fn rate(bytes: usize, took: Duration) -> u64 {
    (bytes as f64 / took.as_secs_f64()) as u64
}

fn per_second(rate: u64) -> String {
    match rate {
        0..1_000 => format!("{rate} bytes/s"),
        _ => format!("{} kB/s", rate / 1_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);
    const QUICK: Duration = Duration::from_millis(20);

    fn timed_out(records: usize, bytes: usize, acknowledged: usize) -> TimedOut {
        TimedOut { records, bytes, acknowledged, took: TIMEOUT }
    }

    #[test]
    fn quick_transactions_that_are_full_grow() {
        let mut size = TransactionSize::default();
        assert_eq!(size.limit(), INITIAL_SIZE);
        size.committed(INITIAL_SIZE - 1, QUICK, TIMEOUT);
        assert_eq!(size.limit(), INITIAL_SIZE, "it was not full");
        for _ in 0..10 {
            size.committed(size.limit(), QUICK, TIMEOUT);
        }
        assert_eq!(size.limit(), INITIAL_SIZE << 10);
        for _ in 0..100 {
            size.committed(size.limit(), QUICK, TIMEOUT);
        }
        assert_eq!(size.limit(), usize::MAX);
    }

    #[test]
    fn slow_ones_shrink_to_what_the_brokers_take_and_grow_again_when_they_are_quick() {
        let mut size = TransactionSize::default();
        size.committed(INITIAL_SIZE, Duration::from_secs_f64(6.5536), TIMEOUT);
        assert_eq!(size.limit(), 30_000);
        assert!(size.slow().unwrap().contains("10 kB/s"));
        // neither too slow nor quick
        size.committed(30_000, Duration::from_secs(2), TIMEOUT);
        assert_eq!(size.limit(), 30_000);
        size.committed(30_000, QUICK, TIMEOUT);
        assert_eq!(size.limit(), 60_000);
        assert!(size.slow().is_some(), "the next one may have to wait");
        size.committed(60_000, QUICK, TIMEOUT);
        assert_eq!((size.limit(), size.slow()), (120_000, None));
    }

    #[test]
    fn a_small_transaction_that_waited_does_not_change_the_size() {
        let mut size = TransactionSize::default();
        size.committed(300, Duration::from_secs(5), TIMEOUT);
        assert_eq!((size.limit(), size.slow()), (INITIAL_SIZE, None));
        // one that is full does, where the limit is small
        size.limit = Some(500);
        size.committed(500, Duration::from_secs(5), TIMEOUT);
        assert!(size.limit() < 500 && size.slow().is_some());
    }

    #[test]
    fn after_a_timeout_the_next_transaction_is_at_most_half_as_large() {
        let mut size = TransactionSize { limit: Some(32_000_000), slow: None };
        let message = size.timed_out(timed_out(32_000, 32_000_000, 3_000_000), TIMEOUT);
        assert!(
            message.contains("32000000 bytes") && message.contains("50 kB/s") && message.contains("smaller"),
            "{message}"
        );
        assert_eq!(size.limit(), 150_000);
        // all of it was acknowledged at once, and its position never
        size.timed_out(timed_out(150, 150_000, 150_000), TIMEOUT);
        assert_eq!(size.limit(), 7_500);
        size.timed_out(timed_out(7, 7_500, 0), TIMEOUT);
        assert_eq!(size.limit(), 3_750);
        let message = size.timed_out(timed_out(1, 5_000, 0), TIMEOUT);
        assert!(message.contains("single record of 5000 bytes") && message.contains("raise"), "{message}");
        assert!(size.slow().unwrap().contains("2 kB/s"), "nothing newer is known of the rate");
        let mut unknown = TransactionSize::default();
        unknown.timed_out(timed_out(64, 64_000, 0), TIMEOUT);
        assert_eq!((unknown.limit(), unknown.slow()), (UNKNOWN_RATE_SIZE, None));
    }
}
