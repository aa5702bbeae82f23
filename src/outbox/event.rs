//! One event, by the meaning of its columns.

use std::fmt;

use connect_values::ConnectType;
use pg_logical::Oid;
use pg_logical::pgoutput::{Tuple, Value};

use super::{FIELDS, Field};
use crate::config::TableName;
use crate::dead_letters::Column;

/// A column's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnType {
    /// The type's OID; for a domain, that of its base type.
    pub id: Oid,
    /// How Kafka Connect represents its values.
    pub connect: ConnectType,
}

const BYTEA: u32 = 17;
const TEXT: u32 = 25;
const JSON: u32 = 114;
const XML: u32 = 142;
const JSONB: u32 = 3802;

impl ColumnType {
    /// The type of a missing column.
    pub(super) const NONE: ColumnType = ColumnType { id: Oid(0), connect: ConnectType::STRING };
    pub(super) const BYTES: ColumnType = ColumnType { id: Oid(BYTEA), connect: ConnectType::BYTES };
    pub(super) const TEXT: ColumnType = ColumnType { id: Oid(TEXT), connect: ConnectType::STRING };
    pub(super) const JSONB: ColumnType = ColumnType { id: Oid(JSONB), connect: ConnectType::STRING };

    /// A type that belongs to Postgres. The modifier is `atttypmod`: precision, scale or length; -1 for none.
    pub fn built_in(id: Oid, modifier: i32) -> ColumnType {
        ColumnType { id, connect: ConnectType::of(id.0, modifier) }
    }

    /// A domain over a type of Postgres, which has this name. The domain's modifier is not known.
    pub fn domain(base: Oid, name: &str) -> ColumnType {
        match connect_values::needs_modifier(name) {
            true => ColumnType::own(base, name),
            false => ColumnType::built_in(base, -1),
        }
    }

    /// A user-defined type, or one of an extension.
    pub fn own(id: Oid, name: &str) -> ColumnType {
        ColumnType { id, connect: ConnectType::user_defined(name) }
    }

    /// The type of a column.
    pub(super) fn of(column: &Column) -> ColumnType {
        match &column.type_name {
            Some(name) => ColumnType::own(Oid(column.type_id), name),
            None => ColumnType::built_in(Oid(column.type_id), column.modifier),
        }
    }

    /// Whether its values are bytes, which Postgres prints in hexadecimal.
    pub fn is_bytea(self) -> bool {
        self.id.0 == BYTEA
    }

    /// Whether its values are JSON.
    pub fn is_json(self) -> bool {
        matches!(self.id.0, JSON | JSONB)
    }

    /// Whether its values are XML.
    pub fn is_xml(self) -> bool {
        self.id.0 == XML
    }
}

/// Where the values of the extra columns are.
#[derive(Clone, Copy)]
pub(super) enum Extra<'a> {
    /// In the row, at these indexes; `None` for a missing column. `rest` is what follows the last field.
    Row { tuple: Tuple<'a>, rest: Tuple<'a>, places: &'a [Option<(usize, ColumnType)>] },
    /// In one text, at these ranges; `None` for a missing column.
    Owned { text: &'a str, places: &'a [Option<(Range, ColumnType)>] },
}

/// The start and end of a value's text; `None` for NULL.
pub(super) type Range = Option<(usize, usize)>;

/// One row of the outbox, or one message, by the meaning of its columns.
#[derive(Clone, Copy)]
pub struct OutboxEvent<'a> {
    pub(super) fields: [Option<&'a [u8]>; FIELDS.len()],
    pub(super) types: &'a [ColumnType; FIELDS.len()],
    pub(super) extra: Extra<'a>,
    pub(super) table: &'a TableName,
}

impl fmt::Debug for OutboxEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxEvent").field("id", &self.printable_id()).finish_non_exhaustive()
    }
}

impl<'a> OutboxEvent<'a> {
    /// A field's value as Postgres prints it; `None` for NULL and for a missing column.
    pub fn field(&self, field: Field) -> Option<&'a [u8]> {
        self.fields.get(field as usize).copied().flatten()
    }

    /// The type of a field's column.
    pub fn field_type(&self, field: Field) -> ColumnType {
        self.types.get(field as usize).copied().unwrap_or(ColumnType::NONE)
    }

    /// The outbox table that it was written to. For a message, the schema is `message` and the name is its prefix.
    pub fn table(&self) -> &'a TableName {
        self.table
    }

    /// The value of the n-th of the additional columns that [`super::Outbox::new`] was given; `None` for NULL and for a
    /// missing column.
    pub fn extra(&self, n: usize) -> Option<&'a [u8]> {
        match self.extra {
            Extra::Row { tuple, rest, places } => {
                let (index, _) = places.get(n).copied().flatten()?;
                // most additional columns are behind the fields
                let value = match index.checked_sub(tuple.len() - rest.len()) {
                    Some(index) => rest.values().nth(index)?,
                    None => tuple.values().nth(index)?,
                };
                match value {
                    Value::Text(text) => Some(text),
                    Value::Null | Value::UnchangedToast | Value::Binary(_) => None,
                }
            }
            Extra::Owned { text, places } => {
                let (start, end) = places.get(n).copied().flatten()?.0?;
                text.get(start..end).map(str::as_bytes)
            }
        }
    }

    /// The type of that column; `None` if it is missing.
    pub fn extra_type(&self, n: usize) -> Option<ColumnType> {
        match self.extra {
            Extra::Row { places, .. } => places.get(n).copied().flatten().map(|(_, of)| of),
            Extra::Owned { places, .. } => places.get(n).copied().flatten().map(|(_, of)| of),
        }
    }

    /// The event's id for log lines and errors: printable, of bounded length.
    pub fn printable_id(&self) -> String {
        printable_id(self.field(Field::Id))
    }
}

/// The id of an event for log lines and errors; without one it is `NULL`.
pub fn printable_id(id: Option<&[u8]>) -> String {
    id.map_or_else(|| "NULL".to_owned(), printable)
}

/// A value of a row for log lines and errors: control characters escaped, of bounded length.
pub fn printable(value: &[u8]) -> String {
    const SHOWN: usize = 64;
    let text = String::from_utf8_lossy(value);
    let mut shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push_str("...");
    }
    shown
}
