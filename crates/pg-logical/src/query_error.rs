//! Why a query failed.

use tokio_postgres::error::SqlState;

use crate::error::{Error, Remedy};
use crate::server_error::ServerError;

/// Why a query failed: the server refused it, for callers that branch on the SQLSTATE, or the connection was lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The server refused.
    #[error("Postgres at {place}: {error}")]
    Server {
        /// Host and port, as [`SessionInfo::place`](crate::session::SessionInfo::place).
        place: String,
        /// Its message.
        error: Box<ServerError>,
    },
    /// The connection failed, or what arrived was invalid.
    #[error(transparent)]
    Connection(#[from] Error),
}

impl QueryError {
    /// The SQLSTATE, if the server refused.
    pub fn code(&self) -> Option<&SqlState> {
        self.server_error().map(|error| &error.code)
    }

    /// The server's error, if it refused.
    pub fn server_error(&self) -> Option<&ServerError> {
        match self {
            QueryError::Server { error, .. } => Some(error),
            QueryError::Connection(_) => None,
        }
    }
}

impl From<QueryError> for Error {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::Server { place, error } => {
                Error::of_server(&format!("Postgres at {place}"), *error, Remedy::FollowServerHint)
            }
            QueryError::Connection(error) => error,
        }
    }
}
