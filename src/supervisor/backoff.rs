//! How long to wait before the next attempt, and which failures to log.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

use crate::error::{Peer, Transient};

/// Doubles from 50 ms to one second with jitter and without end, so that the router finds a recovered server within two seconds.
/// A successful session resets it.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    delays: Option<ExponentialBackoff>,
    /// The failures logged since the last success, and when.
    logged: HashMap<(Peer, String), Instant>,
}

/// Bounds the memory for failures that differ in every attempt.
const MAX_FAILURES: usize = 50;

const LONGEST: Duration = Duration::from_secs(1);

/// How often a lasting failure is logged again.
const REMINDER: Duration = Duration::from_secs(600);

impl Backoff {
    pub(crate) fn next(&mut self) -> Duration {
        let delays = self.delays.get_or_insert_with(|| {
            ExponentialBuilder::default()
                .with_min_delay(Duration::from_millis(50))
                .with_max_delay(LONGEST)
                .with_jitter()
                .without_max_times()
                .build()
        });
        // jitter can double a delay
        delays.next().unwrap_or(LONGEST).min(LONGEST)
    }

    /// Forgets all failures after a success.
    pub(crate) fn reset(&mut self) {
        self.delays = None;
        self.logged.clear();
    }

    /// Logs a failure once, and again after [`REMINDER`] or if the log has reported success since (`reported_ok`). Returns
    /// whether it is a repetition.
    pub(crate) fn log(&mut self, failure: &Transient, reported_ok: bool) -> bool {
        if self.logged.len() >= MAX_FAILURES {
            self.logged.clear();
        }
        let cause = (failure.peer, cause(&failure.what));
        let last = self.logged.get(&cause);
        let again = last.is_some();
        if !reported_ok && last.is_some_and(|last| last.elapsed() < REMINDER) {
            tracing::debug!(peer = failure.peer.label(), reason = failure.what, "still failing");
            return again;
        }
        self.logged.insert(cause, Instant::now());
        let (peer, reason) = (failure.peer.label(), &failure.what);
        match &failure.refusal {
            Some(refusal) => {
                tracing::warn!(peer, code = %refusal.code, reason, "refused; retrying until the cause is corrected");
            }
            None => {
                tracing::warn!(peer, code = %failure.code(), reason, "connection failed; retrying until it works")
            }
        }
        again
    }
}

/// A failure without the digits in quoted names: Postgres names temporary files after process ids.
fn cause(what: &str) -> String {
    let mut quoted = false;
    let stable = what.chars().filter(|char| {
        quoted ^= *char == '"';
        !(quoted && char.is_ascii_digit())
    });
    stable.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_a_bound_until_a_reset() {
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
