//! `[contracts]`: where the contracts are, and what happens to payloads that violate them.

use std::fmt::{self, Write};
use std::path::{Path, PathBuf};

use super::quoted::quoted;
use super::raw::RawContracts;
use super::read::{Located, Reader};
use super::template::Template;
use super::words::word;
use super::{Columns, Config};

/// `[contracts]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContractSettings {
    /// `directory`: contains `<aggregate>/<event>.json`.
    pub directory: PathBuf,
    /// `on_violation`
    pub on_violation: OnViolation,
}

/// What happens to an event whose payload violates its contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnViolation {
    /// It is sent and counted, and logged once for each contract (the default).
    Warn,
    /// It counts as an event that cannot be sent.
    Reject,
}

const ON_VIOLATION: [(&str, OnViolation); 2] = [("warn", OnViolation::Warn), ("reject", OnViolation::Reject)];

/// What `outbox-router contracts` needs from a configuration, which need not be complete.
#[derive(Debug, Clone)]
pub struct ContractConfig {
    /// `[contracts]`, if it names a directory.
    pub contracts: Option<ContractSettings>,
    /// `[route] topic`
    pub topic: Template,
    /// `[outbox] columns`
    pub columns: Columns,
}

/// `None` without a directory.
pub(super) fn contracts(reader: &mut Reader<'_>, raw: RawContracts) -> Option<ContractSettings> {
    let span = raw.on_violation.as_ref().map(toml::Spanned::span);
    let on_violation = reader.choice("contracts.on_violation", raw.on_violation, &ON_VIOLATION);
    let directory = reader.text_or_off("contracts.directory", raw.directory).flatten();
    match (directory, span) {
        (Some(Located { text, span, .. }), _) => Some(ContractSettings {
            directory: reader.resolve_path(Path::new(&text), &span),
            on_violation: on_violation.unwrap_or(OnViolation::Warn),
        }),
        (None, Some(span)) => {
            let what = "no contracts are configured";
            reader.problem(&span, "contracts.on_violation", what, "Set `directory` under [contracts]");
            None
        }
        (None, None) => None,
    }
}

/// Writes nothing if there are no contracts.
pub(super) fn write_toml(config: &Config, out: &mut String) -> fmt::Result {
    let Some(contracts) = &config.contracts else { return Ok(()) };
    writeln!(out, "\n[contracts]")?;
    writeln!(out, "directory = {}", quoted(&contracts.directory.display().to_string()))?;
    writeln!(out, "on_violation = {}", word(&ON_VIOLATION, contracts.on_violation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::convert::Brokers;
    use crate::config::load::{ConfigFile, load_for_contracts, parse};
    use pg_logical::Environment;

    fn read(text: &str) -> Result<Config, String> {
        let text = format!(
            "postgres.url = \"postgres://r@db/shop\"\nkafka.'bootstrap.servers' = \"kafka:9092\"\n{text}"
        );
        let parsed = parse(
            Some((Path::new("/etc/shop/router.toml"), &text)),
            &Environment::empty(),
            Brokers::Required,
        );
        parsed.map(|parsed| parsed.config).map_err(|error| error.to_string())
    }

    #[test]
    fn off_by_default_and_relative_to_the_file() {
        assert_eq!(read("").unwrap().contracts, None);
        assert_eq!(read("[contracts]\ndirectory = \"\"").unwrap().contracts, None);
        let config = read("[contracts]\ndirectory = \"contracts\"").unwrap();
        let settings = ContractSettings {
            directory: PathBuf::from("/etc/shop/contracts"),
            on_violation: OnViolation::Warn,
        };
        assert_eq!(config.contracts, Some(settings.clone()));
        let config = read("[contracts]\ndirectory = \"/srv/c\"\non_violation = \"reject\"").unwrap();
        assert_eq!(config.contracts.unwrap().on_violation, OnViolation::Reject);
    }

    #[test]
    fn the_printed_configuration_includes_contracts() {
        let config = read("[contracts]\ndirectory = \"c\"\non_violation = \"reject\"").unwrap();
        let mut printed = String::new();
        write_toml(&config, &mut printed).unwrap();
        assert_eq!(printed, "\n[contracts]\ndirectory = \"/etc/shop/c\"\non_violation = \"reject\"\n");
        assert_eq!(read(&printed).unwrap().contracts, config.contracts);
    }

    #[test]
    fn messages_for_bad_contracts() {
        let messages =
            ["on_violation = \"drop\"", "on_violation = \"warn\"", "directory = 5", "folder = \"c\""]
                .map(|line| read(&format!("[contracts]\n{line}")).unwrap_err());
        insta::assert_snapshot!(messages.join("\n"));
    }

    #[test]
    fn contracts_load_without_postgres_and_kafka() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("router.toml");
        std::fs::write(&file, "contracts.directory = \"c\"\nroute.topic = \"t.${aggregate_type}\"\n")
            .unwrap();
        let load = || {
            let found = ConfigFile::find(Some(&file)).unwrap();
            load_for_contracts(found.as_ref(), &Environment::empty())
        };
        let read = load().unwrap();
        assert_eq!(read.contracts.unwrap().directory, directory.path().join("c"));
        assert_eq!(read.topic.to_string(), "t.${aggregate_type}");
        std::fs::write(&file, "route.topic = \"a b\"\n").unwrap();
        assert!(load().is_err());
    }
}
