//! Record headers: first the router's own, then the members of the `headers` column.

use std::fmt;
use std::ops::Range;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::json;
use crate::reserved::REPLAY_HEADER;

/// The header with the event's id.
pub(super) const ID: &str = "id";
/// The header with the event's type.
pub(super) const TYPE: &str = "type";
/// The header with the event's business key.
pub(super) const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// A record's headers, in buffers that are reused for each record.
#[derive(Default)]
pub struct Headers {
    names: String,
    values: Vec<u8>,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    name: Range<usize>,
    value: Option<Range<usize>>,
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Headers({} of {} bytes)", self.entries.len(), self.size())
    }
}

impl Headers {
    /// Names and values, in order. A value may be null.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, Option<&[u8]>)> {
        self.entries.iter().map(|entry| {
            let name = self.names.get(entry.name.clone()).unwrap_or_default();
            let value = entry.value.clone().and_then(|range| self.values.get(range));
            (name, value)
        })
    }

    /// How many headers there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The bytes of all names and values.
    pub fn size(&self) -> usize {
        self.names.len() + self.values.len()
    }

    pub(super) fn clear(&mut self) {
        self.names.clear();
        self.values.clear();
        self.entries.clear();
    }

    pub(super) fn push(&mut self, name: &str, value: Option<&[u8]>) {
        let start = self.names.len();
        self.names.push_str(name);
        self.end(start, value);
    }

    /// The same for a name in two parts.
    pub(super) fn push_prefixed(&mut self, prefix: &str, name: &str, value: Option<&[u8]>) {
        let start = self.names.len();
        self.names.push_str(prefix);
        self.names.push_str(name);
        self.end(start, value);
    }

    /// Ends the header whose name begins at `start`.
    fn end(&mut self, start: usize, value: Option<&[u8]>) {
        let name = start..self.names.len();
        let value = value.map(|value| {
            let start = self.values.len();
            self.values.extend_from_slice(value);
            start..self.values.len()
        });
        self.entries.push(Entry { name, value });
    }

    /// Whether one of the first `count` headers has this name.
    fn first_have(&self, count: usize, name: &str) -> bool {
        let mut names = self.entries.iter().take(count).map(|entry| self.names.get(entry.name.clone()));
        names.any(|known| known == Some(name))
    }

    /// Adds the members of a JSON object: strings as they are, other values as JSON text, null as a null value. Returns how
    /// many were left out because a header of the same name exists.
    pub(super) fn push_members(&mut self, json: &[u8]) -> Result<u32, serde_json::Error> {
        // the most common value
        if json == b"{}" {
            return Ok(0);
        }
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let taken = self.entries.len();
        let dropped = Members { headers: self, taken }.deserialize(&mut deserializer)?;
        deserializer.end()?;
        Ok(dropped)
    }
}

/// Deserializes an object's members directly into the buffer.
struct Members<'h> {
    headers: &'h mut Headers,
    /// How many headers are the router's own.
    taken: usize,
}

impl<'de> DeserializeSeed<'de> for Members<'_> {
    type Value = u32;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u32, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Members<'_> {
    type Value = u32;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_unit<E>(self) -> Result<u32, E> {
        Ok(0)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<u32, A::Error> {
        use serde::de::Error;
        let mut dropped = 0;
        while let Some((json::Name(name), value)) = map.next_entry::<_, &RawValue>()? {
            // consumers might skip an event whose row claims that it is a replay
            if name == REPLAY_HEADER || self.headers.first_have(self.taken, &name) {
                dropped += 1;
                continue;
            }
            // librdkafka takes names as C strings
            if name.contains('\0') {
                return Err(A::Error::custom("a header's name holds a zero character"));
            }
            let value = json::text(value).map_err(A::Error::custom)?;
            self.headers.push(&name, value.as_deref().map(str::as_bytes));
        }
        Ok(dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Named = Vec<(String, Option<String>)>;

    fn members(json: &str) -> Result<(Named, u32), String> {
        let mut headers = Headers::default();
        headers.push(ID, None);
        headers.push(TYPE, None);
        let dropped = headers.push_members(json.as_bytes()).map_err(|error| error.to_string())?;
        let owned = headers.iter().skip(2).map(|(name, value)| {
            (name.to_owned(), value.map(|value| String::from_utf8(value.to_vec()).unwrap()))
        });
        Ok((owned.collect(), dropped))
    }

    #[test]
    fn strings_stay_others_become_json_text_null_stays_null() {
        let json = r#"{"a": "x", "b": 1.50, "c": {"d": [1, "é"]}, "e": null, "f": true, "g": "q\"\u00e9\n", "": ""}"#;
        let text = |text: &str| Some(text.to_owned());
        let expected = [
            ("a", text("x")),
            ("b", text("1.50")),
            ("c", text(r#"{"d": [1, "é"]}"#)),
            ("e", None),
            ("f", text("true")),
            ("g", text("q\"é\n")),
            ("", text("")),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value)).to_vec();
        assert_eq!(members(json), Ok((expected, 0)));
    }

    #[test]
    fn the_routers_own_names_are_dropped_and_counted() {
        let traceparent = ("traceparent".to_owned(), Some("00-1".to_owned()));
        assert_eq!(
            members(r#"{"id": "forged", "traceparent": "00-1", "\u0074ype": "forged"}"#),
            Ok((vec![traceparent], 2))
        );
    }

    #[test]
    fn a_row_cannot_claim_to_be_a_replay() {
        assert_eq!(members(r#"{"outbox-router-replay": "2026-01-01T00:00:00Z"}"#), Ok((vec![], 1)));
    }

    #[test]
    fn no_object_is_no_headers_or_an_error() {
        assert_eq!(members("null"), Ok((vec![], 0)));
        assert_eq!(members("{}"), Ok((vec![], 0)));
        for json in ["", "[]", "1", "\"x\"", "{", "{} {}", r#"{"a\u0000b": 1}"#, r#"{"a": "\ud800"}"#] {
            assert!(members(json).is_err(), "{json}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_headers_or_an_error(json in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Headers::default().push_members(&json);
        }

        #[test]
        fn any_string_arrives_as_it_is(name in "[^\0]{0,10}", value: String) {
            prop_assume!(name != ID && name != TYPE && name != REPLAY_HEADER);
            let json = serde_json::json!({ name.clone(): value.clone() }).to_string();
            prop_assert_eq!(members(&json), Ok((vec![(name, Some(value))], 0)));
        }
    }
}
