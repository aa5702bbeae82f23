//! The typed configuration from `outbox-router.toml` and the environment.
//!
//! `load` reads and checks it. The rest of the program sees only these types.

pub mod bookmarks;
pub mod contracts;
mod convert;
pub mod dead_letters;
mod deserialize;
pub mod environment;
pub(crate) mod filters;
mod heartbeat;
mod identifiers;
pub mod kafka_properties;
pub mod load;
pub mod log;
mod overlay;
pub mod pattern;
pub mod polling;
mod print;
mod quoted;
mod raw;
mod read;
mod replay;
pub mod replayed;
mod retention;
mod route;
pub mod schema;
mod shards;
mod source;
pub(crate) mod substitute;
pub mod template;
#[cfg(test)]
mod tests;
mod units;
mod words;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bookmarks::Bookmarks;
use contracts::ContractSettings;
pub use dead_letters::DeadLetters;
pub(crate) use identifiers::parse_table;
use log::Log;
use pattern::Pattern;
use pg_logical::conninfo::ConnInfo;
use pg_logical::{Secret, quoting};
pub use polling::Polling;
pub use replay::ReplayLimits;
pub use retention::{Retention, SHORTEST_KEEP};
pub use route::*;
pub use shards::Shards;
pub use source::{Place, Problem};
pub(crate) use units::parse_duration;

use crate::shards::Shard;
use crate::topic_name;

/// The whole configuration of one router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `name`: the router's identity, default `<database>.<slot>`.
    pub name: String,
    /// `[postgres]`
    pub postgres: Postgres,
    /// `[source]`; `None`: the router reads the log.
    pub polling: Option<Polling>,
    /// `[outbox]`
    pub outbox: Outbox,
    /// `[route]`
    pub route: Route,
    /// `[kafka]`: librdkafka's own properties, as the user gave them.
    pub kafka: Kafka,
    /// `[topics]`
    pub topics: Topics,
    /// `[delivery]`
    pub delivery: Delivery,
    /// `[admin]`
    pub admin: Admin,
    /// `[bookmarks]`; `None`: the router makes no bookmarks.
    pub bookmarks: Option<Bookmarks>,
    /// `[heartbeat] interval`; `None`: no heartbeat.
    pub heartbeat: Option<Duration>,
    /// `[dead_letters]`
    pub dead_letters: DeadLetters,
    /// `[replay]`
    pub replay: ReplayLimits,
    /// `[retention]`
    pub retention: Retention,
    /// `[contracts]`; `None`: payloads are not checked.
    pub contracts: Option<ContractSettings>,
    /// `[shards]`
    pub shards: Shards,
    /// `[log]`
    pub log: Log,
    /// The shard that this configuration is for. Its names are then those of the shard.
    pub shard: Option<Shard>,
}

impl Config {
    /// Whether the stream has to include logical messages, for events or heartbeats.
    pub fn reads_messages(&self) -> bool {
        self.outbox.message_prefix.is_some() || self.heartbeat.is_some()
    }

    /// The part of the configuration about reading the outbox.
    pub fn source(&self) -> OutboxSource<'_> {
        OutboxSource {
            router: self.base_name(),
            postgres: &self.postgres,
            outbox: &self.outbox,
            shard: self.shard,
            checkpoints: self.delivery.positions_topic.is_some(),
        }
    }
}

/// The part of the configuration about reading the outbox: tables and messages, slot and publication.
#[derive(Debug, Clone, Copy)]
pub struct OutboxSource<'a> {
    /// The name of the router, without the number of a shard. Unless it is set, it follows the slot's.
    pub router: &'a str,
    /// `[postgres]`
    pub postgres: &'a Postgres,
    /// `[outbox]`
    pub outbox: &'a Outbox,
    /// The shard that slot and publication belong to.
    pub shard: Option<Shard>,
    /// Whether a start finds a checkpoint, and so notices what was altered since.
    pub checkpoints: bool,
}

/// `[postgres]`: where the outbox is and how it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Postgres {
    /// `url`, completed by libpq's environment variables and defaults.
    pub conninfo: ConnInfo,
    /// `slot`: the logical replication slot. Default `outbox_router`.
    pub slot: String,
    /// `publication`. Default `outbox_router`.
    pub publication: String,
    /// `wal_sender_timeout`, which the router sets for its own session. Default 10 s.
    pub wal_sender_timeout: Duration,
    /// `catch_up`.
    pub catch_up: CatchUp,
    /// `catch_up_lag`: the slot is read in bulk when it lags by more bytes of log than this. Default 64 MiB.
    pub catch_up_lag: usize,
}

/// How a lagging slot is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CatchUp {
    /// In bulk, if that is faster (the default).
    Auto,
    /// Always as a stream.
    Stream,
}

/// `[outbox]`: the tables, and the names of their columns, which all tables share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outbox {
    /// `table`: schema and name of each table. Default `public.outbox`; may be empty if there is a `message_prefix`.
    pub tables: Vec<TableName>,
    /// `columns`
    pub columns: Columns,
    /// `on_update`
    pub on_update: OnUpdate,
    /// `message_prefix`: logical messages with this prefix are events too. Not set by default.
    pub message_prefix: Option<String>,
}

/// What happens on an UPDATE of an outbox row, which is not an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnUpdate {
    /// It is counted, and a warning is logged (the default).
    Warn,
    /// It is counted, and an error is logged.
    Error,
    /// The router stops.
    Stop,
}

impl Outbox {
    /// The table names, for messages.
    pub fn table_names(&self) -> String {
        let names: Vec<String> = self.tables.iter().map(ToString::to_string).collect();
        names.join(", ")
    }
}

/// A table's schema and name, unquoted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableName {
    /// The schema.
    pub schema: String,
    /// The name within it.
    pub name: String,
}

impl TableName {
    /// The name in SQL, quoted only where needed.
    pub fn in_sql(&self) -> String {
        format!("{}.{}", quoting::identifier(&self.schema), quoting::identifier(&self.name))
    }
}

impl std::fmt::Display for TableName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

/// The column names of the outbox table. `headers`, `created_at` and `idempotency_key` may be missing from the table unless the user
/// set them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    /// The event's id, sent as header `id`.
    pub id: String,
    /// The type of the aggregate, by default the last part of the topic.
    pub aggregate_type: String,
    /// The aggregate's id: the record key, and the unit of order.
    pub aggregate_id: String,
    /// The event's type, sent as header `type`. `None`: the table has no such column, and records no such header.
    pub event_type: Option<String>,
    /// The record value.
    pub payload: String,
    /// A JSON object whose members become headers. `None`: the table has no such column.
    pub headers: Option<String>,
    /// When the application created the event. `None`: the table has no such column.
    pub created_at: Option<String>,
    /// A trace context in the format of `java.util.Properties`: its `traceparent` and `tracestate` become headers.
    pub tracing_span_context: Option<String>,
    /// The business key of the event, sent as header `idempotency-key`. `None`: the table has no such column.
    pub idempotency_key: Option<String>,
    /// Whether the column `headers` must exist, because the user set it.
    pub headers_required: bool,
    /// Whether the column `created_at` must exist, because the user set it.
    pub created_at_required: bool,
    /// Whether the column `idempotency_key` must exist, because the user set it.
    pub idempotency_key_required: bool,
}

impl Default for Columns {
    fn default() -> Self {
        Self {
            id: "id".to_owned(),
            aggregate_type: "aggregate_type".to_owned(),
            aggregate_id: "aggregate_id".to_owned(),
            event_type: Some("event_type".to_owned()),
            payload: "payload".to_owned(),
            headers: Some("headers".to_owned()),
            created_at: Some("created_at".to_owned()),
            tracing_span_context: None,
            idempotency_key: Some("idempotency_key".to_owned()),
            headers_required: false,
            created_at_required: false,
            idempotency_key_required: false,
        }
    }
}

/// `[kafka]`: librdkafka's properties under their own names. `Debug` does not show secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kafka {
    /// Property name to value, without the properties that the router refuses. Properties with two names in librdkafka are
    /// stored under Kafka's: `bootstrap.servers`, `sasl.mechanism`, `compression.type`, `linger.ms`.
    pub properties: BTreeMap<String, Secret>,
    /// The files that some of the values were read from, by the property's name. Each new client reads them again.
    pub files: BTreeMap<String, PathBuf>,
}

/// `[topics]`: which topics may be written to, and how missing ones are created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topics {
    /// `create`: create missing topics before their first record. Default true.
    pub create: bool,
    /// `partitions`; `None`: the broker's default.
    pub partitions: Option<i32>,
    /// `replication_factor`; `None`: the broker's default.
    pub replication_factor: Option<i32>,
    /// `config`: topic properties for new topics.
    pub config: BTreeMap<String, String>,
    /// `allow`: the topics that may be written to. Empty: all.
    pub allow: Vec<Pattern>,
}

impl Topics {
    /// Whether `allow` names this topic. A pattern that takes too many steps names none.
    pub fn allows(&self, topic: &str) -> bool {
        self.allow.is_empty() || self.allow.iter().any(|pattern| pattern.matches(topic) == Ok(true))
    }
}

impl Default for Topics {
    fn default() -> Self {
        Topics {
            create: true,
            partitions: None,
            replication_factor: None,
            config: BTreeMap::new(),
            allow: Vec::new(),
        }
    }
}

/// `[delivery]`: the guarantee, the limits on records in flight, and the time for a shutdown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// `mode`
    pub mode: DeliveryMode,
    /// `window.records`: the maximum number of records in flight. Default 20,000.
    pub window_records: usize,
    /// `window.bytes`: the same in bytes of keys, values and headers, including the client's overhead. Default 16 MiB.
    pub window_bytes: usize,
    /// `positions_topic`: the topic that stores the position in addition to the slot. `None` (`false`): switched off.
    /// Default `outbox-router.positions`.
    pub positions_topic: Option<String>,
    /// `shutdown_timeout`: how long a shutdown waits for the records in flight. Default 10 s.
    pub shutdown_timeout: Duration,
}

impl Default for Delivery {
    fn default() -> Self {
        Self {
            mode: DeliveryMode::AtLeastOnce,
            window_records: 20_000,
            window_bytes: 16 << 20,
            positions_topic: Some(topic_name::POSITIONS.to_owned()),
            shutdown_timeout: Duration::from_secs(10),
        }
    }
}

/// The delivery guarantee for consumers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryMode {
    /// Every event arrives; some may arrive twice after a crash.
    AtLeastOnce,
    /// Every event arrives once at consumers with `isolation.level=read_committed`.
    ExactlyOnce,
}

impl DeliveryMode {
    /// All modes.
    pub const ALL: [Self; 2] = [DeliveryMode::AtLeastOnce, DeliveryMode::ExactlyOnce];

    /// The word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            DeliveryMode::AtLeastOnce => "at-least-once",
            DeliveryMode::ExactlyOnce => "exactly-once",
        }
    }
}

/// `[admin]`: the HTTP endpoint for metrics, probes and `status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// `listen`: host and port; `None` (`false`): switched off. Default `127.0.0.1:8084`.
    pub listen: Option<String>,
}

impl Default for Admin {
    fn default() -> Self {
        Self { listen: Some("127.0.0.1:8084".to_owned()) }
    }
}

/// The smallest valid configuration, with these keys added.
#[cfg(test)]
pub(crate) fn minimal_with(more: &str) -> Config {
    read_back(&format!("{REQUIRED}{more}"))
}

/// The same with a preset.
#[cfg(test)]
pub(crate) fn preset_with(preset: &str, more: &str) -> Config {
    read_back(&format!("preset = \"{preset}\"\n{REQUIRED}{more}"))
}

#[cfg(test)]
const REQUIRED: &str =
    "postgres.url = \"postgres://r@db/shop\"\nkafka.\"bootstrap.servers\" = \"kafka:9092\"\n";

#[cfg(test)]
fn read_back(text: &str) -> Config {
    tests::schema::check(text).unwrap_or_else(|error| panic!("{text}\n{error}"));
    let env = pg_logical::Environment::empty();
    let parsed = load::parse(Some((std::path::Path::new("c.toml"), text)), &env, convert::Brokers::Required);
    parsed.map(|parsed| parsed.config).unwrap_or_else(|error| panic!("{error}"))
}
