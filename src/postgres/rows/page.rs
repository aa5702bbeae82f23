//! The query for one page of rows.
//!
//! Pages are found by `created_at`, on which `init` creates a BRIN index: each query asks for a span of time, and goes on behind the
//! last row of the page before (keyset pagination). How many rows lie before it does not matter, except for those of the same time.

use pg_logical::quoting::{identifier, literal};
use time::OffsetDateTime;

use super::order::Ties;
use super::{micros_of, read_only, text_array};
use crate::outbox::Cursor;

/// The first moment that literals can express: of the year 1, in microseconds since 1970.
pub const EARLIEST: i64 = -62_135_596_800_000_000;

/// More rows of the same time than this are not in the order of their statements, because a cursor names those that were read.
const FEW: usize = 50;

/// In place of the number of a statement: there are more.
const MANY: &str = "-1";

/// An expression on `q` that identifies a row as long as it is not updated, and its table not rewritten.
const IDENTITY: &str = "concat(q.tableoid::oid, q.ctid)";

/// The last one: the end of the year 9999.
pub const LATEST: i64 = 253_370_764_800_000_000;

/// Which rows of a table are read, and in which order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowQuery {
    table: String,
    /// The time of the insert.
    created_at: String,
    /// What tells the order of rows of the same time.
    ties: Ties,
    /// The columns to read.
    columns: Vec<String>,
    /// Conditions on `q`.
    conditions: Vec<String>,
}

impl RowQuery {
    /// The rows of a table, as after FROM, in the order of the times in `created_at`, and of `ties` within the same time. `columns`: those
    /// to read.
    pub fn new(table: String, created_at: &str, ties: Ties, columns: Vec<String>) -> Self {
        RowQuery { table, created_at: identifier(created_at), ties, columns, conditions: Vec::new() }
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
        read_only(&self.others(since, until, delivered, most))
    }

    /// The query without its transaction.
    pub fn others(&self, since: Option<i64>, until: i64, delivered: &[String], most: u64) -> String {
        let RowQuery { table, created_at, conditions, .. } = self;
        let mut wanted = vec![format!("q.{created_at} < {}", time(until))];
        wanted.extend(since.map(|since| format!("q.{created_at} >= {}", time(since))));
        wanted.extend(conditions.iter().cloned());
        format!(
            "SELECT count(*) FROM (SELECT FROM {table} q WHERE {} AND ({}) IS NOT TRUE LIMIT {most}) o",
            wanted.join(" AND "),
            delivered.join(" AND ")
        )
    }

    /// What orders rows of the same time.
    pub fn order_by(&self) -> String {
        let statement = if self.ties.by_statement { "statement, " } else { "" };
        format!("{statement}{}", self.ties.keys.join(", "))
    }

    /// How many columns come before those that were asked for.
    pub fn columns_before(&self) -> usize {
        // the number of the statement, and the identity
        let by_statement = if self.ties.by_statement { 2 } else { 0 };
        3 + by_statement + self.ties.keys.len()
    }

    /// What orders rows of the same time behind `after`, as expressions on `q`, and identifies them. `wanted`: the conditions.
    fn keys(&self, after: Option<&Cursor>, wanted: &str) -> Vec<String> {
        let RowQuery { table, created_at, ties, .. } = self;
        if !ties.by_statement {
            return ties.keys.clone();
        }
        let begun = match after.map(|after| (after, Group::of(&after.ties))) {
            Some((after, Group::Many(_))) => format!("q.{created_at} = {} OR ", literal(&after.created_at)),
            _ => String::new(),
        };
        let statement = format!(
            "CASE WHEN {begun}q.{created_at} IN (SELECT q.{created_at} FROM {table} q WHERE {wanted} GROUP BY 1 HAVING count(*) > {FEW}) \
             THEN {MANY} ELSE q.cmin::text::bigint END"
        );
        [&[statement], ties.keys.as_slice(), &[IDENTITY.to_owned()]].concat()
    }

    /// A condition on `q`: it comes behind this row.
    fn behind(&self, Cursor { created_at: at, ties: values, .. }: &Cursor) -> String {
        let RowQuery { created_at, ties, .. } = self;
        let at = literal(at);
        let list =
            |values: &[String]| values.iter().map(|value| literal(value)).collect::<Vec<_>>().join(", ");
        let keys = ties.keys.join(", ");
        if !ties.by_statement {
            return format!("(q.{created_at}, {keys}) > ({at}, {})", list(values));
        }
        match Group::of(values) {
            Group::Many(values) => format!("(q.{created_at}, {keys}) > ({at}, {})", list(values)),
            Group::Few(sent) => format!(
                "(q.{created_at} > {at} OR q.{created_at} = {at} AND {IDENTITY} <> ALL ({}))",
                text_array(sent)
            ),
        }
    }

    /// The cursor of a row with these keys, which comes next after the row with `before`.
    pub fn cursor(
        &self,
        before: Option<&Cursor>,
        micros: i64,
        created_at: String,
        keys: Vec<String>,
    ) -> Cursor {
        if !self.ties.by_statement {
            return Cursor { micros, created_at, ties: keys };
        }
        let (statement, keys) = keys.split_first().map_or(("", [].as_slice()), |(first, rest)| (first, rest));
        let (identity, keys) = keys.split_last().map_or(("", [].as_slice()), |(last, rest)| (last, rest));
        if statement == MANY {
            return Cursor { micros, created_at, ties: [&["many".to_owned()], keys].concat() };
        }
        let same = before.filter(|before| before.created_at == created_at);
        let mut ties = match same.map(|before| Group::of(&before.ties)) {
            Some(Group::Few(sent)) => [&["few".to_owned()], sent].concat(),
            _ => vec!["few".to_owned()],
        };
        ties.push(identity.to_owned());
        Cursor { micros, created_at, ties }
    }

    /// Up to `limit` rows, and about `bytes` bytes of values, with times from `from`, in microseconds since 1970, to
    /// before `to`, and behind `after`. Each row begins with how many rows there were without regard to bytes, its time in microseconds
    /// since 1970 and as text, and what tells the order within it.
    pub fn page(&self, from: i64, to: i64, after: Option<&Cursor>, limit: usize, bytes: usize) -> String {
        let RowQuery { table, created_at, columns, conditions, .. } = self;
        let mut wanted =
            vec![format!("q.{created_at} >= {}", time(from)), format!("q.{created_at} < {}", time(to))];
        wanted.extend(after.map(|after| self.behind(after)));
        wanted.extend(conditions.iter().cloned());
        let wanted = wanted.join(" AND ");
        let keys = self.keys(after, &wanted);
        let numbered = |expression: &dyn Fn(usize) -> String, count: usize| -> String {
            (0..count).map(|number| format!(", {}", expression(number))).collect()
        };
        let named: String =
            keys.iter().zip(0..).map(|(key, number)| format!(", {key} AS k{number}")).collect();
        let values: String = columns
            .iter()
            .zip(0..)
            .map(|(column, number)| format!(", q.{} AS v{number}", identifier(column)))
            .collect();
        let size: Vec<String> = columns.iter().map(|column| size_of(&identifier(column))).collect();
        let size = size.join(" + ");
        let order = format!("at{}", numbered(&|number| format!("k{number}"), keys.len()));
        read_only(&format!(
            "SELECT found, {}, at::text{}{} FROM (SELECT s.*, count(*) OVER () AS found, \
             sum(size) OVER (ORDER BY {order} ROWS UNBOUNDED PRECEDING) - size AS before \
             FROM (SELECT q.{created_at} AS at{named}, {size} AS size{values} FROM {table} q \
             WHERE {wanted} ORDER BY {order} LIMIT {limit}) s) p WHERE before < {bytes} ORDER BY p.at{}",
            micros_of("at"),
            numbered(&|number| format!("k{number}::text"), keys.len()),
            numbered(&|number| format!("v{number}"), columns.len()),
            // without the alias, these were the texts
            numbered(&|number| format!("p.k{number}"), keys.len()),
        ))
    }
}

/// What a cursor knows of rows of the same time that are in the order of their statements.
enum Group<'a> {
    /// There were few: those up to the cursor, by their identity.
    Few(&'a [String]),
    /// There were many, which are in the order of their keys: those of the last one.
    Many(&'a [String]),
}

impl<'a> Group<'a> {
    fn of(ties: &'a [String]) -> Self {
        match ties.split_first() {
            Some((first, keys)) if first == "many" => Group::Many(keys),
            Some((_, sent)) => Group::Few(sent),
            None => Group::Few(&[]),
        }
    }
}

/// The size of a value of `q` as text, about; only a compressed one has to be looked at.
pub fn size_of(column: &str) -> String {
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
