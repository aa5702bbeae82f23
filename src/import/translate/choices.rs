//! Settings that accept only certain values (`Field.withEnum` and `Type.BOOLEAN` in Debezium, validators in Connect).

use super::Translation;
use crate::import::findings::Level;
use crate::import::settings::{Settings, list};

/// Without it, the router would connect without TLS. librdkafka refuses wrong values.
const PROTOCOL: &str = "producer.override.security.protocol";

/// Names in Connect, without the prefix of a transform or a converter, and what they accept in either case. Debezium and Connect
/// refuse a connector with anything else.
const CHOICES: &[(&[&str], &[&str])] = &[
    (
        &[
            "database.tcpKeepAlive",
            "errors.log.enable",
            "errors.log.include.messages",
            "extended.headers.enabled",
            "flush.lsn.source",
            "include.schema.comments",
            "include.unknown.datatypes",
            "producer.override.enable.idempotence",
            "producer.override.partitioner.ignore.keys",
            "provide.transaction.metadata",
            "publish.via.partition.root",
            "slot.drop.on.stop",
            "slot.failover",
            "table.ignore.builtin",
            "tombstones.on.delete",
            // of transforms
            "negate",
            "route.tombstone.on.empty.payload",
            "table.expand.json.payload",
            "table.fields.additional.error.on.missing",
            // of converters
            "delegate.converter.type.schemas.enable",
            "schemas.enable",
        ],
        &["true", "false"],
    ),
    (&["binary.handling.mode"], &["bytes", "base64", "base64-url-safe", "hex"]),
    (&["decimal.handling.mode"], &["precise", "double", "string"]),
    (&["errors.tolerance"], &["none", "all"]),
    (&["event.processing.failure.handling.mode"], &["fail", "warn", "skip", "ignore"]),
    (&["exactly.once.support"], &["requested", "required"]),
    (&["field.name.adjustment.mode", "schema.name.adjustment.mode"], &["none", "avro", "avro_unicode"]),
    (&["hstore.handling.mode"], &["json", "map"]),
    (&["interval.handling.mode"], &["numeric", "string"]),
    (&["lsn.flush.mode"], &["connector", "connector_and_driver", "manual"]),
    (&["lsn.flush.timeout.action"], &["fail", "warn", "ignore"]),
    (&["producer.override.acks"], &["all", "-1", "0", "1"]),
    (&["producer.override.compression.type"], &["none", "gzip", "snappy", "lz4", "zstd"]),
    (&[PROTOCOL], &["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]),
    (&["publication.autocreate.mode"], &["all_tables", "disabled", "filtered", "no_tables"]),
    (&["schema.refresh.mode"], &["columns_diff", "columns_diff_exclude_unchanged_toast"]),
    (&["skipped.operations"], &["c", "u", "d", "t", "none"]),
    (
        &["snapshot.mode"],
        // the last three were modes of Debezium 2
        &[
            "always",
            "initial",
            "initial_only",
            "no_data",
            "when_needed",
            "configuration_based",
            "custom",
            "never",
            "exported",
            "parallel",
        ],
    ),
    (&["table.json.payload.empty.array.behavior"], &["ignore", "optional_string"]),
    (&["table.json.payload.null.behavior"], &["ignore", "optional_bytes"]),
    (&["table.op.invalid.behavior"], &["warn", "error", "fatal"]),
    (
        &["time.precision.mode"],
        &["adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"],
    ),
];

/// Reports settings with other values than they accept, and removes them.
pub(super) fn check(translation: &mut Translation, settings: &mut Settings) {
    for (names, values) in CHOICES {
        for name in *names {
            let wrong = settings.get(name).filter(|setting| {
                let mut members = list(&setting.value).peekable();
                let is_value = |member: &str| values.iter().any(|value| value.eq_ignore_ascii_case(member));
                let fits = members.peek().is_some() && members.all(is_value);
                let is_list = *name == "skipped.operations" || !setting.value.contains(',');
                translation.reference(setting).is_none() && !(fits && is_list)
            });
            let Some(setting) = wrong.cloned() else { continue };
            let then = if *name == PROTOCOL {
                "It is copied as it is"
            } else {
                settings.take(name);
                "It is left out"
            };
            let values = values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
            let meaning = format!("Valid values are {values}. {then}: correct it, and import again");
            translation.find(Level::Differs, &setting, meaning);
        }
    }
}
