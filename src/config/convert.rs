//! From the keys of the file to the typed configuration: defaults filled in, every value checked.

use std::collections::BTreeMap;
use std::time::Duration;

use super::conninfo::{ConnInfo, Password};
use super::environment::Environment;
use super::identifiers::{check_name, check_router_name, check_slot, parse_table};
use super::kafka_properties::{self, Refusal};
use super::load::Parsed;
use super::raw::{
    Properties, RawAdmin, RawColumns, RawConfig, RawDelivery, RawOutbox, RawPostgres, RawRoute, RawTopics,
    Value,
};
use super::read::{Located, Reader};
use super::secret::Secret;
use super::source::{Problems, Sources};
use super::template::{self, Name, Part, Template};
use super::{
    Admin, Columns, Config, Delivery, DeliveryMode, Kafka, Outbox, Postgres, RecordTimestamp, Route,
    RouteHeader, TableName, Topics,
};
use crate::error::Error;
use crate::topic_name;

/// Reads everything, then fails if anything was wrong with it.
pub(super) fn convert(
    raw: RawConfig,
    sources: &Sources<'_>,
    env: &Environment,
    problems: Problems,
) -> Result<Parsed, Error> {
    let mut reader = Reader { sources, problems };
    let (postgres, url_is_inline) = postgres(&mut reader, raw.postgres, env);
    let outbox = outbox(&mut reader, raw.outbox);
    let route = route(&mut reader, raw.route, &outbox.columns);
    let delivery = delivery(&mut reader, raw.delivery);
    let (kafka, kafka_secret_is_inline) = kafka(&mut reader, raw.kafka, &delivery);
    let topics = topics(&mut reader, raw.topics);
    let admin = admin(&mut reader, raw.admin);
    let name = reader.checked("name", raw.name, check_router_name);
    if let (None, Some(postgres)) = (&name, &postgres) {
        let default = default_name(postgres);
        if check_router_name(&default).is_err() {
            reader.missing(
                "name",
                "Set it: the default, made of database and slot, is too long or has control characters",
            );
        }
    }
    reader.problems.into_result()?;
    // a missing conninfo was noted as a problem, so it is here
    let postgres = postgres.ok_or_else(|| Error::usage("`postgres.url` is not set", "Set it"))?;
    let password_is_inline = url_is_inline && matches!(postgres.conninfo.password, Some(Password::Given(_)));
    Ok(Parsed {
        holds_secret: password_is_inline || kafka_secret_is_inline,
        config: Config {
            name: name.unwrap_or_else(|| default_name(&postgres)),
            postgres,
            outbox,
            route,
            kafka,
            topics,
            delivery,
            admin,
        },
    })
}

fn default_name(postgres: &Postgres) -> String {
    format!("{}.{}", postgres.conninfo.dbname, postgres.slot)
}

/// `None` after a problem with the connection; the flag says whether the URL stands in the file.
fn postgres(reader: &mut Reader<'_>, raw: RawPostgres, env: &Environment) -> (Option<Postgres>, bool) {
    let password_file = reader.text("postgres.password_file", raw.password_file);
    let password_file = password_file
        .filter(|file| !file.text.is_empty())
        .map(|file| reader.beside_the_file(file.text.as_ref(), &file.span));
    let was_set = raw.url.is_some();
    let url = reader.text("postgres.url", raw.url);
    let mut inline = false;
    let conninfo = match url {
        Some(Located { text, span, inline: in_file }) if !text.trim().is_empty() => {
            inline = in_file;
            match ConnInfo::parse_with(&text, password_file.as_deref(), env) {
                Ok(conninfo) => Some(conninfo),
                Err(fault) => {
                    reader.fault(&span, "postgres.url", fault.what, fault.remedy);
                    None
                }
            }
        }
        None if was_set => None,
        _ => {
            reader.missing(
                "postgres.url",
                "Add `url = \"postgres://user@host/database\"` to [postgres], or set OUTBOX_ROUTER_POSTGRES__URL",
            );
            None
        }
    };
    let slot = reader.checked("postgres.slot", raw.slot, check_slot);
    let publication = reader.checked("postgres.publication", raw.publication, check_name);
    let wal_sender_timeout =
        reader.duration("postgres.wal_sender_timeout", raw.wal_sender_timeout, Duration::from_secs(1));
    let postgres = conninfo.map(|conninfo| Postgres {
        conninfo,
        slot: slot.unwrap_or_else(|| "outbox_router".to_owned()),
        publication: publication.unwrap_or_else(|| "outbox_router".to_owned()),
        wal_sender_timeout: wal_sender_timeout.unwrap_or(Duration::from_secs(10)),
    });
    (postgres, inline)
}

fn outbox(reader: &mut Reader<'_>, raw: RawOutbox) -> Outbox {
    let mut table = TableName { schema: "public".to_owned(), name: "outbox".to_owned() };
    if let Some(Located { text, span, .. }) = reader.text("outbox.table", raw.table) {
        match parse_table(&text) {
            Ok(parsed) => table = parsed,
            Err(what) => reader.fault(&span, "outbox.table", what, "Write it as schema.name"),
        }
    }
    Outbox { table, columns: columns(reader, raw.columns) }
}

fn columns(reader: &mut Reader<'_>, raw: RawColumns) -> Columns {
    let defaults = Columns::default();
    let mut required = |key: &str, value: Value, default: String| {
        reader.checked(&format!("outbox.columns.{key}"), value, check_name).unwrap_or(default)
    };
    let id = required("id", raw.id, defaults.id);
    let aggregate_type = required("aggregate_type", raw.aggregate_type, defaults.aggregate_type);
    let aggregate_id = required("aggregate_id", raw.aggregate_id, defaults.aggregate_id);
    let event_type = required("event_type", raw.event_type, defaults.event_type);
    let payload = required("payload", raw.payload, defaults.payload);
    // what the user names must be there; a default may be absent from the table
    let mut optional = |key: &str, value: Value, default: Option<String>| {
        let key = format!("outbox.columns.{key}");
        match reader.text_or_off(&key, value) {
            None => (default, false),
            Some(None) => (None, false),
            Some(Some(Located { text, span, .. })) => {
                if let Err(expected) = check_name(&text) {
                    reader.fault(&span, &key, expected, "Correct the name");
                }
                (Some(text), true)
            }
        }
    };
    let (headers, headers_named) = optional("headers", raw.headers, defaults.headers);
    let (created_at, created_at_named) = optional("created_at", raw.created_at, defaults.created_at);
    Columns {
        id,
        aggregate_type,
        aggregate_id,
        event_type,
        payload,
        headers,
        created_at,
        headers_named,
        created_at_named,
    }
}

fn route(reader: &mut Reader<'_>, raw: RawRoute, columns: &Columns) -> Route {
    let topic = reader.text("route.topic", raw.topic).and_then(|Located { text, span, .. }| {
        topic_template(&text).map_err(|what| reader.fault(&span, "route.topic", what, TOPIC_FORM)).ok()
    });
    let span = raw.timestamp.as_ref().map(toml::Spanned::span);
    let choices = [("commit", RecordTimestamp::Commit), ("created_at", RecordTimestamp::CreatedAt)];
    let timestamp =
        reader.choice("route.timestamp", raw.timestamp, &choices).unwrap_or(RecordTimestamp::Commit);
    if let (RecordTimestamp::CreatedAt, None, Some(span)) = (timestamp, &columns.created_at, span) {
        reader.fault(
            &span,
            "route.timestamp",
            "\"created_at\" needs that column, and `outbox.columns` switches it off",
            "Name the column in `outbox.columns`, or set timestamp = \"commit\"",
        );
    }
    let headers = route_headers(reader, raw.headers);
    Route { topic: topic.unwrap_or_else(default_topic), headers, timestamp }
}

fn route_headers(reader: &mut Reader<'_>, raw: Properties) -> Vec<RouteHeader> {
    let mut headers = reader.properties("route.headers", raw, |name| name);
    // as the file has them; they come sorted by name
    headers.sort_by_key(|(_, located)| located.span.start);
    let mut header = |(name, Located { text, span, .. }): (String, Located)| {
        let key = format!("route.headers.{name}");
        if name.is_empty() || name.contains('\0') {
            reader.fault(&span, &key, "a header needs a name, without a zero character", "Name it");
        } else if matches!(name.as_str(), "id" | "type") {
            reader.fault(&span, &key, "the router itself sets this header", "Choose another name");
        }
        match Template::parse(&text) {
            Ok(value) => Some(RouteHeader { name, value }),
            Err(error) => {
                reader.fault(
                    &span,
                    &key,
                    error.to_string(),
                    "Write text, with values as in \"${event_type}\"",
                );
                None
            }
        }
    };
    headers.into_iter().filter_map(&mut header).collect()
}

const TOPIC_FORM: &str =
    "Write a topic name with columns in it, for instance \"outbox.event.${aggregate_type}\"";

/// `outbox.event.${aggregate_type}`
fn default_topic() -> Template {
    let name = Name::Column("aggregate_type".to_owned());
    Template::new(vec![
        Part::Text("outbox.event.".to_owned()),
        Part::Value(template::Value { name, filters: Vec::new() }),
    ])
}

/// A template whose fixed parts can stand in a topic's name.
fn topic_template(text: &str) -> Result<Template, String> {
    let template = Template::parse(text).map_err(|error| error.to_string())?;
    for part in template.parts() {
        let Part::Text(text) = part else { continue };
        if let Some(other) = text.chars().find(|c| !u8::try_from(*c).is_ok_and(topic_name::legal)) {
            return Err(format!("{other:?} cannot stand in a topic name"));
        }
    }
    // what every topic of it begins with
    let known = template.fixed().or(Some(template.prefix()).filter(|prefix| prefix.starts_with("__")));
    known.map_or(Ok(()), topic_name::check).map_err(|error| error.to_string())?;
    Ok(template)
}

/// The flag says whether a secret stands in the file.
fn kafka(reader: &mut Reader<'_>, raw: Properties, delivery: &Delivery) -> (Kafka, bool) {
    let mut properties = BTreeMap::new();
    let mut holds_secret = false;
    for (name, Located { text, span, inline }) in reader.properties("kafka", raw, kafka_properties::canonical)
    {
        if name == "bootstrap.servers" && text.trim().is_empty() {
            reader.fault(&span, "kafka.\"bootstrap.servers\"", "it is empty", "Name a broker: \"host:9092\"");
        }
        match kafka_properties::judge(&name, &text, delivery.window_records, delivery.window_bytes) {
            Ok(()) => {
                holds_secret |= inline && kafka_properties::is_secret(&name);
                properties.insert(name, Secret::new(text));
            }
            Err(Refusal { what, remedy }) => {
                let place = reader.sources.place(&span);
                reader.problems.push(place, what, remedy);
            }
        }
    }
    if !properties.contains_key("bootstrap.servers") {
        reader.missing(
            "kafka.\"bootstrap.servers\"",
            "Add `\"bootstrap.servers\" = \"host:9092\"` to [kafka], or set OUTBOX_ROUTER_KAFKA__BOOTSTRAP_SERVERS",
        );
    }
    (Kafka { properties }, holds_secret)
}

fn topics(reader: &mut Reader<'_>, raw: RawTopics) -> Topics {
    let small = |number: Option<i64>| number.and_then(|number| i32::try_from(number).ok());
    Topics {
        create: reader.switch("topics.create", raw.create).unwrap_or(true),
        partitions: small(reader.integer("topics.partitions", raw.partitions, 1..=i32::MAX.into())),
        replication_factor: small(reader.integer(
            "topics.replication_factor",
            raw.replication_factor,
            1..=i16::MAX.into(),
        )),
        config: reader
            .properties("topics.config", raw.config, |name| name)
            .into_iter()
            .map(|(name, located)| (name, located.text))
            .collect(),
    }
}

fn delivery(reader: &mut Reader<'_>, raw: RawDelivery) -> Delivery {
    let defaults = Delivery::default();
    let mode = reader.choice("delivery.mode", raw.mode, &[("at-least-once", DeliveryMode::AtLeastOnce)]);
    let records = reader.integer("delivery.window.records", raw.window.records, 1..=i32::MAX.into());
    let bytes = reader.size("delivery.window.bytes", raw.window.bytes);
    let shutdown = reader.duration("delivery.shutdown_timeout", raw.shutdown_timeout, Duration::ZERO);
    Delivery {
        mode: mode.unwrap_or(defaults.mode),
        window_records: records
            .and_then(|records| usize::try_from(records).ok())
            .unwrap_or(defaults.window_records),
        window_bytes: bytes.unwrap_or(defaults.window_bytes),
        shutdown_timeout: shutdown.unwrap_or(defaults.shutdown_timeout),
    }
}

fn admin(reader: &mut Reader<'_>, raw: RawAdmin) -> Admin {
    match reader.text_or_off("admin.listen", raw.listen) {
        None => Admin::default(),
        Some(None) => Admin { listen: None },
        Some(Some(Located { text, span, .. })) => {
            if !is_host_and_port(&text) {
                reader.fault(
                    &span,
                    "admin.listen",
                    "expected host:port",
                    "Write it as \"127.0.0.1:8084\", \"0.0.0.0:8084\" or \"[::]:8084\"; an empty text switches it off",
                );
            }
            Admin { listen: Some(text) }
        }
    }
}

fn is_host_and_port(text: &str) -> bool {
    if text.parse::<std::net::SocketAddr>().is_ok() {
        return true;
    }
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-' || c == '_';
    !host.is_empty() && host.chars().all(legal) && port.parse::<u16>().is_ok()
}
