//! Why a worker ends, and which errors end it.

use pg_logical::QueryError;
use pg_logical::server_error::ErrorKind;
use pg_logical::session::Row;

use crate::advice::OrRemedy;
use crate::error::{Effect, Error, ErrorCode, Peer};

/// Why the worker ends.
pub(super) enum Exit {
    /// The router has closed its end.
    Closed,
    Failed(Error),
}

impl From<QueryError> for Exit {
    fn from(error: QueryError) -> Self {
        Exit::Failed(match error {
            error if is_refused_by_table(&error) => error.or_remedy(ALTER_TABLE),
            // the session cannot tell whether the server is shutting down or something has changed; the next one can
            QueryError::Server { .. } => changed(error.to_string()),
            QueryError::Connection(error) => error.into(),
        })
    }
}

/// What to do if a column, a constraint or a trigger refuses what the router writes.
const ALTER_TABLE: &str = "Change the column, constraint or trigger of the outbox that refuses it; the router writes only its own columns";

/// The next session would be refused, too.
fn is_refused_by_table(error: &QueryError) -> bool {
    error
        .server_error()
        .is_some_and(|error| error.kind() == ErrorKind::Definite && !error.code.code().starts_with("42"))
}

/// The next session finds out whether the table can still be polled.
pub(super) fn changed(what: impl Into<String>) -> Error {
    Error::transient(Peer::Postgres, what)
}

/// Rows were sent and cannot be marked: whoever claims them sends them again.
pub(super) fn not_marked(error: QueryError) -> Exit {
    match is_refused_by_table(&error) {
        true => unmarked(&error.to_string()),
        false => error.into(),
    }
}

pub(super) fn unmarked(why: &str) -> Exit {
    let what = format!("rows cannot be marked after they were sent: {why}");
    let error = Error::not_safe(ErrorCode::PostgresRefused, what, ALTER_TABLE);
    Exit::Failed(error.meaning(Effect::Doubled, "the rows that were not marked"))
}

/// The first column of an answer is the number of claims of this router that were found.
pub(super) fn verify_ownership(answer: Option<&Row>) -> Result<(), Exit> {
    match answer.and_then(|row| row.get(0)) {
        Some("0") => Err(Exit::Failed(Error::transient(
            Peer::Postgres,
            "the lease of claimed rows has expired, and another router has taken them over",
        ))),
        _ => Ok(()),
    }
}
