//! A record in a form that is readable and comparable.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Serialize, Serializer};
use serde_json::Value;

/// Bytes; shown as text if they are UTF-8, otherwise as `{"hex": "..."}`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl Bytes {
    /// Of a W3C `traceparent`: version, trace and flags stay, the span becomes a star.
    pub(crate) fn without_span(&mut self) {
        let Ok(text) = std::str::from_utf8(&self.0) else { return };
        if let [version, trace, _, rest @ ..] = text.split('-').collect::<Vec<_>>().as_slice() {
            self.0 = [version, trace, "*"]
                .into_iter()
                .chain(rest.iter().copied())
                .collect::<Vec<_>>()
                .join("-")
                .into();
        }
    }

    /// Of a JSON text: the members of its objects by name. Anything else stays as it is.
    pub(crate) fn with_sorted_members(self) -> Self {
        match serde_json::from_slice::<Value>(&self.0) {
            Ok(value) => Bytes(sorted(value).to_string().into_bytes()),
            Err(_) => self,
        }
    }
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Array(elements) => elements.into_iter().map(sorted).collect(),
        Value::Object(members) => {
            let members: BTreeMap<_, _> =
                members.into_iter().map(|(name, value)| (name, sorted(value))).collect();
            members.into_iter().collect()
        }
        other => other,
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Ok(text) = std::str::from_utf8(&self.0) {
            return serializer.serialize_str(text);
        }
        let mut hex = String::with_capacity(self.0.len() * 2);
        for byte in &self.0 {
            let _ = write!(hex, "{byte:02x}");
        }
        serializer.collect_map([("hex", hex)])
    }
}

/// One record. Partition and timestamp are set only if the rows determine them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Record {
    pub(crate) topic: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) partition: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timestamp: Option<i64>,
    pub(crate) key: Option<Bytes>,
    /// In the order of the record.
    pub(crate) headers: Vec<(String, Option<Bytes>)>,
    pub(crate) value: Option<Bytes>,
}

impl Record {
    /// The text of the `id` header.
    pub(crate) fn id(&self) -> Option<&str> {
        let value = self.headers.iter().find(|(name, _)| name == "id").and_then(|(_, value)| value.as_ref());
        value.and_then(|value| std::str::from_utf8(&value.0).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Bytes {
        Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn bytes_are_shown_as_text_or_in_hex() {
        let shown = |bytes: &[u8]| serde_json::to_string(&Bytes(bytes.to_vec())).unwrap();
        assert_eq!(shown("ü\"".as_bytes()), r#""ü\"""#);
        assert_eq!(shown(&[0, 1, 255]), r#"{"hex":"0001ff"}"#);
    }

    #[test]
    fn members_are_sorted_at_any_depth_and_other_text_stays() {
        let sorted = bytes(r#"{"b": [{"d": 1, "c": null}], "a": 2}"#).with_sorted_members();
        assert_eq!(sorted, bytes(r#"{"a":2,"b":[{"c":null,"d":1}]}"#));
        assert_eq!(bytes("{b a}").with_sorted_members(), bytes("{b a}"));
    }

    #[test]
    fn only_the_span_of_a_traceparent_is_masked() {
        let mut value = bytes("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        value.without_span();
        assert_eq!(value, bytes("00-0af7651916cd43dd8448eb211c80319c-*-01"));
        let mut other = bytes("x-y");
        other.without_span();
        assert_eq!(other, bytes("x-y"));
    }
}
