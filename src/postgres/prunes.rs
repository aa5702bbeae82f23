//! The functions of the router's schema that delete rows of an outbox. They decide which rows may go; a role that may call them needs no
//! privileges on the tables.

use std::time::{Duration, Instant};

use pg_logical::QueryError;
use pg_logical::quoting::literal;
use pg_logical::session::Session;
use tokio_postgres::error::SqlState;

use crate::error::{Error, ErrorCode};
use crate::postgres::functions::{call, count, number, query, refused};
use crate::postgres::rows::{begin_read_write, moment, read_write};

/// The functions that a role needs to call.
pub const FUNCTIONS: [&str; 8] = [
    "outbox_router.count_prunable(text, timestamptz, bigint)",
    "outbox_router.prune_begin(text)",
    "outbox_router.prune(text, uuid, timestamptz, timestamptz, bigint)",
    "outbox_router.prune_end(text, uuid)",
    "outbox_router.prune_rows(text, uuid, timestamptz, timestamptz, bigint, bigint)",
    "outbox_router.prune_renew(text, uuid, bigint)",
    "outbox_router.count_archived(text, timestamptz, bigint)",
    "outbox_router.prune_archived(text, uuid, timestamptz, timestamptz, bigint)",
];

/// The other functions, which these call.
pub const INNER_FUNCTIONS: [&str; 8] = [
    "outbox_router.prune_name(text)",
    "outbox_router.prune_condition(text)",
    "outbox_router.prune_from(text)",
    "outbox_router.prune_archive(text)",
    "outbox_router.prune_check(text)",
    "outbox_router.prune_lease(text, uuid)",
    "outbox_router.prune_from_archive(text)",
    PARTITION_ROWS,
];

/// Of these, the one that the functions of partitions call.
pub const PARTITION_ROWS: &str =
    "outbox_router.partition_rows(text, uuid, regclass, timestamptz, timestamptz, boolean)";

/// How long rows may take to be stored.
const LONGEST_STORE: Duration = Duration::from_secs(45);

/// About how many bytes of rows are in memory at once.
const MAX_BYTES: u32 = 8 << 20;

/// The role that all of them belong to. Nobody can log in as it.
pub const OWNER: &str = "outbox_router_pruner";

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
        /// Whether there may be more.
        more: bool,
        /// How many of them were deleted: the others were updated meanwhile.
        deleted: u64,
        /// The time of the last one, in microseconds since 1970.
        last: Option<i64>,
    },
    /// Somebody keeps a table locked.
    Locked(Error),
}

/// Rows that are deleted when the transaction ends.
#[derive(Debug, Clone, Copy)]
pub struct DeletedRows<'a> {
    /// The columns of the table as JSON: an array of objects with name, type, and whether values are JSON.
    pub columns: &'a str,
    /// How many rows there are.
    pub count: u64,
    /// The times of the first and the last insert, in microseconds since 1970.
    pub times: (Option<i64>, Option<i64>),
    /// Each as a JSON object on a line.
    pub lines: &'a str,
}

/// Where rows go before they are deleted.
pub trait Store {
    /// Stores rows, and returns when a crash cannot take them away.
    ///
    /// # Errors
    /// It cannot. Nothing of them is stored.
    fn add(&mut self, rows: DeletedRows<'_>) -> Result<(), Error>;

    /// Takes the last ones back, because they are not deleted.
    fn undo(&mut self);
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
    count_rows(session, "SET LOCAL lock_timeout = 0", &of_outbox(outbox, until, None)).await
}

/// The same, but counting stops at `max_rows`, and nobody waits long for a lock.
///
/// # Errors
/// Those of [`count_prunable`].
pub async fn find_prunable(
    session: &mut Session,
    outbox: &str,
    until: i64,
    max_rows: u64,
) -> Result<Prunable, Error> {
    count_rows(session, "SET LOCAL lock_timeout = '1s'", &of_outbox(outbox, until, Some(max_rows))).await
}

/// The same as [`find_prunable`] with rows of the archive.
///
/// # Errors
/// It has no archive, its rows may not be deleted, or those of the query.
pub async fn find_archived(
    session: &mut Session,
    outbox: &str,
    until: i64,
    max_rows: u64,
) -> Result<Prunable, Error> {
    let sql = format!(
        "SELECT deletable, first_time, last_time FROM outbox_router.count_archived({}, {}, {max_rows})",
        literal(outbox),
        moment(until)
    );
    count_rows(session, "SET LOCAL lock_timeout = '1s'", &sql).await
}

fn of_outbox(outbox: &str, until: i64, max_rows: Option<u64>) -> String {
    let max_rows = max_rows.map_or_else(|| "NULL".to_owned(), |rows| rows.to_string());
    format!(
        "SELECT deletable, first_time, last_time, others, archive FROM outbox_router.count_prunable({}, {}, {max_rows})",
        literal(outbox),
        moment(until)
    )
}

async fn count_rows(session: &mut Session, setting: &str, sql: &str) -> Result<Prunable, Error> {
    let found = call(session, &format!("{setting}; {sql}")).await?;
    let first = found.first();
    Ok(Prunable {
        rows: count(first, 0),
        times: number(first, 1).zip(number(first, 2)),
        others: count(first, 3),
        archive: first.and_then(|row| row.get(4)).map(str::to_owned),
    })
}

/// Whether a prune of this outbox, as in SQL, is running.
///
/// # Errors
/// Those of the query.
pub async fn is_running(session: &mut Session, outbox: &str) -> Result<bool, Error> {
    let sql = format!(
        "SELECT 1 FROM outbox_router.prunes p WHERE p.outbox = {} AND p.lease_until > clock_timestamp()",
        literal(outbox)
    );
    Ok(!call(session, &sql).await?.is_empty())
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
        self.delete_by("prune", session, since, until, max_rows).await
    }

    /// The same with rows of the archive.
    ///
    /// # Errors
    /// Those of [`begin`].
    pub async fn delete_archived(
        &self,
        session: &mut Session,
        since: Option<i64>,
        until: i64,
        max_rows: u32,
    ) -> Result<Batch, Error> {
        self.delete_by("prune_archived", session, since, until, max_rows).await
    }

    async fn delete_by(
        &self,
        function: &str,
        session: &mut Session,
        since: Option<i64>,
        until: i64,
        max_rows: u32,
    ) -> Result<Batch, Error> {
        let sql = format!(
            "SELECT chosen, deleted, last_time FROM outbox_router.{function}({}, {max_rows})",
            self.arguments(since, until)
        );
        match query(session, &read_write(&sql)).await {
            Ok(found) => {
                let first = found.first();
                let chosen = count(first, 0);
                let more = chosen >= u64::from(max_rows);
                Ok(Batch::Done { chosen, more, deleted: count(first, 1), last: number(first, 2) })
            }
            Err(error) => locked(error),
        }
    }

    /// The same, once the rows are stored. A batch has about 8 MiB at most.
    ///
    /// # Errors
    /// Those of [`begin`], or the rows cannot be stored.
    pub async fn delete_stored(
        &self,
        session: &mut Session,
        since: Option<i64>,
        until: i64,
        max_rows: u32,
        store: &mut impl Store,
    ) -> Result<Batch, Error> {
        // a process that hangs holds no rows for longer than its lease
        let sql = format!(
            "SET LOCAL idle_in_transaction_session_timeout = '55s'; \
             SELECT chosen, more, deleted, last_chosen, first_time, last_time, columns, lines \
             FROM outbox_router.prune_rows({}, {max_rows}, {MAX_BYTES})",
            self.arguments(since, until)
        );
        let found = match query(session, &begin_read_write(&sql)).await {
            Ok(found) => found,
            Err(error) => return locked(error),
        };
        let first = found.first();
        let text = |column: usize| first.and_then(|row| row.get(column)).unwrap_or_default();
        // nothing may be deleted that is not stored, so a count that is missing fits no rows
        let deleted = number(first, 2).and_then(|deleted| u64::try_from(deleted).ok()).unwrap_or(u64::MAX);
        let begun = Instant::now();
        if deleted > 0 {
            let times = (number(first, 4), number(first, 5));
            let rows = DeletedRows { columns: text(6), count: deleted, times, lines: text(7) };
            if let Err(error) = store.add(rows) {
                // if that fails too, the end of the session has the same effect
                let _ = session.query("ROLLBACK").await;
                return Err(error);
            }
        }
        if begun.elapsed() >= LONGEST_STORE {
            let _ = session.query("ROLLBACK").await;
            store.undo();
            let what = format!("storing {deleted} rows took {} s", begun.elapsed().as_secs());
            return Err(Error::refused(
                ErrorCode::PruneImpossible,
                what,
                "Give fewer with --batch, or a faster disk",
            ));
        }
        let renew = format!(
            "SELECT outbox_router.prune_renew({}, {}, {deleted}); COMMIT",
            literal(&self.outbox),
            literal(&self.token)
        );
        if let Err(error) = query(session, &renew).await {
            // if the session has ended, the transaction may have been committed before that
            if deleted > 0 && error.server_error().is_some() && !has_ended(&error) {
                store.undo();
            }
            return Err(refused(error));
        }
        let (chosen, more, last) = (count(first, 0), text(1) == "t", number(first, 3));
        Ok(Batch::Done { chosen, more, deleted, last })
    }

    /// The first arguments of the functions that delete rows.
    pub(super) fn arguments(&self, since: Option<i64>, until: i64) -> String {
        format!(
            "{}, {}, {}, {}",
            literal(&self.outbox),
            literal(&self.token),
            since.map_or_else(|| "NULL".to_owned(), moment),
            moment(until)
        )
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

fn locked(error: QueryError) -> Result<Batch, Error> {
    match error.code() {
        Some(&SqlState::LOCK_NOT_AVAILABLE) => Ok(Batch::Locked(refused(error))),
        _ => Err(refused(error)),
    }
}

/// Whether the session has ended: somebody has ended it, or a timeout of transactions.
fn has_ended(error: &QueryError) -> bool {
    error.code().is_some_and(|code| code.code().starts_with("57") || code.code().starts_with("25P0"))
}
