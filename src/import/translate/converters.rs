//! Converters: how keys, headers and values become bytes.

use super::routing::Value;
use super::{Translation, choices, comment};
use crate::import::findings::Level;
use crate::import::settings::{Setting, Settings};
use crate::import::write::{Section, quoted};

/// What a converter does.
enum Converter {
    /// `StringConverter`, and `SimpleHeaderConverter`, which writes strings the same way.
    Text,
    /// `JsonConverter`; `true`: with the schema in each record.
    Json(bool),
    /// `ByteArrayConverter`, `BinaryDataConverter`: bytes are unchanged, anything else goes to another converter, if there is
    /// one.
    Bytes(Option<Box<Converter>>),
    CloudEvents,
    /// One with schemas in a registry: its format.
    Registry(&'static str),
    Unknown,
}

/// Takes the three converters, and sets how payloads are written.
pub(super) fn translate(translation: &mut Translation, value: &Value) {
    let (key, converter) = take(translation, "key.converter");
    keys(translation, key, &converter);
    let (header, converter) = take(translation, "header.converter");
    headers(translation, header, &converter);
    let (set, converter) = take(translation, "value.converter");
    values(translation, set, &converter, value);
}

fn take(translation: &mut Translation, name: &str) -> (Option<Setting>, Converter) {
    let setting = translation.take_any(name);
    let mut options = translation.settings.take_prefix(&format!("{name}."));
    choices::check(translation, &mut options);
    if let Some(setting) = setting {
        let converter = converter(&setting.value, &options);
        return (Some(setting), converter);
    }
    let meaning = "It belongs to a converter that this file does not name";
    translation.find_all(Level::NoEquivalent, options, meaning);
    (None, Converter::Unknown)
}

fn converter(class: &str, options: &Settings) -> Converter {
    let last = class.rsplit('.').next().unwrap_or_default();
    match last {
        "StringConverter" | "SimpleHeaderConverter" => Converter::Text,
        "JsonConverter" => Converter::Json(options.get("schemas.enable").is_none_or(Setting::is_true)),
        "ByteArrayConverter" => Converter::Bytes(None),
        "BinaryDataConverter" | "ByteBufferConverter" => {
            Converter::Bytes(options.get("delegate.converter.type").map(|class| {
                let schemas = options.get("delegate.converter.type.schemas.enable");
                match converter(&class.value, &Settings::default()) {
                    Converter::Json(_) => Box::new(Converter::Json(schemas.is_none_or(Setting::is_true))),
                    other => Box::new(other),
                }
            }))
        }
        "CloudEventsConverter" => Converter::CloudEvents,
        _ if last.contains("Avro") => Converter::Registry("Avro"),
        _ if last.contains("Protobuf") => Converter::Registry("Protobuf"),
        "JsonSchemaConverter" | "ExtJsonConverter" => Converter::Registry("JSON Schema"),
        _ => Converter::Unknown,
    }
}

fn keys(translation: &mut Translation, setting: Option<Setting>, converter: &Converter) {
    let Some(setting) = setting else {
        let meaning = match translation.has_worker {
            true => {
                "Neither the connector nor its worker sets it, and Connect needs it: the router writes keys as \
                 StringConverter does"
            }
            false => {
                "The worker's default applies, which this file does not show (give --worker-config): the router writes keys as \
                 StringConverter does, and another converter's keys have other bytes and partitions"
            }
        };
        return translation.find_unset(Level::Differs, "key.converter", meaning);
    };
    let (level, meaning) = match converter {
        Converter::Text => return,
        Converter::Json(false) => {
            return translation.set(Section::Route, "key", quoted("json"), &setting);
        }
        Converter::Json(true) => (
            Level::NoEquivalent,
            "Keys are sent as plain text without a schema, and so land in other partitions",
        ),
        Converter::Bytes(_) => {
            (Level::Differs, "A key of type bytea is written as text, and so lands in another partition")
        }
        Converter::CloudEvents | Converter::Registry(_) | Converter::Unknown => {
            (Level::NoEquivalent, "Keys are sent as plain text, and so land in other partitions")
        }
    };
    translation.find(level, &setting, meaning);
}

fn headers(translation: &mut Translation, setting: Option<Setting>, converter: &Converter) {
    let Some(setting) = setting else {
        if translation.has_worker {
            return;
        }
        let meaning = "The router writes headers as SimpleHeaderConverter does, which is Connect's default; \
                       a worker could set another";
        return translation.find_unset(Level::Note, "header.converter", meaning);
    };
    let (level, meaning) = match converter {
        Converter::Text => return,
        Converter::Json(false) => (
            Level::Differs,
            "Text in headers is sent without the quotes that it has now; numbers and booleans stay the same",
        ),
        _ => (Level::NoEquivalent, "Headers are sent as plain text"),
    };
    translation.find(level, &setting, meaning);
}

fn values(translation: &mut Translation, setting: Option<Setting>, converter: &Converter, value: &Value) {
    let structure = value.envelope.as_ref().or(value.expand.as_ref());
    let Some(setting) = setting else {
        payload_json(translation, value, false, None);
        let known = match translation.has_worker {
            true => "Neither the connector nor its worker sets it, and Connect needs it",
            false => "The worker's default applies, which this file does not show (give --worker-config)",
        };
        let meaning = format!(
            "{known}: the configuration is that of StringConverter, or of JsonConverter with schemas.enable=false where \
             the value is a structure; if it is JsonConverter, a text payload needs `payload_json = \"string\"` in [route]"
        );
        return translation.find_unset(Level::Differs, "value.converter", meaning);
    };
    // a structure cannot be bytes
    let converter = match (converter, structure) {
        (Converter::Bytes(Some(delegate)), Some(_)) => delegate,
        (converter, _) => converter,
    };
    let is_json = matches!(converter, Converter::Json(_));
    payload_json(translation, value, is_json, Some(&setting));
    let (level, meaning) = match (converter, structure) {
        (Converter::Text | Converter::Bytes(None), None) | (Converter::Json(false), _) => return,
        (Converter::Bytes(Some(_)), None) => (
            Level::Note,
            "The payload is taken to be of type bytea, which this converter passes on; one of text would go \
             to its delegate: with JsonConverter, set `payload_json = \"string\"` in [route]"
                .to_owned(),
        ),
        (Converter::Text, Some(_)) => (
            Level::NoEquivalent,
            "It writes a structure as Java prints it, `Struct{payload=...}`; the router writes JSON"
                .to_owned(),
        ),
        (Converter::Bytes(_), Some(_)) => (
            Level::Differs,
            "It takes bytes only, and the value is a structure; the router writes JSON".to_owned(),
        ),
        (Converter::Json(true), _) => (
            Level::NoEquivalent,
            "Each value has its schema around it, {\"schema\": ..., \"payload\": ...}; the router writes only what is in `payload`"
                .to_owned(),
        ),
        (Converter::CloudEvents, _) => (
            Level::NoEquivalent,
            "The router does not write Debezium's CloudEvents; `value = \"cloudevents-structured\"` in [route] writes CloudEvents 1.0 with attributes of your choice"
                .to_owned(),
        ),
        (Converter::Registry(format), _) => (
            Level::NoEquivalent,
            format!(
                "The router uses no schema registry and writes no {format}: it sends payloads as they are in the table. A payload in a bytea column that the application has encoded itself is sent unchanged"
            ),
        ),
        (Converter::Unknown, _) => (
            Level::NoEquivalent,
            "The router does not know this converter, and sends payloads unchanged".to_owned(),
        ),
    };
    translation.find(level, &setting, meaning);
}

/// Sets how a JSON payload is written. `is_json`: a payload that is not expanded would become a JSON string.
fn payload_json(translation: &mut Translation, value: &Value, is_json: bool, set: Option<&Setting>) {
    let structured = value.envelope.is_some();
    let (form, from) = match (&value.expand, set) {
        (Some(expand), _) => ("expand", comment(expand)),
        (None, Some(converter)) if is_json || structured => ("string", comment(converter)),
        (None, None) if structured => ("string", "value.converter is not set".to_owned()),
        _ => ("", String::new()),
    };
    if !form.is_empty() {
        translation.document.set(Section::Route, "payload_json", quoted(form), from);
    }
    for (setting, key, kept) in [
        (&value.expand_null, "expand.null", "optional_bytes"),
        (&value.expand_empty_array, "expand.empty_array", "optional_string"),
    ] {
        let Some(setting) = setting else { continue };
        if value.expand.is_none() {
            let meaning = "Only concerns payloads that are expanded, and none is";
            translation.find(Level::Ignored, setting, meaning);
        } else {
            translation.set(Section::Route, key, quoted(kept), setting);
        }
    }
}
