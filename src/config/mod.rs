//! The typed configuration: what `outbox-router.toml` and the environment say, checked once.
//!
//! `load` reads it; the rest of the program sees only these types.

pub mod conninfo;
pub mod secret;

use std::collections::BTreeMap;
use std::time::Duration;

use conninfo::ConnInfo;
use secret::Secret;

/// The whole configuration of one router.
#[derive(Debug, Clone)]
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
}

/// `[postgres]`: where the outbox is and how it is read.
#[derive(Debug, Clone)]
pub struct Postgres {
    /// `url`, with the libpq environment variables and defaults laid under it.
    pub conninfo: ConnInfo,
    /// `slot`: the logical replication slot. Default `outbox_router`.
    pub slot: String,
    /// `publication`. Default `outbox_router`.
    pub publication: String,
    /// `wal_sender_timeout`, set for the router's own session. Default 10 s.
    pub wal_sender_timeout: Duration,
}

/// `[outbox]`: the table and the names of its columns.
#[derive(Debug, Clone)]
pub struct Outbox {
    /// `table`: schema and name, default `public.outbox`.
    pub table: TableName,
    /// `columns`
    pub columns: Columns,
}

/// A table's schema and name, unquoted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableName {
    /// The schema.
    pub schema: String,
    /// The name within it.
    pub name: String,
}

impl std::fmt::Display for TableName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

impl Default for Columns {
    fn default() -> Self {
        let name = str::to_owned;
        Columns {
            id: name("id"),
            aggregate_type: name("aggregate_type"),
            aggregate_id: name("aggregate_id"),
            event_type: name("event_type"),
            payload: name("payload"),
            headers: Some(name("headers")),
            created_at: Some(name("created_at")),
        }
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
    /// Header `type`.
    pub event_type: String,
    /// The record value.
    pub payload: String,
    /// A JSON object whose members become headers. `None`: the table has no such column.
    pub headers: Option<String>,
    /// When the application made the event. `None`: the table has no such column.
    pub created_at: Option<String>,
}

/// `[route]`: how a row becomes a record.
#[derive(Debug, Clone)]
pub struct Route {
    /// `topic`: a template over the row's columns, default `outbox.event.${aggregate_type}`.
    pub topic: String,
    /// `timestamp`
    pub timestamp: RecordTimestamp,
}

/// Where a record's timestamp comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordTimestamp {
    /// The commit time of the transaction (the default).
    Commit,
    /// The `created_at` column.
    CreatedAt,
}

/// `[kafka]`: librdkafka's properties by their own names, secrets kept from `Debug`.
#[derive(Debug, Clone, Default)]
pub struct Kafka {
    /// Property name to value. Refused names (those that would break an invariant) are not in it.
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
}

/// `[delivery]`: how much may be under way, and how it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// `mode`
    pub mode: DeliveryMode,
    /// `window.records`: records sent and not yet acknowledged, at most. Default 50,000.
    pub window_records: usize,
    /// `window.bytes`: the same in bytes of keys, values and headers. Default 16 MiB.
    pub window_bytes: usize,
    /// `shutdown_timeout`: how long a stop waits for the records in flight. Default 10 s.
    pub shutdown_timeout: Duration,
}

/// What a consumer may count on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryMode {
    /// Every event arrives; after a crash some arrive twice.
    AtLeastOnce,
}

/// `[admin]`: the HTTP endpoint for metrics, probes and `status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// `listen`: host and port; `None` (an empty string) switches it off. Default `127.0.0.1:8084`.
    pub listen: Option<String>,
}
