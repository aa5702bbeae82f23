//! Why an event cannot be sent: it cannot be routed, it violates its contract, its topic cannot be used, or it is refused. With
//! `policy = "park"` the event is parked; otherwise the router stops before it.

use crate::error::{Definite, ErrorCode, Remedy, Step};
use crate::shards::{self, Shard};

/// What tells the route that skips an event from the one that keeps it.
pub const WITHOUT_EVENT: &str = "To go on without this event and the rest of its transaction";

/// What tells the route that parks an event from the others.
const PARK: &str = "To park this event with the later ones of its aggregate, and send all others";

/// Adds parking as a way out to the error of a router that does not park, if it is about an event that can be parked.
/// `make_table` is the command that creates the table for it, and `shard` the router's.
pub fn with_parking(mut error: Definite, make_table: &str, shard: Option<Shard>) -> Definite {
    if Reason::ALL.iter().any(|reason| reason.code() == error.code) {
        error.remedy = error.remedy.or_before_last(
            PARK,
            [
                Step::new(
                    "In the configuration set [dead_letters] policy = \"park\", and create the table for parked events as an administrator \
                     (replace ADMINISTRATOR with that role's name)",
                )
                .typing(make_table),
                Step::new("Start the router").typing(format!("outbox-router run{}", shards::argument(shard))),
                Step::new("Look at parked events, and retry or discard them").typing("outbox-router dead-letters list"),
            ],
        );
    }
    error
}

/// Why an event cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsendable {
    /// The kind of reason.
    pub reason: Reason,
    /// What is wrong, as a sentence without a full stop.
    pub what: String,
    /// What to do about it; empty if it may pass by itself.
    pub remedy: String,
}

impl Unsendable {
    /// With the kind of reason, what is wrong, and what to do.
    pub fn new(reason: Reason, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Unsendable { reason, what: what.into(), remedy: remedy.into() }
    }

    /// What to do about it, or else to go on without it with the steps of `skip`.
    pub fn remedy_or(&self, skip: impl IntoIterator<Item = Step>) -> Remedy {
        let mend = Step::new(format!("{}. Then start the router again. Nothing was skipped", self.remedy));
        Remedy::steps([mend]).or(WITHOUT_EVENT, skip)
    }

    /// The text that is stored with a row that is polled.
    pub fn with_reason(&self) -> String {
        format!("{}: {}", self.reason.name(), self.detail())
    }

    /// The text that is stored with a dead letter.
    pub fn detail(&self) -> String {
        format!("{}. {}", self.what, self.remedy)
    }
}

/// The kind of reason, by which dead letters are selected and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Routing cannot turn it into a record.
    Unroutable,
    /// Its payload violates its contract.
    Contract,
    /// It is larger than the topic or the client accepts.
    TooLarge,
    /// Its topic cannot be used.
    Topic,
    /// The broker or the client refuses it.
    Refused,
    /// Nothing is wrong with it, but an earlier event of its aggregate is parked.
    Behind,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 6] = [
        Reason::Unroutable,
        Reason::Contract,
        Reason::TooLarge,
        Reason::Topic,
        Reason::Refused,
        Reason::Behind,
    ];

    /// The code of the error that stops the router before such an event.
    pub fn code(self) -> ErrorCode {
        match self {
            Reason::Unroutable | Reason::Behind => ErrorCode::EventUnroutable,
            Reason::Contract => ErrorCode::EventContract,
            Reason::TooLarge => ErrorCode::EventTooLarge,
            Reason::Topic => ErrorCode::EventTopic,
            Reason::Refused => ErrorCode::EventRefused,
        }
    }

    /// As the table, the metrics and the command line have it.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Unroutable => "unroutable",
            Reason::Contract => "contract",
            Reason::TooLarge => "too-large",
            Reason::Topic => "topic",
            Reason::Refused => "refused",
            Reason::Behind => "behind",
        }
    }

    /// The reason with this name. An unknown one, which a later version may have written, counts as `Refused`.
    pub fn of(name: &str) -> Reason {
        Reason::ALL.into_iter().find(|reason| reason.name() == name).unwrap_or(Reason::Refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for reason in Reason::ALL {
            assert_eq!(Reason::of(reason.name()), reason);
        }
        assert_eq!(Reason::of("new"), Reason::Refused);
    }
}
