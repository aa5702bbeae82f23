//! The monitor's clock, which a test can control.

use std::time::{Duration, Instant};

use pg_logical::PgTimestamp;

/// A monotonic clock and a wall clock.
#[derive(Debug)]
pub(crate) enum Clock {
    /// The machine's.
    System(Instant),
    /// A test's.
    #[cfg(test)]
    Test(std::sync::Arc<TestClock>),
}

/// The machine's clock, counting from now.
impl Default for Clock {
    fn default() -> Self {
        Clock::System(Instant::now())
    }
}

impl Clock {
    /// The time since the clock was created.
    pub(crate) fn elapsed(&self) -> Duration {
        match self {
            Clock::System(start) => start.elapsed(),
            #[cfg(test)]
            Clock::Test(clock) => clock.elapsed(),
        }
    }

    /// The wall clock.
    pub(crate) fn now(&self) -> PgTimestamp {
        match self {
            Clock::System(_) => PgTimestamp::now(),
            #[cfg(test)]
            Clock::Test(clock) => clock.now(),
        }
    }
}

/// A clock that only moves when the test advances it. It starts at 2026-01-01 00:00 UTC.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct TestClock(std::sync::atomic::AtomicU64);

#[cfg(test)]
impl TestClock {
    pub(crate) fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_micros() as u64, std::sync::atomic::Ordering::SeqCst);
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_micros(self.0.load(std::sync::atomic::Ordering::SeqCst))
    }

    pub(crate) fn now(&self) -> PgTimestamp {
        PgTimestamp::from_unix_micros(1_767_225_600_000_000 + self.elapsed().as_micros() as i64)
    }
}
