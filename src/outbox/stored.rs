//! Events from outside the stream: queried rows, and stored parked events.

use super::event::{ColumnType, OutboxEvent};
use super::message;
use super::owned::OwnedRow;
use super::{Outbox, OutboxError};
use crate::config::TableName;
use crate::dead_letters::OriginalEvent;

/// The prefix in the source of a stored message.
const MESSAGE_PREFIX: &str = "message:";

/// Decodes rows that were queried rather than streamed, for commands that show what they would become.
impl Outbox {
    /// Memory for a row of a table.
    pub fn owned_row(&self, table: &TableName) -> OwnedRow {
        OwnedRow::new(table.clone())
    }

    /// Decodes one row from the names, types and texts of all its columns.
    pub fn read_row<'a, 'v>(
        &self,
        row: &'a mut OwnedRow,
        values: impl Iterator<Item = (&'v str, ColumnType, Option<&'v str>)> + Clone,
    ) -> Result<OutboxEvent<'a>, OutboxError> {
        let type_of =
            |name: &str| values.clone().find(|(column, ..)| *column == name).map(|(_, of, _)| of.id);
        if let Some(fault) = self.faults(row.source(), type_of).into_iter().next() {
            return Err(fault);
        }
        row.clear(&self.wanted);
        values.for_each(|(column, of, value)| row.put(&self.wanted, column, of, value));
        Ok(row.event())
    }

    /// Decodes an event that was stored. `row` is for its table, or for its message's prefix.
    pub fn read_stored<'a>(
        &self,
        row: &'a mut OwnedRow,
        original: &OriginalEvent,
    ) -> Result<OutboxEvent<'a>, OutboxError> {
        match original {
            OriginalEvent::Columns(columns) => self.read_row(
                row,
                columns
                    .iter()
                    .map(|column| (column.name.as_str(), ColumnType::of(column), column.value.as_deref())),
            ),
            OriginalEvent::Message(content) => self.read_json(row, content.as_bytes()),
        }
    }

    /// Memory for an event that was stored, by its source.
    pub fn stored_row(&self, source: &str) -> OwnedRow {
        let (schema, name) = match source.split_once(MESSAGE_PREFIX) {
            Some(("", prefix)) => (message::SCHEMA, prefix),
            _ => source.split_once('.').unwrap_or(("public", source)),
        };
        OwnedRow::new(TableName { schema: schema.to_owned(), name: name.to_owned() })
    }

    /// Decodes a JSON object with members named like columns, as in a message.
    pub fn read_json<'a>(&self, row: &'a mut OwnedRow, json: &[u8]) -> Result<OutboxEvent<'a>, OutboxError> {
        message::read(&self.wanted, json, row)?;
        Ok(row.event())
    }
}
