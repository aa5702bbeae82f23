//! Reads JSON, keeps the order of members and finds duplicate names: serde_json's own tree sorts the members and keeps the
//! last duplicate.

use std::collections::HashMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::keywords::join;

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub(super) value: Value,
    /// The names of each object's members in the order of the text, by the object's JSON pointer.
    pub(super) order: HashMap<String, Vec<String>>,
    /// The pointers of members whose name occurs twice in its object.
    pub(super) twice: Vec<String>,
}

/// Parses a text.
///
/// # Errors
/// It is not JSON; the error names line and column.
pub(super) fn parse(text: &str) -> Result<Parsed, serde_json::Error> {
    let mut parsed = Parsed::default();
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Place { at: String::new(), parsed: &mut parsed }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    parsed.value = value;
    Ok(parsed)
}

struct Place<'a> {
    at: String,
    parsed: &'a mut Parsed,
}

impl<'de> DeserializeSeed<'de> for Place<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Place<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
        Ok(Value::Bool(truth))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        Number::from_f64(number).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let at = join(&self.at, &list.len().to_string());
            let Some(item) = items.next_element_seed(Place { at, parsed: &mut *self.parsed })? else { break };
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let (mut members, mut names) = (Map::new(), Vec::new());
        while let Some(name) = entries.next_key::<String>()? {
            let at = join(&self.at, &name);
            if members.contains_key(&name) {
                self.parsed.twice.push(at.clone());
            } else {
                names.push(name.clone());
            }
            members.insert(name, entries.next_value_seed(Place { at, parsed: &mut *self.parsed })?);
        }
        self.parsed.order.insert(self.at, names);
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_order_and_finds_what_stands_twice() {
        let parsed = parse(r#"{"z": [{"b": 1, "a": 2.5}], "a": null, "z": true, "p/q": {"x": -1}}"#).unwrap();
        assert_eq!(parsed.order[""], ["z", "a", "p/q"]);
        assert_eq!(parsed.order["/z/0"], ["b", "a"]);
        assert_eq!(parsed.order["/p~1q"], ["x"]);
        assert_eq!(parsed.twice, ["/z"]);
        assert_eq!(parsed.value, serde_json::json!({"a": null, "z": true, "p/q": {"x": -1}}));
    }

    #[test]
    fn refuses_what_is_not_json() {
        for text in ["", "{", "{}}", "{'a': 1}", "1e999", &"[".repeat(200)] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
