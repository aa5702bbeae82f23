//! Where a relation's columns are: looked up once, and used for each row.

use std::collections::HashMap;

use pg_logical::Oid;
use pg_logical::pgoutput::{Insert, Relation, Value};

use super::event::{ColumnType, Extra, OutboxEvent};
use super::{ExtraColumn, FIELDS, Field, Named, OutboxError, Wanted};
use crate::config::TableName;
use crate::dead_letters::Column;

const TEXT: u32 = 25;
const JSON: u32 = 114;
const VARCHAR: u32 = 1043;
const TIMESTAMP: u32 = 1114;
const TIMESTAMPTZ: u32 = 1184;
const JSONB: u32 = 3802;

/// Types from this OID on are user-defined. For domains among them, the Relation message does not tell the base type.
const FIRST_NORMAL_OBJECT_ID: u32 = 16_384;

/// An outbox table's columns, as described by one Relation message.
#[derive(Debug)]
pub(super) struct Layout {
    /// The index of the table among the outboxes.
    pub(super) table: usize,
    /// For each column up to the last field, the fields it is used for; there may be several.
    fields: Vec<Vec<Field>>,
    types: [ColumnType; FIELDS.len()],
    /// Where the additional columns are; `None` for a missing one.
    extra: Vec<Option<(usize, ColumnType)>>,
    /// All columns, without values.
    columns: Vec<Column>,
}

impl Layout {
    pub(super) fn new(
        wanted: &Wanted,
        named: &HashMap<Oid, Named>,
        table: &TableName,
        number: usize,
        relation: &Relation<'_>,
    ) -> Result<Self, OutboxError> {
        let columns: Vec<Column> = relation
            .columns()
            .map(|column| {
                let (type_id, type_name) = match named.get(&column.type_id) {
                    Some(Named::Own(name)) => (column.type_id, Some(name.clone())),
                    Some(Named::Domain(base, name)) => (*base, name.clone()),
                    None => (column.type_id, None),
                };
                let (name, modifier) = (column.name.to_owned(), column.type_modifier);
                Column { name, type_id: type_id.0, modifier, type_name, value: None }
            })
            .collect();
        let find = |name: &str| {
            let (index, column) = columns.iter().enumerate().find(|(_, column)| column.name == name)?;
            Some((index, ColumnType::of(column)))
        };
        if let Some(fault) = faults(wanted, table, |name| find(name).map(|(_, of)| of.id)).into_iter().next()
        {
            return Err(fault);
        }
        let mut fields: Vec<Vec<Field>> = Vec::new();
        let mut types = [ColumnType::NONE; FIELDS.len()];
        for field in FIELDS {
            let Some((index, of)) = field.column(&wanted.columns).and_then(find) else { continue };
            fields.resize(fields.len().max(index + 1), Vec::new());
            if let Some(held) = fields.get_mut(index) {
                held.push(field);
            }
            if let Some(known) = types.get_mut(field as usize) {
                *known = of;
            }
        }
        let extra = wanted.extra.iter().map(|extra| find(&extra.name)).collect();
        Ok(Layout { table: number, fields, types, extra, columns })
    }

    /// Every column with its value.
    pub(super) fn all_columns(&self, insert: &Insert<'_>) -> Vec<Column> {
        let text = |value: Value<'_>| match value {
            Value::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
            Value::Null | Value::Binary(_) | Value::UnchangedToast => None,
        };
        let with = |(column, value): (&Column, Value<'_>)| Column { value: text(value), ..column.clone() };
        self.columns.iter().zip(insert.new.values()).map(with).collect()
    }

    pub(super) fn read<'a>(
        &'a self,
        wanted: &Wanted,
        table: &'a TableName,
        insert: &Insert<'a>,
    ) -> Result<OutboxEvent<'a>, OutboxError> {
        if insert.new.len() != self.columns.len() {
            return Err(OutboxError::Mismatch(insert.relation.0));
        }
        let mut fields = [None; FIELDS.len()];
        let mut rest = insert.new;
        for held in &self.fields {
            let Some(value) = rest.take_first() else { break };
            let Some(first) = held.first() else { continue };
            let text = match value {
                Value::Null => continue,
                Value::Text(text) => text,
                Value::Binary(_) => return Err(unreadable(wanted, table, *first, "binary")),
                Value::UnchangedToast => {
                    return Err(unreadable(wanted, table, *first, "unchanged TOAST value"));
                }
            };
            for field in held {
                if let Some(value) = fields.get_mut(*field as usize) {
                    *value = Some(text);
                }
            }
        }
        let extra = Extra::Row { tuple: insert.new, rest, places: &self.extra };
        Ok(OutboxEvent { fields, types: &self.types, extra, table })
    }
}

/// The faults of a table whose columns have these types.
pub(super) fn faults(
    wanted: &Wanted,
    table: &TableName,
    type_of: impl Fn(&str) -> Option<Oid>,
) -> Vec<OutboxError> {
    let missing = |column: &str, key| OutboxError::MissingColumn {
        table: table.to_string(),
        column: column.to_owned(),
        key,
    };
    let mut faults = Vec::new();
    for field in FIELDS {
        let Some(name) = field.column(&wanted.columns) else { continue };
        let needed = field == Field::CreatedAt && wanted.created_at;
        match type_of(name) {
            Some(type_id) => faults.extend(wrong_type(wanted, table, field, name, type_id)),
            None if field.optional(&wanted.columns) && !needed => {}
            None => faults.push(missing(name, field.key())),
        }
    }
    let absent = |extra: &&ExtraColumn| !extra.optional && type_of(&extra.name).is_none();
    let extra = wanted.extra.iter().filter(absent);
    faults.extend(extra.map(|extra| missing(&extra.name, extra.key)));
    faults
}

fn wrong_type(
    wanted: &Wanted,
    table: &TableName,
    field: Field,
    name: &str,
    type_id: Oid,
) -> Option<OutboxError> {
    let (accepted, expected): (&[u32], _) = match field {
        Field::Headers => (&[JSONB, JSON, TEXT, VARCHAR], "jsonb, json or text"),
        Field::CreatedAt if wanted.created_at => {
            (&[TIMESTAMPTZ, TIMESTAMP], "timestamptz or timestamp (or `[route] timestamp = \"commit\"`)")
        }
        _ => return None,
    };
    if accepted.contains(&type_id.0) || type_id.0 >= FIRST_NORMAL_OBJECT_ID {
        return None;
    }
    let (table, column) = (table.to_string(), name.to_owned());
    Some(OutboxError::ColumnType { table, column, type_id: type_id.0, expected })
}

fn unreadable(wanted: &Wanted, table: &TableName, field: Field, form: &'static str) -> OutboxError {
    let column = field.column(&wanted.columns).unwrap_or_default();
    OutboxError::Form { table: table.to_string(), column: column.to_owned(), form }
}
