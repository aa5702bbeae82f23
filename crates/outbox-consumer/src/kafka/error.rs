//! Why the loop stopped.

use std::error::Error;
use std::fmt;

use rdkafka::error::KafkaError;
use tokio_postgres::error::SqlState;

use super::event::Event;
use crate::session::BoxError;

/// Why the loop stopped. What was not committed to Postgres arrives again after the next start.
#[derive(Debug)]
pub struct ConsumeError {
    what: String,
    source: Option<BoxError>,
}

impl ConsumeError {
    fn new(what: String, source: impl Into<BoxError>) -> Self {
        ConsumeError { what, source: Some(source.into()) }
    }

    pub(super) fn kafka(what: &str, error: KafkaError) -> Self {
        Self::new(format!("{what}: correct the configuration of the consumer"), error)
    }

    pub(super) fn no_id(place: &str, header: &str) -> Self {
        let what = format!(
            "{place} has no header `{header}` with an id: set the header's name with id_header, or commit a later offset to skip it"
        );
        ConsumeError { what, source: None }
    }

    pub(super) fn handler(event: &Event, attempts: u32, error: BoxError) -> Self {
        let what = format!(
            "the handler failed {attempts} times for {}: correct it, or park such events",
            place(event)
        );
        Self::new(what, error)
    }

    pub(super) fn swallowed(event: &Event) -> Self {
        let what = format!(
            "a statement failed in the handler of {}, and the handler returned no error: return the error of each statement, or \
             use a savepoint",
            place(event)
        );
        ConsumeError { what, source: None }
    }

    pub(super) fn ended(event: &Event) -> Self {
        let what = format!(
            "the handler of {} has rolled the transaction back, so what later events of its batch have done may be committed, and happen \
             again: return an error instead, or use a savepoint",
            place(event)
        );
        ConsumeError { what, source: None }
    }

    /// The claims of the `unhandled` events were committed, too.
    pub(super) fn committed(batch: &str, unhandled: &[String]) -> Self {
        let cure = match unhandled {
            [] => "correct it; all events were handled, and none is lost".to_owned(),
            ids => format!(
                "correct it, and run outbox-router inbox clear for the events that were not handled: {}",
                ids.join(" ")
            ),
        };
        ConsumeError {
            what: format!("a handler has committed the transaction of {batch}: {cure}"),
            source: None,
        }
    }

    pub(super) fn committed_parked(event: &Event) -> Self {
        let what = format!(
            "the handler of the parked {} has committed the transaction, which does not end the event: correct it, and end the event with \
             outbox-router inbox discard",
            place(event)
        );
        ConsumeError { what, source: None }
    }

    pub(super) fn session(error: BoxError) -> Self {
        let what = "Postgres refuses the session: correct the user, the password or the name of the database"
            .to_owned();
        Self::new(what, error)
    }

    pub(super) fn panicked() -> Self {
        let what =
            "the handler panicked: correct what its message in the log of the process names".to_owned();
        ConsumeError { what, source: None }
    }

    pub(super) fn commit(batch: &[Event], error: impl Into<BoxError>) -> Self {
        let what = format!(
            "the transaction of {} was refused at its commit, and which of its events caused it is not known: correct the deferred \
             constraint or trigger that the cause names",
            range(batch)
        );
        Self::new(what, error)
    }

    /// The inbox refuses `what`, an event or a batch.
    pub(super) fn database(what: &str, error: tokio_postgres::Error) -> Self {
        let missing = [
            SqlState::UNDEFINED_FUNCTION,
            SqlState::UNDEFINED_TABLE,
            SqlState::INVALID_SCHEMA_NAME,
            SqlState::INSUFFICIENT_PRIVILEGE,
        ];
        let cure = match error.code() {
            Some(code) if missing.contains(code) => {
                "run outbox-router init --consumer with the role of this consumer"
            }
            _ => "correct the cause, or commit a later offset to skip it",
        };
        Self::new(format!("the inbox refused {what}: {cure}"), error)
    }
}

impl fmt::Display for ConsumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Error for ConsumeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

/// Which event it is, without its content.
pub(super) fn place(event: &Event) -> String {
    format!("event {} at offset {} of {}-{}", event.id, event.offset, event.topic, event.partition)
}

pub(super) fn range(batch: &[Event]) -> String {
    match batch {
        [] => "no events".to_owned(),
        [one] => place(one),
        [first, .., last] => {
            format!("offsets {} to {} of {}-{}", first.offset, last.offset, first.topic, first.partition)
        }
    }
}
