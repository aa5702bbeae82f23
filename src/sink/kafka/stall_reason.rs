//! Why nothing is acknowledged although brokers answer: no leader, too few replicas in sync, a revoked privilege.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The reason of a stall, if there is one. It outlives sessions, because the next one may hit the same.
#[derive(Debug, Default)]
pub(super) struct StallReason {
    present: AtomicBool,
    current: Mutex<Option<Current>>,
}

/// The reason if a connected broker does not answer. librdkafka reports brokers that are not connected.
pub(super) const NO_ANSWER: &str =
    "a broker does not answer in time: it hangs, or the network drops or delays what is sent to it";

#[derive(Debug, PartialEq, Eq)]
struct Current {
    kind: Kind,
    reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The brokers gave the reason.
    Explained,
    /// A transaction was too large for the brokers' rate.
    TimedOut,
    /// A broker does not answer.
    NoAnswer,
    /// The brokers acknowledge nothing, for an unknown reason.
    Silence,
}

impl StallReason {
    /// Records a reason that the brokers gave. Each reason is logged once.
    pub(super) fn set(&self, reason: String) {
        self.set_kind(Kind::Explained, reason);
    }

    /// Records that a transaction timed out.
    pub(super) fn set_timed_out(&self, reason: String) {
        self.set_kind(Kind::TimedOut, reason);
    }

    /// Records that a broker does not answer, unless the brokers gave a reason before.
    pub(super) fn set_no_answer(&self) {
        if !self.is_explained() {
            self.set_kind(Kind::NoAnswer, NO_ANSWER.to_owned());
        }
    }

    /// Records that the brokers answer but acknowledge nothing. A timed-out transaction says more, and so does a broker
    /// that did not answer: the answer may come from another.
    pub(super) fn set_silence(&self, reason: String) {
        if !matches!(self.kind(), Some(Kind::TimedOut | Kind::NoAnswer)) {
            self.set_kind(Kind::Silence, reason);
        }
    }

    fn set_kind(&self, kind: Kind, reason: String) {
        let what = match kind {
            Kind::TimedOut => "a transaction timed out; its events are sent again",
            Kind::Explained | Kind::NoAnswer | Kind::Silence => {
                "nothing is acknowledged; events wait in Postgres"
            }
        };
        let mut current = self.lock();
        let set = Current { kind, reason };
        if current.as_ref() != Some(&set) {
            tracing::warn!(peer = "kafka", reason = set.reason, "{what}");
            *current = Some(set);
        }
        self.present.store(true, Ordering::Relaxed);
    }

    /// Events are acknowledged again.
    pub(super) fn clear(&self) {
        if self.present.swap(false, Ordering::Relaxed) {
            *self.lock() = None;
            tracing::info!(peer = "kafka", "events are acknowledged again");
        }
    }

    /// The current reason.
    pub(super) fn reason(&self) -> Option<String> {
        let present = self.present.load(Ordering::Relaxed);
        present.then(|| self.lock().as_ref().map(|current| current.reason.clone())).flatten()
    }

    /// Whether the brokers gave the reason.
    pub(super) fn is_explained(&self) -> bool {
        self.kind() == Some(Kind::Explained)
    }

    fn kind(&self) -> Option<Kind> {
        self.lock().as_ref().map(|current| current.kind)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Current>> {
        // a panic elsewhere leaves the reason as it is, which is a valid state
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_does_not_replace_a_better_reason() {
        let stall_reason = StallReason::default();
        stall_reason.set_silence("silent".to_owned());
        assert_eq!((stall_reason.reason().as_deref(), stall_reason.is_explained()), (Some("silent"), false));
        stall_reason.set_no_answer();
        stall_reason.set_silence("silent".to_owned());
        assert_eq!((stall_reason.reason().as_deref(), stall_reason.is_explained()), (Some(NO_ANSWER), false));
        stall_reason.set_timed_out("too large".to_owned());
        stall_reason.set_silence("silent".to_owned());
        assert_eq!(
            (stall_reason.reason().as_deref(), stall_reason.is_explained()),
            (Some("too large"), false)
        );
        stall_reason.set("no leader".to_owned());
        stall_reason.set_no_answer();
        assert_eq!(
            (stall_reason.reason().as_deref(), stall_reason.is_explained()),
            (Some("no leader"), true)
        );
        stall_reason.clear();
        assert_eq!((stall_reason.reason(), stall_reason.is_explained()), (None, false));
    }
}
