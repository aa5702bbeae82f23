//! Reads single members of JSON text.

use std::borrow::Cow;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Bytes as a program sees them in JSON: text where they are UTF-8, else an object with Base64.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Bytes<'a> {
    Text(Cow<'a, str>),
    Base64 { base64: String },
}

impl<'a> Bytes<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Bytes::Text(text.into()),
            Err(_) => Bytes::Base64 { base64: STANDARD.encode(bytes) },
        }
    }

    pub(crate) fn into_owned(self) -> Bytes<'static> {
        match self {
            Bytes::Text(text) => Bytes::Text(text.into_owned().into()),
            Bytes::Base64 { base64 } => Bytes::Base64 { base64 },
        }
    }
}

/// Fails with where reading stopped, counted from 1, or with 0 for an empty text, if this is not one JSON value.
pub(crate) fn check(text: &str) -> Result<(), usize> {
    let checked = serde_json::from_str::<IgnoredAny>(text);
    checked.map(|_| ()).map_err(|error| offset(text.as_bytes(), &error))
}

/// Where reading JSON stopped, counted from 1.
pub(crate) fn offset(json: &[u8], error: &serde_json::Error) -> usize {
    let before = json.split_inclusive(|byte| *byte == b'\n').take(error.line().saturating_sub(1));
    before.map(<[u8]>::len).sum::<usize>() + error.column()
}

/// The text of one member of a JSON object: a string as it is, other values as JSON text; `None` if it is null or not
/// there. Of several with the name, the last.
pub(crate) fn member<'a>(json: &'a [u8], name: &str) -> Result<Option<Cow<'a, str>>, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let found = Member(name).deserialize(&mut deserializer)?;
    deserializer.end()?;
    found.map_or(Ok(None), text)
}

/// What a text can say of a JSON value: a string as it is, other values as JSON text, nothing for null.
pub(crate) fn text(value: &RawValue) -> Result<Option<Cow<'_, str>>, serde_json::Error> {
    match value.get() {
        "null" => Ok(None),
        json => match plain_string(json) {
            Some(plain) => Ok(Some(plain.into())),
            None if json.starts_with('"') => {
                serde_json::from_str::<String>(json).map(|text| Some(text.into()))
            }
            None => Ok(Some(json.into())),
        },
    }
}

/// Finds one member, and reads the others past.
struct Member<'n>(&'n str);

impl<'de> DeserializeSeed<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some((Name(name), value)) = map.next_entry::<_, &RawValue>()? {
            if name == self.0 {
                found = Some(value);
            }
        }
        Ok(found)
    }
}

/// The inside of a JSON string that has no escapes in it.
fn plain_string(json: &str) -> Option<&str> {
    let inside = json.strip_prefix('"')?.strip_suffix('"')?;
    (!inside.contains('\\')).then_some(inside)
}

/// A member's name, borrowed where it has no escapes.
#[derive(Deserialize)]
#[serde(transparent)]
pub(crate) struct Name<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    /// serde_json gives numbers with a fraction to a visitor as objects.
    #[test]
    fn a_number_is_no_object() {
        for json in ["5", "1.5", "1e400", "-0", "18446744073709551617"] {
            assert!(member(json.as_bytes(), "a").is_err(), "{json}");
        }
        let json = br#"{"a": 1e400, "b": 0.10, "c": 18446744073709551617}"#;
        for (name, text) in [("a", "1e400"), ("b", "0.10"), ("c", "18446744073709551617")] {
            assert_eq!(member(json, name).unwrap().as_deref(), Some(text));
        }
    }

    #[test]
    fn what_is_no_json_says_where() {
        assert_eq!(check(r#" {"a": [1, null]} "#), Ok(()));
        assert_eq!(check("{\n\"a\": x}"), Err(8));
        assert_eq!(check(""), Err(0));
        assert_eq!(check("1 2"), Err(3));
    }
}
