//! Reading the rows of an outbox table by queries.

pub mod layout;
pub mod order;
pub mod page;
pub mod pages;
pub mod reader;
pub mod snapshot;
pub mod spans;
pub mod stored_cursor;

use pg_logical::PgTimestamp;
use pg_logical::quoting::literal;

/// The settings with which values are read, as [`pg_logical::connect::VALUE_TEXT`], for one transaction: behind a pooler, a session has
/// no settings of its own.
pub const VALUE_TEXT: &str = "SET LOCAL DateStyle = 'ISO'; SET LOCAL TimeZone = 'UTC'; SET LOCAL IntervalStyle = 'postgres'; \
     SET LOCAL extra_float_digits = 1; SET LOCAL bytea_output = 'hex'";

/// Exempts one transaction from the limits for applications, which apply to a session behind a pooler. Returns no row. Versions before
/// 17 do not know the last one.
pub const NO_LIMITS: &str = "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0; \
     SELECT WHERE CASE WHEN pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL \
     THEN pg_catalog.set_config('transaction_timeout', '0', true) IS NULL END";

/// A statement in a transaction that only reads, with functions and operators of Postgres itself, and times in UTC. Row-level security
/// makes it fail, where rows would be missing otherwise.
pub fn read_only(statement: &str) -> String {
    transaction("READ ONLY", statement)
}

/// Statements in a transaction that may write, whatever the database's default is. The rest is as for [`read_only`].
pub fn read_write(statements: &str) -> String {
    transaction("READ WRITE", statements)
}

/// The same as [`read_write`], but the transaction stays open.
pub fn begin_read_write(statements: &str) -> String {
    begin("READ WRITE", statements)
}

fn transaction(access: &str, statements: &str) -> String {
    format!("{}; COMMIT", begin(access, statements))
}

fn begin(access: &str, statements: &str) -> String {
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED {access}; {VALUE_TEXT}; {NO_LIMITS}; \
         SET LOCAL row_security = off; SET LOCAL search_path = pg_catalog, pg_temp; {statements}"
    )
}

/// An expression in microseconds since 1970, of one that is a time.
pub fn micros_of(time: &str) -> String {
    format!("(extract(epoch FROM {time}) * 1000000)::bigint")
}

/// A moment as an expression, from microseconds since 1970. In this form it has no limit before Postgres 15.
pub fn moment(micros: i64) -> String {
    format!("'epoch'::timestamptz + {micros} * interval '1 microsecond'")
}

/// An array of these texts, as an expression.
pub fn text_array(texts: &[String]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
    format!("ARRAY[{}]::text[]", texts.join(", "))
}

/// A row of the table.
#[derive(Debug)]
pub struct TableRow {
    /// When it was inserted, as far as is known.
    pub inserted: PgTimestamp,
    /// The values of the columns that were asked for.
    pub values: Vec<Option<String>>,
}

impl TableRow {
    /// How many bytes its values have.
    pub fn bytes(&self) -> usize {
        self.values.iter().flatten().map(String::len).sum()
    }
}
