//! The functions that write events as logical messages: an outbox without a table.

use pg_logical::quoting;
use pg_logical::quoting::literal;

use super::object::{Object, router_function};
use super::outbox_table::argument;
use crate::config::{Columns, Outbox as OutboxConfig};
use crate::outbox::{FIELDS, Field};

/// One of the functions.
struct Function {
    name: &'static str,
    /// The type of the payload.
    payload: &'static str,
}

/// One takes JSON, the other takes bytes.
const FUNCTIONS: [Function; 2] = [
    Function { name: "emit_message", payload: "jsonb" },
    Function { name: "emit_message_bytes", payload: "bytea" },
];

impl Function {
    fn signature(&self) -> String {
        format!("outbox_router.{}(text, text, text, {}, jsonb)", self.name, self.payload)
    }
}

/// The signatures, for a GRANT.
pub(super) fn signatures() -> String {
    FUNCTIONS.map(|function| function.signature()).join(", ")
}

/// A query for the functions of Postgres that let every role write messages, with any prefix.
pub(in crate::commands) const OPEN_TO_ALL: &str = "SELECT p.oid::pg_catalog.regprocedure \
     FROM pg_catalog.pg_proc p WHERE p.proname = 'pg_logical_emit_message' \
     AND p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace \
     AND pg_catalog.has_function_privilege('public', p.oid, 'EXECUTE') ORDER BY 1";

/// The functions, if messages are read.
pub(super) fn objects(outbox: &OutboxConfig) -> Vec<Object> {
    let Some(prefix) = &outbox.message_prefix else { return Vec::new() };
    FUNCTIONS.iter().map(|function| object(prefix, &outbox.columns, function)).collect()
}

fn object(prefix: &str, columns: &Columns, function: &Function) -> Object {
    let body = body(prefix, columns, function.payload);
    let Function { name, payload } = function;
    let found = router_function(name);
    Object {
        name: format!("function outbox_router.{name}"),
        purpose: format!(
            "Writes an event as a logical message, with a payload of {payload}; for those to whom it is granted"
        ),
        there: format!("EXISTS (SELECT {found})"),
        as_wanted: Some((
            format!("EXISTS (SELECT {found} AND p.prosrc = {})", literal(&body)),
            format!(
                "it was created for another prefix, other columns or another version. To replace it, DROP FUNCTION \
                 outbox_router.{name} and run init again"
            ),
        )),
        make: format!(
            "CREATE FUNCTION outbox_router.{name}(\n  aggregate_type text, aggregate_id text, event_type text, \
             payload {payload},\n  headers jsonb DEFAULT '{{}}'\n) RETURNS uuid\nLANGUAGE plpgsql VOLATILE SECURITY DEFINER\n\
             SET search_path = pg_catalog, pg_temp\nAS {};\n\
             REVOKE ALL ON FUNCTION {} FROM PUBLIC;",
            quoting::dollar_quoted(&body),
            function.signature(),
        ),
        ..Object::default()
    }
}

/// The members are named like the columns. The type json keeps their order, and the text of a jsonb payload. A message is bytes, which
/// nobody converts, so they are UTF-8 whatever the encoding of the database is.
fn body(prefix: &str, columns: &Columns, payload: &str) -> String {
    let mut members: Vec<String> = Vec::new();
    for field in FIELDS {
        let Some(column) = field.column(columns) else { continue };
        let value = match field {
            Field::Payload if payload == "bytea" => {
                members.push("'payload_base64', encode(payload, 'base64')".to_owned());
                continue;
            }
            // the format must not depend on the caller's settings
            Field::CreatedAt => {
                Some("to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00'")
            }
            field => argument(field),
        };
        let Some(value) = value else { continue };
        members.push(format!("{}, {value}", literal(column)));
    }
    format!(
        "\nDECLARE\n  event_id CONSTANT uuid := gen_random_uuid();\nBEGIN\n  \
         IF aggregate_type IS NULL OR aggregate_id IS NULL OR event_type IS NULL THEN\n    \
         RAISE not_null_violation USING MESSAGE = 'aggregate_type, aggregate_id and event_type must not be NULL';\n  \
         END IF;\n  \
         IF jsonb_typeof(headers) <> 'object' THEN\n    \
         RAISE invalid_parameter_value USING MESSAGE = 'headers must be a JSON object';\n  END IF;\n  \
         PERFORM pg_logical_emit_message(true, {}, convert_to(json_build_object(\n    {}\n  )::text, 'UTF8'));\n  RETURN event_id;\nEND\n",
        literal(prefix),
        members.join(",\n    ")
    )
}
