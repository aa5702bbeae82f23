//! Reading the rows of an outbox table by queries.

pub mod layout;

use pg_logical::PgTimestamp;

/// A row of the table.
#[derive(Debug)]
pub struct TableRow {
    /// When it was inserted, as far as is known.
    pub inserted: PgTimestamp,
    /// The values of the columns that were asked for.
    pub values: Vec<Option<String>>,
}
