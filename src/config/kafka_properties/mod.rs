//! Checks librdkafka's properties: which ones may be set, and why the others may not.

mod names;
mod secrets;

use std::collections::BTreeMap;

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;

use names::{ALIASES, CONSUMER, PRODUCER};
use pg_logical::Secret;
use pg_logical::conninfo::nearest;
pub(super) use secrets::{contains_secret, names_secret_file};
pub use secrets::{is_secret, shown, shown_log_line, without_users_of_urls};

/// Properties that the router sets itself, or that would break one of its guarantees: names and aliases, the reason, and the
/// remedy.
const REFUSED: &[(&[&str], &str, &str)] = &[
    (
        &["acks", "request.required.acks"],
        "every record must be on all in-sync replicas before the slot moves, so the router sets it to all",
        "Remove it",
    ),
    (
        &["enable.idempotence"],
        "without it a retry inside the producer could reorder or duplicate records, so the router always sets it",
        "Remove it",
    ),
    (
        &["enable.gapless.guarantee"],
        "the router sets it, so that no record overtakes one that the broker refused",
        "Remove it",
    ),
    (
        &["max.in.flight.requests.per.connection", "max.in.flight"],
        "order per key depends on it, so the router sets it",
        "Remove it; `window` in [delivery] limits the records in flight",
    ),
    (
        &["retries", "message.send.max.retries"],
        "the router retries for ever, because giving up on a record would lose it or its order",
        "Remove it",
    ),
    (
        &["delivery.timeout.ms", "message.timeout.ms"],
        "a record that times out would be overtaken by its successors, so the router sets it",
        "Remove it; the router waits while the broker is unreachable",
    ),
    (
        &["partitioner"],
        "the router sets murmur2_random, so that a key gets the same partition as from Java producers",
        "Remove it",
    ),
    (
        &["transactional.id"],
        "the router derives it from its name, so that two routers can be distinguished",
        "Remove it and set `name` at the top of the file",
    ),
    (
        &["allow.auto.create.topics"],
        "the first records to a topic that the broker creates on the fly can vanish, so the router sets it to false",
        "Remove it; [topics] configures how topics are created",
    ),
    (
        &["queuing.strategy"],
        "any other than fifo would send the records of a key in the wrong order",
        "Remove it",
    ),
    (
        &["delivery.report.only.error"],
        "it switches off the delivery reports by which the slot advances",
        "Remove it",
    ),
];

/// What is wrong with a property, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) what: String,
    pub(super) remedy: String,
}

/// Whether these properties choose OAUTHBEARER and no way to get tokens. librdkafka would wait for a token for ever. It compares
/// the values of enumerations and booleans in any case, and takes three words for true.
pub(super) fn has_no_source_of_tokens(properties: &BTreeMap<String, Secret>) -> bool {
    let is = |name: &str, values: &[&str]| {
        let set = properties.get(name).map(|set| set.reveal().trim());
        set.is_some_and(|set| values.iter().any(|value| set.eq_ignore_ascii_case(value)))
    };
    is("sasl.mechanism", &["OAUTHBEARER"])
        && !is("sasl.oauthbearer.method", &["oidc"])
        && !is("enable.sasl.oauthbearer.unsecure.jwt", &["true", "t", "1"])
}

/// Whether librdkafka was built with a feature, as its property `builtin.features` names it.
pub fn is_built_with(feature: &str) -> bool {
    let built = ClientConfig::new().create_native_config().and_then(|native| native.get("builtin.features"));
    built.is_ok_and(|features| features.split(',').any(|built| built == feature))
}

/// Whether librdkafka documents a producer property of this name.
pub(super) fn is_known(property: &str) -> bool {
    PRODUCER.contains(&property)
}

/// The names of properties that may be set.
pub(super) fn accepted() -> impl Iterator<Item = &'static str> {
    PRODUCER.iter().copied().filter(|name| refused().all(|refused| refused != *name))
}

/// The names of properties that the router sets itself.
pub(super) fn refused() -> impl Iterator<Item = &'static str> {
    REFUSED.iter().flat_map(|(names, _, _)| names.iter().copied())
}

/// The name under which a property is stored if librdkafka accepts two.
pub(super) fn canonical(property: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == property).map_or(property, |(_, name)| name)
}

/// The property for this part of a variable's name, such as `sasl_password`. Underscores stand for dots, except in the few
/// property names that contain underscores.
pub(super) fn from_variable(part: &str) -> String {
    let dotted = part.replace('_', ".");
    let known = PRODUCER.iter().chain(CONSUMER).find(|name| name.replace('_', ".") == dotted);
    known.map_or(dotted, |name| (*name).to_owned())
}

/// Checks one property's name and value. `window_records` and `window_bytes` are the limits in `[delivery]`; the limits of the
/// producer's own queue must not be lower.
pub(super) fn check(
    property: &str,
    value: &str,
    window_records: usize,
    window_bytes: usize,
) -> Result<(), Refusal> {
    if let Some((_, why, remedy)) = REFUSED.iter().find(|(names, _, _)| names.contains(&property)) {
        return Err(Refusal {
            what: format!("`{property}` cannot be set: {why}"),
            remedy: (*remedy).to_owned(),
        });
    }
    if CONSUMER.contains(&property) {
        return Err(Refusal {
            what: format!(
                "`{property}` has no effect: it is a consumer property, and the router has no consumer"
            ),
            remedy: "Remove it".to_owned(),
        });
    }
    // librdkafka would look up the whole of it as a name, and log it
    if canonical(property) == "bootstrap.servers" && value.contains('@') {
        return Err(Refusal {
            what: format!("`{property}` has an `@` in it, and an address of a broker is host:port"),
            remedy: "Set user and password with sasl.username and sasl.password".to_owned(),
        });
    }
    check_by_librdkafka(property, value)?;
    // 0 means no limit on messages
    let too_small = |unit: u64, needed: usize| {
        let limit = value.trim().parse::<u64>().unwrap_or(u64::MAX).saturating_mul(unit);
        limit > 0 && limit < u64::try_from(needed).unwrap_or(u64::MAX)
    };
    let below = |key: &str| Refusal {
        what: format!(
            "`{property}` is smaller than `window.{key}` in [delivery], so the window could never fill"
        ),
        remedy: format!("Remove it, and lower `window.{key}` to bound memory"),
    };
    match property {
        "queue.buffering.max.messages" if too_small(1, window_records) => Err(below("records")),
        "queue.buffering.max.kbytes" if too_small(1024, window_bytes) => Err(below("bytes")),
        _ => Ok(()),
    }
}

fn check_by_librdkafka(property: &str, value: &str) -> Result<(), Refusal> {
    let mut config = ClientConfig::new();
    config.set(property, value);
    match config.create_native_config() {
        Ok(_) => Ok(()),
        Err(KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..)) => Err(Refusal {
            what: format!("librdkafka has no property `{property}`"),
            remedy: match nearest(property, PRODUCER.iter().copied()) {
                Some(name) => format!("Did you mean `{name}`?"),
                None => "Look up the name in librdkafka's CONFIGURATION.md".to_owned(),
            },
        }),
        // librdkafka's message repeats the value
        Err(KafkaError::ClientConfig(_, why, ..)) if !is_secret(property) => {
            let remedy = if why.contains("not supported in this build") {
                "Remove it, or build the router with what it needs"
            } else {
                "Correct or remove it"
            };
            let why = without_users_of_urls(why.trim_end_matches(['.', '\n']));
            Err(Refusal {
                what: format!("librdkafka does not accept `{property}`: {why}"),
                remedy: remedy.to_owned(),
            })
        }
        Err(_) => Err(Refusal {
            what: format!("librdkafka does not accept the value of `{property}`"),
            remedy: "Correct or remove it".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(property: &str, value: &str) -> String {
        match check(property, value, 50_000, 16 << 20) {
            Ok(()) => "accepted".to_owned(),
            Err(Refusal { what, remedy }) => format!("{what}. {remedy}"),
        }
    }

    #[test]
    fn librdkafka_knows_every_name_in_the_lists() {
        for name in PRODUCER.iter().chain(CONSUMER) {
            let unknown = matches!(
                ClientConfig::new().set(*name, "1").create_native_config(),
                Err(KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..))
            );
            assert!(!unknown, "{name}");
        }
    }

    #[test]
    fn every_property_can_be_set_by_a_variable() {
        for name in PRODUCER.iter().chain(CONSUMER) {
            assert_eq!(from_variable(&name.replace('.', "_")), *name);
        }
    }

    #[test]
    fn aliases_are_known_names() {
        for (alias, name) in ALIASES {
            assert!(PRODUCER.contains(alias) && PRODUCER.contains(name), "{alias} {name}");
            assert_eq!(canonical(alias), *name);
        }
        assert_eq!(canonical("client.id"), "client.id");
    }

    #[test]
    fn ordinary_properties_are_accepted() {
        for (name, value) in [
            ("bootstrap.servers", "a:1,b:2"),
            ("linger.ms", "20"),
            ("compression.type", "zstd"),
            ("client.id", "me"),
            ("security.protocol", "SASL_SSL"),
            ("sasl.mechanism", "SCRAM-SHA-512"),
            ("socket.keepalive.enable", "true"),
            ("queue.buffering.max.messages", "0"),
            ("queue.buffering.max.messages", "50000"),
            ("queue.buffering.max.kbytes", "16384"),
        ] {
            assert_eq!(checked(name, value), "accepted", "{name}={value}");
        }
    }

    #[test]
    fn every_refused_property_is_known_and_says_why() {
        let mut all = String::new();
        for (names, _, _) in REFUSED {
            for name in *names {
                assert!(PRODUCER.contains(name), "{name}");
                all.push_str(&checked(name, "1"));
                all.push('\n');
            }
        }
        insta::assert_snapshot!(all);
    }

    #[test]
    fn messages_for_bad_names_and_values() {
        let cases = [
            ("group.id", "x"),
            ("bootstrap.server", "x"),
            ("frobnicate", "x"),
            ("linger.ms", "soon"),
            ("linger.ms", "99999999"),
            ("security.protocol", "tls"),
            ("dr_cb", "x"),
            ("ssl.truststore.location", "x"),
            ("queue.buffering.max.messages", "49999"),
            ("queue.buffering.max.kbytes", "16383"),
            ("bootstrap.servers", "user:hunter2@kafka:9092"),
            ("metadata.broker.list", "user:hunter2@kafka:9092"),
            ("security.protocol", "https://user:hunter2@kafka/"),
        ];
        let all: Vec<String> =
            cases.iter().map(|(name, value)| format!("{name} = {value}: {}", checked(name, value))).collect();
        assert!(all.iter().all(|line| !line.split_once(": ").unwrap().1.contains("hunter2")), "{all:?}");
        insta::assert_snapshot!(all.join("\n"));
    }
}
