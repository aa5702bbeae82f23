//! Where a relation's columns are, found once and used for each row.

use super::{FIELDS, Field, Outbox, OutboxError, OutboxEvent};
use crate::postgres::pgoutput::{Insert, Oid, Relation, Value};

const BYTEA: u32 = 17;
const TEXT: u32 = 25;
const JSON: u32 = 114;
const VARCHAR: u32 = 1043;
const TIMESTAMP: u32 = 1114;
const TIMESTAMPTZ: u32 = 1184;
const JSONB: u32 = 3802;

/// Types from here on are the user's own, domains among them; what they are based on is not in the stream.
const FIRST_NORMAL_OBJECT_ID: u32 = 16_384;

/// The outbox table's columns as of one Relation message.
#[derive(Debug)]
pub(super) struct Layout {
    /// For each column of the table, which fields it holds, as a bit set: one column may serve several.
    fields: Vec<u8>,
    extra: Vec<usize>,
    payload_is_bytea: bool,
}

impl Layout {
    pub(super) fn new(outbox: &Outbox, relation: &Relation<'_>) -> Result<Self, OutboxError> {
        let find = |name: &str| relation.columns().enumerate().find(|(_, column)| column.name == name);
        let type_of = |name: &str| find(name).map(|(_, column)| column.type_id);
        if let Some(fault) = faults(outbox, type_of).into_iter().next() {
            return Err(fault);
        }
        let mut fields = vec![0u8; relation.columns().count()];
        let mut payload_is_bytea = false;
        for field in FIELDS {
            let Some((index, column)) = field.column(&outbox.columns).and_then(find) else { continue };
            if let Some(bits) = fields.get_mut(index) {
                *bits |= 1 << field as u8;
            }
            if field == Field::Payload {
                payload_is_bytea = column.type_id.0 == BYTEA;
            }
        }
        let extra =
            outbox.extra.iter().filter_map(|extra| find(&extra.name)).map(|(index, _)| index).collect();
        Ok(Layout { fields, extra, payload_is_bytea })
    }

    pub(super) fn read<'a>(
        &'a self,
        outbox: &'a Outbox,
        insert: &Insert<'a>,
    ) -> Result<OutboxEvent<'a>, OutboxError> {
        if insert.new.len() != self.fields.len() {
            return Err(OutboxError::Mismatch(insert.relation.0));
        }
        let mut fields = [None; FIELDS.len()];
        for (value, bits) in insert.new.values().zip(&self.fields) {
            if *bits == 0 {
                continue;
            }
            let text = match value {
                Value::Null => continue,
                Value::Text(text) => text,
                Value::Binary(_) => return Err(unreadable(outbox, *bits, "binary")),
                Value::UnchangedToast => return Err(unreadable(outbox, *bits, "unchanged TOAST value")),
            };
            for (n, field) in fields.iter_mut().enumerate() {
                if bits & (1 << n) != 0 {
                    *field = Some(text);
                }
            }
        }
        let payload_is_bytea = self.payload_is_bytea;
        Ok(OutboxEvent {
            fields,
            payload_is_bytea,
            tuple: insert.new,
            extra: &self.extra,
            table: &outbox.table,
        })
    }
}

/// What is wrong with a table whose columns have these types.
pub(super) fn faults(outbox: &Outbox, type_of: impl Fn(&str) -> Option<Oid>) -> Vec<OutboxError> {
    let missing = |column: &str, key| OutboxError::MissingColumn {
        table: outbox.table.to_string(),
        column: column.to_owned(),
        key,
    };
    let mut faults = Vec::new();
    for field in FIELDS {
        let Some(name) = field.column(&outbox.columns) else { continue };
        let wanted = field == Field::CreatedAt && outbox.needs_created_at;
        match type_of(name) {
            Some(type_id) => faults.extend(wrong_type(outbox, field, name, type_id)),
            None if field.optional(&outbox.columns) && !wanted => {}
            None => faults.push(missing(name, field.key())),
        }
    }
    let extra = outbox.extra.iter().filter(|extra| type_of(&extra.name).is_none());
    faults.extend(extra.map(|extra| missing(&extra.name, extra.key)));
    faults
}

fn wrong_type(outbox: &Outbox, field: Field, name: &str, type_id: Oid) -> Option<OutboxError> {
    let (accepted, expected): (&[u32], _) = match field {
        Field::Headers => (&[JSONB, JSON, TEXT, VARCHAR], "jsonb, json or text"),
        Field::CreatedAt if outbox.needs_created_at => {
            (&[TIMESTAMPTZ, TIMESTAMP], "timestamptz or timestamp (or `[route] timestamp = \"commit\"`)")
        }
        _ => return None,
    };
    if accepted.contains(&type_id.0) || type_id.0 >= FIRST_NORMAL_OBJECT_ID {
        return None;
    }
    let (table, column) = (outbox.table.to_string(), name.to_owned());
    Some(OutboxError::ColumnType { table, column, type_id: type_id.0, expected })
}

fn unreadable(outbox: &Outbox, bits: u8, form: &'static str) -> OutboxError {
    let field = FIELDS.into_iter().find(|field| bits & (1 << *field as u8) != 0);
    let column = field.and_then(|field| field.column(&outbox.columns)).unwrap_or_default();
    OutboxError::Form { table: outbox.table.to_string(), column: column.to_owned(), form }
}
