//! Why the checkpoint of a transaction was refused.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::error::RDKafkaErrorCode as Code;

use super::acls::MissingRight;
use super::error_policy::{ErrorPolicy, error_policy, in_words};
use crate::error::{Error, Peer};

/// Why a transaction was not committed, or may not have been.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotCommitted {
    /// The error of the brokers or the client.
    pub reason: String,
    /// The remedy; empty if the cause may be temporary.
    pub remedy: String,
}

impl From<NotCommitted> for Error {
    fn from(NotCommitted { reason, .. }: NotCommitted) -> Self {
        Error::transient(Peer::Kafka, format!("a transaction cannot be committed: {reason}"))
    }
}

/// The reason why a transaction's checkpoint was refused, shared with librdkafka's thread.
#[derive(Debug, Clone, Default)]
pub(super) struct CheckpointFailure(Arc<Mutex<Option<NotCommitted>>>);

impl CheckpointFailure {
    /// `missing` is the right that is missing if that is the reason.
    pub(super) fn failed(&self, code: Code, missing: impl FnOnce() -> MissingRight) {
        let reason = format!("the position was refused: {}", in_words(code));
        let refused = match error_policy(code) {
            ErrorPolicy::Denied => {
                let missing = missing();
                NotCommitted { reason: format!("{reason}: {}", missing.what()), remedy: missing.remedy }
            }
            ErrorPolicy::Refused(remedy) => NotCommitted { reason, remedy: remedy.to_owned() },
            // the consequence of another error, which is reported by itself
            ErrorPolicy::Retry | ErrorPolicy::Consequence => NotCommitted { reason, remedy: String::new() },
        };
        // an earlier reason is the cause
        self.lock().get_or_insert(refused);
    }

    /// A partition cannot be added to the transaction, which purges the checkpoint too.
    pub(super) fn partition_not_added(&self, why: NotCommitted) {
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
