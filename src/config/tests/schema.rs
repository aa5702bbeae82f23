//! The list of keys agrees with the parser, and so does what is made from it: the JSON Schema and the table in the documentation.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::Value;

use super::*;
use crate::config::deserialize::known_keys;
use crate::config::polling::StatusColumns;
use crate::config::raw::RawConfig;
use crate::config::schema::json_schema;
use crate::config::schema::keys::{Default as Fallback, KEYS, Key, Kind};

static SCHEMA: LazyLock<Validator> = LazyLock::new(|| jsonschema::draft202012::new(&json_schema()).unwrap());

/// Validates the text of a configuration file.
pub(in crate::config) fn check(text: &str) -> Result<(), String> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let value = serde_json::to_value(table).unwrap();
    let errors: Vec<String> = SCHEMA.iter_errors(&value).map(|error| error.to_string()).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
}

/// The keys below this one that the parser accepts: it names them when it meets one that it does not know.
fn explore(path: &[String], keys: &mut BTreeSet<String>) {
    let name = path.join(".");
    let known = |text: &str| {
        let error = toml::from_str::<RawConfig>(text).err()?;
        known_keys(error.message()).map(|keys| keys.into_iter().map(str::to_owned).collect::<Vec<_>>())
    };
    let of_table = if path.is_empty() { known("'?' = 1") } else { known(&format!("{name}.'?' = 1")) };
    let of_array = || known(&format!("[[{name}]]\n'?' = 1"));
    let inner = match of_table {
        Some(inner) => inner,
        None => {
            keys.insert(name.clone());
            of_array().unwrap_or_default()
        }
    };
    for key in inner {
        explore(&[path, &[key]].concat(), keys);
    }
}

fn keys_of_the_schema(path: &str, schema: &Value, keys: &mut BTreeSet<String>) {
    if !path.is_empty() && schema["type"] != "object" || schema["additionalProperties"] != false {
        assert!(schema["description"].is_string(), "{path} has no description");
        keys.insert(path.to_owned());
    }
    for table in [schema, &schema["items"]] {
        let closed = table["additionalProperties"] == false;
        for (key, inner) in table["properties"].as_object().into_iter().flatten().filter(|_| closed) {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            keys_of_the_schema(&path, inner, keys);
        }
    }
}

#[test]
fn the_schema_has_the_keys_of_the_parser_and_no_others() {
    let (mut parser, mut schema) = (BTreeSet::new(), BTreeSet::new());
    explore(&[], &mut parser);
    keys_of_the_schema("", &json_schema(), &mut schema);
    assert!(parser.contains("delivery.window.bytes") && parser.contains("route.rules.match"), "{parser:?}");
    assert_eq!(parser, schema);
    let listed: BTreeSet<_> = KEYS.iter().map(|key| key.name.to_owned()).collect();
    assert_eq!(listed.len(), KEYS.len(), "a key is listed twice");
    let besides: Vec<_> = listed.difference(&parser).collect();
    assert_eq!(besides, ["kafka.\"bootstrap.servers\""]);
}

/// A configuration in which `key` has this value.
fn with_value(key: &Key, value: &str) -> String {
    match key.name.strip_prefix("route.rules.") {
        Some(name) => minimal(&format!("[[route.rules]]\nmatch = {{ a = \"x\" }}\n{name} = {value}")),
        None => format!("{} = {value}\n{}", key.name, minimal("")),
    }
}

#[test]
fn words_and_ranges_are_those_of_the_parser() {
    for key in KEYS {
        let (value, expected) = match key.kind {
            Kind::Words(words) => {
                let words: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
                ("\"?\"", words.join(" or "))
            }
            Kind::Number(least, most) => ("-1", format!("a whole number from {least} to {most}")),
            _ => continue,
        };
        let error = message(&with_value(key, value), &env());
        assert!(error.contains(&format!("`{}`: expected {expected}. ", key.name)), "{error}");
    }
}

#[test]
fn the_defaults_are_those_of_the_parser() {
    let without_effect = ["route.expand.null", "route.expand.empty_array", "contracts.on_violation"];
    let of_polling = |name: &str| {
        let column = name.strip_prefix("outbox.columns.");
        ["source.lease", "source.notify"].contains(&name)
            || name.starts_with("outbox.status.")
            || column.is_some_and(|column| StatusColumns::KEYS.contains(&column))
    };
    let mut text = String::new();
    for key in KEYS.iter().filter(|key| !without_effect.contains(&key.name) && !of_polling(key.name)) {
        let default = match key.default {
            Fallback::Off => "false".to_owned(),
            Fallback::Text(text) => format!("'{text}'"),
            Fallback::Number(number) => number.to_string(),
            Fallback::Switch(switch) => switch.to_string(),
            Fallback::Required | Fallback::None | Fallback::Described(_) => continue,
        };
        if !key.name.starts_with("route.rules.") {
            text += &format!("{} = {default}\n", key.name);
        }
    }
    let mut config = good(&minimal(&text), &env());
    assert!(config.outbox.columns.headers_required && config.outbox.columns.created_at_required);
    config.outbox.columns.headers_required = false;
    config.outbox.columns.created_at_required = false;
    config.outbox.columns.idempotency_key_required = false;
    assert_eq!(config, good(&minimal(""), &env()));
}

/// Switching off is written in one way; what was written before is still understood.
#[test]
fn false_switches_off_and_so_does_an_empty_text() {
    for key in KEYS {
        if matches!(key.kind, Kind::Switch | Kind::Conditions) {
            continue;
        }
        let off = parse_file(&with_value(key, "false"), &env());
        assert_eq!(off.is_ok(), key.can_be_off, "{}: {off:?}", key.name);
        let Ok(off) = off else { continue };
        assert_eq!(off, good(&with_value(key, "\"\""), &env()), "{}", key.name);
        assert_eq!(off, good(&with_value(key, "false"), &env()), "{}", key.name);
        let variable = key.name.to_uppercase().replace('.', "__");
        assert_eq!(off, good(&minimal(""), &with(&[(&variable, "false")])), "{}", key.name);
        if let Fallback::Text(_) = key.default {
            assert_ne!(off, good(&minimal(""), &env()), "{}", key.name);
        }
    }
}

#[test]
fn an_editor_marks_what_the_parser_refuses() {
    for case in [
        "nmae = \"x\"",
        "name = 5",
        "name = { a = 1 }",
        "postgres.slott = \"x\"",
        "postgres = 1",
        "postgres.password_file = { file = 5 }",
        "topics.create = \"yes\"",
        "topics.partitions = \"six\"",
        "topics.partitions = 0",
        "topics.config.a = 1.5",
        "delivery.mode = \"exactly-twice\"",
        "delivery.shutdown_timeout = 10",
        "delivery.shutdown_timeout = \"soon\"",
        "delivery.window.bytes = \"32 megs\"",
        "delivery.window.bytes = false",
        "delivery.window.record = 1",
        "admin.listen = true",
        "shards.count = 65",
        "kafka.acks = \"all\"",
        "kafka.\"enable.idempotence\" = true",
        "route.rules = 1",
        "[[route.rules]]\nmatch = { a = \"x\" }\ntopik = \"t\"",
        "log.level = \"loud\"",
    ] {
        let text = minimal(case);
        assert!(parse_file(&text, &env()).is_err(), "the parser accepts {case}");
        assert!(check(&text).is_err(), "the schema accepts {case}");
    }
}

#[test]
fn files_of_the_repository_are_valid() {
    for name in ["outbox-router.example.toml", "packaging/kubernetes/outbox-router.toml"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        check(&std::fs::read_to_string(path).unwrap()).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

const BEGIN: &str = "| key | type, default | meaning |\n|---|---|---|\n";

/// The table in docs/configuration.md. `UPDATE_DOCS=1` writes it.
#[test]
fn the_reference_is_made_from_the_list() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once("\n\n").unwrap();
    let expected = format!("{before}{BEGIN}{}\n{after}", KEYS.iter().map(row).collect::<String>());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &expected).unwrap();
    } else {
        assert_eq!(page, expected, "run this test with UPDATE_DOCS=1");
    }
}

fn row(key: &Key) -> String {
    let kind = match key.kind {
        Kind::Text => "text".to_owned(),
        Kind::Path => "path".to_owned(),
        Kind::Template => "template".to_owned(),
        Kind::Switch => "boolean".to_owned(),
        Kind::Duration => "duration".to_owned(),
        Kind::Size => "size".to_owned(),
        Kind::Number(least, most) if most < i64::from(i16::MAX) => format!("number from {least} to {most}"),
        Kind::Number(..) => "number".to_owned(),
        Kind::Words(words) => {
            let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
            match words.as_slice() {
                [all @ .., last] if !all.is_empty() => format!("{} or {last}", all.join(", ")),
                words => words.concat(),
            }
        }
        Kind::Texts => "text or array of texts".to_owned(),
        Kind::Numbers => "array of numbers".to_owned(),
        Kind::Templates => "table of templates".to_owned(),
        Kind::Properties | Kind::Kafka | Kind::Conditions => "table".to_owned(),
        Kind::Rules => "array of tables".to_owned(),
    };
    let off = if key.can_be_off { " or `false`" } else { "" };
    let default = match key.default {
        Fallback::Required => ", required".to_owned(),
        Fallback::None => String::new(),
        Fallback::Off => ", `false`".to_owned(),
        Fallback::Text(text) => format!(", `{text}`"),
        Fallback::Number(number) => format!(", `{number}`"),
        Fallback::Switch(switch) => format!(", `{switch}`"),
        Fallback::Described(text) => format!(", {text}"),
    };
    format!("| `{}` | {kind}{off}{default} | {} |\n", key.name, key.meaning)
}
