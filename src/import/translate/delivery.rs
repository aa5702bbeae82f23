//! `exactly.once.support` (`SourceConnectorConfig` of Connect).

use super::Translation;
use crate::import::findings::Level;
use crate::import::write::{Section, quoted};

pub(super) fn translate(translation: &mut Translation) {
    let Some(setting) = translation.take("exactly.once.support", Section::Delivery, "mode") else { return };
    if setting.value.trim().eq_ignore_ascii_case("required") {
        translation.set(Section::Delivery, "mode", quoted("exactly-once"), &setting);
        if translation.keeps_slot {
            return;
        }
        let meaning = "The router's first start on the connector's slot stops with exit code 3 and prints the command that goes \
                       on, because events at the switch may be repeated";
        return translation.find(Level::Note, &setting, meaning);
    }
    let meaning = "It depends on the workers: if they have exactly.once.source.support on, set `mode = \"exactly-once\"` in \
                   [delivery], because the router's delivery is at least once by default";
    translation.find(Level::Note, &setting, meaning);
}

#[cfg(test)]
mod tests {
    use crate::import::{Surroundings, import};

    fn imported(support: &str) -> crate::import::Import {
        let connector = serde_json::json!({
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "database.hostname": "db", "database.user": "debezium", "database.dbname": "shop",
            "plugin.name": "pgoutput", "table.include.list": "public.outbox", "topic.prefix": "shop",
            "transforms": "outbox", "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
            "exactly.once.support": support,
        });
        import(&connector.to_string(), &Surroundings::default()).unwrap()
    }

    #[test]
    fn a_connector_that_requires_exactly_once_gets_it() {
        let required = imported("required");
        assert!(
            required.configuration.contains("[delivery]\nmode = \"exactly-once\""),
            "{}",
            required.configuration
        );
        let requested = imported("requested");
        assert!(!requested.configuration.contains("[delivery]"), "{}", requested.configuration);
        for import in [required, requested] {
            assert!(import.findings.iter().any(|finding| finding.setting == "exactly.once.support"));
        }
    }
}
