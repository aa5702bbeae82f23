//! The table `outbox_router.backfills`: rows from before a slot that its router sends first, and how far that has come.

pub mod access;
pub mod worker;

use pg_logical::quoting::literal;
use pg_logical::session::{Row, Session};
use pg_logical::{Lsn, Oid, QueryError};

use crate::checkpoint::BackfillDone;
use crate::postgres::rows::layout::TableLayout;
use crate::postgres::rows::order::Ties;
use crate::postgres::rows::page::RowQuery;
use crate::postgres::rows::reader::Extent;
use crate::postgres::rows::snapshot::Snapshot;
use crate::postgres::rows::{micros_of, moment, read_only, read_write, stored_cursor, text_array};

/// The table.
pub const TABLE: &str = "outbox_router.backfills";

/// The privileges that a router needs on it.
pub const REQUIRED_PRIVILEGES: [&str; 2] = ["SELECT", "UPDATE"];

/// Which rows were there before a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// The slot.
    pub slot: String,
    /// Its first position.
    pub slot_start: Lsn,
    /// The outbox table, as in SQL.
    pub outbox: String,
    /// The OID and the file of the table, or of each of its partitions. A table that was rewritten has others.
    pub files: Vec<String>,
    /// The column with the time of the insert.
    pub time_column: String,
    /// What orders rows of the same time.
    pub ties: Ties,
    /// Conditions on `q` besides the next one.
    pub conditions: Vec<String>,
    /// The slot's first snapshot.
    pub snapshot: String,
    /// A condition on `q`: it was committed before the slot.
    pub before_slot: String,
    /// When the creation of the slot began, in microseconds since 1970.
    pub begun_at: i64,
    /// The time of the first insert, in microseconds since 1970; `None`: there is no row.
    pub since: Option<i64>,
    /// The time before which the inserts were.
    pub until: Option<i64>,
    /// How many rows were counted.
    pub rows: u64,
}

/// A backfill that was begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backfill {
    /// Which rows.
    pub selection: Selection,
    /// How far it has come.
    pub done: BackfillDone,
    /// Whether all rows are acknowledged.
    pub finished: bool,
}

impl Backfill {
    /// How its rows are read: those of these columns, in their order, after those that are done.
    pub fn query(&self, layout: &TableLayout, columns: Vec<String>) -> (RowQuery, Extent) {
        let Selection { before_slot, since, until, .. } = &self.selection;
        let query = self.selected(layout, columns).only(before_slot.clone());
        let until = until.or(*since).unwrap_or(i64::MIN);
        (query, Extent { since: *since, until, after: self.done.last.clone() })
    }

    /// A query of two numbers. How many rows are as old as those from before the slot, but their transaction is not: somebody has updated
    /// them since, or inserted them with an earlier time; at most `most` are counted. And how many files were rewritten.
    pub fn changed(&self, layout: &TableLayout, most: u64) -> String {
        let Selection { before_slot, since, begun_at, files, .. } = &self.selection;
        let query = self.selected(layout, Vec::new());
        let updated = query.others(*since, *begun_at, std::slice::from_ref(before_slot), most);
        read_only(&format!("SELECT ({updated}), ({})", rewritten(files)))
    }

    /// Whether this is the table, and not another one of its name.
    pub fn is_of(&self, layout: &TableLayout) -> bool {
        let oid = format!("{}:", layout.oid().0);
        self.selection.files.iter().any(|file| file.starts_with(&oid))
    }

    /// A query: whether every transaction that the slot's first snapshot sees is visible by now. One that waits for a synchronous standby
    /// has written its commit before.
    pub fn is_visible(&self) -> String {
        let stored = &self.selection.snapshot;
        let readable =
            Snapshot::parse(stored).map_or_else(|| stored.clone(), |snapshot| snapshot.to_string());
        let snapshot = literal(&readable);
        read_only(&format!(
            "SELECT pg_snapshot_xmax(c.now) >= pg_snapshot_xmax(s.first) AND NOT EXISTS (SELECT FROM pg_snapshot_xip(c.now) x \
             WHERE pg_visible_in_snapshot(x, s.first)) FROM (SELECT pg_current_snapshot() AS now) c, (SELECT {snapshot}::pg_snapshot AS first) s"
        ))
    }

    /// A query that counts the files that were rewritten.
    pub fn rewritten(&self) -> String {
        read_only(&rewritten(&self.selection.files))
    }

    fn selected(&self, layout: &TableLayout, columns: Vec<String>) -> RowQuery {
        let Selection { time_column, ties, conditions, .. } = &self.selection;
        let query = RowQuery::new(layout.in_from(), time_column, ties.clone(), columns);
        conditions.iter().fold(query, |query, condition| query.only(condition.clone()))
    }

    /// The further one of what Postgres and the checkpoint know: in exactly-once mode only the checkpoint is part of the events'
    /// transactions.
    pub fn with_checkpoint(mut self: Box<Self>, stored: Option<&BackfillDone>) -> Box<Self> {
        if let Some(stored) =
            stored.filter(|stored| stored.id == self.done.id && stored.rows > self.done.rows)
        {
            self.done = stored.clone();
        }
        self
    }
}

/// What the table has about a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    /// `init` is creating the slot, or was interrupted.
    Incomplete,
    /// It was created.
    Begun(Box<Backfill>),
}

/// Marks a slot that is about to be created: nobody may read it before its rows are stored.
pub fn prepare(slot: &str, begun_at: i64) -> String {
    format!(
        "{}; INSERT INTO {TABLE} (slot, begun_at) VALUES ({}, {})",
        forget(slot),
        literal(slot),
        moment(begun_at)
    )
}

/// Stores which rows a router has to send before it streams a slot.
///
/// # Errors
/// Those of the query.
pub async fn begin(session: &mut Session, selection: &Selection) -> Result<(), QueryError> {
    let Selection { slot, slot_start, outbox, files, time_column, ties, conditions, before_slot, .. } =
        selection;
    let Selection { snapshot, begun_at, since, until, rows, .. } = selection;
    let time = |micros: Option<i64>| micros.map_or_else(|| "NULL".to_owned(), moment);
    let sql = format!(
        "{}; INSERT INTO {TABLE} (slot, slot_start, outbox, files, time_column, ties, by_statement, conditions, snapshot, before_slot, begun_at, since, \
         until, rows, finished_at) VALUES ({}, '{slot_start}', {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {rows}, {})",
        forget(slot),
        literal(slot),
        literal(outbox),
        text_array(files),
        literal(time_column),
        text_array(&ties.keys),
        ties.by_statement,
        text_array(conditions),
        literal(snapshot),
        literal(before_slot),
        moment(*begun_at),
        time(*since),
        time(*until),
        if *rows == 0 { "clock_timestamp()" } else { "NULL" }
    );
    session.query(&read_write(&sql)).await.map(drop)
}

/// Deletes what is stored for a slot that does not exist.
pub fn forget_unless_slot(slot: &str) -> String {
    let slots =
        format!("SELECT FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = {}", literal(slot));
    format!("{} AND NOT EXISTS ({slots})", forget(slot))
}

/// Deletes what is stored for a slot.
pub fn forget(slot: &str) -> String {
    format!("DELETE FROM {TABLE} WHERE slot = {}", literal(slot))
}

/// Whether the role may read the table; `None`: it does not exist, or has never had a row, which everybody may see. Asks only the
/// catalogues, so that a role without rights causes no errors in the server's log.
///
/// # Errors
/// Those of the query.
pub async fn is_readable(session: &mut Session) -> Result<Option<bool>, QueryError> {
    let readable = "SELECT readable FROM (SELECT c.oid, has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') \
                    AS readable FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                    WHERE n.nspname = 'outbox_router' AND c.relname = 'backfills') b WHERE readable OR pg_relation_size(oid) > 0";
    Ok(session.query_one(&read_only(readable)).await?.map(|readable| readable == "t"))
}

/// What is stored about a slot. The role may read the table.
///
/// # Errors
/// Those of the query.
pub async fn find(session: &mut Session, slot: &str) -> Result<Option<Stored>, QueryError> {
    let sql = format!(
        "SELECT slot_start, outbox, time_column, to_json(ties), to_json(conditions), {}, {}, rows, id, done, {}, \
         finished_at IS NOT NULL, before_slot, {}, to_json(files), by_statement, snapshot FROM {TABLE} WHERE slot = {}",
        micros_of("since"),
        micros_of("until"),
        stored_cursor::columns(),
        micros_of("begun_at"),
        literal(slot)
    );
    let rows = session.query(&read_only(&sql)).await?;
    let stored =
        |row| backfill(slot, row).map_or(Stored::Incomplete, |backfill| Stored::Begun(Box::new(backfill)));
    Ok(rows.first().map(stored))
}

/// The files of a table or its partitions, as a query of [`Selection::files`].
pub fn files(table: Oid) -> String {
    format!(
        "SELECT concat(c.oid, ':', coalesce(pg_relation_filenode(c.oid), 0)) FROM pg_class c \
         WHERE c.oid = {0} OR c.oid IN (SELECT relid FROM pg_partition_tree({0}))",
        table.0
    )
}

/// A query that counts those of these files that a table no longer has, because it was rewritten. Dropped partitions do not count.
fn rewritten(files: &[String]) -> String {
    format!(
        "SELECT count(*) FROM unnest({}) f JOIN pg_class c ON c.oid = split_part(f, ':', 1)::oid \
         WHERE coalesce(pg_relation_filenode(c.oid), 0) <> split_part(f, ':', 2)::oid",
        text_array(files)
    )
}

fn backfill(slot: &str, row: &Row) -> Option<Backfill> {
    let number = |index: usize| row.get(index).and_then(|text| text.parse::<i64>().ok());
    let count = |index: usize| number(index).and_then(|number| u64::try_from(number).ok());
    let text = |index: usize| row.get(index).map(str::to_owned);
    let texts = |index: usize| row.get(index).and_then(|texts| serde_json::from_str(texts).ok());
    Some(Backfill {
        selection: Selection {
            slot: slot.to_owned(),
            slot_start: row.get(0)?.parse().ok()?,
            outbox: text(1)?,
            files: texts(16)?,
            time_column: text(2)?,
            ties: Ties { keys: texts(3)?, by_statement: row.get(17)? == "t" },
            snapshot: text(18)?,
            conditions: texts(4)?,
            before_slot: text(14)?,
            begun_at: number(15)?,
            since: number(5),
            until: number(6),
            rows: count(7)?,
        },
        done: BackfillDone { id: text(8)?, rows: count(9)?, last: stored_cursor::read(row, 10) },
        finished: row.get(13) == Some("t"),
    })
}

/// Statements that store how far a backfill has come, and `finished` that nothing is left.
fn store(done: &BackfillDone, finished: bool) -> String {
    let BackfillDone { id, rows, last } = done;
    let last = stored_cursor::assignments(last.as_ref());
    let finished = if finished { ", finished_at = clock_timestamp()" } else { "" };
    // a standby that is away must not keep the router from its rows
    read_write(&format!(
        "SET LOCAL synchronous_commit = local; \
         UPDATE {TABLE} SET done = {rows}{last}{finished} WHERE id = {} AND finished_at IS NULL RETURNING slot",
        literal(id)
    ))
}
