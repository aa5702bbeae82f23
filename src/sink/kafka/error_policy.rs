//! One table for the meaning of Kafka's error codes: retry, or tell a person what to change.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use super::acls::MissingRight;
use crate::error::{Definite, Error, ErrorCode, Exit, Peer, Transient};
use crate::unsendable::Reason;

/// What to do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrorPolicy {
    /// It may be temporary: rebuild the producer and send again.
    Retry,
    /// The same record or request will be refused until somebody follows this remedy.
    Refused(&'static str),
    /// A missing right: every such request will be refused until somebody grants it.
    Denied,
    /// Not about this record: it failed because of another, or was purged by us.
    Consequence,
}

/// The remedy for a denied request that is not about a topic.
const MAY_NOT: &str = "Grant the router's principal the right to do so: `outbox-router init --print-acls` prints all that it needs";

/// The policy for the error of a delivery report or an administrative request.
pub(super) fn error_policy(code: Code) -> ErrorPolicy {
    match code {
        Code::PurgeQueue | Code::PurgeInflight | Code::GaplessGuarantee | Code::Fatal => {
            ErrorPolicy::Consequence
        }
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            ErrorPolicy::Refused("Raise the topic's max.message.bytes (or the broker's message.max.bytes)")
        }
        Code::InvalidRecord => ErrorPolicy::Refused(
            "A compacted topic accepts no record without a key: if the aggregate id is NULL, take compact out of the topic's cleanup.policy. \
             The broker's log says why it refuses other records",
        ),
        Code::InvalidTimestamp => ErrorPolicy::Refused(
            "The record's timestamp is outside of the topic's message.timestamp.before.max.ms or \
             message.timestamp.after.max.ms. The router replaces such a timestamp if it may read these settings: grant its \
             principal DESCRIBE_CONFIGS on the topic (`outbox-router init --print-acls` prints all that it needs) and start \
             it again, set the clocks of router and brokers right, or widen the settings",
        ),
        Code::TopicAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed => ErrorPolicy::Denied,
        Code::InvalidTopic => ErrorPolicy::Refused(
            "Correct the aggregate type, or `[route] topic`; a topic that differs from another only in `.` and `_` is \
             refused too",
        ),
        Code::PolicyViolation => {
            ErrorPolicy::Refused("Change `[topics]` to what the cluster's policy allows")
        }
        Code::InvalidConfig => ErrorPolicy::Refused("Correct `[topics] config`"),
        Code::InvalidPartitions => ErrorPolicy::Refused("Correct `[topics] partitions`"),
        Code::UnsupportedCompressionType => {
            ErrorPolicy::Refused("Choose another compression.type under `[kafka]`")
        }
        _ => ErrorPolicy::Retry,
    }
}

/// The error in words, with the name that librdkafka has for it.
pub(super) fn in_words(code: Code) -> String {
    let words = match code {
        Code::UnknownPartition | Code::UnknownTopic | Code::UnknownTopicOrPartition => {
            "the topic was deleted, or lacks the partition"
        }
        Code::NotEnoughReplicas | Code::NotEnoughReplicasAfterAppend => {
            "fewer replicas are in sync than min.insync.replicas"
        }
        Code::LeaderNotAvailable | Code::NotLeaderForPartition => "the partition has no leader at the moment",
        Code::OutOfOrderSequenceNumber | Code::UnknownProducerId => {
            "the broker does not have the record before this one"
        }
        Code::KafkaStorageError => "the broker cannot use its disk",
        Code::OperationTimedOut | Code::RequestTimedOut | Code::MessageTimedOut => {
            "the brokers did not answer in time"
        }
        Code::BrokerTransportFailure | Code::AllBrokersDown => "the connection to the brokers was lost",
        _ => return code.to_string(),
    };
    format!("{words}: {code}")
}

/// The reason why an event cannot be sent if a broker refuses its record with this code.
pub(super) fn unsendable_reason(code: Code) -> Reason {
    match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => Reason::TooLarge,
        _ => Reason::Refused,
    }
}

/// The error if a broker answers a request to do `what` with this code. `exit` is the exit code of a definite one.
pub(super) fn error_of_code(what: &str, code: Code, exit: Exit) -> Error {
    let what = format!("cannot {what}: {}", in_words(code));
    let remedy = match error_policy(code) {
        ErrorPolicy::Refused(remedy) => remedy,
        ErrorPolicy::Denied => MAY_NOT,
        ErrorPolicy::Retry | ErrorPolicy::Consequence => return Error::transient(Peer::Kafka, what),
    };
    let code = ErrorCode::KafkaRefused;
    Definite { code, exit, what, events: code.into(), remedy: remedy.into() }.into()
}

/// The same for a request that needs a right, which is `missing` if that is the reason.
pub(super) fn error_of_request(
    what: &str,
    code: Code,
    exit: Exit,
    missing: impl FnOnce() -> MissingRight,
) -> Error {
    match (error_of_code(what, code, exit), error_policy(code)) {
        (Error::Definite(error), ErrorPolicy::Denied) => {
            let missing = missing();
            let what = format!("{}: {}", error.what, missing.what());
            Definite { what, remedy: missing.remedy.into(), ..error }.into()
        }
        (error, _) => error,
    }
}

/// The length of what is quoted of a broker's words, in characters.
const QUOTED: usize = 240;

/// A broker's words as part of a sentence.
pub(super) fn quoted(words: &str) -> String {
    let line = words.split_whitespace().collect::<Vec<_>>().join(" ");
    let line: String = line.chars().filter(|c| !c.is_control()).collect();
    match line.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}...", line.get(..end).unwrap_or_default()),
        None => line.trim_end_matches('.').to_owned(),
    }
}

/// The error with what the broker says about it.
pub(super) fn with_words(error: Error, words: Option<&str>) -> Error {
    let Some(words) = words.map(quoted).filter(|words| !words.is_empty()) else { return error };
    match error {
        Error::Definite(error) => Definite { what: format!("{}: {words}", error.what), ..error }.into(),
        Error::Transient(error) => Transient { what: format!("{}: {words}", error.what), ..error }.into(),
    }
}

/// The error if a request to do `what` fails, perhaps without reaching a broker.
pub(super) fn error_of_kafka(what: &str, error: &KafkaError, exit: Exit) -> Error {
    match error.rdkafka_error_code() {
        Some(code) => error_of_code(what, code, exit),
        None => Error::transient(Peer::Kafka, format!("cannot {what}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_errors_are_retried() {
        for code in [
            Code::NotEnoughReplicas,
            Code::LeaderNotAvailable,
            Code::UnknownTopicOrPartition,
            Code::OutOfOrderSequenceNumber,
            Code::KafkaStorageError,
            Code::Authentication,
            Code::InvalidReplicationFactor,
        ] {
            assert_eq!(error_policy(code), ErrorPolicy::Retry, "{code:?}");
        }
    }

    #[test]
    fn temporary_errors_are_explained() {
        let gone = in_words(Code::UnknownPartition);
        assert_eq!(
            gone,
            "the topic was deleted, or lacks the partition: UnknownPartition (Local: Unknown partition)"
        );
        assert_eq!(in_words(Code::PolicyViolation), Code::PolicyViolation.to_string());
    }

    #[test]
    fn a_brokers_words_are_one_short_line() {
        for (words, expected) in [
            ("Segments of at least 50 MB.", "Segments of at least 50 MB"),
            (" a\n\tb\u{7}c ", "a bc"),
            ("", ""),
        ] {
            assert_eq!(quoted(words), expected);
        }
        assert_eq!(quoted(&"é".repeat(1_000)), format!("{}...", "é".repeat(QUOTED)));
        let error = with_words(error_of_code("create t", Code::PolicyViolation, Exit::Refused), Some("no."));
        assert!(error.to_string().contains("(Broker: Policy violation): no. "), "{error}");
    }

    #[test]
    fn purged_records_are_a_consequence() {
        assert_eq!(error_policy(Code::PurgeQueue), ErrorPolicy::Consequence);
        assert_eq!(error_policy(Code::GaplessGuarantee), ErrorPolicy::Consequence);
    }
}
