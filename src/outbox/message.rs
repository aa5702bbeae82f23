//! The outbox without a table: a logical message (`pg_logical_emit_message`) is an event. Its content is a JSON object with
//! members named like the columns of a table.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::event::ColumnType;
use super::owned::OwnedRow;
use super::{Field, OutboxError, Wanted};
use crate::json;

/// The member with a payload of bytes, in Base64.
const PAYLOAD_BASE64: &str = "payload_base64";

/// The schema of events without a table.
pub(super) const SCHEMA: &str = "message";

/// Reads the content of one message.
pub(super) fn read(wanted: &Wanted, content: &[u8], row: &mut OwnedRow) -> Result<(), OutboxError> {
    row.clear(wanted);
    let mut deserializer = serde_json::Deserializer::from_slice(content);
    let read = Members { row, wanted }.deserialize(&mut deserializer);
    read.and_then(|()| deserializer.end()).map_err(|error| OutboxError::Message {
        prefix: row.source().name.clone(),
        at: json::offset(content, &error),
    })?;
    match row.missing(wanted) {
        None => Ok(()),
        Some(missing) => Err(OutboxError::MissingMember {
            prefix: row.source().name.clone(),
            member: missing.column(&wanted.columns).unwrap_or_default().to_owned(),
            key: missing.key(),
        }),
    }
}

/// Takes the members that are needed.
struct Members<'m> {
    row: &'m mut OwnedRow,
    wanted: &'m Wanted,
}

impl Members<'_> {
    /// A string counts as its content, unless it is to stay JSON; anything else as JSON.
    fn take(&mut self, name: &str, value: &RawValue) -> Result<(), serde_json::Error> {
        let text = json::text(value)?;
        let columns = &self.wanted.columns;
        let json_field =
            [Field::Payload, Field::Headers].into_iter().any(|field| field.column(columns) == Some(name));
        match text {
            Some(_) if json_field => self.row.put(self.wanted, name, ColumnType::JSONB, Some(value.get())),
            text => self.row.put(self.wanted, name, ColumnType::TEXT, text.as_deref()),
        }
        Ok(())
    }

    /// Converts bytes to the text of a `bytea`, so that routing reads both the same way.
    fn take_bytes(&mut self, value: &RawValue) -> Result<(), serde_json::Error> {
        let Some(encoded) = json::text(value)? else {
            self.row.put_field(Field::Payload, ColumnType::BYTES, None);
            return Ok(());
        };
        // encode() in Postgres inserts line breaks
        let compact: Vec<u8> = encoded.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let bytes = STANDARD.decode(compact).map_err(|_| serde_json::Error::custom("not Base64"))?;
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let hex = digits.filter_map(|digit| char::from_digit(digit.into(), 16));
        let text: String = "\\x".chars().chain(hex).collect();
        self.row.put_field(Field::Payload, ColumnType::BYTES, Some(&text));
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Members<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Members<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some((json::Name(name), value)) = map.next_entry::<_, &RawValue>()? {
            let taken = if name == PAYLOAD_BASE64 { self.take_bytes(value) } else { self.take(&name, value) };
            taken.map_err(A::Error::custom)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Columns, TableName};
    use crate::outbox::{ExtraColumn, IN_TOPIC, OutboxEvent};
    use proptest::prelude::*;

    fn wanted() -> Wanted {
        let region = ExtraColumn { name: "region".into(), key: IN_TOPIC, optional: false };
        Wanted { columns: Columns::default(), extra: vec![region], created_at: false }
    }

    fn read_with<T>(content: &str, look: impl Fn(&OutboxEvent<'_>) -> T) -> Result<T, String> {
        let mut row = OwnedRow::new(TableName { schema: SCHEMA.into(), name: "outbox".into() });
        read(&wanted(), content.as_bytes(), &mut row).map_err(|error| error.to_string())?;
        Ok(look(&row.event()))
    }

    fn texts(event: &OutboxEvent<'_>) -> Vec<Option<String>> {
        let text = |value: Option<&[u8]>| value.map(|value| String::from_utf8(value.to_vec()).unwrap());
        let fields = [Field::Id, Field::AggregateId, Field::EventType, Field::Payload, Field::Headers];
        fields.into_iter().map(|field| text(event.field(field))).chain([text(event.extra(0))]).collect()
    }

    #[test]
    fn members_are_columns() {
        let content = r#" {"id": "e\u0031", "aggregate_type": "t", "aggregate_id": 42, "event_type": null, "payload": {"a" : 1.0}, "other": [],
            "headers": {"x": "y"}, "region": "eu"} "#;
        let expected =
            [Some("e1"), Some("42"), None, Some(r#"{"a" : 1.0}"#), Some(r#"{"x": "y"}"#), Some("eu")];
        assert_eq!(read_with(content, texts).unwrap(), expected.map(|text| text.map(str::to_owned)));
        let payload = |member: &str| {
            let rest = r#"{"id": "1", "aggregate_type": "t", "aggregate_id": "1", "event_type": "e", "#;
            let content = format!("{rest}{member}}}");
            read_with(&content, |event| (texts(event)[3].clone(), event.field_type(Field::Payload))).unwrap()
        };
        assert_eq!(payload(r#""payload": "text""#), (Some("\"text\"".to_owned()), ColumnType::JSONB));
        assert_eq!(payload(r#""payload": null"#).0, None);
        let bytes = (Some(r"\x00ff".to_owned()), ColumnType::BYTES);
        assert_eq!(payload(r#""payload_base64": "AP\n8=""#), bytes);
        assert_eq!(payload(r#""payload_base64": null"#).0, None);
    }

    #[test]
    fn what_is_no_event_says_where_and_quotes_nothing() {
        for content in
            ["s3cret", "[]", "", r#"{"payload_base64": "s3cret!"}"#, r#"{"id": "s3cret"} x"#, "\u{ff}"]
        {
            let error = read_with(content, |_| ()).unwrap_err();
            assert!(error.contains("\"outbox\"") && !error.contains("s3cret"), "{error}");
        }
        // a misspelt member must not lead to a tombstone, or to an event without a key
        let complete =
            r#"{"id": "1", "aggregate_type": "t", "aggregate_id": "1", "event_type": "e", "payload": 1}"#;
        assert_eq!(read_with(complete, |_| ()), Ok(()));
        for member in ["id", "aggregate_type", "aggregate_id", "event_type", "payload"] {
            let error = read_with(&complete.replace(member, "x"), |_| ()).unwrap_err();
            assert!(error.contains(&format!("has no member {member:?}")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_event_or_an_error(content in proptest::collection::vec(any::<u8>(), 0..60)) {
            let mut row = OwnedRow::new(TableName { schema: SCHEMA.into(), name: "outbox".into() });
            if read(&wanted(), &content, &mut row).is_ok() {
                texts(&row.event());
            }
        }
    }
}
