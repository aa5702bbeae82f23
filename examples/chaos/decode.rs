//! Parses the inserts that `test_decoding` wrote for the independent reader.

use std::collections::HashMap;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::event::{Id, id_of};
use crate::stage::outbox_table::Row;

/// The columns of a line about the outbox or one of its partitions, whose names begin like it.
fn change<'l>(line: &'l str, kind: &str) -> Option<&'l str> {
    let (partition, change) = line.strip_prefix("table public.outbox")?.split_once(": ")?;
    let columns = change.strip_prefix(kind)?.strip_prefix(": ")?;
    (partition.is_empty() || partition.starts_with('_')).then_some(columns)
}

/// The outbox row that a line inserts; `None` for any other line.
///
/// # Errors
/// The line is an insert into the outbox that cannot be parsed.
pub(crate) fn row_of(line: &str) -> anyhow::Result<Option<Row>> {
    let Some(columns) = change(line, "INSERT") else { return Ok(None) };
    let columns = columns_of(columns).with_context(|| format!("cannot parse the insert: {line}"))?;
    let text = |name: &str| columns.get(name).cloned().flatten();
    let needed = |name: &str| text(name).with_context(|| format!("no column {name} in the insert: {line}"));
    let payload = text("payload");
    let value: Value = serde_json::from_str(payload.as_deref().unwrap_or_default()).unwrap_or_default();
    Ok(Some(Row {
        id: needed("id")?,
        aggregate_type: needed("aggregate_type")?,
        aggregate_id: needed("aggregate_id")?,
        event_type: needed("event_type")?,
        headers: needed("headers")?,
        sequence: value.get("sequence").and_then(Value::as_i64).unwrap_or_default(),
        payload,
    }))
}

/// The id of the row that a line deletes; `None` for any other line, and for a table without a primary key.
pub(crate) fn deleted_by(line: &str) -> Option<Id> {
    let columns = columns_of(change(line, "DELETE")?).ok()?;
    id_of(columns.get("id")?.as_deref()?)
}

/// Parses `name[type]:value name[type]:'value' ...`, where quotes within a value are doubled.
fn columns_of(mut rest: &str) -> anyhow::Result<HashMap<&str, Option<String>>> {
    let mut columns = HashMap::new();
    while !rest.is_empty() {
        let (name, after) = rest.split_once('[').context("a column has no type")?;
        let (_, after) = after.split_once("]:").context("the type of a column has no closing bracket")?;
        let (value, after) = match after.strip_prefix('\'') {
            Some(quoted) => {
                let (text, after) = unquoted(quoted)?;
                (Some(text), after)
            }
            None => {
                let (bare, after) = after.split_once(' ').unwrap_or((after, ""));
                ((bare != "null").then(|| bare.to_owned()), after)
            }
        };
        columns.insert(name, value);
        rest = after.strip_prefix(' ').unwrap_or(after);
    }
    Ok(columns)
}

/// The text up to the closing quote, and what follows it.
fn unquoted(mut rest: &str) -> anyhow::Result<(String, &str)> {
    let mut text = String::new();
    loop {
        let Some((part, after)) = rest.split_once('\'') else { bail!("a value has no closing quote") };
        text.push_str(part);
        match after.strip_prefix('\'') {
            Some(more) => {
                text.push('\'');
                rest = more;
            }
            None => return Ok((text, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_inserts_with_quotes_nulls_and_added_columns() {
        let line = "table public.outbox: INSERT: id[uuid]:'00000000-0000-0000-0000-000000000001' \
                    aggregate_type[text]:'order' aggregate_id[text]:'order-''1'' [x]:' event_type[text]:'' \
                    payload[jsonb]:'{\"note\": \"it''s\", \"sequence\": 7}' headers[jsonb]:'{}' \
                    created_at[timestamp with time zone]:'2026-01-01 00:00:00+00' later[integer]:5 more[text]:null";
        let row = row_of(line).unwrap().unwrap();
        assert_eq!((row.aggregate_id.as_str(), row.event_type.as_str()), ("order-'1' [x]:", ""));
        assert_eq!(row.payload.as_deref(), Some(r#"{"note": "it's", "sequence": 7}"#));
        assert_eq!(row.sequence, 7);
    }

    #[test]
    fn a_deletion_names_its_row_by_the_primary_key() {
        let id = "00000000-0000-0000-0000-00000000002a";
        let cases = [
            (format!("table public.outbox: DELETE: id[uuid]:'{id}'"), Some(42)),
            ("table public.outbox: DELETE: (no-tuple-data)".to_owned(), None),
            (format!("table public.other: DELETE: id[uuid]:'{id}'"), None),
            (format!("table public.outbox: INSERT: id[uuid]:'{id}'"), None),
        ];
        for (line, expected) in cases {
            assert_eq!(deleted_by(&line), expected, "{line}");
        }
    }

    #[test]
    fn null_payload_is_parsed_as_none() {
        let line = "table public.outbox: INSERT: id[uuid]:'1' aggregate_type[text]:'a' aggregate_id[text]:'b' \
                    event_type[text]:'c' payload[jsonb]:null headers[jsonb]:'{}'";
        assert_eq!(row_of(line).unwrap().unwrap().payload, None);
        // of a partition
        assert!(row_of(&line.replace("outbox:", "outbox_20261130:")).unwrap().is_some());
    }

    #[test]
    fn skips_other_lines_and_rejects_incomplete_inserts() {
        for line in [
            "table public.outboxes: INSERT: id[uuid]:'1'",
            "BEGIN 7",
            "COMMIT 7",
            "table public.outbox: DELETE: (no-tuple-data)",
            "",
        ] {
            assert_eq!(row_of(line).unwrap(), None);
        }
        assert!(row_of("table public.outbox: INSERT: id[uuid]:'1").is_err());
        assert!(row_of("table public.outbox: INSERT: id[uuid]:'1'").is_err());
    }
}
