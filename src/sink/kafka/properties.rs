//! The producer's properties: those that the guarantees need, our defaults, and the user's.

use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::KafkaError;
use rdkafka::{ClientConfig, ClientContext};

use crate::config::kafka_properties::{is_built_with, without_users_of_urls};
use crate::config::{Config, Delivery, DeliveryMode};
use crate::error::{Error, ErrorCode, Peer};

/// The largest batch unless a topic accepts less (librdkafka's `batch.size`), in bytes.
pub(super) const DEFAULT_BATCH_BYTES: usize = 1_000_000;

/// The largest record unless the user sets `message.max.bytes`; a topic's limit is usually far lower. Brokers close a
/// connection that sends more than `socket.request.max.bytes`, 100 MiB.
pub(super) const DEFAULT_MESSAGE_MAX_BYTES: usize = 100_000_000;

/// librdkafka's default.
const TRANSACTION_TIMEOUT_MS: u64 = 60_000;

/// An upper bound for the size of a checkpoint.
const POSITION_BYTES: usize = 100_000;

/// The largest record of an event.
pub(super) fn message_max_bytes(config: &Config) -> usize {
    let given = config.kafka.properties.get("message.max.bytes");
    given.and_then(|bytes| bytes.reveal().trim().parse().ok()).unwrap_or(DEFAULT_MESSAGE_MAX_BYTES)
}

/// The transaction timeout.
pub fn transaction_timeout(config: &Config) -> Duration {
    let given = config.kafka.properties.get("transaction.timeout.ms");
    let millis = given.and_then(|millis| millis.reveal().trim().parse().ok());
    Duration::from_millis(millis.unwrap_or(TRANSACTION_TIMEOUT_MS))
}

/// Our defaults.
const DEFAULTS: [(&str, &str); 8] = [
    // records gather while the previous batch is acknowledged; waiting longer would only add latency
    ("linger.ms", "0"),
    // a broker that is back must be found within a second or two, not ten
    ("reconnect.backoff.ms", "50"),
    ("reconnect.backoff.max.ms", "1000"),
    // the kernel repeats a connection attempt at growing intervals, so give up and start another
    ("socket.connection.setup.timeout.ms", "5000"),
    // topics exist before their first record, so an unknown one was deleted and has to be created again
    ("topic.metadata.propagation.max.ms", "5000"),
    ("socket.keepalive.enable", "true"),
    ("socket.nagle.disable", "true"),
    // the default is to log every idle connection that a broker closes
    ("log.connection.close", "false"),
];

/// Creates a client. rdkafka panics if it cannot start a thread, which may be temporary.
pub(super) fn make<C: ClientContext, T: FromClientConfigAndContext<C>>(
    settings: &ClientConfig,
    context: C,
) -> Result<T, Error> {
    let made = panic::catch_unwind(AssertUnwindSafe(|| settings.create_with_context(context)));
    match made {
        Ok(made) => made.map_err(|error| not_made(&error)),
        Err(_) => Err(Error::transient(
            Peer::Kafka,
            "the threads of a Kafka client cannot be started: raise this process's limits on threads and memory",
        )),
    }
}

/// librdkafka's message contains the property's value, which may be a secret, so only the name is passed on.
fn not_made(error: &KafkaError) -> Error {
    let what = match error {
        KafkaError::ClientConfig(_, _, property, _) => {
            format!("librdkafka refuses the value of `[kafka] {property}`")
        }
        other => {
            let why = other.to_string();
            let why = without_users_of_urls(&why);
            format!("librdkafka cannot create a client with the properties under `[kafka]`: {why}")
        }
    };
    Error::usage(ErrorCode::KafkaProperties, what, "Compare it with librdkafka's CONFIGURATION.md")
}

/// The base of every client's configuration: the user's properties over the defaults. Values in files of their own may have been
/// replaced since the start, as passwords are.
pub fn client(config: &Config) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("client.id", &config.name);
    for (name, value) in DEFAULTS {
        client.set(name, value);
    }
    let given = |name: &str| config.kafka.properties.contains_key(name);
    let authority = given("https.ca.location") || given("https.ca.pem");
    if given("sasl.oauthbearer.token.endpoint.url") && !authority && is_built_with("oidc") {
        // the system's store, which OpenSSL alone finds only where it was built for this system
        client.set("https.ca.location", "probe");
    }
    for (name, value) in &config.kafka.properties {
        client.set(name, value.reveal());
    }
    for (name, file) in &config.kafka.files {
        let value = std::fs::read_to_string(file).unwrap_or_default();
        match value.trim_end_matches(['\n', '\r']) {
            "" => tracing::warn!(
                peer = "kafka",
                "{} is empty or cannot be read; `[kafka] {name}` keeps its value",
                file.display()
            ),
            value => drop(client.set(name, value)),
        }
    }
    client.set("allow.auto.create.topics", "false");
    client
}

/// The properties of a consumer that reads partitions up to their ends, and only committed records. It joins no group and commits
/// no offset.
pub(super) fn consumer(config: &Config) -> ClientConfig {
    let mut client = client(config);
    client
        // librdkafka requires a group id for reading
        .set("group.id", &config.name)
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("isolation.level", "read_committed")
        // do not wait for records beyond the end
        .set("fetch.wait.max.ms", "10");
    client
}

/// The producer's properties. Those that the guarantees need are set last; the configuration does not accept other values
/// for them.
pub(super) fn producer(config: &Config, batch_bytes: usize) -> ClientConfig {
    let mut client = client(config);
    let given = |name: &str| config.kafka.properties.contains_key(name);
    if !given("message.max.bytes") && !given("max.request.size") {
        client.set("message.max.bytes", DEFAULT_MESSAGE_MAX_BYTES.to_string());
    }
    if !given("queue.buffering.max.messages") {
        client.set("queue.buffering.max.messages", queue_messages(&config.delivery).to_string());
    }
    if !given("queue.buffering.max.kbytes") {
        client.set("queue.buffering.max.kbytes", queue_kbytes(&config.delivery).to_string());
    }
    let wanted = client.get("batch.size").and_then(|size| size.parse().ok()).unwrap_or(DEFAULT_BATCH_BYTES);
    client.set("batch.size", wanted.min(batch_bytes).max(1).to_string());
    // the partition that Java's producers choose
    in_order(&mut client).set("partitioner", "murmur2_random");
    match config.delivery.mode {
        DeliveryMode::AtLeastOnce => never_expires(&mut client).set("enable.gapless.guarantee", "true"),
        // In a transaction, an expired record aborts it, and the abort takes back whatever was sent after a refused record.
        // Checkpoints use the same producer, so they must fit too; events are checked against their own limit before.
        DeliveryMode::ExactlyOnce => {
            let limit = client.get("message.max.bytes").and_then(|bytes| bytes.parse().ok());
            client.set("message.max.bytes", limit.unwrap_or(0).max(POSITION_BYTES).to_string())
        }
    };
    client
}

/// What the order and durability of records need.
pub(super) fn in_order(client: &mut ClientConfig) -> &mut ClientConfig {
    client
        .set("enable.idempotence", "true")
        .set("acks", "all")
        // With more, a broker could accept a batch after a refused first one, because a broker without state for this
        // producer accepts any sequence.
        .set("max.in.flight.requests.per.connection", "1")
        .set("message.send.max.retries", "2147483647")
}

/// Zero is never: a record is acknowledged or refused. An expired record could still be written, after a later one.
pub(super) fn never_expires(client: &mut ClientConfig) -> &mut ClientConfig {
    client.set("message.timeout.ms", "0")
}

/// Whether records are compressed, so that a batch may be smaller than its records.
pub fn compresses(config: &Config) -> bool {
    config.kafka.properties.get("compression.type").is_some_and(|codec| codec.reveal() != "none")
}

/// The window bounds records in flight; librdkafka's limits must not be reached before it.
fn queue_messages(delivery: &Delivery) -> usize {
    // plus two checkpoints and one
    (delivery.window_records + 3).clamp(1, 2_147_483_647)
}

fn queue_kbytes(delivery: &Delivery) -> usize {
    // twice the window, because librdkafka adds its own share to each record, plus one record of any size
    let bytes = delivery.window_bytes.saturating_mul(2).saturating_add(DEFAULT_MESSAGE_MAX_BYTES);
    (bytes / 1024 + 1).clamp(1, 2_147_483_647)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::minimal_with;

    #[test]
    fn a_token_server_is_trusted_by_the_systems_store_unless_an_authority_is_named() {
        if !is_built_with("oidc") {
            return;
        }
        let url = "kafka.\"sasl.oauthbearer.token.endpoint.url\" = \"https://id/token\"";
        for (more, location) in [
            ("", Some("probe")),
            ("kafka.\"ssl.ca.location\" = \"/etc/brokers.pem\"", Some("probe")),
            ("kafka.\"https.ca.location\" = \"/etc/id.pem\"", Some("/etc/id.pem")),
            ("kafka.\"https.ca.pem\" = \"-----BEGIN\"", None),
        ] {
            let client = client(&minimal_with(&format!("{url}\n{more}")));
            assert_eq!(client.get("https.ca.location"), location, "{more}");
        }
        assert_eq!(client(&minimal_with("")).get("https.ca.location"), None);
    }
}
