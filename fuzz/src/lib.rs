//! The code of the fuzz targets, one module for each. It is separate from `fuzz_targets/`, so that `tests/fuzz_corpus.rs` can run
//! it on the corpus without a fuzzer.

pub mod config;
pub mod conninfo;
pub mod frames;
pub mod import;
pub mod pgoutput;
pub mod row;
pub mod server;
pub mod stream;
pub mod template;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use outbox_router::config::Config;
use outbox_router::config::load::load;
use outbox_router::error::Error;
use pg_logical::Environment;

/// Separates the texts of an input; none contains it.
const SEPARATOR: char = '\u{1e}';

/// Loads a configuration from its text as the router does.
fn load_text(text: &str, env: &Environment) -> Result<Config, Error> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path: PathBuf = std::env::temp_dir().join(format!("fuzz-{}-{number}.toml", std::process::id()));
    std::fs::write(&path, text).unwrap();
    let loaded = load(Some(&path), env);
    std::fs::remove_file(&path).unwrap();
    loaded.map(|loaded| loaded.config)
}

/// Asserts that a printed configuration can be read, and is then printed the same.
fn assert_prints_and_reads_back(config: &Config) {
    let printed = config.to_redacted_toml();
    let again =
        load_text(&printed, &Environment::empty()).unwrap_or_else(|error| panic!("{error}\n{printed}"));
    assert_eq!(again.to_redacted_toml(), printed);
    // hidden secrets change the configuration, and settings without effect are not printed
    let mut expected = config.clone();
    if !config.route.produces_cloudevents() {
        expected.route.cloudevents.clone_from(&again.route.cloudevents);
    }
    if !printed.contains("****") {
        assert_eq!(again, expected, "{printed}");
    }
}
