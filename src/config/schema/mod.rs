//! The configuration file as a JSON Schema for editors, and as a table for the documentation.

pub(super) mod keys;

use serde_json::{Map, Value, json};

use super::kafka_properties;
use keys::{Default, KEYS, Key, Kind};

/// Durations as [`super::units::parse_duration`] reads them.
const DURATION: &str = r"\s*(0|([0-9]+(d|h|ms|m|s)\s*)+)\s*";

/// Sizes as [`super::units::parse_size`] reads them.
const SIZE: &str = r"\s*[0-9]+\s*(([KkMmGgTt][Ii]?)?[Bb])?\s*";

/// A text with a variable in it, which may become anything.
const VARIABLE: &str = r"\$\{[A-Z_][A-Z0-9_]*\}";

/// The JSON Schema (2020-12) of the configuration file. No key is required, because variables may set it.
pub fn json_schema() -> Value {
    let mut root = section();
    for key in KEYS {
        let path = key.path();
        if let Some((last, sections)) = path.split_last() {
            insert(&mut root, sections, last, key);
        }
    }
    root.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
    root.insert("title".to_owned(), json!("outbox-router.toml"));
    root.insert(
        "description".to_owned(),
        json!(
            "The configuration of outbox-router. ${NAME} in a string is the value of an environment variable"
        ),
    );
    root.insert("$defs".to_owned(), json!({ "file": file(), "property": property() }));
    Value::Object(root)
}

/// Whether the key at this path, or the table that it is in, holds templates. In such a table, `{ file = "..." }` is a table with
/// one key, `only_key`, which holds a path.
pub(super) fn is_template(path: &[String], only_key: bool) -> bool {
    KEYS.iter().any(|key| match key.kind {
        Kind::Template => key.path() == path,
        Kind::Templates => {
            let table = key.path();
            let is_entry = path.len() == table.len() + 1;
            let names_file = only_key && !is_entry && path.last().is_some_and(|last| last == "file");
            path.get(..table.len()).is_some_and(|start| table == start) && !names_file
        }
        _ => false,
    })
}

fn section() -> Map<String, Value> {
    let mut section = Map::new();
    section.insert("type".to_owned(), json!("object"));
    section.insert("properties".to_owned(), json!({}));
    section.insert("additionalProperties".to_owned(), json!(false));
    section
}

fn insert(table: &mut Map<String, Value>, sections: &[&str], last: &str, key: &Key) {
    // the tables of an array have their keys below `items`
    let table = match table.get_mut("items").and_then(Value::as_object_mut) {
        Some(items) => items,
        None => table,
    };
    let Some(properties) = table.get_mut("properties").and_then(Value::as_object_mut) else { return };
    match sections.split_first() {
        None => {
            properties.insert(last.to_owned(), schema_of(key));
        }
        Some((first, rest)) => {
            let entry = properties.entry(*first).or_insert_with(|| Value::Object(section()));
            if let Some(inner) = entry.as_object_mut() {
                insert(inner, rest, last, key);
            }
        }
    }
}

fn schema_of(key: &Key) -> Value {
    let form = match key.kind {
        Kind::Rules => json!({ "type": "array", "items": section() }),
        Kind::Kafka => {
            let known = kafka_properties::accepted().map(|name| (name.to_owned(), reference("property")));
            json!({
                "type": "object",
                "properties": known.collect::<Map<_, _>>(),
                "propertyNames": { "not": { "enum": kafka_properties::refused().collect::<Vec<_>>() } },
                "additionalProperties": reference("property"),
            })
        }
        Kind::Properties | Kind::Templates => {
            json!({ "type": "object", "additionalProperties": reference("property") })
        }
        Kind::Conditions => json!({ "type": "object" }),
        kind => any_of(kind, key.can_be_off),
    };
    let mut description = plain(key.meaning);
    let default = match key.default {
        Default::Off => Some(json!(false)),
        Default::Text(text) => Some(json!(text)),
        Default::Number(number) => Some(json!(number)),
        Default::Switch(switch) => Some(json!(switch)),
        Default::Described(default) => {
            description += &format!("; by default {default}");
            None
        }
        Default::Required | Default::None => None,
    };
    let mut schema = Map::new();
    schema.insert("description".to_owned(), json!(description));
    schema.extend(default.map(|default| ("default".to_owned(), default)));
    if let Value::Object(form) = form {
        schema.extend(form);
    }
    Value::Object(schema)
}

/// The forms of a single value. A number or a switch may be written as a text.
fn any_of(kind: Kind, can_be_off: bool) -> Value {
    let matching = |pattern: &str| {
        let off = if can_be_off { "^$|" } else { "" };
        json!({ "type": "string", "pattern": format!("{off}^{pattern}$|{VARIABLE}") })
    };
    let text = json!({ "type": "string" });
    let mut forms = match kind {
        Kind::Switch => vec![json!({ "type": "boolean" }), matching(r"\s*(true|false)\s*")],
        Kind::Duration => vec![matching(DURATION), json!({ "const": 0 })],
        Kind::Size => vec![matching(SIZE), json!({ "type": "integer", "minimum": 1 })],
        Kind::Number(least, most) => {
            let number = json!({ "type": "integer", "minimum": least, "maximum": most });
            vec![number, matching(r"\s*\+?[0-9]+\s*")]
        }
        Kind::Words(words) => {
            vec![json!({ "enum": words }), json!({ "type": "string", "pattern": VARIABLE })]
        }
        Kind::Texts => {
            let items = json!({ "anyOf": [text, reference("file")] });
            vec![text, json!({ "type": "array", "items": items })]
        }
        Kind::Numbers => {
            let number = json!({ "type": "integer", "minimum": 0 });
            let text = matching(r"[0-9, ]*");
            vec![
                number.clone(),
                text.clone(),
                json!({ "type": "array", "items": { "anyOf": [number, text] } }),
            ]
        }
        _ => vec![text],
    };
    if kind != Kind::Numbers {
        forms.push(reference("file"));
    }
    if can_be_off {
        forms.push(json!({ "const": false }));
    }
    json!({ "anyOf": forms })
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/$defs/{name}") })
}

/// `{ file = "..." }`
fn file() -> Value {
    json!({
        "type": "object",
        "description": "The content of a file, without the line break at its end",
        "properties": { "file": { "type": "string", "description": "Relative to the folder of the configuration file" } },
        "required": ["file"],
        "additionalProperties": false,
    })
}

/// A value in a table of properties or templates, whose dotted names are nested tables.
fn property() -> Value {
    json!({
        "anyOf": [
            { "type": ["string", "integer", "boolean"] },
            reference("file"),
            { "type": "object", "additionalProperties": reference("property") },
        ]
    })
}

/// Markdown without the targets of its links.
fn plain(markdown: &str) -> String {
    let mut text = String::new();
    let mut rest = markdown;
    while let Some((before, (label, after))) = rest.split_once('[').and_then(|(before, link)| {
        let (label, target) = link.split_once("](")?;
        Some((before, (label, target.split_once(')')?.1)))
    }) {
        text.push_str(before);
        text.push_str(label);
        rest = after;
    }
    text + rest
}
