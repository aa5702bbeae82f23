//! The functions that write events as logical messages: an outbox without a table.

use pg_logical::quoting;
use pg_logical::quoting::literal;

use super::object::{Object, router_function};
use crate::config::{Columns, Outbox as OutboxConfig};
use crate::outbox::{FIELDS, Field};

/// One function takes JSON, the other takes bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Payload {
    Json,
    Bytes,
}

impl Payload {
    const ALL: [Payload; 2] = [Payload::Json, Payload::Bytes];

    fn name(self) -> &'static str {
        match self {
            Payload::Json => "emit_message",
            Payload::Bytes => "emit_message_bytes",
        }
    }

    fn sql_type(self) -> &'static str {
        match self {
            Payload::Json => "jsonb",
            Payload::Bytes => "bytea",
        }
    }

    fn signature(self) -> String {
        format!("outbox_router.{}(text, text, text, {}, jsonb)", self.name(), self.sql_type())
    }
}

/// The signatures, for a GRANT.
pub(super) fn signatures() -> Vec<String> {
    Payload::ALL.into_iter().map(Payload::signature).collect()
}

/// A query for the functions of Postgres that let every role write messages, with any prefix.
pub(in crate::commands) const OPEN_TO_ALL: &str = "SELECT p.oid::pg_catalog.regprocedure \
     FROM pg_catalog.pg_proc p WHERE p.proname = 'pg_logical_emit_message' \
     AND p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace \
     AND pg_catalog.has_function_privilege('public', p.oid, 'EXECUTE') ORDER BY 1";

/// The functions, if messages are read.
pub(super) fn objects(outbox: &OutboxConfig) -> Vec<Object> {
    let Some(prefix) = &outbox.message_prefix else { return Vec::new() };
    Payload::ALL.into_iter().map(|payload| object(prefix, &outbox.columns, payload)).collect()
}

fn object(prefix: &str, columns: &Columns, payload: Payload) -> Object {
    let body = body(prefix, columns, payload);
    let name = payload.name();
    let function = router_function(name);
    Object {
        name: format!("function outbox_router.{name}"),
        purpose: format!(
            "Writes an event as a logical message, with a payload of {}; for those to whom it is granted",
            payload.sql_type()
        ),
        there: format!("EXISTS (SELECT {function})"),
        as_wanted: Some((
            format!("EXISTS (SELECT {function} AND p.prosrc = {})", literal(&body)),
            format!(
                "it was made for another prefix, other columns or another version. To replace it, DROP FUNCTION \
                 outbox_router.{name} and run init again"
            ),
        )),
        make: format!(
            "CREATE FUNCTION outbox_router.{name}(\n  aggregate_type text, aggregate_id text, event_type text, \
             payload {},\n  headers jsonb DEFAULT '{{}}'\n) RETURNS uuid\nLANGUAGE plpgsql VOLATILE SECURITY DEFINER\n\
             SET search_path = pg_catalog, pg_temp\nAS {};\n\
             REVOKE ALL ON FUNCTION {} FROM PUBLIC;",
            payload.sql_type(),
            quoting::dollar_quoted(&body),
            payload.signature(),
        ),
        ..Object::default()
    }
}

/// The members are named like the columns. The type json keeps their order, and the text of a jsonb payload.
fn body(prefix: &str, columns: &Columns, payload: Payload) -> String {
    let mut members: Vec<String> = Vec::new();
    for field in FIELDS {
        let Some(column) = field.column(columns) else { continue };
        let value = match field {
            Field::Id => "event_id",
            Field::AggregateType => "aggregate_type",
            Field::AggregateId => "aggregate_id",
            Field::EventType => "event_type",
            Field::Payload if payload == Payload::Bytes => {
                members.push("'payload_base64', encode(payload, 'base64')".to_owned());
                continue;
            }
            Field::Payload => "payload",
            Field::Headers => "coalesce(headers, '{}')",
            // the format must not depend on the caller's settings
            Field::CreatedAt => {
                "to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00'"
            }
            Field::TracingSpanContext => continue,
        };
        members.push(format!("{}, {value}", literal(column)));
    }
    format!(
        "\nDECLARE\n  event_id CONSTANT uuid := gen_random_uuid();\nBEGIN\n  \
         IF aggregate_type IS NULL OR aggregate_id IS NULL OR event_type IS NULL THEN\n    \
         RAISE not_null_violation USING MESSAGE = 'aggregate_type, aggregate_id and event_type must not be NULL';\n  \
         END IF;\n  \
         IF jsonb_typeof(headers) <> 'object' THEN\n    \
         RAISE invalid_parameter_value USING MESSAGE = 'headers must be a JSON object';\n  END IF;\n  \
         PERFORM pg_logical_emit_message(true, {}, json_build_object(\n    {}\n  )::text);\n  RETURN event_id;\nEND\n",
        literal(prefix),
        members.join(",\n    ")
    )
}
