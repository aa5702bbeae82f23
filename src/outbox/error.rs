//! What a table or a row can lack.

use super::{IN_PARTITION, IN_TOPIC};

/// Why the stream cannot be read on as it is. Each names the table's column or the table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutboxError {
    /// The table has no such column (any more).
    #[error("table {table} has no column {column:?}, which {}", named_by(.key))]
    MissingColumn {
        /// The table.
        table: String,
        /// The column's name.
        column: String,
        /// The key under `[outbox] columns`, or [`super::ExtraColumn::key`].
        key: &'static str,
    },
    /// A column's type cannot hold what is expected of it.
    #[error("column {column:?} of table {table} has type {}, where {expected} is needed", type_name(*.type_id))]
    ColumnType {
        /// The table.
        table: String,
        /// The column's name.
        column: String,
        /// The type that it has.
        type_id: u32,
        /// The types that would do.
        expected: &'static str,
    },
    /// The outbox table's OID now goes by another name.
    #[error("the outbox table {table} is now called {now}")]
    Renamed {
        /// The configured table.
        table: String,
        /// Its present name.
        now: String,
    },
    /// A message is not what an event can be read from. The text of the error quotes none of it.
    #[error(
        "the content of a message with the prefix {prefix:?} is not a JSON object of an event (at byte {at})"
    )]
    Message {
        /// Its prefix.
        prefix: String,
        /// Where reading stopped.
        at: usize,
    },
    /// A message lacks a member that the configuration names.
    #[error("a message with the prefix {prefix:?} has no member {member:?}, which {}", named_by(.key))]
    MissingMember {
        /// Its prefix.
        prefix: String,
        /// The member's name.
        member: String,
        /// Where it is named.
        key: &'static str,
    },
    /// A row refers to a table that the stream has not described, or has another number of values.
    #[error("a row does not fit its table's description (relation {0})")]
    Mismatch(u32),
    /// A value came in a form that the router did not ask for.
    #[error("column {column:?} of table {table} came in a form that cannot be read ({form})")]
    Form {
        /// The table.
        table: String,
        /// The column's name.
        column: String,
        /// What came.
        form: &'static str,
    },
}

/// Where the configuration names a column, as the beginning of a sentence.
pub fn named_by(key: &str) -> String {
    match key {
        IN_TOPIC => "`[route] topic` names".to_owned(),
        IN_PARTITION => "`[route] partition` names".to_owned(),
        key if key.contains('.') => format!("`[{key}]` names"),
        key => format!("`[outbox] columns` names as `{key}`"),
    }
}

/// A type as SQL calls it, if it is one of the usual (`pg_type.dat`).
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
