//! The producer's properties: what the guarantees need, what is a better default, and what the user set.

use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::KafkaError;
use rdkafka::{ClientConfig, ClientContext};

use crate::config::{Config, Delivery, DeliveryMode};
use crate::error::{Error, Peer};

/// librdkafka's largest batch unless a topic takes less (`batch.size`).
pub(super) const DEFAULT_BATCH_BYTES: usize = 1_000_000;

/// The largest record that is handed over unless the user says otherwise (`message.max.bytes`); the topic's own limit
/// is usually far below. Brokers cut a connection that sends more than `socket.request.max.bytes`, 100 MiB.
pub(super) const DEFAULT_MESSAGE_MAX_BYTES: usize = 100_000_000;

/// librdkafka's own.
const TRANSACTION_TIMEOUT_MS: u64 = 60_000;

/// More than a position takes.
const POSITION_BYTES: usize = 100_000;

/// The largest record of an event.
pub(super) fn message_max_bytes(config: &Config) -> usize {
    let given = config.kafka.properties.get("message.max.bytes");
    given.and_then(|bytes| bytes.reveal().trim().parse().ok()).unwrap_or(DEFAULT_MESSAGE_MAX_BYTES)
}

/// How long a transaction may be open.
pub fn transaction_timeout(config: &Config) -> Duration {
    let given = config.kafka.properties.get("transaction.timeout.ms");
    let millis = given.and_then(|millis| millis.reveal().trim().parse().ok());
    Duration::from_millis(millis.unwrap_or(TRANSACTION_TIMEOUT_MS))
}

/// Defaults of ours where the user says nothing.
const DEFAULTS: [(&str, &str); 8] = [
    // the broker's answer to the batch before is what gathers the next one; waiting would only add latency
    ("linger.ms", "0"),
    // a broker that is back must be found within a second or two, not ten
    ("reconnect.backoff.ms", "50"),
    ("reconnect.backoff.max.ms", "1000"),
    // nor by the kernel's next attempt, which comes later each time
    ("socket.connection.setup.timeout.ms", "5000"),
    // topics are there before their first record, so one that is unknown has vanished and has to be made again
    ("topic.metadata.propagation.max.ms", "5000"),
    ("socket.keepalive.enable", "true"),
    ("socket.nagle.disable", "true"),
    // the default logs each connection that an idle broker closes
    ("log.connection.close", "false"),
];

/// Makes a client. Where no thread can be started rdkafka panics; that may pass, as other processes end.
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

/// librdkafka's answer to a property names its value; a value may be a secret, so only the name is passed on.
fn not_made(error: &KafkaError) -> Error {
    let what = match error {
        KafkaError::ClientConfig(_, _, property, _) => {
            format!("librdkafka refuses the value of `[kafka] {property}`")
        }
        other => format!("librdkafka cannot make a client of the properties under `[kafka]`: {other}"),
    };
    Error::usage(what, "Compare it with librdkafka's CONFIGURATION.md")
}

/// What every client of the router's starts from: the user's properties over the defaults.
pub fn client(config: &Config) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("client.id", &config.name);
    for (name, value) in DEFAULTS {
        client.set(name, value);
    }
    for (name, value) in &config.kafka.properties {
        client.set(name, value.reveal());
    }
    client.set("allow.auto.create.topics", "false");
    client
}

/// The producer's properties. Those that carry a guarantee come last: configuration refuses them already.
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
    // where Java's producers put a key
    in_order(&mut client).set("partitioner", "murmur2_random");
    match config.delivery.mode {
        DeliveryMode::AtLeastOnce => never_expires(&mut client).set("enable.gapless.guarantee", "true"),
        // What expires with its transaction aborts it, and an abort takes back whatever was sent behind a refused record. The
        // position goes by the same producer, whatever the limit for events is, which is looked at before.
        DeliveryMode::ExactlyOnce => {
            let limit = client.get("message.max.bytes").and_then(|bytes| bytes.parse().ok());
            client.set("message.max.bytes", limit.unwrap_or(0).max(POSITION_BYTES).to_string())
        }
    };
    client
}

/// What it takes that records are in the log in the order in which they were handed over, and durable when that is said.
pub(super) fn in_order(client: &mut ClientConfig) -> &mut ClientConfig {
    client
        .set("enable.idempotence", "true")
        .set("acks", "all")
        // With more, a batch behind a refused first one could be taken: a broker that knows no sequence of this
        // producer takes any.
        .set("max.in.flight.requests.per.connection", "1")
        .set("message.send.max.retries", "2147483647")
}

/// Zero is never: a record is acknowledged, or refused. One that expires could still arrive, behind a later one.
pub(super) fn never_expires(client: &mut ClientConfig) -> &mut ClientConfig {
    client.set("message.timeout.ms", "0")
}

/// Whether records are compressed, so that one may be smaller for the broker than it is.
pub fn compresses(config: &Config) -> bool {
    config.kafka.properties.get("compression.type").is_some_and(|codec| codec.reveal() != "none")
}

/// The window is the bound; librdkafka's own must not be met before it.
fn queue_messages(delivery: &Delivery) -> usize {
    // and two positions
    (delivery.window_records + 3).clamp(1, 2_147_483_647)
}

fn queue_kbytes(delivery: &Delivery) -> usize {
    // one record more than the window, of any size that may be sent, and librdkafka's own share of each
    let bytes = delivery.window_bytes.saturating_mul(2).saturating_add(DEFAULT_MESSAGE_MAX_BYTES);
    (bytes / 1024 + 1).clamp(1, 2_147_483_647)
}
