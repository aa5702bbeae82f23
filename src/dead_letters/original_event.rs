//! An event as it was written: all columns of its row, or the content of its message. How it is sent later depends on the
//! configuration at that time.

use std::fmt;

use pg_logical::Redacted;
use serde::{Deserialize, Serialize};

/// The event, stored as JSON in the column `event`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OriginalEvent {
    /// A row of an outbox table.
    Columns(Vec<Column>),
    /// A logical message: a JSON object, as text.
    Message(String),
}

/// One column of a row.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// The OID of its type; for a domain, that of its base type.
    #[serde(rename = "type")]
    pub type_id: u32,
    /// `atttypmod`
    pub modifier: i32,
    /// The name of a type that does not belong to Postgres, or of a domain's base type that needs the modifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub type_name: Option<String>,
    /// As Postgres prints it; `None` for NULL.
    pub value: Option<String>,
}

impl fmt::Debug for OriginalEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OriginalEvent::Columns(columns) => f.debug_tuple("Columns").field(columns).finish(),
            OriginalEvent::Message(content) => {
                f.debug_tuple("Message").field(&Redacted(content.as_bytes())).finish()
            }
        }
    }
}

impl fmt::Debug for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Column")
            .field("name", &self.name)
            .field("value", &self.value.as_ref().map(|value| Redacted(value.as_bytes())))
            .finish_non_exhaustive()
    }
}

/// The column `event` contains something that no router writes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the row's column event is not what a router writes: {0}")]
pub struct NotAnEvent(String);

impl OriginalEvent {
    /// The JSON for the table.
    pub fn encode(&self) -> String {
        // cannot fail: texts and numbers only
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses the JSON from the table.
    pub fn decode(json: &str) -> Result<Self, NotAnEvent> {
        // serde's message may quote the event
        serde_json::from_str(json)
            .map_err(|error| NotAnEvent(format!("line {}, column {}", error.line(), error.column())))
    }

    pub(super) fn size(&self) -> usize {
        match self {
            OriginalEvent::Columns(columns) => columns
                .iter()
                .map(|column| {
                    size_of::<Column>() + column.name.len() + column.value.as_ref().map_or(0, String::len)
                })
                .sum(),
            OriginalEvent::Message(content) => content.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn encoded_events_are_decoded_unchanged(
            message: String,
            columns in prop::collection::vec((".*", any::<u32>(), any::<i32>(), any::<Option<String>>(), any::<Option<String>>()), 0..5)
        ) {
            let columns = columns.into_iter().map(|(name, type_id, modifier, type_name, value)| {
                Column { name, type_id, modifier, type_name, value }
            });
            for original in [OriginalEvent::Message(message), OriginalEvent::Columns(columns.collect())] {
                prop_assert_eq!(OriginalEvent::decode(&original.encode()), Ok(original));
            }
        }
    }

    #[test]
    fn invalid_json_is_located_but_not_quoted() {
        let error = OriginalEvent::decode("{\"columns\": \"s3cret\"}").unwrap_err().to_string();
        assert!(error.contains("column 20") && !error.contains("s3cret"), "{error}");
    }
}
