//! One table of what an error of Kafka's means: try again, or tell a person what to change.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::error::{Definite, Error, Exit, Peer};
use crate::unsendable::Reason;

/// What to do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrorPolicy {
    /// It may pass: rebuild the producer and send again.
    Again,
    /// The same record, or the same request, will be refused again until somebody does this.
    Refused(&'static str),
    /// So will every other one, until somebody does this. Of a right that was taken away, and may be given back.
    Denied(&'static str),
    /// Not a verdict on this record: it was thrown out because of another one, or by us.
    Consequence,
}

/// What to do where a right on topics is missing.
pub(super) const MAY_NOT_WRITE: &str = "Grant the router's principal WRITE and DESCRIBE on the topic: `outbox-router init \
     --print-acls` prints all that it needs";

/// What to do where another request was denied.
const MAY_NOT: &str = "Grant the router's principal the right to do so: `outbox-router init --print-acls` prints all that it needs";

/// The verdict on a delivery report or an answer to an administrative request.
pub(super) fn verdict(code: Code) -> ErrorPolicy {
    match code {
        Code::PurgeQueue | Code::PurgeInflight | Code::GaplessGuarantee | Code::Fatal => {
            ErrorPolicy::Consequence
        }
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            ErrorPolicy::Refused("Raise the topic's max.message.bytes (or the broker's message.max.bytes)")
        }
        Code::InvalidRecord => ErrorPolicy::Refused(
            "The broker refuses the record as such; a compacted topic, for one, takes no record without a key \
             (NULL aggregate_id)",
        ),
        Code::InvalidTimestamp => ErrorPolicy::Refused(
            "The timestamp is outside of the topic's message.timestamp.before.max.ms or \
             message.timestamp.after.max.ms: set `[route] timestamp = \"commit\"`, or widen them",
        ),
        Code::TopicAuthorizationFailed => ErrorPolicy::Denied(MAY_NOT_WRITE),
        Code::ClusterAuthorizationFailed => ErrorPolicy::Denied(
            "Grant the router's principal CREATE on the topics, or create them yourself: \
             `outbox-router init --print-acls` prints all that it needs",
        ),
        Code::InvalidTopic => ErrorPolicy::Refused(
            "Correct the aggregate type, or `[route] topic`; a topic that differs from another only in `.` and `_` is \
             refused too",
        ),
        Code::PolicyViolation => {
            ErrorPolicy::Refused("The broker's policy forbids it: ask who runs the cluster")
        }
        Code::InvalidConfig => ErrorPolicy::Refused("Correct `[topics] config`"),
        Code::InvalidPartitions => ErrorPolicy::Refused("Correct `[topics] partitions`"),
        Code::UnsupportedCompressionType => {
            ErrorPolicy::Refused("Choose another compression.type under `[kafka]`")
        }
        _ => ErrorPolicy::Again,
    }
}

/// Why an event cannot be sent whose record a broker refuses with this.
pub(super) fn unsendable_as(code: Code) -> Reason {
    match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => Reason::TooLarge,
        _ => Reason::Refused,
    }
}

/// A request for `what` that a broker has answered with an error; `exit` is what a definite one means.
pub(super) fn answer(what: &str, code: Code, exit: Exit) -> Error {
    let what = format!("cannot {what}: {code}");
    let verdict = match (code, verdict(code)) {
        // nothing was to be written
        (Code::TopicAuthorizationFailed, ErrorPolicy::Denied(_)) => ErrorPolicy::Denied(MAY_NOT),
        (_, verdict) => verdict,
    };
    match verdict {
        ErrorPolicy::Refused(remedy) | ErrorPolicy::Denied(remedy) => {
            Error::Definite(Definite { exit, what, remedy: remedy.to_owned() })
        }
        ErrorPolicy::Again | ErrorPolicy::Consequence => Error::transient(Peer::Kafka, what),
    }
}

/// What is said of a right on a topic that was taken away.
pub(super) fn denied(code: Code, topic: &str, remedy: &str) -> String {
    format!("{code}: {topic}. {remedy}")
}

/// A request for `what` that failed, perhaps before any broker saw it.
pub(super) fn failed(what: &str, error: &KafkaError, exit: Exit) -> Error {
    match error.rdkafka_error_code() {
        Some(code) => answer(what, code, exit),
        None => Error::transient(Peer::Kafka, format!("cannot {what}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_pass_is_tried_again() {
        for code in [
            Code::NotEnoughReplicas,
            Code::LeaderNotAvailable,
            Code::UnknownTopicOrPartition,
            Code::OutOfOrderSequenceNumber,
            Code::KafkaStorageError,
            Code::Authentication,
            Code::InvalidReplicationFactor,
        ] {
            assert_eq!(verdict(code), ErrorPolicy::Again, "{code:?}");
        }
    }

    #[test]
    fn what_our_own_purge_throws_out_is_no_verdict() {
        assert_eq!(verdict(Code::PurgeQueue), ErrorPolicy::Consequence);
        assert_eq!(verdict(Code::GaplessGuarantee), ErrorPolicy::Consequence);
    }
}
