//! How long to wait before trying again, and what to say about it.

use std::collections::HashSet;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

use crate::error::{Peer, Transient};

/// Doubles from 50 ms to a second, so that a server that is back is found within two, with jitter, for ever; a session that got somewhere starts it anew.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    delays: Option<ExponentialBackoff>,
    /// What was said since all was well. The same failure is logged once.
    told: HashSet<(Peer, String)>,
}

/// Failures that differ in every try must not fill memory.
const TOLD_AT_MOST: usize = 50;

const LONGEST: Duration = Duration::from_secs(1);

impl Backoff {
    pub(super) fn next(&mut self) -> Duration {
        let delays = self.delays.get_or_insert_with(|| {
            ExponentialBuilder::default()
                .with_min_delay(Duration::from_millis(50))
                .with_max_delay(LONGEST)
                .with_jitter()
                .without_max_times()
                .build()
        });
        // jitter adds up to as much again
        delays.next().unwrap_or(LONGEST).min(LONGEST)
    }

    /// All is well again.
    pub(super) fn reset(&mut self) {
        self.delays = None;
        self.told.clear();
    }

    /// Says once what failed, however often it fails again in the same way.
    pub(super) fn log(&mut self, failure: &Transient) {
        if self.told.len() >= TOLD_AT_MOST {
            self.told.clear();
        }
        if !self.told.insert((failure.peer, failure.what.clone())) {
            tracing::debug!(peer = failure.peer.label(), reason = failure.what, "still failing");
            return;
        }
        tracing::warn!(
            peer = failure.peer.label(),
            reason = failure.what,
            "not connected; trying until it works"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_a_bound_and_start_anew() {
        let mut backoff = Backoff::default();
        let delays: Vec<_> = (0..20).map(|_| backoff.next()).collect();
        assert!(delays[0] <= Duration::from_millis(100), "{delays:?}");
        assert!(delays.iter().all(|delay| *delay <= LONGEST), "{delays:?}");
        assert!(delays[10..].iter().all(|delay| *delay >= LONGEST / 2), "{delays:?}");
        backoff.reset();
        assert!(backoff.next() <= Duration::from_millis(100));
    }
}
