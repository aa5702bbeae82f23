//! Converts the keys of the file to the typed configuration: fills in defaults and checks every value.

mod cloudevents;
mod outbox;
mod preset;
mod route;
mod rules;
mod templates;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use pg_logical::conninfo::{ConnInfo, Password};
use pg_logical::{Environment, Secret, conninfo};

use crate::advice;
use crate::config::contracts::ContractConfig;
use crate::config::identifiers::{check_name, check_router_name, check_slot};
use crate::config::kafka_properties::{self, Refusal};
use crate::config::log::Log;
use crate::config::pattern::Pattern;
use crate::config::polling;
use crate::config::raw::{
    Node, Properties, RawAdmin, RawConfig, RawDelivery, RawOutbox, RawPostgres, RawRoute, RawTopics, Value,
};
use crate::config::read::{Located, Reader};
use crate::config::source::{Problems, Sources};
use crate::config::words::CATCH_UP;
use crate::config::{Admin, CatchUp, Config, Delivery, DeliveryMode, Kafka, Outbox, Postgres, Route, Topics};
use crate::topic_name;

/// Whether the configuration must name brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Brokers {
    /// It must.
    Required,
    /// It need not: the command does not connect to Kafka.
    Optional,
}

/// A configuration, and where its secrets are stored.
pub(in crate::config) struct Parsed {
    pub(in crate::config) config: Config,
    pub(in crate::config) secrets: SecretLocations,
}

/// Where secrets are stored.
#[derive(Debug, Default)]
pub(in crate::config) struct SecretLocations {
    /// Whether the configuration file itself contains one.
    pub(in crate::config) inline: bool,
    /// Other files that contain one.
    pub(in crate::config) files: Vec<PathBuf>,
}

/// Converts everything before it returns an error, so that all problems are reported at once.
pub(super) fn convert(
    raw: RawConfig,
    sources: &Sources<'_>,
    env: &Environment,
    problems: Problems,
    brokers: Brokers,
) -> Result<Parsed, Problems> {
    let mut reader = Reader { sources, problems };
    let mut secrets = SecretLocations::default();
    let mut raw = raw;
    let refused = polling::refused_keys(&raw);
    let RawOutbox { columns, status, .. } = &mut raw.outbox.0;
    let (status, mode_span) =
        (std::mem::take(&mut status.0), raw.delivery.0.mode.as_ref().map(toml::Spanned::span));
    let polling = polling::polling(&mut reader, raw.source.0, &mut columns.0, status);
    let postgres = postgres(&mut reader, raw.postgres.0, env, &mut secrets);
    let topic_spans = route::topic_spans(&raw.route.0);
    let (outbox, route) = outbox_and_route(&mut reader, raw.preset, raw.outbox.0, raw.route.0);
    let mut delivery = delivery(&mut reader, raw.delivery.0);
    if polling.is_some() {
        polling::check(&mut reader, refused, &outbox, &route, (delivery.mode, mode_span));
        delivery.positions_topic = None;
    }
    let kafka = kafka(&mut reader, raw.kafka.0, &delivery, brokers, &mut secrets);
    let topics = topics(&mut reader, raw.topics.0);
    route::check_topics(&mut reader, topic_spans, &route, &topics, delivery.positions_topic.as_deref());
    let admin = admin(&mut reader, raw.admin.0);
    let bookmarks = crate::config::bookmarks::bookmarks(&mut reader, raw.bookmarks.0);
    let heartbeat = crate::config::heartbeat::heartbeat(&mut reader, raw.heartbeat.0);
    let dead_letters = crate::config::dead_letters::dead_letters(&mut reader, raw.dead_letters.0);
    let replay = crate::config::replay::replay(&mut reader, raw.replay.0);
    let retention = crate::config::retention::retention(&mut reader, raw.retention.0, &outbox);
    let contracts = crate::config::contracts::contracts(&mut reader, raw.contracts.0);
    let shards = crate::config::shards::shards(&mut reader, raw.shards.0);
    let log = crate::config::log::log(&mut reader, raw.log.0);
    let name = reader.checked("name", raw.name, check_router_name);
    if let (None, Some(postgres)) = (&name, &postgres) {
        let default = default_name(postgres);
        if check_router_name(&default).is_err() {
            reader.missing(
                "name",
                "Set it: the default, which consists of database and slot, is too long or contains control characters",
            );
        }
    }
    if polling.is_none() {
        crate::config::shards::check_positions(&mut reader, &shards, delivery.positions_topic.as_deref());
    }
    if let Some(postgres) = &postgres {
        let name = name.clone().unwrap_or_else(|| default_name(postgres));
        crate::config::shards::check_names(&mut reader, &shards, &name, postgres);
    }
    // without a connection string there is always a problem
    let (Some(postgres), true) = (postgres, reader.problems.is_empty()) else { return Err(reader.problems) };
    Ok(Parsed {
        secrets,
        config: Config {
            name: name.unwrap_or_else(|| default_name(&postgres)),
            postgres,
            polling,
            outbox,
            route,
            kafka,
            topics,
            delivery,
            admin,
            bookmarks,
            heartbeat,
            dead_letters,
            replay,
            retention,
            contracts,
            shards,
            log,
            shard: None,
        },
    })
}

/// Converts only the keys for contracts.
pub(super) fn for_contracts(
    raw: RawConfig,
    sources: &Sources<'_>,
    problems: Problems,
) -> Result<ContractConfig, Problems> {
    let mut reader = Reader { sources, problems };
    let (outbox, route) = outbox_and_route(&mut reader, raw.preset, raw.outbox.0, raw.route.0);
    let contracts = crate::config::contracts::contracts(&mut reader, raw.contracts.0);
    match reader.problems.is_empty() {
        true => Ok(ContractConfig { contracts, topic: route.topic, columns: outbox.columns }),
        false => Err(reader.problems),
    }
}

/// Converts only `[log]`; invalid values count as missing.
pub(super) fn for_logging(raw: RawConfig, sources: &Sources<'_>, problems: Problems) -> Log {
    crate::config::log::log(&mut Reader { sources, problems }, raw.log.0)
}

/// Converts `[outbox]` and `[route]`, whose defaults a preset changes.
fn outbox_and_route(
    reader: &mut Reader<'_>,
    preset: Value,
    raw_outbox: RawOutbox,
    raw_route: RawRoute,
) -> (Outbox, Route) {
    let defaults = preset::defaults(reader, preset);
    let outbox = outbox::outbox(reader, raw_outbox, defaults.columns);
    let route = route::route(reader, raw_route, &outbox.columns, defaults.route);
    (outbox, route)
}

fn default_name(postgres: &Postgres) -> String {
    format!("{}.{}", postgres.conninfo.dbname, postgres.slot)
}

/// `None` if there is a problem with the connection.
fn postgres(
    reader: &mut Reader<'_>,
    raw: RawPostgres,
    env: &Environment,
    secrets: &mut SecretLocations,
) -> Option<Postgres> {
    let password_file = reader.text_or_off("postgres.password_file", raw.password_file).flatten();
    let password_file = password_file.map(|file| reader.resolve_path(file.text.as_ref(), &file.span));
    let password = password_source(reader, password_file, raw.password_command);
    let was_set = raw.url.is_some();
    let url = reader.text("postgres.url", raw.url);
    let conninfo = match url {
        Some(Located { text, span, inline, file }) if !text.trim().is_empty() => {
            if conninfo::password_in(&text).is_some() {
                let is_own = |password: Secret| !password.reveal().contains("${");
                let in_file = match reader.sources.original(&span) {
                    Some(original) => conninfo::password_in(original).is_some_and(is_own),
                    None => true,
                };
                secrets.inline |= inline && in_file;
                secrets.files.extend(file.clone());
            }
            let parsed = ConnInfo::parse_with(&text, password, env).map_err(|error| {
                let remedy = advice::connection_string_remedy(&error);
                reader.problem(&span, "postgres.url", error.what, remedy);
            });
            let conninfo = parsed.ok().map(ConnInfo::prefer_primary);
            match file {
                Some(file) => conninfo.map(|conninfo| conninfo.of_file(file)),
                None => conninfo,
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
    let catch_up = reader.choice_or("postgres.catch_up", raw.catch_up, &CATCH_UP, CatchUp::Auto);
    let catch_up_lag = reader.size("postgres.catch_up_lag", raw.catch_up_lag).unwrap_or(64 << 20);
    if let Some(Password::File(file)) = conninfo.as_ref().and_then(|conninfo| conninfo.password.as_ref()) {
        secrets.files.push(file.clone());
    }
    conninfo.map(|conninfo| Postgres {
        conninfo,
        slot: slot.unwrap_or_else(|| "outbox_router".to_owned()),
        publication: publication.unwrap_or_else(|| "outbox_router".to_owned()),
        wal_sender_timeout: wal_sender_timeout.unwrap_or(Duration::from_secs(10)),
        catch_up,
        catch_up_lag,
    })
}

/// Where the password comes from, if that is configured outside of the connection string.
fn password_source(reader: &mut Reader<'_>, file: Option<PathBuf>, command: Value) -> Option<Password> {
    let key = "postgres.password_command";
    let file = file.map(Password::File);
    let Some(command) = command else { return file };
    let (span, one_text) = (command.span(), matches!(command.get_ref(), Node::Text(_)));
    let from_variable = reader.sources.is_variable(&span);
    let words = reader.texts(key, Some(command), |text| text.split_whitespace().collect())?;
    let words: Vec<String> = words.into_iter().map(|word| word.text).collect();
    let program = words.first().map_or("", String::as_str);
    if words.is_empty() || words == [""] {
        return file;
    }
    if program.is_empty() || words.iter().any(|word| word.contains('\0')) {
        reader.problem(
            &span,
            key,
            "the program's name is empty, or a word contains a zero byte",
            "Correct the words",
        );
    } else if one_text && !from_variable && program.contains(char::is_whitespace) {
        let what = "no shell splits this text into words";
        reader.problem(&span, key, what, "Write an array: the program, and each of its arguments");
    } else if file.is_some() {
        reader.problem(&span, key, "`password_file` is set too", "Keep one of them");
    }
    Some(Password::Command(words))
}

fn kafka(
    reader: &mut Reader<'_>,
    raw: Properties,
    delivery: &Delivery,
    brokers: Brokers,
    secrets: &mut SecretLocations,
) -> Kafka {
    let (mut properties, mut files) = (BTreeMap::new(), BTreeMap::new());
    let (mut mechanism, mut brokers_named) = (None, false);
    for (name, located) in reader.properties("kafka", raw, kafka_properties::canonical) {
        let Located { text, span, inline, file } = located;
        // an unusable value is reported as such, not as missing
        brokers_named |= name == "bootstrap.servers";
        if name == "bootstrap.servers" && text.trim().is_empty() {
            reader.problem(
                &span,
                "kafka.\"bootstrap.servers\"",
                "it is empty",
                "Name a broker: \"host:9092\"",
            );
        }
        match kafka_properties::check(&name, &text, delivery.window_records, delivery.window_bytes) {
            Ok(()) => {
                if kafka_properties::contains_secret(&name, &text) {
                    secrets.inline |= inline;
                    secrets.files.extend(file.clone());
                } else if kafka_properties::names_secret_file(&name) {
                    // librdkafka opens the file, relative to the working directory
                    secrets.files.push(text.as_str().into());
                }
                if name == "sasl.mechanism" {
                    mechanism = Some(span);
                }
                files.extend(file.map(|file| (name.clone(), file)));
                properties.insert(name, Secret::new(text));
            }
            Err(Refusal { what, remedy }) => reader.refused(&span, &format!("kafka.{name}"), what, remedy),
        }
    }
    if let Some(span) = mechanism
        && kafka_properties::has_no_source_of_tokens(&properties)
    {
        reader.problem(
            &span,
            "kafka.\"sasl.mechanism\"",
            "OAUTHBEARER needs tokens, and nothing says where they come from",
            "Add `\"sasl.oauthbearer.method\" = \"oidc\"` to [kafka], with sasl.oauthbearer.token.endpoint.url, \
             sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret",
        );
    }
    if brokers == Brokers::Required && !brokers_named {
        reader.missing(
            "kafka.\"bootstrap.servers\"",
            "Add `\"bootstrap.servers\" = \"host:9092\"` to [kafka], or set OUTBOX_ROUTER_KAFKA__BOOTSTRAP_SERVERS",
        );
    }
    Kafka { properties, files }
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
            .properties("topics.config", raw.config.0, |name| name)
            .into_iter()
            .map(|(name, located)| (name, located.text))
            .collect(),
        allow: allowed_topics(reader, raw.allow),
    }
}

fn split_at_commas(text: &str) -> Vec<&str> {
    text.split(',').map(str::trim).collect()
}

fn allowed_topics(reader: &mut Reader<'_>, raw: Value) -> Vec<Pattern> {
    let listed = reader.texts("topics.allow", raw, split_at_commas);
    let mut pattern = |Located { text, span, .. }: Located| match Pattern::parse_topics(&text) {
        Ok(pattern) if pattern.regex().is_none() && topic_name::check(&text).is_err() => {
            let what = format!("{text:?} is not a topic name");
            let remedy = "Write a topic name, a name with * in it, or \"/a regular expression/\"";
            reader.problem(&span, "topics.allow", what, remedy);
            None
        }
        pattern => {
            pattern.map_err(|what| reader.problem(&span, "topics.allow", what, "Correct the expression")).ok()
        }
    };
    listed.into_iter().flatten().filter_map(&mut pattern).collect()
}

fn delivery(reader: &mut Reader<'_>, raw: RawDelivery) -> Delivery {
    let defaults = Delivery::default();
    let mode_span = raw.mode.as_ref().map(toml::Spanned::span);
    let mode = reader.choice("delivery.mode", raw.mode, &DeliveryMode::ALL.map(|mode| (mode.name(), mode)));
    let records = reader.integer("delivery.window.records", raw.window.0.records, 1..=i32::MAX.into());
    let bytes = reader.size("delivery.window.bytes", raw.window.0.bytes);
    let positions_topic = positions_topic(reader, raw.positions_topic);
    if let (Some(DeliveryMode::ExactlyOnce), Some(None), Some(span)) = (mode, &positions_topic, mode_span) {
        reader.problem(
            &span,
            "delivery.mode",
            "\"exactly-once\" commits the position together with the events, and `positions_topic` is switched off",
            "Remove `positions_topic = false`, or choose \"at-least-once\"",
        );
    }
    let shutdown = reader.duration("delivery.shutdown_timeout", raw.shutdown_timeout, Duration::ZERO);
    Delivery {
        mode: mode.unwrap_or(defaults.mode),
        window_records: records
            .and_then(|records| usize::try_from(records).ok())
            .unwrap_or(defaults.window_records),
        window_bytes: bytes.unwrap_or(defaults.window_bytes),
        positions_topic: positions_topic.unwrap_or(defaults.positions_topic),
        shutdown_timeout: shutdown.unwrap_or(defaults.shutdown_timeout),
    }
}

/// The configured topic; `Some(None)` if it is switched off.
fn positions_topic(reader: &mut Reader<'_>, raw: Value) -> Option<Option<String>> {
    let key = "delivery.positions_topic";
    let Some(Located { text, span, .. }) = reader.text_or_off(key, raw)? else { return Some(None) };
    let checked = topic_name::check_own(&text).map_err(|error| {
        let remedy = "Write the name of a topic that only routers use; false switches it off";
        reader.problem(&span, key, error.to_string(), remedy);
    });
    checked.ok().map(|()| Some(text))
}

fn admin(reader: &mut Reader<'_>, raw: RawAdmin) -> Admin {
    match reader.text_or_off("admin.listen", raw.listen) {
        None => Admin::default(),
        Some(None) => Admin { listen: None },
        Some(Some(Located { text, span, .. })) => {
            if !is_host_and_port(&text) {
                reader.problem(
                    &span,
                    "admin.listen",
                    "expected host:port",
                    "Write it as \"127.0.0.1:8084\", \"0.0.0.0:8084\" or \"[::]:8084\"; false switches it off",
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
