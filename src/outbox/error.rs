//! Why a table, a row or a message cannot be read.

use super::{IN_PARTITION, IN_TOPIC};

/// Why a table, row or message cannot be read as an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutboxError {
    /// The table does not, or no longer, have this column.
    #[error("table {table} has no column {column:?}, which {}", named_by(.key))]
    MissingColumn {
        /// The table.
        table: String,
        /// The column's name.
        column: String,
        /// The key under `[outbox] columns`, or [`super::ExtraColumn::key`].
        key: &'static str,
    },
    /// A column's type does not fit its use.
    #[error("column {column:?} of table {table} has type {}, where {expected} is needed", type_name(*.type_id))]
    ColumnType {
        /// The table.
        table: String,
        /// The column's name.
        column: String,
        /// Its type.
        type_id: u32,
        /// The types that fit.
        expected: &'static str,
    },
    /// The outbox table was renamed.
    #[error("the outbox table {table} is now called {now}")]
    Renamed {
        /// The configured table.
        table: String,
        /// Its present name.
        now: String,
    },
    /// A message cannot be decoded as an event. The text of the error does not quote it.
    #[error(
        "the content of a message with the prefix {prefix:?} is not a JSON object of an event (at byte {at})"
    )]
    Message {
        /// Its prefix.
        prefix: String,
        /// Where parsing stopped.
        at: usize,
    },
    /// A message lacks a member that the configuration names.
    #[error("a message with the prefix {prefix:?} has no member {member:?}, which {}", named_by(.key))]
    MissingMember {
        /// Its prefix.
        prefix: String,
        /// The member's name.
        member: String,
        /// Where the configuration names it.
        key: &'static str,
    },
    /// A row refers to a table that the stream has not described, or has a different number of values.
    #[error("a row does not match its table's description (relation {0})")]
    Mismatch(u32),
    /// A value arrived in a format that the router did not request.
    #[error("column {column:?} of table {table} arrived in a format that the router cannot read ({form})")]
    Form {
        /// The table.
        table: String,
        /// The column's name.
        column: String,
        /// The format.
        form: &'static str,
    },
}

/// Where the configuration names a column, as the start of a sentence.
pub fn named_by(key: &str) -> String {
    match key {
        IN_TOPIC => "`[route] topic` names".to_owned(),
        IN_PARTITION => "`[route] partition` names".to_owned(),
        key if key.contains('.') => format!("`[{key}]` names"),
        key => format!("`[outbox] columns` names as `{key}`"),
    }
}

/// The SQL name of a common type (`pg_type.dat`), or its OID.
fn type_name(type_id: u32) -> String {
    let name = match type_id {
        16 => "boolean",
        17 => "bytea",
        20 => "bigint",
        21 => "smallint",
        23 => "integer",
        25 => "text",
        114 => "json",
        701 => "double precision",
        1042 => "character",
        1043 => "character varying",
        1082 => "date",
        1083 => "time",
        1114 => "timestamp",
        1184 => "timestamptz",
        1700 => "numeric",
        2950 => "uuid",
        3802 => "jsonb",
        other => return format!("OID {other}"),
    };
    name.to_owned()
}
