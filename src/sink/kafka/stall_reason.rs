//! Why nothing is acknowledged although brokers answer: no leader, too few replicas in sync, a right taken away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What stands in the way, if anything does. It outlives a session, for each one may meet the same.
#[derive(Debug, Default)]
pub(super) struct Obstacle {
    there: AtomicBool,
    known: Mutex<Option<Known>>,
}

/// Said of a broker that is connected: of one that is not, librdkafka says so.
pub(super) const NO_ANSWER: &str =
    "a broker does not answer in time: it hangs, or the network drops or delays what is sent to it";

#[derive(Debug, PartialEq, Eq)]
struct Known {
    kind: Kind,
    reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The brokers have said why.
    Told,
    /// A transaction was too large for what the brokers take.
    TimedOut,
    /// A broker does not answer.
    NoAnswer,
    /// Nothing comes, and that is all that is known.
    Silence,
}

impl Obstacle {
    /// Told once for each reason.
    pub(super) fn met(&self, reason: String) {
        self.tell(Kind::Told, reason);
    }

    /// The same of a transaction that the brokers did not take in time.
    pub(super) fn timed_out(&self, reason: String) {
        self.tell(Kind::TimedOut, reason);
    }

    /// The same of a broker that does not answer. What the brokers have said before says more.
    pub(super) fn no_answer(&self) {
        if !self.is_told() {
            self.tell(Kind::NoAnswer, NO_ANSWER.to_owned());
        }
    }

    /// The same of brokers that answer and say nothing. What is known of a transaction that timed out says more, and so does a
    /// broker that did not answer: another may.
    pub(super) fn silence(&self, reason: String) {
        if !matches!(self.kind(), Some(Kind::TimedOut | Kind::NoAnswer)) {
            self.tell(Kind::Silence, reason);
        }
    }

    fn tell(&self, kind: Kind, reason: String) {
        let what = match kind {
            Kind::TimedOut => "a transaction timed out; its events are sent again",
            Kind::Told | Kind::NoAnswer | Kind::Silence => "nothing is acknowledged; events wait in Postgres",
        };
        let mut known = self.lock();
        let met = Known { kind, reason };
        if known.as_ref() != Some(&met) {
            tracing::warn!(peer = "kafka", reason = met.reason, "{what}");
            *known = Some(met);
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
        let there = self.there.load(Ordering::Relaxed);
        there.then(|| self.lock().as_ref().map(|known| known.reason.clone())).flatten()
    }

    /// Whether the brokers have said what it is.
    pub(super) fn is_told(&self) -> bool {
        self.kind() == Some(Kind::Told)
    }

    fn kind(&self) -> Option<Kind> {
        self.lock().as_ref().map(|known| known.kind)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Known>> {
        // a panic elsewhere leaves the reason as it is, which is a valid state
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_hides_nothing_that_says_more() {
        let obstacle = Obstacle::default();
        obstacle.silence("silent".to_owned());
        assert_eq!((obstacle.reason().as_deref(), obstacle.is_told()), (Some("silent"), false));
        obstacle.no_answer();
        obstacle.silence("silent".to_owned());
        assert_eq!((obstacle.reason().as_deref(), obstacle.is_told()), (Some(NO_ANSWER), false));
        obstacle.timed_out("too large".to_owned());
        obstacle.silence("silent".to_owned());
        assert_eq!((obstacle.reason().as_deref(), obstacle.is_told()), (Some("too large"), false));
        obstacle.met("no leader".to_owned());
        obstacle.no_answer();
        assert_eq!((obstacle.reason().as_deref(), obstacle.is_told()), (Some("no leader"), true));
        obstacle.gone();
        assert_eq!((obstacle.reason(), obstacle.is_told()), (None, false));
    }
}
