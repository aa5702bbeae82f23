//! A record as it lies in a topic, in a form that a person can read and two of which can be compared.

use std::fmt::Write as _;

use serde::{Serialize, Serializer};

/// Bytes; shown as text where they are UTF-8, else as `{"hex": "..."}`.
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

/// One record. Partition and timestamp are there only where the rows determine them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Record {
    pub(crate) topic: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) partition: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timestamp: Option<i64>,
    pub(crate) key: Option<Bytes>,
    /// In the record's order.
    pub(crate) headers: Vec<(String, Option<Bytes>)>,
    pub(crate) value: Option<Bytes>,
}

impl Record {
    /// The text of the header `id`.
    pub(crate) fn id(&self) -> Option<&str> {
        let value = self.headers.iter().find(|(name, _)| name == "id").and_then(|(_, value)| value.as_ref());
        value.and_then(|value| std::str::from_utf8(&value.0).ok())
    }
}
