//! The record value: the payload unchanged, or as part of JSON.

use connect_values::{Behaviour, expand, write_json_bytes, write_json_string};

use super::column_json;
use super::row::Row;
use super::template::Bound;
use super::unroutable::{Purpose, Unroutable};
use crate::config::PayloadJson;
use crate::json;
use crate::outbox::Field;

/// The payload of one event; bytes are decoded.
#[derive(Clone, Copy)]
pub(super) struct Payload<'p> {
    /// `None` for NULL.
    pub(super) bytes: Option<&'p [u8]>,
    pub(super) kind: Kind,
}

impl Payload<'_> {
    /// Whether it is NULL, or a text of only what Java's `String.trim` removes.
    pub(super) fn is_blank(&self) -> bool {
        let trimmed = |bytes: &[u8]| bytes.iter().all(|byte| *byte <= b' ');
        self.bytes.is_none_or(|bytes| self.kind != Kind::Bytes && trimmed(bytes))
    }
}

/// The kind of a payload, by its column's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Json,
    Xml,
    Bytes,
    Text,
}

/// Builds values.
pub(super) struct ValueBuilder {
    pub(super) payload_json: PayloadJson,
    pub(super) envelope: Vec<(String, Bound)>,
    /// The payload's column, for messages.
    pub(super) column: String,
}

impl ValueBuilder {
    /// Whether a payload that is the whole value is sent unchanged.
    pub(super) fn passes_through(&self) -> bool {
        self.payload_json == PayloadJson::Raw
    }

    /// Writes the payload as one JSON value.
    pub(super) fn write_payload(&self, payload: Payload<'_>, into: &mut String) -> Result<(), Unroutable> {
        let Some(bytes) = payload.bytes else {
            into.push_str("null");
            return Ok(());
        };
        if payload.kind == Kind::Bytes {
            write_json_bytes(bytes, into);
            return Ok(());
        }
        let text = self.text(bytes)?;
        match self.payload_json {
            PayloadJson::Raw if payload.kind == Kind::Json => into.push_str(text),
            PayloadJson::Raw => {
                json::check(text).map_err(|at| Unroutable::NotJson { column: self.column.clone(), at })?;
                into.push_str(text);
            }
            PayloadJson::String => write_json_string(text, into),
            PayloadJson::Expand { keep_nulls, keep_empty_arrays } => {
                let behaviour = Behaviour { keep_nulls, keep_empty_arrays };
                expand(text, behaviour, into)
                    .map_err(|error| Unroutable::NotExpanded { column: self.column.clone(), error })?;
            }
        }
        Ok(())
    }

    fn text<'p>(&self, bytes: &'p [u8]) -> Result<&'p str, Unroutable> {
        std::str::from_utf8(bytes).map_err(|_| Unroutable::NoValue {
            purpose: Purpose::Value,
            name: self.column.clone(),
            reason: "is not UTF-8",
        })
    }

    /// Writes `{"payload": ..., ...}`.
    pub(super) fn write_envelope(
        &self,
        payload: Payload<'_>,
        row: &Row<'_, '_>,
        text: &mut String,
        into: &mut String,
    ) -> Result<(), Unroutable> {
        into.push_str("{\"payload\":");
        self.write_payload(payload, into)?;
        for (name, template) in &self.envelope {
            if template.lacks_column(row) {
                continue;
            }
            into.push(',');
            write_json_string(name, into);
            into.push(':');
            let purpose = || Purpose::Member(name.clone());
            if let Some((value, of)) = template.single_value().and_then(|place| row.column(place)) {
                let no_value =
                    |reason| Unroutable::NoValue { purpose: purpose(), name: template.to_string(), reason };
                column_json::write(row.text, value, of, into).map_err(no_value)?;
                continue;
            }
            match template.render_or_null(row, text).map_err(|missing| missing.of(purpose()))? {
                true => write_json_string(text, into),
                false => into.push_str("null"),
            }
        }
        into.push('}');
        Ok(())
    }
}

/// The payload's kind, by its column's type.
pub(super) fn kind(row: &Row<'_, '_>) -> Kind {
    let of = row.event.field_type(Field::Payload);
    if of.is_json() {
        Kind::Json
    } else if of.is_bytea() {
        Kind::Bytes
    } else if of.is_xml() {
        Kind::Xml
    } else {
        Kind::Text
    }
}
