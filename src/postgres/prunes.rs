//! The functions of the router's schema that delete rows of an outbox. They decide which rows may go; a role that may call them needs no
//! privileges on the tables.

use pg_logical::QueryError;
use pg_logical::quoting::literal;
use pg_logical::server_error::ServerError;
use pg_logical::session::{Row, Session};
use tokio_postgres::error::SqlState;

use crate::advice::OrRemedy;
use crate::error::{Error, ErrorCode};
use crate::postgres::rows::{moment, read_write};

/// The functions that a role needs to call.
pub const FUNCTIONS: [&str; 4] = [
    "outbox_router.count_prunable(text, timestamptz)",
    "outbox_router.prune_begin(text)",
    "outbox_router.prune(text, uuid, timestamptz, timestamptz, bigint)",
    "outbox_router.prune_end(text, uuid)",
];

/// The other functions, which these call.
pub const INNER_FUNCTIONS: [&str; 5] = [
    "outbox_router.prune_name(text)",
    "outbox_router.prune_condition(text)",
    "outbox_router.prune_from(text)",
    "outbox_router.prune_archive(text)",
    "outbox_router.prune_check(text)",
];

/// The role that all of them belong to. Nobody can log in as it.
pub const OWNER: &str = "outbox_router_pruner";

const REMEDY: &str = "Run `outbox-router init --role` with the router's role, which creates what prune needs and lets the role call it; or give \
                      --url of the role that ran init";

/// The rows of an outbox that were inserted before some time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prunable {
    /// How many may be deleted.
    pub rows: u64,
    /// When the first and the last of them were inserted, in microseconds since 1970. `None`: there is none.
    pub times: Option<(i64, i64)>,
    /// How many have to stay.
    pub others: u64,
    /// The table that they go to, as in SQL.
    pub archive: Option<String>,
}

/// What a batch has done.
#[derive(Debug)]
pub enum Batch {
    /// It has deleted rows.
    Done {
        /// How many rows were chosen.
        chosen: u64,
        /// How many of them were deleted: the others were updated meanwhile.
        deleted: u64,
        /// The time of the last one, in microseconds since 1970.
        last: Option<i64>,
    },
    /// Somebody keeps a table locked.
    Locked(Error),
}

/// The right to delete rows of an outbox, which nobody else has meanwhile. It expires a minute after the last batch.
#[derive(Debug)]
pub struct Lease {
    outbox: String,
    token: String,
}

/// Whether a question to the server, an expression about the table of readers, is true.
///
/// # Errors
/// The table does not exist, or the role may not read it.
pub async fn is_stored(session: &mut Session, question: &str) -> Result<bool, Error> {
    let found = call(session, &format!("SELECT {question}")).await?;
    Ok(found.first().and_then(|row| row.get(0)) == Some("t"))
}

/// Counts the rows of an outbox, as in SQL, inserted before `until`, in microseconds since 1970.
///
/// # Errors
/// It is not known which rows the routers have delivered, or those of the query.
pub async fn count_prunable(session: &mut Session, outbox: &str, until: i64) -> Result<Prunable, Error> {
    let sql = format!(
        "SELECT deletable, others, first_time, last_time, archive FROM outbox_router.count_prunable({}, {})",
        literal(outbox),
        moment(until)
    );
    let found = call(session, &sql).await?;
    let first = found.first();
    Ok(Prunable {
        rows: count(first, 0),
        times: number(first, 2).zip(number(first, 3)),
        others: count(first, 1),
        archive: first.and_then(|row| row.get(4)).map(str::to_owned),
    })
}

/// Begins to delete rows of an outbox.
///
/// # Errors
/// Another prune or a replay of the outbox is running, the archive cannot take its rows, or those of [`count_prunable`].
pub async fn begin(session: &mut Session, outbox: &str) -> Result<Lease, Error> {
    let sql = format!("SELECT outbox_router.prune_begin({})", literal(outbox));
    let found = call(session, &sql).await?;
    let token = found.first().and_then(|row| row.get(0)).unwrap_or_default().to_owned();
    Ok(Lease { outbox: outbox.to_owned(), token })
}

impl Lease {
    /// Deletes up to `max_rows` rows, the oldest first, that were inserted from `since` to before `until`.
    ///
    /// # Errors
    /// Those of [`begin`].
    pub async fn delete(
        &self,
        session: &mut Session,
        since: Option<i64>,
        until: i64,
        max_rows: u32,
    ) -> Result<Batch, Error> {
        let sql = format!(
            "SELECT chosen, deleted, last_time FROM outbox_router.prune({}, {}, {}, {}, {max_rows})",
            literal(&self.outbox),
            literal(&self.token),
            since.map_or_else(|| "NULL".to_owned(), moment),
            moment(until),
        );
        match query(session, &sql).await {
            Ok(found) => {
                let first = found.first();
                Ok(Batch::Done { chosen: count(first, 0), deleted: count(first, 1), last: number(first, 2) })
            }
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                Ok(Batch::Locked(refused(error)))
            }
            Err(error) => Err(refused(error)),
        }
    }

    /// Lets others begin.
    ///
    /// # Errors
    /// Those of the query.
    pub async fn end(self, session: &mut Session) -> Result<(), Error> {
        let sql =
            format!("SELECT outbox_router.prune_end({}, {})", literal(&self.outbox), literal(&self.token));
        call(session, &sql).await.map(drop)
    }
}

fn number(row: Option<&Row>, column: usize) -> Option<i64> {
    row.and_then(|row| row.get(column)?.parse().ok())
}

fn count(row: Option<&Row>, column: usize) -> u64 {
    number(row, column).and_then(|number| u64::try_from(number).ok()).unwrap_or(0)
}

async fn call(session: &mut Session, sql: &str) -> Result<Vec<Row>, Error> {
    query(session, sql).await.map_err(refused)
}

/// Leaves no transaction behind.
async fn query(session: &mut Session, sql: &str) -> Result<Vec<Row>, QueryError> {
    let answer = session.query(&read_write(sql)).await;
    if let Err(QueryError::Server { .. }) = &answer {
        session.query("ROLLBACK").await?;
    }
    answer
}

/// The functions say themselves what is in the way, and what to do about it.
fn refused(error: QueryError) -> Error {
    let code = match error.code().map(SqlState::code) {
        Some("OBR06") => ErrorCode::PruneImpossible,
        Some("OBR07") => ErrorCode::PruneRunning,
        // a privilege, or something that does not exist
        Some(code) if code.starts_with("42") || code == "3F000" => return error.or_remedy(REMEDY),
        _ => return error.or_remedy("Correct what the message names, and run prune again"),
    };
    match error.server_error() {
        Some(ServerError { message, hint, .. }) => {
            let remedy = hint.as_deref().map_or(REMEDY, |hint| hint.trim_end_matches('.'));
            Error::refused(code, message, remedy)
        }
        None => error.or_remedy(REMEDY),
    }
}
