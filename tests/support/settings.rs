//! A configuration file for the router under test.

use std::collections::BTreeMap;

use toml::Value;

use super::kafka::Kafka;
use super::outbox::Outbox;

/// Keys and values of the file; a later value of a key takes the place of an earlier one.
#[derive(Clone, Default)]
pub(crate) struct Settings(BTreeMap<String, Value>);

impl Settings {
    /// What a router between `outbox` and `kafka` needs. Its topics begin with the outbox's name.
    pub(crate) fn new(outbox: &Outbox, kafka: &Kafka) -> Self {
        Self::default()
            .set("postgres.url", outbox.url())
            .set("postgres.slot", outbox.name.as_str())
            .set("kafka.'bootstrap.servers'", kafka.bootstrap.as_str())
            .set("route.topic", outbox.topic("${aggregate_type}"))
            .set("admin.listen", "127.0.0.1:0")
    }

    /// `key` as it stands in TOML: `kafka.'linger.ms'`.
    pub(crate) fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    /// The file.
    pub(crate) fn text(&self) -> String {
        self.0.iter().map(|(key, value)| format!("{key} = {value}\n")).collect()
    }
}
