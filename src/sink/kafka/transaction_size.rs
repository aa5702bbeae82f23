//! How many bytes a Kafka transaction takes, by the rate at which the brokers take them.
//!
//! A transaction that is not committed within `transaction.timeout.ms` is aborted, and all of it is sent again. So it has to
//! take a small share of that time, also where a producer quota or a slow link lets through a few kilobytes a second. As
//! with TCP's congestion window the size begins small, doubles while transactions are quick, and follows the measured rate
//! when they are slow.

use tokio::time::Duration;

/// So large is the first transaction of a process.
const FIRST: usize = 64 << 10;

/// What is tried after one that timed out before any of it was acknowledged.
const UNKNOWN: usize = 4 << 10;

/// A transaction is to take this share of its time-out, and no more than [`AT_MOST`]: consumers see nothing of it before
/// it is committed.
const SHARE: u32 = 10;

const AT_MOST: Duration = Duration::from_secs(3);

/// The size of transactions. It outlives sessions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TransactionSize {
    /// `None` before the first transaction.
    limit: Option<usize>,
    /// Bytes per second when the brokers were last slow, until transactions are as large as the first one again.
    slow: Option<u64>,
}

/// A transaction that was not committed in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimedOut {
    pub(crate) records: usize,
    /// Of its records.
    pub(crate) bytes: usize,
    /// How many of them were acknowledged.
    pub(crate) acknowledged: usize,
    pub(crate) took: Duration,
}

impl TransactionSize {
    /// A transaction takes no further record once it has so many bytes.
    pub(crate) fn limit(self) -> usize {
        self.limit.unwrap_or(FIRST)
    }

    /// Takes in how long a transaction of so many bytes took to its commit.
    pub(crate) fn committed(&mut self, bytes: usize, took: Duration, timeout: Duration) {
        let target = target(timeout);
        // a small one may have waited for a coordinator or for the commit before it, which says nothing of the rate
        if took > target && bytes >= self.limit().min(FIRST) {
            let limit = of_rate(bytes, took, target).clamp(1, self.limit());
            *self = TransactionSize { limit: Some(limit), slow: Some(rate(bytes, took)) };
        } else if took <= target / 2 {
            if bytes >= self.limit() {
                self.limit = Some(self.limit().saturating_mul(2));
            }
            // with a quota some are quick, and those behind them have to wait
            self.slow = self.slow.filter(|_| self.limit() < FIRST);
        }
    }

    /// Takes in that one timed out. The next one is smaller, and at most half of it. Returns what to say.
    pub(crate) fn timed_out(&mut self, it: TimedOut, timeout: Duration) -> String {
        let fits = match it.acknowledged {
            0 => UNKNOWN,
            bytes => of_rate(bytes, it.took, target(timeout)),
        };
        self.limit = Some(fits.min(it.bytes / 2).clamp(1, self.limit()));
        let taken = if it.acknowledged > 0 {
            let rate = rate(it.acknowledged, it.took);
            self.slow = Some(rate);
            format!("the brokers take {}", per_second(rate))
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
            "a transaction of {bytes} bytes did not fit into transaction.timeout.ms ({seconds} s): {taken}; smaller ones are \
             sent now"
        )
    }

    /// Why commits take long, if it is because the brokers are slow.
    pub(crate) fn slow(self) -> Option<String> {
        self.slow.map(|rate| {
            format!(
                "the brokers take {}: a producer quota holds the router back, or the link to them is slow",
                per_second(rate)
            )
        })
    }
}

fn target(timeout: Duration) -> Duration {
    (timeout / SHARE).min(AT_MOST)
}

/// How many bytes go in `target`, where so many took so long.
fn of_rate(bytes: usize, took: Duration, target: Duration) -> usize {
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
        assert_eq!(size.limit(), FIRST);
        size.committed(FIRST - 1, QUICK, TIMEOUT);
        assert_eq!(size.limit(), FIRST, "it was not full");
        for _ in 0..10 {
            size.committed(size.limit(), QUICK, TIMEOUT);
        }
        assert_eq!(size.limit(), FIRST << 10);
        for _ in 0..100 {
            size.committed(size.limit(), QUICK, TIMEOUT);
        }
        assert_eq!(size.limit(), usize::MAX);
    }

    #[test]
    fn slow_ones_shrink_to_what_the_brokers_take_and_grow_again_when_they_are_quick() {
        let mut size = TransactionSize::default();
        size.committed(FIRST, Duration::from_secs_f64(6.5536), TIMEOUT);
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
    fn a_small_one_that_had_to_wait_says_nothing_of_the_rate() {
        let mut size = TransactionSize::default();
        size.committed(300, Duration::from_secs(5), TIMEOUT);
        assert_eq!((size.limit(), size.slow()), (FIRST, None));
        // one that is full does, where the limit is small
        size.limit = Some(500);
        size.committed(500, Duration::from_secs(5), TIMEOUT);
        assert!(size.limit() < 500 && size.slow().is_some());
    }

    #[test]
    fn none_is_tried_again_that_timed_out() {
        let mut size = TransactionSize { limit: Some(32_000_000), slow: None };
        let says = size.timed_out(timed_out(32_000, 32_000_000, 3_000_000), TIMEOUT);
        assert!(
            says.contains("32000000 bytes") && says.contains("50 kB/s") && says.contains("smaller"),
            "{says}"
        );
        assert_eq!(size.limit(), 150_000);
        // all of it was acknowledged at once, and its position never
        size.timed_out(timed_out(150, 150_000, 150_000), TIMEOUT);
        assert_eq!(size.limit(), 7_500);
        size.timed_out(timed_out(7, 7_500, 0), TIMEOUT);
        assert_eq!(size.limit(), 3_750);
        let says = size.timed_out(timed_out(1, 5_000, 0), TIMEOUT);
        assert!(says.contains("single record of 5000 bytes") && says.contains("raise"), "{says}");
        assert!(size.slow().unwrap().contains("2 kB/s"), "nothing newer is known of the rate");
        let mut unknown = TransactionSize::default();
        unknown.timed_out(timed_out(64, 64_000, 0), TIMEOUT);
        assert_eq!((unknown.limit(), unknown.slow()), (UNKNOWN, None));
    }
}
