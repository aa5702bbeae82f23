//! The typed configuration: what `outbox-router.toml` and the environment say, checked once.
//!
//! `load` reads it; the rest of the program sees only these types.

pub mod bookmarks;
pub mod contracts;
mod convert;
pub mod dead_letters;
pub mod environment;
mod heartbeat;
mod identifiers;
pub mod kafka_properties;
pub mod load;
mod overlay;
pub mod pattern;
mod print;
mod quoted;
mod raw;
mod read;
mod route;
mod shards;
mod source;
pub mod template;
#[cfg(test)]
mod tests;
mod units;

use std::collections::BTreeMap;
use std::time::Duration;

use bookmarks::Bookmarks;
use contracts::ContractSettings;
pub use dead_letters::DeadLetters;
use pattern::Pattern;
use pg_logical::conninfo::ConnInfo;
use pg_logical::{Secret, quoting};
pub use route::*;
pub use shards::Shards;

use crate::shards::Shard;
use crate::topic_name;

/// The whole configuration of one router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `name`: the router's identity, default `<database>.<slot>`.
    pub name: String,
    /// `[postgres]`
    pub postgres: Postgres,
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
    /// `[bookmarks]`; `None`: the router makes none.
    pub bookmarks: Option<Bookmarks>,
    /// `[heartbeat] interval`; `None`: there is none.
    pub heartbeat: Option<Duration>,
    /// `[dead_letters]`
    pub dead_letters: DeadLetters,
    /// `[contracts]`; `None`: payloads are not looked at.
    pub contracts: Option<ContractSettings>,
    /// `[shards]`
    pub shards: Shards,
    /// The shard that this configuration is of; the names in it are those of the shard then.
    pub shard: Option<Shard>,
}

impl Config {
    /// Whether logical messages have to come with the stream: as events, or as the heartbeat.
    pub fn reads_messages(&self) -> bool {
        self.outbox.message_prefix.is_some() || self.heartbeat.is_some()
    }

    /// What is read.
    pub fn source(&self) -> OutboxSource<'_> {
        OutboxSource { postgres: &self.postgres, outbox: &self.outbox, shard: self.shard }
    }
}

/// What is read: tables and messages, through a slot and a publication, by one shard or by the only router.
#[derive(Debug, Clone, Copy)]
pub struct OutboxSource<'a> {
    /// `[postgres]`
    pub postgres: &'a Postgres,
    /// `[outbox]`
    pub outbox: &'a Outbox,
    /// The shard that slot and publication are of.
    pub shard: Option<Shard>,
}

/// `[postgres]`: where the outbox is and how it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Postgres {
    /// `url`, with the libpq environment variables and defaults laid under it.
    pub conninfo: ConnInfo,
    /// `slot`: the logical replication slot. Default `outbox_router`.
    pub slot: String,
    /// `publication`. Default `outbox_router`.
    pub publication: String,
    /// `wal_sender_timeout`, set for the router's own session. Default 10 s.
    pub wal_sender_timeout: Duration,
    /// `catch_up`
    pub catch_up: CatchUp,
    /// `catch_up_lag`: bytes of log between what was read and its end, above which the slot is read in bulk. Default 64 MiB.
    pub catch_up_lag: usize,
}

/// How a slot that lags is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CatchUp {
    /// In bulk, where much log holds many events.
    Auto,
    /// As a stream, always (the default).
    Stream,
}

/// `[outbox]`: the tables and the names of their columns, which are the same for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outbox {
    /// `table`: schema and name of each. Default `public.outbox`; none only if there is a `message_prefix`.
    pub tables: Vec<TableName>,
    /// `columns`
    pub columns: Columns,
    /// `on_update`
    pub on_update: OnUpdate,
    /// `message_prefix`: logical messages with this prefix are events too. Default none.
    pub message_prefix: Option<String>,
}

/// What is done about an UPDATE of an outbox row, which is no event.
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
    /// The tables for a message to a person.
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
    /// The name in SQL, in quotes only where it needs them.
    pub fn in_sql(&self) -> String {
        format!("{}.{}", quoting::name(&self.schema), quoting::name(&self.name))
    }
}

impl std::fmt::Display for TableName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

/// The names of the outbox table's columns. `headers` and `created_at` may be absent from the table
/// unless the user named them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    /// The event's id, header `id`.
    pub id: String,
    /// The kind of the aggregate, by default the topic's last part.
    pub aggregate_type: String,
    /// The aggregate: the record key, and the unit of order.
    pub aggregate_id: String,
    /// Header `type`. `None`: the table has no such column, and a record no such header.
    pub event_type: Option<String>,
    /// The record value.
    pub payload: String,
    /// A JSON object whose members become headers. `None`: the table has no such column.
    pub headers: Option<String>,
    /// When the application made the event. `None`: the table has no such column.
    pub created_at: Option<String>,
    /// The context of a trace, as `java.util.Properties` writes it: its `traceparent` and `tracestate` become headers.
    pub tracing_span_context: Option<String>,
    /// The user named `headers`, so that it must be there.
    pub headers_named: bool,
    /// The user named `created_at`, so that it must be there.
    pub created_at_named: bool,
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
            headers_named: false,
            created_at_named: false,
        }
    }
}

/// `[kafka]`: librdkafka's properties by their own names, secrets kept from `Debug`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kafka {
    /// Property name to value. Refused names (those that would break an invariant) are not in it, and of two names
    /// that librdkafka has for one property it has Kafka's: `bootstrap.servers`, `sasl.mechanism`, `compression.type`,
    /// `linger.ms`.
    pub properties: BTreeMap<String, Secret>,
}

/// `[topics]`: what is done about a topic that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topics {
    /// `create`: make missing topics before their first record. Default true.
    pub create: bool,
    /// `partitions`; `None`: the broker's default.
    pub partitions: Option<i32>,
    /// `replication_factor`; `None`: the broker's default.
    pub replication_factor: Option<i32>,
    /// `config`: topic properties for topics that the router makes.
    pub config: BTreeMap<String, String>,
    /// `allow`: the topics that may be written to. Empty: any.
    pub allow: Vec<Pattern>,
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

/// `[delivery]`: how much may be under way, and how it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// `mode`
    pub mode: DeliveryMode,
    /// `window.records`: records sent and not yet acknowledged, at most. Default 20,000.
    pub window_records: usize,
    /// `window.bytes`: the same in bytes, those of keys, values and headers and what the client keeps besides.
    /// Default 16 MiB.
    pub window_bytes: usize,
    /// `positions_topic`: where the position is remembered besides the slot. `None` (an empty string) switches it off.
    /// Default `outbox-router.positions`.
    pub positions_topic: Option<String>,
    /// `shutdown_timeout`: how long a stop waits for the records in flight. Default 10 s.
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

/// What a consumer may count on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryMode {
    /// Every event arrives; after a crash some arrive twice.
    AtLeastOnce,
    /// Every event arrives once, for consumers that read what is committed.
    ExactlyOnce,
}

impl DeliveryMode {
    /// Those that there are.
    pub const ALL: [Self; 2] = [DeliveryMode::AtLeastOnce, DeliveryMode::ExactlyOnce];

    /// As it is written in the configuration.
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
    /// `listen`: host and port; `None` (an empty string) switches it off. Default `127.0.0.1:8084`.
    pub listen: Option<String>,
}

impl Default for Admin {
    fn default() -> Self {
        Self { listen: Some("127.0.0.1:8084".to_owned()) }
    }
}

/// The least that works, and these keys besides.
#[cfg(test)]
pub(crate) fn minimal_with(more: &str) -> Config {
    read_back(&format!("{REQUIRED}{more}"))
}

/// The same on top of a preset.
#[cfg(test)]
pub(crate) fn preset_with(preset: &str, more: &str) -> Config {
    read_back(&format!("preset = \"{preset}\"\n{REQUIRED}{more}"))
}

#[cfg(test)]
const REQUIRED: &str =
    "postgres.url = \"postgres://r@db/shop\"\nkafka.\"bootstrap.servers\" = \"kafka:9092\"\n";

#[cfg(test)]
fn read_back(text: &str) -> Config {
    let env = pg_logical::Environment::empty();
    let parsed = load::parse(Some((std::path::Path::new("c.toml"), text)), &env);
    parsed.map(|parsed| parsed.config).unwrap_or_else(|error| panic!("{error}"))
}
