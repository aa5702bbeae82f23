//! The query for one page of rows.
//!
//! Pages are found by `created_at`, on which `init` creates a BRIN index: each query asks for a span of time, and goes on behind the
//! last row of the page before (keyset pagination). No page depends on how many rows lie before it.

use pg_logical::quoting::{identifier, literal};
use time::OffsetDateTime;

use super::{micros_of, read_only};
use crate::config::TableName;

/// The years 1 and 9999, which literals can express, in microseconds since 1970.
pub const EARLIEST: i64 = -62_135_596_800_000_000;
const LATEST: i64 = 253_370_764_800_000_000;

/// Which rows of a table are read, and in which order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowQuery {
    table: String,
    /// The time of the insert.
    created_at: String,
    /// Expressions that tell the order of rows of the same time.
    ties: Vec<String>,
    /// The columns to read.
    columns: Vec<String>,
    /// Conditions on `q`.
    conditions: Vec<String>,
}

/// The values of a row by which it is found again, as Postgres writes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// The time of the insert, in microseconds since 1970.
    pub micros: i64,
    /// The same as text.
    pub created_at: String,
    /// What tells the order of rows of the same time, as text.
    pub ties: Vec<String>,
}

impl RowQuery {
    /// The rows of a table in the order of the times in `created_at`, and of `ties`, expressions on `q`, within the same time.
    /// `columns`: those to read.
    pub fn new(table: &TableName, created_at: &str, ties: Vec<String>, columns: Vec<String>) -> Self {
        RowQuery {
            table: table.in_sql(),
            created_at: identifier(created_at),
            ties,
            columns,
            conditions: Vec::new(),
        }
    }

    /// The rows among them for which this condition on `q` holds.
    pub fn only(mut self, condition: String) -> Self {
        self.conditions.push(condition);
        self
    }

    /// A time of an early insert, in microseconds since 1970; no row if the table is empty.
    pub fn some_early_time(&self) -> String {
        let RowQuery { table, created_at, .. } = self;
        read_only(&format!(
            "SELECT {} FROM (SELECT {created_at} AS at FROM {table} WHERE isfinite({created_at}) LIMIT 1000) q",
            micros_of("min(q.at)")
        ))
    }

    /// How many rows of these times meet the conditions, and not all of `delivered`; `most` means that or more.
    pub fn count_others(&self, since: Option<i64>, until: i64, delivered: &[String], most: u64) -> String {
        let RowQuery { table, created_at, conditions, .. } = self;
        let mut wanted = vec![format!("q.{created_at} < {}", time(until))];
        wanted.extend(since.map(|since| format!("q.{created_at} >= {}", time(since))));
        wanted.extend(conditions.iter().cloned());
        read_only(&format!(
            "SELECT count(*) FROM (SELECT FROM {table} q WHERE {} AND ({}) IS NOT TRUE LIMIT {most}) o",
            wanted.join(" AND "),
            delivered.join(" AND ")
        ))
    }

    /// What orders rows of the same time.
    pub fn order_by(&self) -> String {
        self.ties.join(", ")
    }

    /// How many columns come before those that were asked for.
    pub fn columns_before(&self) -> usize {
        3 + self.ties.len()
    }

    /// Up to `limit` rows, and about `bytes` bytes of values, with times from `from`, in microseconds since 1970, to
    /// before `to`, and behind `after`. Each row begins with how many rows there were without regard to bytes, its time in microseconds
    /// since 1970 and as text, and what tells the order within it.
    pub fn page(&self, from: i64, to: i64, after: Option<&Cursor>, limit: usize, bytes: usize) -> String {
        let RowQuery { table, created_at, ties, columns, conditions } = self;
        let numbered = |expression: &dyn Fn(usize) -> String, count: usize| -> String {
            (0..count).map(|number| format!(", {}", expression(number))).collect()
        };
        let keys: String =
            ties.iter().zip(0..).map(|(tie, number)| format!(", {tie} AS k{number}")).collect();
        let values: String = columns
            .iter()
            .zip(0..)
            .map(|(column, number)| format!(", q.{} AS v{number}", identifier(column)))
            .collect();
        let size: Vec<String> = columns.iter().map(|column| size_of(&identifier(column))).collect();
        let size = size.join(" + ");
        let order = format!("at{}", numbered(&|number| format!("k{number}"), ties.len()));
        let mut wanted =
            vec![format!("q.{created_at} >= {}", time(from)), format!("q.{created_at} < {}", time(to))];
        wanted.extend(after.map(|Cursor { created_at: at, ties: behind, .. }| {
            let behind: String = behind.iter().map(|tie| format!(", {}", literal(tie))).collect();
            format!("(q.{created_at}, {}) > ({}{behind})", ties.join(", "), literal(at))
        }));
        wanted.extend(conditions.iter().cloned());
        read_only(&format!(
            "SELECT found, {}, at::text{}{} FROM (SELECT s.*, count(*) OVER () AS found, \
             sum(size) OVER (ORDER BY {order} ROWS UNBOUNDED PRECEDING) - size AS before \
             FROM (SELECT q.{created_at} AS at{keys}, {size} AS size{values} FROM {table} q \
             WHERE {} ORDER BY {order} LIMIT {limit}) s) p WHERE before < {bytes} ORDER BY p.at{}",
            micros_of("at"),
            numbered(&|number| format!("k{number}::text"), ties.len()),
            numbered(&|number| format!("v{number}"), columns.len()),
            wanted.join(" AND "),
            // without the alias, these were the texts
            numbered(&|number| format!("p.k{number}"), ties.len()),
        ))
    }
}

/// The size of a value as text, about; only a compressed one has to be looked at.
fn size_of(column: &str) -> String {
    format!(
        "coalesce(CASE WHEN pg_column_compression(q.{column}) IS NULL THEN pg_column_size(q.{column}) ELSE octet_length(q.{column}::text) END, 0)"
    )
}

/// A time as a literal of any type for times. The session's time zone is UTC.
fn time(micros: i64) -> String {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros.clamp(EARLIEST, LATEST)) * 1_000)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (date, time) = (at.date(), at.time());
    literal(&format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:06}",
        date.year(),
        u8::from(date.month()),
        date.day(),
        time.hour(),
        time.minute(),
        time.second(),
        time.microsecond()
    ))
}

/// A condition on `q`: the column has one of these values.
pub fn is_one_of(column: &str, values: &[String]) -> String {
    let values: Vec<String> = values.iter().map(|value| literal(value)).collect();
    format!("q.{} IN ({})", identifier(column), values.join(", "))
}
