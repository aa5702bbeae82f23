//! Why a check of the watch gave no report, and what follows.

use pg_logical::server_error::is_unavailable;
use pg_logical::{QueryError, lock_wait};

use tokio::time::timeout;

use super::CHECK_TIMEOUT;
use crate::advice::LOCK_REMEDY;
use crate::error::{Error, Peer, Transient};

/// Why a check gave no report.
pub(super) enum CheckFailure {
    /// It failed; the next one may succeed.
    Failed(Error),
    /// Another session holds a lock; with a remedy, if it is known which one.
    Locked(String, Option<&'static str>),
    /// The session is over.
    Ended(Error),
}

impl From<QueryError> for CheckFailure {
    fn from(error: QueryError) -> Self {
        if lock_wait::is_lock_timeout(&error) {
            let named = error.server_error().is_some_and(|error| error.detail.is_some());
            return CheckFailure::Locked(error.to_string(), named.then_some(LOCK_REMEDY));
        }
        let unavailable = error.code().is_some_and(is_unavailable);
        Error::from(Transient::of_postgres(error.to_string(), unavailable)).into()
    }
}

impl From<Error> for CheckFailure {
    fn from(error: Error) -> Self {
        match error {
            Error::Definite(_) => CheckFailure::Ended(error),
            // A server that shuts down waits for its walsenders, and they wait for the router, so the router has to
            // disconnect first.
            Error::Transient(Transient { unavailable: true, what, .. }) => CheckFailure::Ended(
                Error::transient(Peer::Postgres, format!("the server is shutting down: {what}")),
            ),
            Error::Transient(_) => CheckFailure::Failed(error),
        }
    }
}

/// Ends a check that takes longer than [`CHECK_TIMEOUT`].
pub(super) async fn within_timeout<T, E: Into<CheckFailure>>(
    check: impl Future<Output = Result<T, E>>,
) -> Result<T, CheckFailure> {
    match timeout(CHECK_TIMEOUT, check).await {
        Ok(result) => result.map_err(Into::into),
        Err(_) => Err(CheckFailure::Failed(Error::transient(
            Peer::Postgres,
            "the server did not answer a query of the catalogues",
        ))),
    }
}
