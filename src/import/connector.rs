//! Reads the four forms of a connector's configuration, recognised by their content.

use connect_values::java_properties;
use serde_json::Value;

use super::settings::{Setting, Settings};
use crate::error::{Error, ErrorCode};

/// Where the connector runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Kafka Connect.
    Connect,
    /// Debezium Server.
    Server,
}

/// A connector.
#[derive(Debug)]
pub(super) struct Connector {
    pub(super) form: Form,
    pub(super) settings: Settings,
    /// Options of converters that the connector does not name. Connect ignores them.
    pub(super) unread: Vec<Setting>,
    /// The worker's settings are among the settings.
    pub(super) has_worker: bool,
}

const CONVERTERS: [&str; 3] = ["key.converter", "value.converter", "header.converter"];

/// Whether a worker supports exactly-once delivery, which its connectors use then by default.
pub(super) const EXACTLY_ONCE: &str = "exactly.once.source.support";

/// How to get what is needed out of a worker.
const ONE_CONNECTOR: &str = "Name a file with the configuration of one connector, as `curl http://CONNECT:8083/connectors/NAME/config` \
                             prints it";

const REMEDY: &str = "Name the JSON that was sent to Connect's REST interface, its `config` alone, the \
                      properties file of a standalone worker, or the application.properties of Debezium \
                      Server";

/// Reads a connector's configuration.
///
/// # Errors
/// The text has none of the forms.
pub(super) fn read(text: &str) -> Result<Connector, Error> {
    let (form, mut settings) = form_and_settings(text)?;
    // a worker's converter ignores the connector's options (`Plugins.newConverter`)
    let unnamed = CONVERTERS.into_iter().filter(|name| settings.get(name).is_none()).collect::<Vec<_>>();
    let mut unread = Vec::new();
    for name in unnamed {
        unread.extend(settings.take_prefix(&format!("{name}.")).into_rest().map(|(_, setting)| setting));
    }
    Ok(Connector { form, settings, unread, has_worker: false })
}

fn form_and_settings(text: &str) -> Result<(Form, Settings), Error> {
    let text = text.trim_start_matches('\u{feff}');
    if text.trim_start().starts_with(['{', '[']) {
        return json(text).map(|settings| (Form::Connect, settings));
    }
    if is_yaml(text) {
        let what = "Not a connector's configuration: this is YAML";
        let remedy = "Name the connector's JSON or properties file; of a KafkaConnector of Strimzi, write what is under `config` as \
                      JSON, or use the output of `curl http://CONNECT:8083/connectors/NAME/config`";
        return Err(Error::usage(ErrorCode::DebeziumConfiguration, what, remedy));
    }
    let entries = entries(text)?;
    if entries.iter().any(|(name, _)| name.starts_with("debezium.")) {
        return Ok((Form::Server, server(entries)));
    }
    let mut settings = Settings::default();
    for (name, value) in entries {
        settings.set(name.clone(), name, &value);
    }
    Ok((Form::Connect, settings))
}

/// Adds the worker's settings that apply to its connectors by default: converters, brokers, producers.
///
/// # Errors
/// The text is not a properties file.
pub(super) fn add_worker_settings(connector: &mut Connector, worker: &str) -> Result<(), Error> {
    let settings = &mut connector.settings;
    // if the connector names a converter, the worker's settings for that converter are ignored
    let own: Vec<&str> = CONVERTERS.into_iter().filter(|name| settings.get(name).is_some()).collect();
    let entries = entries(worker)?;
    if !entries.iter().any(|(name, _)| name == "bootstrap.servers") {
        let what = "--worker-config: there are no bootstrap.servers in it";
        let remedy = "Name the properties file that the Connect worker was started with";
        return Err(Error::usage(ErrorCode::DebeziumConfiguration, what, remedy));
    }
    for (name, value) in entries {
        let shown = format!("{name} (worker)");
        if let Some(converter) = CONVERTERS.into_iter().find(|converter| name.starts_with(converter)) {
            if !own.contains(&converter) {
                settings.set(name, shown, &value);
            }
        } else if let Some(property) = name.strip_prefix("producer.") {
            settings.set_default(&format!("producer.override.{property}"), shown, &value);
        } else if name == "bootstrap.servers" {
            settings.set_default("producer.override.bootstrap.servers", shown, &value);
        } else if name == EXACTLY_ONCE {
            settings.set(EXACTLY_ONCE, shown, &value);
        }
    }
    connector.has_worker = true;
    Ok(())
}

fn entries(text: &str) -> Result<Vec<(String, String)>, Error> {
    let entries = java_properties::parse(text).map_err(|error| {
        Error::usage(ErrorCode::DebeziumConfiguration, format!("Not properties: {error}"), REMEDY)
    })?;
    if entries.is_empty() {
        return Err(Error::usage(ErrorCode::DebeziumConfiguration, "There are no settings in it", REMEDY));
    }
    Ok(entries)
}

fn json(text: &str) -> Result<Settings, Error> {
    let not = |what: String| Error::usage(ErrorCode::DebeziumConfiguration, what, REMEDY);
    let root: Value = serde_json::from_str(text).map_err(|error| {
        // serde_json's message could repeat a value
        not(format!("Not JSON: error at line {}, column {}", error.line(), error.column()))
    })?;
    let mut root = match root {
        Value::Object(root) => root,
        _ => return Err(not_one("this is a list")),
    };
    if let Some(Value::Object(config)) = root.get_mut("config") {
        root = std::mem::take(config);
    }
    // GET /connectors?expand=info
    let of_many = |value: &Value| value.get("info").or(value.get("status")).is_some_and(Value::is_object);
    if root.values().any(of_many) {
        return Err(not_one("this is what Connect's REST interface prints about all connectors"));
    }
    let mut settings = Settings::default();
    for (name, value) in root {
        let value = match value {
            Value::String(text) => text,
            Value::Bool(_) | Value::Number(_) => value.to_string(),
            Value::Null => continue,
            Value::Array(_) | Value::Object(_) => {
                return Err(not_one(&format!("`{name}` is a list or an object, and settings are strings")));
            }
        };
        settings.set(name.clone(), name, &value);
    }
    Ok(settings)
}

fn not_one(shape: &str) -> Error {
    Error::usage(
        ErrorCode::DebeziumConfiguration,
        format!("Not a connector's configuration: {shape}"),
        ONE_CONNECTOR,
    )
}

/// Whether it is YAML rather than properties, which may have colons and indented lines too: it has a document's first line, a name
/// without a value above an indented one, or a class in quotes.
fn is_yaml(text: &str) -> bool {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let lines: Vec<&str> =
        text.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#')).collect();
    let nested = lines.windows(2).any(|pair| {
        let [above, below] = pair else { return false };
        let is_name = above.trim_end().strip_suffix(':').is_some_and(|name| !name.contains(['=', ':', '\\']));
        is_name && (indent(below) > indent(above) || below.trim_start().starts_with("- "))
    });
    let in_quotes = |line: &&str| {
        let (name, value) = line.split_once(": ").unwrap_or_default();
        let name = name.trim();
        (name == "connector.class" || name.starts_with("transforms"))
            && value.trim_start().starts_with(['"', '\''])
    };
    lines.first().is_some_and(|line| line.trim_end() == "---") || nested || lines.iter().any(in_quotes)
}

/// Debezium Server uses other names for the same settings.
fn server(entries: Vec<(String, String)>) -> Settings {
    let mut settings = Settings::default();
    let mut formats = Vec::new();
    for (name, value) in entries {
        let value =
            if super::reference::in_server(&value).is_some() { value } else { value.replace("$$", "$") };
        let renamed = [
            ("debezium.source.", ""),
            ("debezium.sink.kafka.producer.", "producer.override."),
            ("debezium.transforms", "transforms"),
            ("debezium.predicates", "predicates"),
        ]
        .iter()
        .find_map(|(from, to)| Some(format!("{to}{}", name.strip_prefix(from)?)));
        match (renamed, name.strip_prefix("debezium.format.")) {
            (Some(connect), _) => settings.set(connect, name, &value),
            (None, Some(format)) => formats.push((format.to_owned(), name.clone(), value)),
            (None, None) => settings.set(name.clone(), name, &value),
        }
    }
    for side in ["key", "value", "header"] {
        let own = format!("{side}.");
        let of_all = |name: &&(String, String, String)| {
            !["key", "value", "header"].iter().any(|side| name.0.split('.').next() == Some(side))
        };
        for (format, name, value) in formats.iter().filter(of_all) {
            settings.set(format!("{side}.converter.{format}"), name.clone(), value);
        }
        for (format, name, value) in &formats {
            if let Some(option) = format.strip_prefix(&own) {
                settings.set(format!("{side}.converter.{option}"), name.clone(), value);
            }
        }
        let chosen = formats.iter().find(|(format, ..)| format == side);
        let (name, format) = match chosen {
            Some((_, name, value)) => (name.clone(), value.trim()),
            None => (format!("debezium.format.{side} (default)"), "json"),
        };
        settings.set(format!("{side}.converter"), name, format_class(format));
    }
    settings
}

/// The converter class for a format of Debezium Server (`io.debezium.embedded.ConverterBuilder`).
fn format_class(format: &str) -> &str {
    match format {
        "json" | "jsonbytearray" => "org.apache.kafka.connect.json.JsonConverter",
        "avro" => "io.confluent.connect.avro.AvroConverter",
        "protobuf" => "io.confluent.connect.protobuf.ProtobufConverter",
        "cloudevents" => "io.debezium.converters.CloudEventsConverter",
        "simplestring" => "org.apache.kafka.connect.storage.StringConverter",
        "binary" => "io.debezium.converters.BinaryDataConverter",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str, name: &str) -> Option<String> {
        read(text).unwrap().settings.get(name).map(|setting| setting.value.clone())
    }

    #[test]
    fn every_form_is_recognised() {
        for text in [
            r#"{"name": "c", "config": {"tasks.max": "1"}}"#,
            r#"{"config": {"tasks.max": 1}, "tasks": [], "type": "source"}"#,
            "\u{feff} {\"tasks.max\": \"1\"}",
            "tasks.max=1",
            "# a comment\ntasks.max: 1 ",
            "debezium.source.tasks.max=1",
        ] {
            assert_eq!(value(text, "tasks.max").as_deref(), Some("1"), "{text}");
        }
        assert_eq!(read("debezium.source.a=1").unwrap().form, Form::Server);
        assert_eq!(value(r#"{"a": true, "b": null}"#, "a").as_deref(), Some("true"));
        assert_eq!(value(r#"{"a": true, "b": null}"#, "b"), None);
    }

    #[test]
    fn what_is_no_form_says_so_without_a_value() {
        for text in
            ["", "# a", "{", r#"{"database.password": {"hunter2": 1}}"#, r#"{"a": hunter2}"#, "a=\\uhunter2"]
        {
            let error = read(text).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn other_shapes_are_named() {
        let told = [
            r#"[{"name": "c", "config": {"tasks.max": "1"}}]"#,
            r#"["outbox", "orders"]"#,
            r#"{"outbox": {"info": {"name": "outbox", "config": {"tasks.max": "1"}}}}"#,
            r#"{"outbox": {"status": {"name": "outbox"}}}"#,
            r#"{"name": "c", "config": {"transforms": ["outbox"]}}"#,
            r#"{"name": "c", "config": [{"tasks.max": "1"}]}"#,
            "---\ntasks.max: 1",
            "# of Strimzi\napiVersion: kafka.strimzi.io/v1\nspec:\n  config:\n    transforms: outbox",
            "spec:\n- a: b",
            "connector.class: \"io.debezium.connector.postgresql.PostgresConnector\"\ntransforms: outbox",
        ]
        .map(|text| format!("{text}\n    {}\n", read(text).unwrap_err()));
        insta::assert_snapshot!(told.join("\n"));
        for text in
            ["tasks.max:1\nname:", "a: b\\\n  c", "a:\nb: 1", "# a:\n  b=1", "a=b:\n  c=d", "x: \"y\""]
        {
            assert!(read(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn debezium_server_has_names_and_defaults_of_its_own() {
        let text = "debezium.source.slot.name=s\ndebezium.transforms=o\ndebezium.transforms.o.type=x\n\
                    debezium.format.value=simplestring\ndebezium.format.schemas.enable=false\n\
                    debezium.format.key.schemas.enable=true\ndebezium.sink.kafka.producer.linger.ms=5\n\
                    debezium.sink.type=kafka\ndebezium.transforms.o.r=$${routedByValue}";
        for (name, expected) in [
            ("slot.name", "s"),
            ("transforms", "o"),
            ("transforms.o.type", "x"),
            ("transforms.o.r", "${routedByValue}"),
            ("value.converter", "org.apache.kafka.connect.storage.StringConverter"),
            ("key.converter", "org.apache.kafka.connect.json.JsonConverter"),
            ("key.converter.schemas.enable", "true"),
            ("header.converter.schemas.enable", "false"),
            ("producer.override.linger.ms", "5"),
            ("debezium.sink.type", "kafka"),
        ] {
            assert_eq!(value(text, name).as_deref(), Some(expected), "{name}");
        }
    }

    #[test]
    fn a_worker_lies_under_the_connector() {
        let mut connector = read("value.converter=own\nproducer.override.linger.ms=1").unwrap();
        let worker = "key.converter=theirs\nvalue.converter=theirs\nvalue.converter.schemas.enable=false\n\
                      producer.linger.ms=2\nproducer.acks=all\nbootstrap.servers=k:9092\ngroup.id=connect";
        add_worker_settings(&mut connector, worker).unwrap();
        let value = |name: &str| connector.settings.get(name).map(|setting| setting.value.as_str());
        assert_eq!(value("key.converter"), Some("theirs"));
        assert_eq!(value("value.converter"), Some("own"));
        assert_eq!(value("value.converter.schemas.enable"), None);
        assert_eq!(value("producer.override.linger.ms"), Some("1"));
        assert_eq!(value("producer.override.acks"), Some("all"));
        assert_eq!(value("producer.override.bootstrap.servers"), Some("k:9092"));
        assert_eq!(value("group.id"), None);
    }
}
