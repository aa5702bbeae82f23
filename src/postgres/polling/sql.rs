//! The statements of polling.
//!
//! They need no session state, so they work behind a pooler that gives a connection to one transaction after another. Each message
//! is one or more transactions.
//!
//! Statistics may say that the table is empty, and then another index looks as good as the right one. So each subquery asks for an
//! order that only the right one has, and plans must not sort.

mod claim;
mod results;

pub use results::RowLocks;

use std::time::Duration;

use pg_logical::quoting::{identifier, literal};

use crate::config::polling::StatusValues;
use crate::config::{Outbox, Polling};
use crate::postgres::rows::{NO_LIMITS, micros_of};

/// How many rows of one aggregate are claimed or made due at a time once an earlier row of it was refused.
const MAX_ROWS_BEHIND: usize = 1_000;

/// After how many refusals a person has to decide.
pub const MAX_REFUSALS: u32 = 8;

/// Begins a transaction in which the planner has only the intended plan, and no limit for applications applies.
fn begin() -> String {
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL jit = off; SET LOCAL enable_seqscan = off; \
         SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; \
         SET LOCAL lock_timeout = '1s'; {NO_LIMITS}; SET LOCAL row_security = off; SET LOCAL search_path = pg_catalog, pg_temp"
    )
}

/// The first column of the answer to [`PolledTable::claim`].
pub const BUSY: &str = "busy";

/// In its place: a row waits that has no position, so that later ones of its aggregate could overtake it.
pub const UNPLACED: &str = "unplaced";

/// The names of an outbox table that is polled, quoted.
#[derive(Debug, Clone)]
pub struct PolledTable {
    table: String,
    /// The table as a text in `poll_claims`.
    outbox: String,
    aggregate: String,
    created_at: Option<String>,
    position: String,
    status: String,
    attempts: String,
    refusals: String,
    next_attempt_at: String,
    published_at: String,
    last_error: String,
    new: String,
    published: String,
    failed: String,
    unquoted: Unquoted,
    lease: Duration,
    /// Whether positions are drawn by `next_position`, so that the bounds of claims are valid.
    bounded: bool,
}

/// Names without quotes.
#[derive(Debug, Clone)]
struct Unquoted {
    aggregate: String,
    position: String,
    status: String,
    next_attempt_at: String,
}

/// A claim of this router.
#[derive(Debug, Clone, Copy)]
pub struct OwnClaim<'a> {
    /// Its number.
    pub id: i64,
    /// The router's token.
    pub token: &'a str,
}

impl PolledTable {
    /// The table of an outbox that is polled; `None` if it has none.
    pub fn of(outbox: &Outbox, polling: &Polling) -> Option<Self> {
        let Polling { lease, columns, status, notify: _ } = polling;
        let table = outbox.tables.first()?.in_sql();
        let StatusValues { new, published, failed } = status;
        Some(PolledTable {
            outbox: literal(&table),
            table,
            aggregate: identifier(&outbox.columns.aggregate_id),
            created_at: outbox.columns.created_at.as_deref().map(identifier),
            position: identifier(&columns.position),
            status: identifier(&columns.status),
            attempts: identifier(&columns.attempts),
            refusals: identifier(&columns.refusals),
            next_attempt_at: identifier(&columns.next_attempt_at),
            published_at: identifier(&columns.published_at),
            last_error: identifier(&columns.last_error),
            new: literal(new),
            published: literal(published),
            failed: literal(failed),
            unquoted: Unquoted {
                aggregate: outbox.columns.aggregate_id.clone(),
                position: columns.position.clone(),
                status: columns.status.clone(),
                next_attempt_at: columns.next_attempt_at.clone(),
            },
            lease: *lease,
            bounded: false,
        })
    }

    /// The same for a table whose positions are drawn by `next_position` or not, and with or without a time in `created_at`.
    pub fn with(self, bounded: bool, has_created_at: bool) -> Self {
        PolledTable { bounded, created_at: self.created_at.filter(|_| has_created_at), ..self }
    }

    /// The row of the alias `q` waits to be published. `q` may be empty.
    fn is_new(&self, q: &str) -> String {
        format!("{q}{} = {}", self.status, self.new)
    }

    /// An expression: does a row wait that has no position?
    pub fn has_unplaced(&self) -> String {
        let PolledTable { table, position, .. } = self;
        format!(
            "EXISTS (SELECT FROM {table} q WHERE {} AND q.{position} IS NULL ORDER BY q.{position} LIMIT 1)",
            self.is_new("q.")
        )
    }

    /// The statement that gives these rows positions, drawn by the expression `next`, and with them all that wait in their aggregates.
    pub fn place(&self, next: &str) -> String {
        let PolledTable { table, aggregate, position, status, new, failed, created_at, .. } = self;
        let waits = |q: &str| format!("{q}.{status} IN ({new}, {failed})");
        let by_time = created_at.as_ref().map(|column| format!("q.{column}, ")).unwrap_or_default();
        format!(
            "UPDATE {table} o SET {position} = n.position FROM (SELECT s.row, {next} AS position FROM (SELECT q.ctid AS row FROM {table} q \
             WHERE {} AND (q.{position} IS NULL OR q.{aggregate} IN (SELECT z.{aggregate} FROM {table} z WHERE {} AND z.{position} IS NULL)) \
             ORDER BY {by_time}q.{position}, q.ctid) s) n WHERE o.ctid = n.row",
            waits("q"),
            waits("z"),
        )
    }

    /// It was refused and is tried again, or waits behind such a row.
    fn is_retry(&self, q: &str) -> String {
        format!("{} AND {q}{} IS NOT NULL", self.is_new(q), self.next_attempt_at)
    }

    /// It keeps later rows of its aggregate from being sent.
    pub fn holds_back(&self, q: &str) -> String {
        let PolledTable { status, failed, .. } = self;
        format!("({q}{status} = {failed} OR {})", self.is_retry(q))
    }

    /// The statements that create the indexes. `concurrently` for a table that is in use.
    pub fn indexes(&self, concurrently: bool) -> [String; 3] {
        let PolledTable { table, position, aggregate, next_attempt_at, .. } = self;
        let create = if concurrently { "INDEX CONCURRENTLY" } else { "INDEX" };
        [
            // unique, because rows are marked by their position
            format!("CREATE UNIQUE {create} ON {table} ({position}) WHERE {};", self.is_new("")),
            format!("CREATE {create} ON {table} ({aggregate}, {position}) WHERE {};", self.holds_back("")),
            format!(
                "CREATE {create} ON {table} ({next_attempt_at}, {position}) WHERE {};",
                self.is_retry("")
            ),
        ]
    }

    /// Whether the table has the indexes, each in a column.
    pub fn has_indexes(&self) -> String {
        // the condition is stored in the server's words
        let has = |column: &str, condition: &str| {
            format!(
                "EXISTS (SELECT FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] \
                 WHERE i.indrelid = {}::pg_catalog.regclass AND i.indisvalid AND a.attname = {} \
                 AND pg_catalog.strpos(pg_catalog.pg_get_expr(i.indpred, i.indrelid), {condition}) > 0)",
                self.outbox,
                literal(column)
            )
        };
        let Unquoted { aggregate, position, status, next_attempt_at } = &self.unquoted;
        let retried = format!("pg_catalog.quote_ident({}) || ' IS NOT NULL'", literal(next_attempt_at));
        format!(
            "SELECT {}, {}, {}",
            has(position, &format!("pg_catalog.quote_ident({})", literal(status))),
            has(aggregate, &retried),
            has(next_attempt_at, &retried)
        )
    }

    /// How many rows were refused too often; 10,000 means that or more.
    pub fn count_failed(&self) -> String {
        let PolledTable { table, status, failed, .. } = self;
        format!(
            "SELECT count(*) FROM (SELECT FROM {table} q WHERE {} AND q.{status} = {failed} LIMIT 10000) f",
            self.holds_back("q.")
        )
    }

    /// How many rows were refused and are tried again, or wait behind such a row; 10,000 means that or more.
    fn count_refused(&self) -> String {
        format!(
            "SELECT count(*) FROM (SELECT FROM {} q WHERE {} ORDER BY q.{}, q.{} LIMIT 10000) r",
            self.table,
            self.is_retry("q."),
            self.next_attempt_at,
            self.position
        )
    }

    /// How many rows are due, when the oldest of them was inserted, in microseconds since 1970, how many were refused too often, and how
    /// many were refused and are tried again, or wait behind such a row; 10,000 means that or more.
    pub fn count(&self) -> String {
        let PolledTable { table, outbox, position, next_attempt_at, .. } = self;
        let inserted = self.inserted();
        let from = match self.bounded {
            false => "-9223372036854775808".to_owned(),
            true => format!(
                "coalesce((SELECT l.from_position FROM outbox_router.poll_claims l WHERE l.outbox = {outbox} \
                 ORDER BY l.id DESC LIMIT 1), -9223372036854775808)"
            ),
        };
        let begin = begin();
        format!(
            "{begin}; SELECT count(*), min(d.inserted), ({}), ({}) FROM ((SELECT {inserted} AS inserted FROM {table} q WHERE {} \
             AND q.{next_attempt_at} IS NULL AND q.{position} >= {from} ORDER BY q.{position} LIMIT 10000) UNION ALL \
             (SELECT {inserted} FROM {table} q WHERE {} AND q.{next_attempt_at} <= clock_timestamp() \
             ORDER BY q.{next_attempt_at}, q.{position} LIMIT 10000)) d; COMMIT",
            self.count_failed(),
            self.count_refused(),
            self.is_new("q."),
            self.is_retry("q."),
        )
    }

    /// When the row of the alias `q` was inserted, in microseconds since 1970.
    fn inserted(&self) -> String {
        let micros = |column: &String| {
            format!("CASE WHEN isfinite(q.{column}) THEN {} END", micros_of(&format!("q.{column}")))
        };
        self.created_at.as_ref().map_or_else(|| "NULL::bigint".to_owned(), micros)
    }

    /// The statement that takes the lock under which rows are claimed.
    pub fn lock(&self) -> String {
        format!("SELECT pg_catalog.pg_advisory_xact_lock({})", self.lock_key())
    }

    fn lock_key(&self) -> String {
        format!("hashtextextended({}, 7013)", self.outbox)
    }

    /// A condition on `o`: it is new, and has one of these positions, an expression of type `bigint[]`. Found row by row; the condition
    /// on the position is for rows that are changed meanwhile.
    fn is_new_at(&self, positions: &str, lock: &str) -> String {
        let PolledTable { table, position, .. } = self;
        format!(
            "o.ctid = ANY (ARRAY(SELECT f.ctid FROM unnest({positions}) u (at) CROSS JOIN LATERAL (SELECT q.ctid FROM {table} q \
             WHERE q.{position} = u.at AND {} ORDER BY q.{position} LIMIT 1{lock}) f)) AND o.{position} = ANY ({positions}) AND {}",
            self.is_new("q."),
            self.is_new("o.")
        )
    }
}

/// An array of numbers as a literal.
fn array(numbers: &[i64]) -> String {
    let numbers: Vec<String> = numbers.iter().map(i64::to_string).collect();
    format!("'{{{}}}'::bigint[]", numbers.join(","))
}
