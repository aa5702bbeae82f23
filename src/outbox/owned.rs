//! An event with its own memory, from a logical message or from a row that was queried.

use std::fmt;

use pg_logical::Redacted;

use super::event::{ColumnType, Extra, OutboxEvent, Range};
use super::{FIELDS, Field, Wanted};
use crate::config::TableName;

/// The values of one event, in one text that is reused for the next.
pub struct OwnedRow {
    source: TableName,
    text: String,
    fields: [Range; FIELDS.len()],
    types: [ColumnType; FIELDS.len()],
    extra: Vec<Option<(Range, ColumnType)>>,
}

impl fmt::Debug for OwnedRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedRow")
            .field("source", &self.source)
            .field("text", &Redacted(self.text.as_bytes()))
            .finish_non_exhaustive()
    }
}

impl OwnedRow {
    pub(super) fn new(source: TableName) -> Self {
        OwnedRow {
            source,
            text: String::new(),
            fields: [None; FIELDS.len()],
            types: [ColumnType::NONE; FIELDS.len()],
            extra: Vec::new(),
        }
    }

    pub(super) fn source(&self) -> &TableName {
        &self.source
    }

    pub(super) fn clear(&mut self, wanted: &Wanted) {
        self.text.clear();
        self.fields = [None; FIELDS.len()];
        self.types = [ColumnType::NONE; FIELDS.len()];
        self.extra.clear();
        self.extra.resize(wanted.extra.len(), None);
    }

    /// Stores a column's value, if it is needed.
    pub(super) fn put(&mut self, wanted: &Wanted, column: &str, of: ColumnType, value: Option<&str>) {
        for field in FIELDS {
            if field.column(&wanted.columns) == Some(column) {
                self.put_field(field, of, value);
            }
        }
        if let Some(number) = wanted.extra.iter().position(|extra| extra.name == column) {
            let range = value.map(|value| self.append(value));
            if let Some(place) = self.extra.get_mut(number) {
                *place = Some((range, of));
            }
        }
    }

    pub(super) fn put_field(&mut self, field: Field, of: ColumnType, value: Option<&str>) {
        let range = value.map(|value| self.append(value));
        if let Some(place) = self.fields.get_mut(field as usize) {
            *place = range;
        }
        if let Some(known) = self.types.get_mut(field as usize) {
            *known = of;
        }
    }

    fn append(&mut self, value: &str) -> (usize, usize) {
        let start = self.text.len();
        self.text.push_str(value);
        (start, self.text.len())
    }

    /// A required field that was not stored. Other columns are NULL then, because functions do not write them.
    pub(super) fn missing(&self, wanted: &Wanted) -> Option<Field> {
        let needed = |field: &Field| {
            *field != Field::TracingSpanContext
                && field.column(&wanted.columns).is_some()
                && !field.optional(&wanted.columns)
        };
        let put = |field: &Field| self.types.get(*field as usize).is_some_and(|of| *of != ColumnType::NONE);
        FIELDS.into_iter().find(|field| needed(field) && !put(field))
    }

    pub(super) fn event(&self) -> OutboxEvent<'_> {
        let text = self.text.as_str();
        let at = |range: Range| range.and_then(|(start, end)| text.get(start..end)).map(str::as_bytes);
        OutboxEvent {
            fields: self.fields.map(at),
            types: &self.types,
            extra: Extra::Owned { text, places: &self.extra },
            table: &self.source,
        }
    }
}
