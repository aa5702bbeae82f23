//! Any text is a connector's configuration or an error. The loader accepts the configuration made from it, or a finding says why not.

use outbox_router::import::{Surroundings, import};
use pg_logical::Environment;

use super::{SEPARATOR, assert_prints_and_reads_back, load_text};

pub fn run(bytes: &[u8]) {
    let Ok(texts) = std::str::from_utf8(bytes) else { return };
    let (text, worker) = match texts.split_once(SEPARATOR) {
        Some((text, worker)) => (text, Some(worker.to_owned())),
        None => (texts, None),
    };
    let import = match import(text, &Surroundings { bootstrap_servers: None, worker }) {
        Ok(import) => import,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(import.findings.is_sorted_by_key(|finding| finding.level));
    assert!(
        import.findings.iter().all(|finding| !finding.setting.contains('\n') && !finding.meaning.is_empty())
    );
    write_secrets(&import.configuration);
    match load_text(&import.configuration, &Environment::empty().with_user("me")) {
        Ok(config) => assert_prints_and_reads_back(&config),
        // a bad value of the connector is copied, but a finding says so, and the file is well formed
        Err(error) => {
            let error = error.to_string();
            let told = import.findings.iter().any(|finding| {
                [
                    "Every command refuses it",
                    "every command refuses",
                    "start the router with",
                    "Start the router with",
                ]
                .iter()
                .any(|words| finding.meaning.contains(words))
            });
            assert!(told, "{error}\n{}", import.configuration);
            for ours in ["not TOML", "unknown key", "of the wrong kind"] {
                assert!(!error.contains(ours), "{error}\n{}", import.configuration);
            }
        }
    }
}

/// Writes each secret to the file that the configuration refers to, as a finding asks the operator to.
fn write_secrets(configuration: &str) {
    let directory = std::env::temp_dir().join("secrets");
    for (_, rest) in configuration.lines().filter_map(|line| line.split_once("file = \"secrets/")) {
        let name = rest.split('"').next().unwrap_or_default();
        if name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join(name), "secret").unwrap();
        }
    }
}
