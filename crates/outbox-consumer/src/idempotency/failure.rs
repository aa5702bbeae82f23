//! What an error of the store means for the request.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::problem::Problem;
use crate::session::{find_source, is_conflict, lost_connection};

/// Why a request could not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// There is no store: with `fail_open` the handler runs.
    NoStore,
    /// Another transaction was in the way.
    Conflict,
    /// Any other reason: the store refuses, or does not answer in time.
    Refused,
}

impl Failure {
    /// Of an error of a statement.
    pub(super) fn of(error: &Error) -> Self {
        let Some(code) = error.code() else {
            return if lost_connection(error) { Failure::NoStore } else { Failure::Refused };
        };
        let gone = [
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::TOO_MANY_CONNECTIONS,
            SqlState::READ_ONLY_SQL_TRANSACTION,
        ];
        if gone.contains(code) || code.code().starts_with("08") {
            Failure::NoStore
        } else if is_conflict(code) {
            Failure::Conflict
        } else {
            Failure::Refused
        }
    }

    /// Of an error of a pool or connection: it tells by its sources whether there is a store.
    pub(super) fn to_connect(error: &(dyn StdError + 'static)) -> Self {
        find_source(error, |source| match source.downcast_ref::<Error>() {
            Some(error) => Some(Failure::of(error)),
            None => source.is::<io::Error>().then_some(Failure::NoStore),
        })
        .unwrap_or(Failure::Refused)
    }

    /// The answer, with fail_open off.
    pub(super) fn problem(self) -> Problem {
        match self {
            Failure::Conflict => Problem::in_progress(Duration::from_secs(1)),
            Failure::NoStore | Failure::Refused => {
                Problem::unavailable("The store of the idempotency keys is not available")
            }
        }
    }
}
