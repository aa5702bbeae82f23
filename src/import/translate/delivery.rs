//! `exactly.once.support` (`SourceConnectorConfig` of Connect), and `exactly.once.source.support` of the worker.

use super::Translation;
use crate::import::connector::EXACTLY_ONCE;
use crate::import::findings::Level;
use crate::import::settings::Setting;
use crate::import::write::{Section, quoted};

pub(super) fn translate(translation: &mut Translation) {
    let of_worker = translation.take_any(EXACTLY_ONCE);
    let setting = translation.take("exactly.once.support", Section::Delivery, "mode");
    let is = |setting: &&Setting, value: &str| setting.value.eq_ignore_ascii_case(value);
    let required = setting.as_ref().filter(|setting| is(setting, "required"));
    // the connector's default is `requested`
    let supported = of_worker.as_ref().filter(|setting| is(setting, "enabled"));
    if let Some(setting) = required.or(supported) {
        translation.set(Section::Delivery, "mode", quoted("exactly-once"), setting);
        if translation.keeps_slot {
            return;
        }
        let meaning = "The router's first start on the connector's slot stops with exit code 3 and prints the command that \
                       continues, because events at the switch may be repeated";
        return translation.find(Level::Note, setting, meaning);
    }
    if let (Some(setting), false) = (&setting, translation.has_worker) {
        let meaning = "It depends on the workers: if they have exactly.once.source.support on, set \
                       `mode = \"exactly-once\"` in [delivery], because the router's delivery is at least once by default";
        translation.find(Level::Note, setting, meaning);
    }
}

#[cfg(test)]
mod tests {
    use crate::import::{Surroundings, import};

    fn imported(support: &str) -> crate::import::Import {
        imported_with(support, None)
    }

    fn imported_with(support: &str, worker: Option<String>) -> crate::import::Import {
        let connector = serde_json::json!({
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "database.hostname": "db", "database.user": "debezium", "database.dbname": "shop",
            "plugin.name": "pgoutput", "table.include.list": "public.outbox", "topic.prefix": "shop",
            "transforms": "outbox", "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
            "exactly.once.support": support,
        });
        import(&connector.to_string(), &Surroundings { bootstrap_servers: None, worker }).unwrap()
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

    #[test]
    fn a_worker_tells_whether_delivery_is_exactly_once() {
        for (support, of_worker, exactly_once) in [
            ("requested", "exactly.once.source.support=enabled", true),
            ("requested", "exactly.once.source.support=preparing", false),
            ("requested", "", false),
            ("required", "", true),
        ] {
            let worker = format!("bootstrap.servers=kafka:9092\n{of_worker}");
            let import = imported_with(support, Some(worker));
            let written = import.configuration.contains("mode = \"exactly-once\"");
            assert_eq!(written, exactly_once, "{support} {of_worker}");
            let noted = import.findings.iter().any(|finding| finding.setting.contains("exactly.once"));
            assert_eq!(noted, exactly_once, "{support} {of_worker}: {:?}", import.findings);
        }
    }
}
