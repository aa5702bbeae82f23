//! Any text with any variables is a configuration or a usage error. A configuration can be printed and read back unchanged.

use outbox_router::error::{Error, Exit};
use pg_logical::Environment;

use super::{SEPARATOR, assert_prints_and_reads_back, load_text};

pub fn run(bytes: &[u8]) {
    let Ok(texts) = std::str::from_utf8(bytes) else { return };
    let (text, variables) = texts.split_once(SEPARATOR).unwrap_or((texts, ""));
    let mut env = Environment::empty().with_user("me").with_home("/home/me");
    if !text.contains("bootstrap") {
        env = env
            .with_variable("OUTBOX_ROUTER_POSTGRES__URL", "postgres://r@db/shop")
            .with_variable("OUTBOX_ROUTER_KAFKA__BOOTSTRAP_SERVERS", "kafka:9092");
    }
    for (name, value) in variables.split(['\n', '\0']).filter_map(|line| line.split_once('=')) {
        env = env.with_variable(name, value);
    }
    match load_text(text, &env) {
        Ok(config) => assert_prints_and_reads_back(&config),
        Err(Error::Definite(error)) => {
            assert_eq!(error.exit, Exit::Usage, "{error}");
            assert!(!error.what.is_empty() && !error.remedy.is_empty());
        }
        Err(Error::Transient(error)) => panic!("{error}"),
    }
}
