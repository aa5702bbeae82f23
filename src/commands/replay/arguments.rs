//! Whether the arguments fit the table.

use pg_logical::QueryError;
use pg_logical::session::Session;

use crate::advice::OrRemedy;
use crate::commands::times::checked;
use crate::config::TableName;
use crate::error::{Error, ErrorCode};
use crate::postgres::rows::page::is_one_of;

/// What to do if the table cannot be read.
pub(super) fn readable(error: QueryError) -> Error {
    error.or_remedy("Give --url of a role that may read the outbox table, such as its owner")
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
    match checked(session, &sql).await.map_err(readable)? {
        Some(_) => Ok(()),
        None => Err(Error::usage(
            ErrorCode::CommandLine,
            format!("{option} has a value that the column {column:?} cannot have"),
            "Write it as Postgres prints it",
        )),
    }
}
