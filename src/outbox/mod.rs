//! The outbox table: a relation and a tuple in, an [`OutboxEvent`] out, still borrowed from the receive buffer.
//!
//! Columns are found by name once per Relation message, so the cost per row does not grow with names, and a table that
//! is altered while the stream runs is read as it was at each row.

mod layout;

use std::collections::HashMap;
use std::fmt;

use crate::config::{Columns, Config, RecordTimestamp, TableName};
use crate::postgres::pgoutput::{Insert, Oid, Relation, Tuple, Value};
use layout::Layout;

/// The columns that the router itself gives a meaning to, in the order of [`Columns`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// `id`
    Id,
    /// `aggregate_type`
    AggregateType,
    /// `aggregate_id`
    AggregateId,
    /// `event_type`
    EventType,
    /// `payload`
    Payload,
    /// `headers`
    Headers,
    /// `created_at`
    CreatedAt,
}

/// All of them.
pub const FIELDS: [Field; 7] = [
    Field::Id,
    Field::AggregateType,
    Field::AggregateId,
    Field::EventType,
    Field::Payload,
    Field::Headers,
    Field::CreatedAt,
];

impl Field {
    /// The field's key under `[outbox] columns`.
    pub fn key(self) -> &'static str {
        match self {
            Field::Id => "id",
            Field::AggregateType => "aggregate_type",
            Field::AggregateId => "aggregate_id",
            Field::EventType => "event_type",
            Field::Payload => "payload",
            Field::Headers => "headers",
            Field::CreatedAt => "created_at",
        }
    }

    /// The name of the table's column; `None` if the configuration says that it has none.
    pub fn column(self, columns: &Columns) -> Option<&str> {
        match self {
            Field::Id => Some(&columns.id),
            Field::AggregateType => Some(&columns.aggregate_type),
            Field::AggregateId => Some(&columns.aggregate_id),
            Field::EventType => Some(&columns.event_type),
            Field::Payload => Some(&columns.payload),
            Field::Headers => columns.headers.as_deref(),
            Field::CreatedAt => columns.created_at.as_deref(),
        }
    }

    /// Whether a table may go without the column: `headers` and `created_at`, unless the user gave them a name.
    pub fn optional(self, columns: &Columns) -> bool {
        match self {
            Field::Headers => !columns.headers_named,
            Field::CreatedAt => !columns.created_at_named,
            _ => false,
        }
    }
}

/// A column that a template names and that is none of the [`Field`]s.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtraColumn {
    /// Its name.
    pub name: String,
    /// Which template: [`IN_TOPIC`] or [`IN_ROUTE_HEADERS`].
    pub key: &'static str,
}

/// `[route] topic`
pub const IN_TOPIC: &str = "topic";

/// `[route.headers]`
pub const IN_ROUTE_HEADERS: &str = "route.headers";

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
        /// The key under `[outbox] columns`, or [`ExtraColumn::key`].
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

/// Where the configuration names a column.
fn named_by(key: &str) -> String {
    match key {
        IN_TOPIC => "`[route] topic` names".to_owned(),
        IN_ROUTE_HEADERS => "`[route.headers]` names".to_owned(),
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

/// One row of the outbox, by meaning.
#[derive(Clone, Copy)]
pub struct OutboxEvent<'a> {
    fields: [Option<&'a [u8]>; FIELDS.len()],
    payload_is_bytea: bool,
    tuple: Tuple<'a>,
    extra: &'a [usize],
    table: &'a TableName,
}

impl fmt::Debug for OutboxEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxEvent").field("id", &self.printable_id()).finish_non_exhaustive()
    }
}

impl<'a> OutboxEvent<'a> {
    /// A field's value as Postgres prints it; `None` for NULL and for a column that the table does not have.
    pub fn field(&self, field: Field) -> Option<&'a [u8]> {
        self.fields.get(field as usize).copied().flatten()
    }

    /// The outbox table that it was written to.
    pub fn table(&self) -> &'a TableName {
        self.table
    }

    /// Whether the payload is a `bytea`, which Postgres prints in hexadecimal.
    pub fn payload_is_bytea(&self) -> bool {
        self.payload_is_bytea
    }

    /// The value of the n-th of the other columns that [`Outbox::new`] was asked for.
    pub fn extra(&self, n: usize) -> Option<&'a [u8]> {
        let index = *self.extra.get(n)?;
        match self.tuple.values().nth(index)? {
            Value::Text(text) => Some(text),
            Value::Null | Value::UnchangedToast | Value::Binary(_) => None,
        }
    }

    /// The event's id for a message to a person: printable, of bounded length.
    pub fn printable_id(&self) -> String {
        self.field(Field::Id).map_or_else(|| "NULL".to_owned(), printable)
    }
}

/// A value of a row for a message to a person: control characters escaped, of bounded length.
pub fn printable(value: &[u8]) -> String {
    const SHOWN: usize = 64;
    let text = String::from_utf8_lossy(value);
    let mut shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push_str("...");
    }
    shown
}

/// Knows the outbox table's layout as of the present place in the stream.
#[derive(Debug)]
pub struct Outbox {
    table: TableName,
    columns: Columns,
    extra: Vec<ExtraColumn>,
    needs_created_at: bool,
    /// The OID of the table that bears the name now, as the catalogues say.
    known: Option<Oid>,
    /// The outbox table's OID, once the stream has described it under its name.
    id: Option<Oid>,
    /// `None` for a table that is not ours.
    relations: HashMap<Oid, Option<Layout>>,
}

impl Outbox {
    /// The outbox of `config`, with these columns besides, which its routes name.
    pub fn of(config: &Config, extra: &[ExtraColumn]) -> Self {
        let needs_created_at = config.route.timestamp == RecordTimestamp::CreatedAt;
        let (table, columns) = (config.outbox.table.clone(), config.outbox.columns.clone());
        Self::new(table, columns, extra.to_vec(), needs_created_at)
    }

    /// Reads `table` by `columns`. `extra` names further columns whose values are wanted; `needs_created_at` makes
    /// a wrong type of that column an error.
    pub fn new(table: TableName, columns: Columns, extra: Vec<ExtraColumn>, needs_created_at: bool) -> Self {
        Outbox { table, columns, extra, needs_created_at, known: None, id: None, relations: HashMap::new() }
    }

    /// The table that bears the name now has this OID: rows in the log that were written before it was renamed to that
    /// are the outbox's too.
    pub fn known_as(mut self, oid: Oid) -> Self {
        self.known = Some(oid);
        self
    }

    /// What is wrong with the table, if its columns have these types: all that a Relation message would be refused for.
    pub fn faults(&self, type_of: impl Fn(&str) -> Option<Oid>) -> Vec<OutboxError> {
        layout::faults(self, type_of)
    }

    /// Takes in a table's definition, ours or not.
    pub fn relation(&mut self, relation: &Relation<'_>) -> Result<(), OutboxError> {
        let named = relation.namespace == self.table.schema && relation.name == self.table.name;
        // an earlier name, unless the stream has shown the table under its present one: then it is a later one
        let once_named = self.known == Some(relation.id) && self.id != self.known;
        if !named && !once_named {
            if self.id == Some(relation.id) {
                let now = format!("{}.{}", relation.namespace, relation.name);
                return Err(OutboxError::Renamed { table: self.table.to_string(), now });
            }
            self.relations.insert(relation.id, None);
            return Ok(());
        }
        let layout = Layout::new(self, relation)?;
        if named {
            self.id = Some(relation.id);
        }
        self.relations.insert(relation.id, Some(layout));
        Ok(())
    }

    /// Reads one new row; `None` if its table is not the outbox.
    pub fn event<'a>(&'a self, insert: &Insert<'a>) -> Result<Option<OutboxEvent<'a>>, OutboxError> {
        match self.relations.get(&insert.relation) {
            Some(Some(layout)) => layout.read(self, insert).map(Some),
            Some(None) => Ok(None),
            None => Err(OutboxError::Mismatch(insert.relation.0)),
        }
    }
}

#[cfg(test)]
mod tests;
