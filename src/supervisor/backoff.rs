//! How long to wait before trying again, and what to say about it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

use crate::error::{Peer, Transient};

/// Doubles from 50 ms to a second, so that a server that is back is found within two, with jitter, for ever; a session that got somewhere starts it anew.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    delays: Option<ExponentialBackoff>,
    /// What was said since all was well, and when at last.
    told: HashMap<(Peer, String), Instant>,
}

/// Failures that differ in every try must not fill memory.
const TOLD_AT_MOST: usize = 50;

const LONGEST: Duration = Duration::from_secs(1);

/// How often a failure that lasts is logged.
const REMINDER: Duration = Duration::from_secs(600);

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

    /// Logs what failed once, and again when it has lasted for long or the log says by now that all is well
    /// (`said_well`). Whether it is the same failure again.
    pub(super) fn log(&mut self, failure: &Transient, said_well: bool) -> bool {
        if self.told.len() >= TOLD_AT_MOST {
            self.told.clear();
        }
        let cause = (failure.peer, cause(&failure.what));
        let told = self.told.get(&cause);
        let again = told.is_some();
        if !said_well && told.is_some_and(|told| told.elapsed() < REMINDER) {
            tracing::debug!(peer = failure.peer.label(), reason = failure.what, "still failing");
            return again;
        }
        self.told.insert(cause, Instant::now());
        tracing::warn!(
            peer = failure.peer.label(),
            reason = failure.what,
            "not connected; trying until it works"
        );
        again
    }
}

/// A failure without what differs from attempt to attempt: Postgres names temporary files by the number of a process.
fn cause(what: &str) -> String {
    let mut quoted = false;
    let kept = what.chars().filter(|char| {
        quoted ^= *char == '"';
        !(quoted && char.is_ascii_digit())
    });
    kept.collect()
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

    #[test]
    fn a_failure_is_the_same_whatever_the_number_of_the_process() {
        let mut backoff = Backoff::default();
        let failure = |file: &str| Transient::new(Peer::Postgres, format!("\"{file}.tmp\" (SQLSTATE 53100)"));
        assert!(!backoff.log(&failure("0-154BC30.snap.9999"), false));
        assert!(backoff.log(&failure("0-154BC30.snap.11850"), false));
        assert!(!backoff.log(&failure("state"), false));
        assert_eq!(cause("\"a1\" at 127.0.0.1:5432"), "\"a\" at 127.0.0.1:5432");
        backoff.reset();
        assert!(!backoff.log(&failure("0-154BC30.snap.11850"), false));
    }
}
