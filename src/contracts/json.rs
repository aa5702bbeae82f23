//! Reads JSON, keeps the order of members and finds duplicate names: serde_json's own tree sorts the members and keeps the
//! last duplicate.

use std::collections::HashMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::keywords::join;

/// A parsed text.
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
    let mut parsed = Parsed { value: serde_json::from_str(text)?, ..Parsed::default() };
    parsed.note_names("", text)?;
    Ok(parsed)
}

impl Parsed {
    /// Notes the names in the value that stands at this JSON pointer.
    fn note_names(&mut self, at: &str, json: &str) -> Result<(), serde_json::Error> {
        match json.trim_start().chars().next() {
            Some('{') => {
                let Members(members) = serde_json::from_str(json)?;
                let mut names = Vec::new();
                for (name, value) in members {
                    let at = join(at, &name);
                    if names.contains(&name) {
                        self.twice.push(at.clone());
                    } else {
                        names.push(name);
                    }
                    self.note_names(&at, value.get())?;
                }
                self.order.insert(at.to_owned(), names);
            }
            Some('[') => {
                let items: Vec<&RawValue> = serde_json::from_str(json)?;
                for (index, item) in items.into_iter().enumerate() {
                    self.note_names(&join(at, &index.to_string()), item.get())?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// The members of an object as they stand in the text.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(entry) = entries.next_entry()? {
                    members.push(entry);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(MembersVisitor)
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
        for text in ["", "{", "{}}", "{'a': 1}", "1e", &"[".repeat(200)] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
