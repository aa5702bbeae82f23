//! Settings of earlier versions that have another name now.

use super::Translation;
use crate::import::findings::Level;
use crate::import::settings::Settings;

/// Names of earlier versions, and what Debezium 3 calls the same. Debezium 3 ignores the earlier names.
const EARLIER: &[(&str, &str)] = &[
    ("column.blacklist", "column.exclude.list"),
    ("column.whitelist", "column.include.list"),
    ("database.server.name", "topic.prefix"),
    ("event.deserialization.failure.handling.mode", "event.processing.failure.handling.mode"),
    ("initial.statements", "database.initial.statements"),
    ("rows.fetch.size", "snapshot.fetch.size"),
    ("schema.blacklist", "schema.exclude.list"),
    ("schema.whitelist", "schema.include.list"),
    ("slot.drop_on_stop", "slot.drop.on.stop"),
    ("table.blacklist", "table.exclude.list"),
    ("table.whitelist", "table.include.list"),
    ("toasted.value.placeholder", "unavailable.value.placeholder"),
    ("transaction.topic", "topic.transaction"),
    // of the outbox event router
    ("debezium.op.invalid.behavior", "table.op.invalid.behavior"),
    ("table.field.payload", "table.field.event.payload"),
    ("table.field.payload.id", "table.field.event.key"),
    ("table.field.schema.version", "table.field.event.schema.version"),
];

/// Reports settings with names of earlier versions, and takes them for their successors.
pub(super) fn rename(translation: &mut Translation, settings: &mut Settings) {
    for (earlier, now) in EARLIER {
        let Some(setting) = settings.take(earlier) else { continue };
        let meaning = match settings.get(now) {
            Some(_) => format!(
                "Debezium 3 ignores this name of earlier versions; `{now}`, its successor, is set too"
            ),
            None => format!(
                "Debezium 3 ignores this name of earlier versions. Its successor is `{now}`, and the setting is taken for it"
            ),
        };
        translation.find(Level::Differs, &setting, meaning);
        settings.set_default(now, setting.name, &setting.value);
    }
}
