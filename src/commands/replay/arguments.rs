//! What the arguments say, by the server's clock and types.

use pg_logical::QueryError;
use pg_logical::quoting::literal;
use pg_logical::session::{Row, Session};

use crate::advice::OrRemedy;
use crate::config::TableName;
use crate::error::{Error, ErrorCode};
use crate::postgres::rows::page::is_one_of;
use crate::postgres::rows::{micros_of, read_only};

/// What to do if the table cannot be read.
pub(super) fn readable(error: QueryError) -> Error {
    error.or_remedy("Give --url of a role that may read the outbox table, such as its owner")
}

/// The time of the server, in microseconds since 1970.
pub(super) async fn now(session: &mut Session) -> Result<i64, Error> {
    let sql = format!("SELECT {}", micros_of("clock_timestamp()"));
    let now = session.query_one(&read_only(&sql)).await?;
    Ok(now.and_then(|now| now.parse().ok()).unwrap_or_default())
}

/// A time that Postgres reads, in UTC, or how long ago.
pub(super) async fn moment(session: &mut Session, option: &str, text: &str, now: i64) -> Result<i64, Error> {
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
async fn checked(session: &mut Session, sql: &str) -> Result<Option<Vec<Row>>, Error> {
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
        Err(error) => Err(readable(error)),
    }
}

/// Refuses values that the column's type does not have.
pub(super) async fn verify(
    session: &mut Session,
    table: &TableName,
    column: &str,
    option: &str,
    values: &[String],
) -> Result<(), Error> {
    let sql = format!("SELECT FROM {} q WHERE {} LIMIT 0", table.in_sql(), is_one_of(column, values));
    match checked(session, &sql).await? {
        Some(_) => Ok(()),
        None => Err(Error::usage(
            ErrorCode::CommandLine,
            format!("{option} has a value that the column {column:?} cannot have"),
            "Write it as Postgres prints it",
        )),
    }
}
