//! Why a position that travels in a transaction was not taken.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::error::RDKafkaErrorCode as Code;

use super::error_policy::{ErrorPolicy, MAY_NOT_WRITE, verdict};
use crate::error::{Error, Peer};

/// Why a transaction was not committed, or is not known to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotCommitted {
    /// What the brokers or the client said.
    pub reason: String,
    /// What a person can do; empty if it may pass by itself.
    pub remedy: &'static str,
}

impl From<NotCommitted> for Error {
    fn from(NotCommitted { reason, .. }: NotCommitted) -> Self {
        Error::transient(Peer::Kafka, format!("a transaction cannot be committed: {reason}"))
    }
}

/// Why the position in a transaction was not taken, by its delivery report.
#[derive(Debug, Clone, Default)]
pub(super) struct PositionReport(Arc<Mutex<Option<NotCommitted>>>);

impl PositionReport {
    pub(super) fn failed(&self, code: Code) {
        let remedy = match verdict(code) {
            ErrorPolicy::Denied(_) => MAY_NOT_WRITE,
            ErrorPolicy::Refused(remedy) => remedy,
            // because of something else, which is told by itself
            ErrorPolicy::Again | ErrorPolicy::Consequence => "",
        };
        let refused = NotCommitted { reason: format!("the position is not taken: {code}"), remedy };
        // what was told before is the cause
        self.lock().get_or_insert(refused);
    }

    /// A partition cannot be added to the transaction, so the position is thrown out of it too.
    pub(super) fn not_added(&self, why: NotCommitted) {
        *self.lock() = Some(why);
    }

    pub(super) fn refused(&self) -> Option<NotCommitted> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<NotCommitted>> {
        // a panic elsewhere leaves the reason as it is, which is a valid state
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
