//! Producer settings (`ProducerConfig`) in librdkafka's names.

use super::truststore::Truststore;
use super::{Translation, sasl, truststore};
use crate::import::connector::Form;
use crate::import::findings::Level;
use crate::import::settings::{Setting, Settings, matches_pattern};
use crate::import::write::{Section, key, literal, quoted};

/// The placeholder if no brokers are known; it cannot be resolved.
const NO_BROKERS: &str = "kafka.invalid:9092";

/// Properties with the same name and meaning in both.
const SAME: &[&str] = &[
    "bootstrap.servers",
    "batch.size",
    "client.dns.lookup",
    "client.id",
    "compression.type",
    "connections.max.idle.ms",
    "linger.ms",
    "metadata.max.age.ms",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "sasl.kerberos.service.name",
    "sasl.mechanism",
    "security.protocol",
    "socket.connection.setup.timeout.ms",
];

/// Properties with the same meaning under another name.
const RENAMED: &[(&str, &str)] = &[
    ("max.request.size", "message.max.bytes"),
    ("request.timeout.ms", "socket.timeout.ms"),
    ("send.buffer.bytes", "socket.send.buffer.bytes"),
    ("receive.buffer.bytes", "socket.receive.buffer.bytes"),
    ("compression.gzip.level", "compression.level"),
    ("compression.lz4.level", "compression.level"),
    ("compression.zstd.level", "compression.level"),
];

/// Properties that are not translated: level, names (an asterisk stands for anything), and the reason.
const LEFT_OUT: &[(Level, &[&str], &str)] = &[
    (
        Level::Ignored,
        &[
            "acks",
            "enable.idempotence",
            "max.in.flight.requests.per.connection",
            "retries",
            "delivery.timeout.ms",
        ],
        "The router sets it: every record is on all in-sync replicas, and in order, before the slot \
         moves",
    ),
    (
        Level::Ignored,
        &["transactional.id", "transaction.timeout.ms", "transaction.two.phase.commit.enable"],
        "The router sets it itself if `mode` in [delivery] is \"exactly-once\"",
    ),
    (
        Level::Ignored,
        &["buffer.memory", "max.block.ms"],
        "Only concerns the Java producer's buffer; `window` in [delivery] limits the records in flight",
    ),
    (
        Level::Ignored,
        &[
            "key.serializer",
            "value.serializer",
            "metric.reporters",
            "metrics.*",
            "auto.include.jmx.reporter",
            "enable.metrics.push",
            "metadata.max.idle.ms",
            "metadata.recovery.*",
            "socket.connection.setup.timeout.max.ms",
            "security.providers",
            "partitioner.adaptive.partitioning.enable",
            "partitioner.availability.timeout.ms",
            "config.providers*",
        ],
        "Only concerns the Java producer itself",
    ),
    (
        Level::Ignored,
        &[
            "ssl.protocol",
            "ssl.enabled.protocols",
            "ssl.provider",
            "ssl.keymanager.algorithm",
            "ssl.trustmanager.algorithm",
            "ssl.secure.random.implementation",
            "ssl.truststore.password",
        ],
        "Only concerns TLS in Java; the router uses OpenSSL with its own choice of versions",
    ),
    (
        Level::NoEquivalent,
        &["ssl.engine.factory.class", "interceptor.classes"],
        "The router cannot run Java classes",
    ),
    (
        Level::NoEquivalent,
        &["partitioner.class", "partitioner.ignore.keys"],
        "The router chooses the partition by the key, as Java's producers do by default, and so records may land in \
         other partitions",
    ),
    (
        Level::ToDo,
        &["ssl.cipher.suites"],
        "OpenSSL has other names for them: translate them and set `\"ssl.cipher.suites\"` in [kafka], or \
         leave the choice to it",
    ),
];

pub(super) fn translate(translation: &mut Translation) {
    let mut producer = translation.settings.take_prefix("producer.override.");
    brokers(translation, producer.take("bootstrap.servers"));
    let store = Truststore {
        kind: producer.take("ssl.truststore.type"),
        certificates: producer.take("ssl.truststore.certificates"),
        location: producer.take("ssl.truststore.location"),
    };
    truststore::translate(translation, store, "ssl", "kafka_ca.pem");
    keystore(translation, &mut producer);
    sasl::translate(translation, &mut producer);
    if let Some(setting) = producer.take("ssl.endpoint.identification.algorithm") {
        let value = if setting.value.is_empty() { "none" } else { setting.value.as_str() };
        set(translation, "ssl.endpoint.identification.algorithm", value, &setting);
    }
    let is_default = |setting: &Setting| {
        setting.value.is_empty() || setting.value.ends_with(".DefaultPartitioner") || setting.value == "false"
    };
    for name in ["partitioner.class", "partitioner.ignore.keys"] {
        if producer.get(name).is_some_and(is_default) {
            producer.take(name);
        }
    }
    for (name, setting) in producer.into_rest() {
        property(translation, &name, setting);
    }
    sink(translation);
    let meaning = "Only concerns the client with which Connect creates topics; the router creates them with the settings in [kafka]";
    let of_admin = translation.settings.take_prefix("admin.override.");
    translation.find_all(Level::Ignored, of_admin, meaning);
}

fn property(translation: &mut Translation, name: &str, setting: Setting) {
    let same = SAME.iter().find(|same| **same == name).copied();
    let renamed = RENAMED.iter().find(|(java, _)| *java == name).map(|(_, ours)| *ours);
    if let Some(ours) = same.or(renamed) {
        if translation.document.has(Section::Kafka, &key(ours)) {
            let meaning = format!("`{ours}` is already set by another setting; this one is ignored");
            return translation.find(Level::Note, &setting, meaning);
        }
        if ours == "compression.level"
            && !setting.value.parse().is_ok_and(|level: i32| (-1..=12).contains(&level))
        {
            let meaning = "librdkafka accepts levels from -1 to 12; the setting is ignored";
            return translation.find(Level::Note, &setting, meaning);
        }
        if let Some(setting) = translation.for_key(setting, Section::Kafka, ours) {
            set(translation, ours, &setting.value, &setting);
        }
        return;
    }
    const UNKNOWN: &str = "The router knows no such property of librdkafka: see its CONFIGURATION.md for one that does the same";
    let left_out =
        LEFT_OUT.iter().find(|(_, names, _)| names.iter().any(|pattern| matches_pattern(pattern, name)));
    let (level, meaning) = left_out.map_or((Level::NoEquivalent, UNKNOWN), |(level, _, why)| (*level, *why));
    translation.find(level, &setting, meaning);
}

/// Writes numbers without quotes.
fn set(translation: &mut Translation, property: &str, value: &str, setting: &Setting) {
    let number = value.parse::<i64>().is_ok_and(|number| number.to_string() == value);
    let value = if number { value.to_owned() } else { literal(value) };
    translation.set(Section::Kafka, key(property), value, setting);
}

fn brokers(translation: &mut Translation, setting: Option<Setting>) {
    let key = key("bootstrap.servers");
    let known = setting.and_then(|setting| translation.for_key(setting, Section::Kafka, "bootstrap.servers"));
    if let Some(setting) = known {
        return translation.text(Section::Kafka, &key, &setting);
    }
    let place = match translation.form {
        Form::Connect => "bootstrap.servers",
        Form::Server => "debezium.sink.kafka.producer.bootstrap.servers",
    };
    if !translation.has_found("bootstrap.servers") {
        let meaning = "A connector's file does not name the brokers: set them in [kafka], or import again \
                       with --bootstrap-servers";
        translation.find_unset(Level::ToDo, place, meaning);
    }
    translation.document.set(Section::Kafka, key, quoted(NO_BROKERS), "put your brokers here");
}

fn keystore(translation: &mut Translation, producer: &mut Settings) {
    let kind = producer.take("ssl.keystore.type").map(|kind| kind.value.to_ascii_uppercase());
    let password = producer.take("ssl.keystore.password");
    let key_password = producer.take("ssl.key.password");
    if let Some(setting) = producer.take("ssl.keystore.certificate.chain") {
        set(translation, "ssl.certificate.pem", &setting.value, &setting);
    }
    if let Some(setting) = producer.take("ssl.keystore.key") {
        translation.secret("ssl.key.pem", &setting);
    }
    let mut is_store = true;
    if let Some(setting) = producer.take("ssl.keystore.location") {
        let Some(setting) = translation.for_key(setting, Section::Kafka, "ssl.keystore.location") else {
            return;
        };
        let ending = setting.value.rsplit_once('.').map(|(_, ending)| ending);
        match (kind.as_deref(), ending) {
            (Some("PEM"), _) | (None, Some("pem")) => {
                is_store = false;
                set(translation, "ssl.certificate.location", &setting.value, &setting);
                set(translation, "ssl.key.location", &setting.value, &setting);
            }
            (Some("PKCS12"), _) | (None, Some("p12" | "pfx")) => {
                set(translation, "ssl.keystore.location", &setting.value, &setting);
            }
            _ => {
                let meaning = "OpenSSL reads PKCS#12: `keytool -importkeystore -srckeystore STORE \
                               -destkeystore kafka.p12 -deststoretype PKCS12`";
                translation.find(Level::ToDo, &setting, meaning);
                set(translation, "ssl.keystore.location", "kafka.p12", &setting);
            }
        }
    }
    if let Some(password) = password.filter(|_| is_store) {
        translation.secret("ssl.keystore.password", &password);
    }
    if let Some(password) = key_password {
        translation.secret("ssl.key.password", &password);
    }
}

/// The other settings of Debezium Server's sink.
fn sink(translation: &mut Translation) {
    if let Some(setting) =
        translation.take_any("debezium.sink.type").filter(|setting| setting.value != "kafka")
    {
        translation.find(Level::NoEquivalent, &setting, "The router writes to Kafka only");
    }
    for (prefix, meaning) in [
        ("debezium.sink.kafka.", "Only concerns how Debezium Server waits for its producer"),
        ("debezium.sink.", "Only concerns a sink that the router does not write to"),
    ] {
        let settings = translation.settings.take_prefix(prefix);
        translation.find_all(Level::Ignored, settings, meaning);
    }
}
