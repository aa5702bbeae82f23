//! Environment variables, which override the file: `OUTBOX_ROUTER_POSTGRES__URL` is `url` under `[postgres]`.
//!
//! A double underscore separates levels. In Kafka's property names, a single one stands for a dot. `..__FILE` names a file
//! with the value.

use std::borrow::Cow;

use pg_logical::Environment;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::environment::PREFIX;
use super::kafka_properties;
use super::source::{Problems, Sources, VariableRanges};

/// Adds every `OUTBOX_ROUTER_*` variable of `env` to the parsed file.
pub(super) fn apply_variables<'i>(
    root: &mut DeTable<'i>,
    env: &'i Environment,
    sources: &mut Sources<'i>,
    problems: &mut Problems,
) {
    for (name, key, value) in variables(env) {
        let ranges = sources.add_variable(name);
        let path = key_path(key);
        if path.iter().any(String::is_empty) {
            problems.push(
                sources.place(&ranges.value()),
                "the name of the variable has an empty part",
                format!("Write it as {PREFIX}SECTION__KEY, for example {PREFIX}POSTGRES__URL"),
            );
        } else if insert(root, &path, 0, value, &ranges, sources).is_err() {
            problems.push(
                sources.place(&ranges.value()),
                format!(
                    "sets part of a value that another variable ({PREFIX}{}) sets as a whole",
                    key.rsplit_once("__").map_or(key, |(whole, _)| whole)
                ),
                "Unset one of the two",
            );
        }
    }
}

/// Name, name without prefix, and value of these variables.
pub(super) fn variables(env: &Environment) -> impl Iterator<Item = (&str, &str, &str)> {
    env.variables_with_prefix(PREFIX)
        .map(|(name, value)| (name, name.strip_prefix(PREFIX).unwrap_or(name), value))
        .filter(|(_, key, _)| !is_service_link(key))
}

/// The path of keys to the value. The last key in `kafka` and `topics.config` is a property name with dots.
fn key_path(key: &str) -> Vec<String> {
    let mut path: Vec<String> = key.to_ascii_lowercase().split("__").map(str::to_owned).collect();
    match path.as_mut_slice() {
        [kafka, property, ..] if kafka == "kafka" => *property = kafka_properties::from_variable(property),
        [topics, config, property, ..] if topics == "topics" && config == "config" => {
            *property = property.replace('_', ".");
        }
        _ => {}
    }
    path
}

/// Whether Kubernetes sets this variable in every pod because a Service is called `outbox-router` (Kubernetes manual,
/// "Discovering services"). It is not meant for the router.
fn is_service_link(key: &str) -> bool {
    let port = |rest: &str| {
        let mut parts = rest.split('_');
        let number = parts.next().is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
        let protocol = parts.next().is_some_and(|p| matches!(p, "TCP" | "UDP" | "SCTP"));
        let field = parts.next().is_none_or(|f| matches!(f, "PROTO" | "PORT" | "ADDR"));
        number && protocol && field && parts.next().is_none()
    };
    matches!(key, "SERVICE_HOST" | "SERVICE_PORT" | "PORT")
        || (key.starts_with("SERVICE_PORT_") && !key.contains("__"))
        || key.strip_prefix("PORT_").is_some_and(port)
}

/// Another variable has already set a value where this one needs a table.
struct Conflict;

fn insert<'i>(
    table: &mut DeTable<'i>,
    path: &[String],
    depth: usize,
    value: &'i str,
    ranges: &VariableRanges,
    sources: &Sources<'_>,
) -> Result<(), Conflict> {
    let Some((key, rest)) = path.split_first() else { return Ok(()) };
    let key = Spanned::new(ranges.key(depth), Cow::Owned(key.clone()));
    if rest.is_empty() {
        table.insert(key, Spanned::new(ranges.value(), DeValue::String(Cow::Borrowed(value))));
        return Ok(());
    }
    let empty = || Spanned::new(ranges.table(depth), DeValue::Table(DeTable::new()));
    let inner = table.entry(key).or_insert_with(empty);
    if !inner.get_ref().is_table() {
        if sources.is_variable(&inner.span()) {
            return Err(Conflict);
        }
        *inner = empty();
    }
    match inner.get_mut() {
        DeValue::Table(inner) => insert(inner, rest, depth + 1, value, ranges, sources),
        _ => Err(Conflict),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn double_underscores_separate_levels_and_single_ones_are_dots_for_kafka() {
        for (key, path) in [
            ("NAME", &["name"][..]),
            ("POSTGRES__WAL_SENDER_TIMEOUT", &["postgres", "wal_sender_timeout"]),
            ("DELIVERY__WINDOW__BYTES", &["delivery", "window", "bytes"]),
            ("KAFKA__SASL_PASSWORD", &["kafka", "sasl.password"]),
            ("KAFKA__SASL_PASSWORD__FILE", &["kafka", "sasl.password", "file"]),
            ("KAFKA__SSL_CERTIFICATE_LOCATION", &["kafka", "ssl.certificate.location"]),
            ("KAFKA__LOG_LEVEL", &["kafka", "log_level"]),
            ("TOPICS__CONFIG__MIN_INSYNC_REPLICAS", &["topics", "config", "min.insync.replicas"]),
        ] {
            assert_eq!(key_path(key), path, "{key}");
        }
    }

    #[test]
    fn kubernetes_service_variables_are_ignored() {
        for key in [
            "SERVICE_HOST",
            "SERVICE_PORT",
            "SERVICE_PORT_ADMIN",
            "PORT",
            "PORT_8084_TCP",
            "PORT_8084_TCP_PROTO",
            "PORT_8084_TCP_PORT",
            "PORT_8084_TCP_ADDR",
        ] {
            assert!(is_service_link(key), "{key}");
        }
        for key in ["PORT_8084", "PORT_X_TCP", "PORT_8084_TCP_X", "POSTGRES__URL", "SERVICE", "NAME"] {
            assert!(!is_service_link(key), "{key}");
        }
    }
}
