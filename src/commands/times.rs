//! Times on the command line, by the server's clock.

use pg_logical::QueryError;
use pg_logical::quoting::literal;
use pg_logical::session::{Row, Session};

use crate::error::{Error, ErrorCode};
use crate::postgres::rows::{micros_of, read_only};

/// The time of the server, in microseconds since 1970.
pub(in crate::commands) async fn now(session: &mut Session) -> Result<i64, Error> {
    let sql = format!("SELECT {}", micros_of("clock_timestamp()"));
    let now = session.query_one(&read_only(&sql)).await?;
    Ok(now.and_then(|now| now.parse().ok()).unwrap_or_default())
}

/// A time that Postgres reads, in UTC, or how long ago.
pub(in crate::commands) async fn moment(
    session: &mut Session,
    option: &str,
    text: &str,
    now: i64,
) -> Result<i64, Error> {
    if let Some(ago) = crate::config::parse_duration(text) {
        return Ok(now.saturating_sub(i64::try_from(ago.as_micros()).unwrap_or(i64::MAX)));
    }
    let sql = format!("SELECT {}", micros_of(&format!("{}::timestamptz", literal(text))));
    match checked(session, &sql).await? {
        Some(rows) => Ok(rows.first().and_then(|row| row.get(0)?.parse().ok()).unwrap_or_default()),
        None => Err(Error::usage(
            ErrorCode::CommandLine,
            format!("{option} {text:?} is not a time"),
            "Write a time in UTC such as \"2026-11-21 14:05\", or how long ago, such as 2h",
        )),
    }
}

/// The rows of a query; `None` if a value in it is invalid.
pub(in crate::commands) async fn checked(
    session: &mut Session,
    sql: &str,
) -> Result<Option<Vec<Row>>, QueryError> {
    let answer = session.query(&read_only(sql)).await;
    if let Err(QueryError::Server { .. }) = &answer {
        session.query("ROLLBACK").await?;
    }
    match answer {
        Ok(rows) => Ok(Some(rows)),
        // infinity is no number
        Err(error)
            if error.code().is_some_and(|code| code.code().starts_with("22") || code.code() == "0A000") =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
