//! What the router has to deliver: the committed rows, read from the table afterwards.

use anyhow::Context;
use serde_json::Value;
use tokio_postgres::Client;

/// One committed row of the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) aggregate_type: String,
    pub(crate) aggregate_id: String,
    pub(crate) event_type: String,
    /// As Postgres prints it; the record's value must be the same text.
    pub(crate) payload: Option<String>,
    pub(crate) headers: String,
    /// The event's number within its aggregate, from 1 without a gap.
    pub(crate) sequence: i64,
}

impl Row {
    /// The topic by the router's default route.
    pub(crate) fn topic(&self) -> String {
        topic_of(&self.aggregate_type)
    }

    /// The headers that the members of the headers column become, sorted; `None` if the column is not an object.
    pub(crate) fn own_headers(&self) -> Option<Vec<(String, Option<Vec<u8>>)>> {
        let Ok(Value::Object(members)) = serde_json::from_str(&self.headers) else { return None };
        let mut headers: Vec<_> = members
            .into_iter()
            .map(|(name, value)| {
                let value = match value {
                    Value::Null => None,
                    Value::String(string) => Some(string.into_bytes()),
                    other => Some(other.to_string().into_bytes()),
                };
                (name, value)
            })
            .collect();
        headers.sort();
        Some(headers)
    }
}

/// The topic of an aggregate type by the router's default route.
pub(crate) fn topic_of(aggregate_type: &str) -> String {
    format!("outbox.event.{aggregate_type}")
}

/// All rows of the table.
pub(crate) async fn committed_rows(postgres: &Client) -> anyhow::Result<Vec<Row>> {
    let rows = postgres
        .query(
            "SELECT id::text, aggregate_type, aggregate_id, event_type, payload::text, headers::text,
                    (payload->>'sequence')::bigint
             FROM outbox",
            &[],
        )
        .await
        .context("read the outbox table")?;
    rows.iter()
        .map(|row| {
            Ok(Row {
                id: row.try_get(0)?,
                aggregate_type: row.try_get(1)?,
                aggregate_id: row.try_get(2)?,
                event_type: row.try_get(3)?,
                payload: row.try_get(4)?,
                headers: row.try_get(5)?,
                sequence: row.try_get(6)?,
            })
        })
        .collect()
}
