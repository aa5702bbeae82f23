//! The output of a dry run, as a table or as JSON.

use comfy_table::{Cell, Color};
use serde::Serialize;

use crate::commands::table::{TableStyle, trimmed};
use crate::error::ErrorCode;
use crate::json::Bytes;
use crate::routing::Record;
use crate::terminal::{on_one_line, shortened};

/// How many characters of a value the table shows.
const SHOWN: usize = 60;

/// One row and its outcome.
#[derive(Debug, Serialize)]
pub(in crate::commands) struct Shown {
    /// The event's id.
    pub(super) id: String,
    #[serde(flatten)]
    pub(in crate::commands) outcome: Outcome,
}

/// What the router would do with the row.
#[derive(Debug, Serialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub(in crate::commands) enum Outcome {
    /// Send this record.
    Record {
        topic: String,
        /// null: the key decides.
        partition: Option<i32>,
        key: Option<Bytes<'static>>,
        headers: Vec<Header>,
        /// null: a tombstone.
        value: Option<Bytes<'static>>,
        /// Milliseconds since the Unix epoch.
        timestamp: i64,
        /// How the payload violates its contract; null if it does not, or has no contract.
        violation: Option<String>,
    },
    /// Drop it, by a rule or because no rule matches.
    Dropped,
    /// Stop, because the row cannot be sent.
    Refused {
        /// What is wrong and what to do.
        reason: String,
        /// What is wrong, as a clause.
        #[serde(skip)]
        what: String,
        error_code: ErrorCode,
    },
}

#[derive(Debug, Serialize)]
pub(in crate::commands) struct Header {
    name: String,
    value: Option<Bytes<'static>>,
}

fn owned(bytes: &[u8]) -> Bytes<'static> {
    Bytes::of(bytes).into_owned()
}

/// The text for a cell of the table.
fn in_table(bytes: &Bytes<'_>) -> String {
    match bytes {
        Bytes::Text(text) => short(text),
        Bytes::Base64 { base64 } => format!("base64 {}", short(base64)),
    }
}

/// The text on one line, shortened.
fn short(text: &str) -> String {
    shortened(&on_one_line(text), SHOWN).into_owned()
}

impl Outcome {
    /// Whether a header of the record is this text, or its value contains it.
    pub(in crate::commands) fn has(&self, text: &str) -> bool {
        let Outcome::Record { headers, value, .. } = self else { return false };
        let is_text = |header: &Header| matches!(&header.value, Some(Bytes::Text(value)) if value == text);
        matches!(value, Some(Bytes::Text(value)) if value.contains(text)) || headers.iter().any(is_text)
    }

    pub(super) fn record(record: &Record<'_>) -> Self {
        Outcome::Record {
            topic: record.topic.to_owned(),
            partition: record.partition,
            key: record.key.map(owned),
            headers: record
                .headers
                .iter()
                .map(|(name, value)| Header { name: name.to_owned(), value: value.map(owned) })
                .collect(),
            value: record.value.map(owned),
            timestamp: record.timestamp,
            violation: record.violation.map(ToString::to_string),
        }
    }
}

/// The output for people.
pub(super) fn text(shown: &[Shown]) -> String {
    if shown.is_empty() {
        return "No rows.\n".to_owned();
    }
    let mut table =
        TableStyle::for_stdout().table_with_headings(["id", "topic", "partition", "key", "headers", "value"]);
    for Shown { id, outcome } in shown {
        match outcome {
            Outcome::Record { topic, partition, key, headers, value, .. } => {
                let optional =
                    |bytes: &Option<Bytes<'static>>| bytes.as_ref().map_or("null".to_owned(), in_table);
                let headers: Vec<String> = headers
                    .iter()
                    .map(|header| format!("{}: {}", short(&header.name), optional(&header.value)))
                    .collect();
                let partition = partition.map_or("by key".to_owned(), |partition| partition.to_string());
                table.add_row([
                    id.clone(),
                    topic.clone(),
                    partition,
                    optional(key),
                    headers.join("\n"),
                    optional(value),
                ]);
            }
            Outcome::Dropped => {
                table.add_row([Cell::new(id), Cell::new("dropped").fg(Color::Yellow)]);
            }
            Outcome::Refused { .. } => {
                table.add_row([Cell::new(id), Cell::new("cannot be sent").fg(Color::Red)]);
            }
        }
    }
    let mut text = trimmed(&table);
    for Shown { id, outcome } in shown {
        match outcome {
            Outcome::Refused { reason, .. } => text.push_str(&format!("\n{id} cannot be sent: {reason}\n")),
            Outcome::Record { violation: Some(violation), .. } => {
                text.push_str(&format!("\n{id} would be sent although {violation}\n"));
            }
            _ => {}
        }
    }
    text
}
