//! Why an event cannot be routed.

use std::fmt;

use connect_values::Unexpandable;

use crate::contracts::Violation;
use crate::topic_name::TopicNameError;
use crate::unsendable::{Reason, Unsendable};

/// The part of the record for which a value is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose {
    /// The topic's name.
    Topic,
    /// The partition's number.
    Partition,
    /// The record key.
    Key,
    /// The record value, built from the payload.
    Value,
    /// The header of this name.
    Header(String),
    /// The envelope's member of this name.
    Member(String),
    /// The CloudEvents attribute of this name.
    Attribute(String),
    /// The condition of a rule.
    Condition,
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Purpose::Topic => f.write_str("the topic"),
            Purpose::Partition => f.write_str("the partition"),
            Purpose::Key => f.write_str("the key"),
            Purpose::Value => f.write_str("the value"),
            Purpose::Header(name) => write!(f, "the header `{name}`"),
            Purpose::Member(name) => write!(f, "the envelope's member `{name}`"),
            Purpose::Attribute(name) => write!(f, "the CloudEvents attribute `{name}`"),
            Purpose::Condition => f.write_str("the condition of a rule"),
        }
    }
}

/// Why an event cannot be routed. It quotes nothing from payloads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unroutable {
    /// The template's result is not a valid topic name.
    #[error("the topic name \"{name}\" is not valid: {error}")]
    Topic {
        /// The template's result, with control characters escaped.
        name: String,
        /// Why Kafka would refuse it.
        error: TopicNameError,
    },
    /// The topic is not one of those that may be written to.
    #[error("the topic \"{name}\" is not in `[topics] allow`")]
    NotAllowed {
        /// The template's result.
        name: String,
    },
    /// A required value is missing or not usable.
    #[error("{purpose} cannot be built: `{name}` {reason}")]
    NoValue {
        /// What needs it.
        purpose: Purpose,
        /// The column's name in the configuration.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The template's result is not a partition number.
    #[error("the partition \"{0}\" is not a number from 0 to 2147483647")]
    Partition(String),
    /// A CloudEvents attribute is empty although it must not be, or contains a forbidden character.
    #[error("the CloudEvents attribute `{name}` {reason}")]
    Attribute {
        /// The attribute's name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The `headers` column cannot be turned into headers. The text of the error does not quote it.
    #[error("the headers column is not a JSON object, or a name in it holds a zero character (at byte {at})")]
    Headers {
        /// Where parsing stopped.
        at: usize,
    },
    /// The payload is included in JSON but is not JSON. The text of the error does not quote it.
    #[error("the column {column:?} is put into a JSON value and is not JSON (at byte {at})")]
    NotJson {
        /// The payload's column.
        column: String,
        /// Where parsing stopped.
        at: usize,
    },
    /// The payload is JSON that Debezium's expansion fails on. The text of the error does not quote it.
    #[error("the column {column:?} cannot be expanded (`[route] payload_json = \"expand\"`): {error}")]
    NotExpanded {
        /// The payload's column.
        column: String,
        /// Why the payload cannot be expanded.
        error: Unexpandable,
    },
    /// A `bytea` payload that is not in hexadecimal.
    #[error("the payload is a bytea that the server did not print in hexadecimal (bytea_output)")]
    Bytea,
    /// The payload violates its contract, and `[contracts] on_violation` is `"reject"`.
    #[error("{0}")]
    Contract(Violation),
    /// No rule matches, and `[route] unmatched` is `"stop"`.
    #[error("no rule of `[[route.rules]]` matches it, and `[route] unmatched` is \"stop\"")]
    Unmatched,
    /// A rule's regular expression took too many steps.
    #[error("the regular expression {pattern} of a rule takes too many steps for `{name}`")]
    BacktrackLimitExceeded {
        /// The expression as it is in the configuration.
        pattern: String,
        /// The name of the value that it was matched against.
        name: String,
    },
}

impl From<Unroutable> for Unsendable {
    fn from(error: Unroutable) -> Self {
        let reason =
            if matches!(error, Unroutable::Contract(_)) { Reason::Contract } else { Reason::Unroutable };
        Unsendable::new(reason, error.to_string(), error.remedy())
    }
}

impl Unroutable {
    /// What to do so that the event can be sent.
    pub fn remedy(&self) -> &'static str {
        match self {
            Unroutable::NoValue { purpose: Purpose::Header(_), .. } => {
                "Correct the application that writes such rows, or give the value a default under `[route.headers]`"
            }
            Unroutable::NoValue { purpose: Purpose::Key, .. } => {
                "Cast the column to text in the table, or set `[route] text = \"postgres\"`, which writes other keys"
            }
            Unroutable::Headers { .. } => {
                "Correct the application that writes such rows; `headers = false` in `[outbox] columns` ignores that column, for \
                 this event and for others"
            }
            Unroutable::NoValue { purpose: Purpose::Condition, .. } => {
                "Correct the application that writes such rows; this one is in the log already, so correct the rule under `[[route.rules]]`"
            }
            Unroutable::NoValue { purpose: Purpose::Member(_), .. } => {
                "Correct the application that writes such rows, or give the value a default under `[route.envelope]`"
            }
            Unroutable::NoValue { purpose: Purpose::Attribute(_), .. } | Unroutable::Attribute { .. } => {
                "Correct the application that writes such rows, or set the attribute under `[route.cloudevents]`"
            }
            Unroutable::NoValue { purpose: Purpose::Partition, .. } | Unroutable::Partition(_) => {
                "Correct the application that writes such rows; this one is in the log already, so correct `[route] partition` or the \
                 rule that sets it"
            }
            Unroutable::NotAllowed { .. } => {
                "Add it to `[topics] allow`, or correct the topic in `[route]` and its rules"
            }
            Unroutable::NotJson { .. } | Unroutable::NotExpanded { .. } => {
                "Correct the application that writes such rows; this one is in the log already, so set `[route] payload_json = \"string\"`"
            }
            Unroutable::Contract(_) => {
                "Correct the application that writes such events; for this one, which is in the log already, correct the contract, or set \
                 on_violation = \"warn\" under [contracts]"
            }
            Unroutable::Unmatched => "Add a rule for it, or set `[route] unmatched` to \"route\" or \"drop\"",
            Unroutable::BacktrackLimitExceeded { .. } => {
                "Write the expression so that it takes fewer steps, for instance without nested repetition"
            }
            _ => {
                "Correct the application that writes such rows; this one is in the log already, so set `[route] topic` or \
                 `[outbox] columns` so that it can be sent"
            }
        }
    }
}
