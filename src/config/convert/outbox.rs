//! `[outbox]`: tables, columns, and messages that are events.

use std::collections::HashSet;

use crate::config::identifiers::{check_name, parse_table, split_tables};
use crate::config::raw::{RawColumns, RawOutbox, Value};
use crate::config::read::{Located, Reader};
use crate::config::words::ON_UPDATE;
use crate::config::{Columns, OnUpdate, Outbox, TableName};
use crate::reserved::HEARTBEAT_PREFIX;

pub(super) fn outbox(reader: &mut Reader<'_>, raw: RawOutbox, columns_by_default: Columns) -> Outbox {
    let message_prefix = match reader.text_or_off("outbox.message_prefix", raw.message_prefix).flatten() {
        Some(Located { text, span, .. }) if text.contains('\0') => {
            reader.problem(&span, "outbox.message_prefix", "it contains a zero byte", "Correct the prefix");
            None
        }
        Some(Located { text, span, .. }) if text.starts_with(HEARTBEAT_PREFIX) => {
            let what = "this prefix is reserved for the heartbeats of routers";
            reader.problem(&span, "outbox.message_prefix", what, "Choose another prefix");
            None
        }
        prefix => prefix.map(|prefix| prefix.text),
    };
    let place = raw.table.as_ref().map(toml::Spanned::span);
    let mut tables: Vec<TableName> = Vec::new();
    let mut named = HashSet::new();
    let listed = reader.texts("outbox.table", raw.table, split_tables);
    let names_none = listed.as_ref().is_some_and(Vec::is_empty);
    for Located { text, span, .. } in listed.into_iter().flatten() {
        match parse_table(&text) {
            Ok(table) if !named.insert(table.in_sql()) => {
                reader.problem(&span, "outbox.table", format!("{table} is named twice"), "Name it once");
            }
            Ok(table) => tables.push(table),
            // as import-debezium writes what it cannot turn into names
            Err(_) if text.starts_with('/') => reader.problem(
                &span,
                "outbox.table",
                "this is a pattern, and the router takes names",
                "Replace it with the names of the outbox tables that it matches, each as schema.name, or delete it if it \
                 matches none",
            ),
            Err(what) => reader.problem(&span, "outbox.table", what, "Write it as schema.name"),
        }
    }
    match place {
        Some(span) if names_none && message_prefix.is_none() => {
            reader.problem(&span, "outbox.table", "the list is empty", "Name a table as schema.name");
        }
        Some(_) => {}
        None => tables.push(TableName { schema: "public".to_owned(), name: "outbox".to_owned() }),
    }
    Outbox {
        tables,
        columns: columns(reader, raw.columns.0, columns_by_default),
        on_update: reader.choice_or("outbox.on_update", raw.on_update, &ON_UPDATE, OnUpdate::Warn),
        message_prefix,
    }
}

fn columns(reader: &mut Reader<'_>, raw: RawColumns, defaults: Columns) -> Columns {
    let mut required = |key: &str, value: Value, default: String| {
        reader.checked(&format!("outbox.columns.{key}"), value, check_name).unwrap_or(default)
    };
    let id = required("id", raw.id, defaults.id);
    let aggregate_type = required("aggregate_type", raw.aggregate_type, defaults.aggregate_type);
    let aggregate_id = required("aggregate_id", raw.aggregate_id, defaults.aggregate_id);
    let payload = required("payload", raw.payload, defaults.payload);
    // a column that the user sets must exist; a default may be missing from the table
    let mut optional = |key: &str, value: Value, default: Option<String>| {
        let key = format!("outbox.columns.{key}");
        match reader.text_or_off(&key, value) {
            None => (default, false),
            Some(None) => (None, false),
            Some(Some(Located { text, span, .. })) => {
                if let Err(expected) = check_name(&text) {
                    reader.problem(&span, &key, expected, "Correct the name");
                }
                (Some(text), true)
            }
        }
    };
    // these two may not be missing from the table: they exist or are switched off
    let (event_type, _) = optional("event_type", raw.event_type, defaults.event_type);
    let (tracing_span_context, _) =
        optional("tracing_span_context", raw.tracing_span_context, defaults.tracing_span_context);
    let (headers, headers_required) = optional("headers", raw.headers, defaults.headers);
    let (created_at, created_at_required) = optional("created_at", raw.created_at, defaults.created_at);
    let (idempotency_key, idempotency_key_required) =
        optional("idempotency_key", raw.idempotency_key, defaults.idempotency_key);
    Columns {
        id,
        aggregate_type,
        aggregate_id,
        event_type,
        payload,
        headers,
        created_at,
        tracing_span_context,
        idempotency_key,
        headers_required,
        created_at_required,
        idempotency_key_required,
    }
}
