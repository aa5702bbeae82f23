//! Why nothing is acknowledged although brokers answer: no leader, too few replicas in sync, a right taken away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What stands in the way, if anything does. It outlives a session, for each one may meet the same.
#[derive(Debug, Default)]
pub(super) struct Obstacle {
    there: AtomicBool,
    reason: Mutex<Option<String>>,
}

impl Obstacle {
    /// Told once for each reason.
    pub(super) fn met(&self, reason: String) {
        let mut known = self.lock();
        if known.as_ref() != Some(&reason) {
            tracing::warn!(peer = "kafka", reason, "nothing is acknowledged; events wait in Postgres");
            *known = Some(reason);
        }
        self.there.store(true, Ordering::Relaxed);
    }

    /// Events flow.
    pub(super) fn gone(&self) {
        if self.there.swap(false, Ordering::Relaxed) {
            *self.lock() = None;
            tracing::info!(peer = "kafka", "events are acknowledged again");
        }
    }

    /// The reason.
    pub(super) fn reason(&self) -> Option<String> {
        self.there.load(Ordering::Relaxed).then(|| self.lock().clone()).flatten()
    }

    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        // a panic elsewhere leaves the reason as it is, which is a valid state
        self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
