//! Settings that are not translated to a key: those of change events, snapshots, Connect's worker and Debezium itself.

use super::Translation;
use crate::import::findings::Level::{self, Differs, Ignored, NoEquivalent, Note};
use crate::import::settings::{list, lists, matches_pattern};

/// Settings that share one explanation.
struct Known {
    level: Level,
    /// Names in Connect; an asterisk at the end stands for anything.
    names: &'static [&'static str],
    /// Values, in lower case, that match what the router does anyway. They are not reported.
    harmless: &'static [&'static str],
    meaning: &'static str,
}

const fn ignored(names: &'static [&'static str], meaning: &'static str) -> Known {
    Known { level: Ignored, names, harmless: &[], meaning }
}

const fn known(
    level: Level,
    names: &'static [&'static str],
    harmless: &'static [&'static str],
    meaning: &'static str,
) -> Known {
    Known { level, names, harmless, meaning }
}

/// The first entry that matches counts.
const KNOWN: &[Known] = &[
    // the conversion of values
    known(
        Differs,
        &["time.precision.mode"],
        &["adaptive"],
        "Dates and times in keys, headers and envelopes are written as `adaptive` writes them",
    ),
    known(
        Differs,
        &["decimal.handling.mode"],
        &["precise"],
        "Numbers of type numeric in keys, headers and envelopes are written as `precise` writes them",
    ),
    known(
        Differs,
        &["money.fraction.digits"],
        &["2"],
        "Amounts of type money in keys, headers and envelopes are written with two digits",
    ),
    known(
        Differs,
        &["interval.handling.mode"],
        &["numeric"],
        "Intervals in keys, headers and envelopes are written as `numeric` writes them",
    ),
    known(
        Differs,
        &["hstore.handling.mode"],
        &["json"],
        "Columns of type hstore are written as the text of JSON, not as a map",
    ),
    known(
        Differs,
        &["binary.handling.mode"],
        &["bytes"],
        "A payload of type bytea is sent as its bytes, not as encoded text",
    ),
    known(
        Differs,
        &["include.unknown.datatypes"],
        &["false"],
        "Columns of types that Debezium does not know are written as Postgres prints them",
    ),
    known(
        Differs,
        &["field.name.adjustment.mode"],
        &["none"],
        "Names inside expanded payloads and envelopes stay as they are",
    ),
    known(
        NoEquivalent,
        &["column.mask.*", "column.truncate.*"],
        &[],
        "Values are sent whole and unmasked: have the application mask them before it writes them",
    ),
    known(
        NoEquivalent,
        &["converters", "post.processors"],
        &[""],
        "The router does not run Java classes: columns are written as Postgres or Debezium's own converters write them",
    ),
    // the treatment of events
    known(
        NoEquivalent,
        &["extended.headers.enabled"],
        &["false"],
        "Debezium's headers `__debezium.context.*` are not written",
    ),
    known(
        NoEquivalent,
        &["provide.transaction.metadata"],
        &["false"],
        "The router writes no topic with transaction metadata",
    ),
    known(
        Differs,
        &["errors.tolerance"],
        &["none"],
        "With `all` Connect skips records that it cannot convert or send, and so loses events; the router stops and \
         names the event (exit code 3), or parks it with `policy = \"park\"` in `[dead_letters]`",
    ),
    known(
        Differs,
        &["event.processing.failure.handling.mode", "event.converting.failure.handling.mode"],
        &["fail"],
        "Debezium skips events that it cannot read; the router does not skip events: it stops and names the event (exit \
         code 3)",
    ),
    known(
        NoEquivalent,
        &["signal.data.collection"],
        &[],
        "The router supports neither signals nor snapshots on request",
    ),
    known(
        NoEquivalent,
        &["notification.*"],
        &[],
        "The router sends no notifications: use its metrics, /readyz and its log",
    ),
    known(
        NoEquivalent,
        &["message.prefix.*"],
        &[],
        "Messages of pg_logical_emit_message are read in another form: see `message_prefix` in [outbox]",
    ),
    known(
        Differs,
        &["snapshot.mode"],
        &["initial", "no_data", "never", "when_needed"],
        "The router never reads the table, only the slot: rows that were in the table \
         before are not sent, at this start or at a later one",
    ),
    ignored(
        &["snapshot.mode"],
        "Only concerns the rows that were in the table before the slot existed; the router continues from the slot",
    ),
    ignored(
        &[
            "snapshot.*",
            "incremental.snapshot.*",
            "streaming.delay.ms",
            "read.only",
            "legacy.snapshot.max.threads",
        ],
        "Only concerns snapshots, which the router does not take",
    ),
    ignored(&["signal.*"], "Only concerns signals, which the router does not support"),
    ignored(
        &["heartbeat.*"],
        "Only concerns how Debezium moves the slot in a quiet database; the router does so without heartbeats, and writes no topic for them",
    ),
    ignored(
        &[
            "tombstones.on.delete",
            "message.key.columns",
            "replica.identity.autoset.values",
            "skip.messages.without.change",
            "unavailable.value.placeholder",
            "include.schema.changes",
            "schema.refresh.mode",
            "table.ignore.builtin",
        ],
        "Only concerns change events other than inserts into the outbox, or their keys, which the outbox \
         event router replaces",
    ),
    ignored(
        &[
            "column.propagate.source.type",
            "datatype.propagate.source.type",
            "schema.name.adjustment.mode",
            "include.schema.comments",
            "sourceinfo.struct.maker",
            "topic.naming.strategy",
            "topic.cache.size",
            "topic.transaction",
            "topic.heartbeat.prefix",
            "transaction.metadata.factory",
            "custom.sanitize.pattern",
        ],
        "Only concerns Connect's schemas, or topics that the outbox event router replaces",
    ),
    // the slot and the connection
    ignored(
        &["slot.failover", "slot.stream.params", "publish.via.partition.root", "publication.*"],
        "Only concerns how Debezium creates the slot or the publication; existing ones stay as they are",
    ),
    ignored(
        &[
            "database.tcpKeepAlive",
            "database.initial.statements",
            "database.query.timeout.ms",
            "database.connection.*",
            "database.include.list",
            "database.exclude.list",
            "connection.validation.timeout.ms",
        ],
        "Only concerns Debezium's own connections; for the router's, set keepalives, timeouts and options in the URL, as for libpq",
    ),
    ignored(
        &[
            "status.update.interval.ms",
            "xmin.fetch.interval.ms",
            "lsn.flush.timeout.*",
            "internal.log.position.check.enable",
        ],
        "Only concerns how Debezium reports to the slot; the router confirms it about once a second",
    ),
    ignored(
        &[
            "slot.max.retries",
            "slot.retry.delay.ms",
            "errors.max.retries",
            "errors.retry.*",
            "retriable.restart.connector.wait.ms",
            "custom.retriable.exception",
            "internal.custom.retriable.exception",
            "internal.create.slot.command.timeout",
            "executor.shutdown.timeout.ms",
        ],
        "Only concerns how often Debezium retries; the router retries forever",
    ),
    ignored(
        &[
            "max.batch.size",
            "max.queue.size",
            "max.queue.size.in.bytes",
            "poll.interval.ms",
            "poll.dispatch.interval.ms",
            "query.fetch.size",
            "queue.provider.type",
        ],
        "Only concerns the connector's queue; `window` in [delivery] limits the records in flight",
    ),
    // Connect's worker
    ignored(
        &[
            "tasks.max",
            "tasks.max.enforce",
            "config.action.reload",
            "connector.plugin.version",
            "key.converter.plugin.version",
            "errors.log.*",
            "errors.deadletterqueue.*",
            "errors.tolerance",
            "offsets.storage.topic",
            "transaction.boundary*",
            "topic.creation.enable",
            "topics",
            "plugin.path",
        ],
        "Only concerns Connect's worker",
    ),
    ignored(
        &[
            "custom.metric.tags",
            "internal.advanced.metrics.enable",
            "statistics.metrics.enabled",
            "openlineage.*",
            "guardrail.*",
        ],
        "Only concerns Debezium's own metrics, limits and lineage; the router's metrics are at /metrics",
    ),
    // Debezium Server
    ignored(
        &[
            "offset.*",
            "schema.history.*",
            "database.history*",
            "record.processing.*",
            "task.management.timeout.ms",
            "quarkus.*",
            "debezium.*",
            "%*",
        ],
        "Only concerns Debezium's own process: its stored offsets, threads, log and HTTP port (`listen` in \
         [admin])",
    ),
];

pub(super) fn translate(translation: &mut Translation) {
    if translation.settings.get("extended.headers.enabled").is_none()
        && !translation.has_found("extended.headers.enabled")
    {
        translation.find_unset(
            Note,
            "extended.headers.enabled",
            "Since 3.2.1 Debezium adds headers `__debezium.context.*` unless this is false; the router does not",
        );
    }
    skipped_operations(translation);
    declared(translation);
    let names: Vec<String> = translation.settings.names().map(str::to_owned).collect();
    for name in names {
        let mut fitting =
            KNOWN.iter().filter(|known| known.names.iter().any(|pattern| matches_pattern(pattern, &name)));
        let Some(first) = fitting.next() else { continue };
        let Some(setting) = translation.settings.take(&name) else { continue };
        if !first.harmless.contains(&setting.value.to_ascii_lowercase().as_str()) {
            translation.find(first.level, &setting, first.meaning);
        } else if let Some(second) = fitting.next() {
            translation.find(second.level, &setting, second.meaning);
        }
    }
}

/// Only inserts matter.
fn skipped_operations(translation: &mut Translation) {
    let Some(setting) = translation.take_any("skipped.operations") else { return };
    if lists(&setting, "c") {
        let meaning = "The connector skips inserts, and so has sent no events; the router sends them";
        translation.find(Differs, &setting, meaning);
    }
}

/// Custom converters and post-processors: the prefix of their settings is the name they are declared under.
fn declared(translation: &mut Translation) {
    for setting in ["converters", "post.processors"] {
        let names =
            translation.settings.get(setting).map(|setting| setting.value.clone()).unwrap_or_default();
        for name in list(&names) {
            let settings = translation.settings.take_prefix(&format!("{name}."));
            translation.find_all(
                NoEquivalent,
                settings,
                "It configures a Java class, which the router does not run",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_compared_in_small_letters() {
        for known in KNOWN {
            assert!(known.harmless.iter().all(|value| *value == value.to_ascii_lowercase()));
            assert!(!known.meaning.ends_with('.'), "{}", known.meaning);
        }
    }
}
