//! Calls of functions in the router's schema. They say themselves what is in the way, and what to do about it.

use pg_logical::QueryError;
use pg_logical::server_error::ServerError;
use pg_logical::session::{Row, Session};
use tokio_postgres::error::SqlState;

use super::rows::read_write;
use crate::advice::OrRemedy;
use crate::error::{Error, ErrorCode};

const REMEDY: &str = "Run `outbox-router init --role` with the router's role, which creates the functions and lets the role call them; or give \
                      --url of the role that ran init";

pub(super) fn number(row: Option<&Row>, column: usize) -> Option<i64> {
    row.and_then(|row| row.get(column)?.parse().ok())
}

pub(super) fn count(row: Option<&Row>, column: usize) -> u64 {
    number(row, column).and_then(|number| u64::try_from(number).ok()).unwrap_or(0)
}

pub(super) async fn call(session: &mut Session, sql: &str) -> Result<Vec<Row>, Error> {
    query(session, &read_write(sql)).await.map_err(refused)
}

/// Leaves no transaction behind.
pub(super) async fn query(session: &mut Session, sql: &str) -> Result<Vec<Row>, QueryError> {
    let answer = session.query(sql).await;
    if let Err(QueryError::Server { .. }) = &answer {
        // if that fails, the session has ended with the first error
        let _ = session.query("ROLLBACK").await;
    }
    answer
}

/// The error of a function, with its remedy.
pub fn refused(error: QueryError) -> Error {
    let code = match error.code().map(SqlState::code) {
        Some("OBR06") => ErrorCode::PruneImpossible,
        Some("OBR07") => ErrorCode::PruneRunning,
        Some("OBR08") => ErrorCode::PartitionsImpossible,
        // a privilege, or something that does not exist
        Some(code) if code.starts_with("42") || code == "3F000" => return error.or_remedy(REMEDY),
        _ => return error.or_remedy("Correct what the message names, and try again"),
    };
    match error.server_error() {
        Some(ServerError { message, hint, .. }) => {
            let remedy = hint.as_deref().map_or(REMEDY, |hint| hint.trim_end_matches('.'));
            Error::refused(code, message, remedy)
        }
        None => error.or_remedy(REMEDY),
    }
}
