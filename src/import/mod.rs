//! From the configuration of a Debezium connector with the outbox event router to one of our own.
//!
//! ```text
//!     JSON, properties -> Connector {settings}      connector, properties
//!     settings         -> keys and findings         translate, a file for each subject
//!     keys             -> outbox-router.toml        write, load
//! ```
//!
//! A setting is taken out of the connector by the part that understands it; what is left at the end is reported as
//! unknown, so that nothing is dropped silently. Names, defaults and behaviour are those of Debezium 3.4
//! (`EventRouterConfigDefinition`, `PostgresConnectorConfig` and what they inherit), of Kafka Connect 4.1
//! (`SourceConnectorConfig`) and of Kafka's producer (`ProducerConfig`).

mod connector;
mod findings;
mod java;
mod load;
mod reference;
mod settings;
#[cfg(test)]
mod tests;
mod translate;
mod write;

use serde::Serialize;

pub use findings::{Finding, Level};

use crate::error::Error;

/// What is known in addition to the connector's file.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// `host:port` of the brokers, separated by commas; a connector's file does not contain them.
    pub bootstrap_servers: Option<String>,
    /// The worker's properties file, which has the default converters and producer settings of its connectors.
    pub worker: Option<String>,
}

/// A translation. The members are the keys of `--json` and must not change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Import {
    /// The text of an `outbox-router.toml`.
    pub configuration: String,
    /// What the user should know, the worst first.
    pub findings: Vec<Finding>,
}

impl Import {
    /// Whether the router does everything that the connector did: no record changes and nothing is lost.
    pub fn is_complete(&self) -> bool {
        !self.findings.iter().any(|finding| finding.level.matters())
    }
}

/// Translates a connector's configuration.
///
/// # Errors
/// The text is not such a configuration, it has no outbox event router, or the database is not Postgres.
pub fn import(text: &str, surroundings: &Surroundings) -> Result<Import, Error> {
    let mut connector = connector::read(text)?;
    if let Some(worker) = &surroundings.worker {
        connector::add_worker_settings(&mut connector, worker)?;
    }
    if let Some(servers) = &surroundings.bootstrap_servers {
        connector.settings.set("producer.override.bootstrap.servers", "--bootstrap-servers", servers);
    }
    translate::translate(connector)
}
