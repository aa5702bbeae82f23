//! The shape of the configuration file: which keys exist, before their values are interpreted.
//!
//! Every value keeps its position and stays untyped until it is read: numbers and switches from the environment are text, and
//! any text may be `{ file = "..." }`.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use toml::Spanned;

/// A key's value, if it is set.
pub(super) type Value = Option<Spanned<Node>>;

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawConfig {
    pub(super) preset: Value,
    pub(super) name: Value,
    pub(super) postgres: Table<RawPostgres>,
    pub(super) source: Table<RawSource>,
    pub(super) outbox: Table<RawOutbox>,
    pub(super) route: Table<RawRoute>,
    pub(super) kafka: Table<Properties>,
    pub(super) topics: Table<RawTopics>,
    pub(super) delivery: Table<RawDelivery>,
    pub(super) admin: Table<RawAdmin>,
    pub(super) bookmarks: Table<RawBookmarks>,
    pub(super) heartbeat: Table<RawHeartbeat>,
    pub(super) dead_letters: Table<RawDeadLetters>,
    pub(super) replay: Table<RawReplay>,
    pub(super) retention: Table<RawRetention>,
    pub(super) contracts: Table<RawContracts>,
    pub(super) shards: Table<RawShards>,
    pub(super) log: Table<RawLog>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawPostgres {
    pub(super) url: Value,
    pub(super) password_file: Value,
    pub(super) password_command: Value,
    pub(super) slot: Value,
    pub(super) publication: Value,
    pub(super) wal_sender_timeout: Value,
    pub(super) catch_up: Value,
    pub(super) catch_up_lag: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawReplay {
    pub(super) max_events: Value,
    pub(super) max_events_per_day: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawRetention {
    pub(super) keep: Value,
    pub(super) archive: Value,
    pub(super) keep_archived: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawSource {
    pub(super) mode: Value,
    pub(super) lease: Value,
    pub(super) notify: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawOutbox {
    pub(super) table: Value,
    pub(super) columns: Table<RawColumns>,
    pub(super) status: Table<RawStatus>,
    pub(super) on_update: Value,
    pub(super) message_prefix: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawColumns {
    pub(super) id: Value,
    pub(super) aggregate_type: Value,
    pub(super) aggregate_id: Value,
    pub(super) event_type: Value,
    pub(super) payload: Value,
    pub(super) headers: Value,
    pub(super) created_at: Value,
    pub(super) tracing_span_context: Value,
    pub(super) idempotency_key: Value,
    pub(super) position: Value,
    pub(super) status: Value,
    pub(super) attempts: Value,
    pub(super) refusals: Value,
    pub(super) next_attempt_at: Value,
    pub(super) published_at: Value,
    pub(super) last_error: Value,
}

/// The values of the column `status`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawStatus {
    pub(super) new: Value,
    pub(super) published: Value,
    pub(super) failed: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawRoute {
    pub(super) topic: Value,
    pub(super) partition: Value,
    pub(super) key: Value,
    pub(super) headers: Table<Properties>,
    pub(super) timestamp: Value,
    pub(super) text: Value,
    pub(super) value: Value,
    pub(super) envelope: Table<Properties>,
    pub(super) cloudevents: Table<RawCloudEvents>,
    pub(super) payload_json: Value,
    pub(super) expand: Table<RawExpand>,
    pub(super) tombstone_on_empty: Value,
    pub(super) missing_columns: Value,
    pub(super) unmatched: Value,
    pub(super) rules: Vec<Table<RawRule>>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawExpand {
    pub(super) null: Value,
    pub(super) empty_array: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawCloudEvents {
    pub(super) source: Value,
    #[serde(rename = "type")]
    pub(super) event_type: Value,
    pub(super) subject: Value,
    pub(super) datacontenttype: Value,
    pub(super) dataschema: Value,
    pub(super) extensions: Table<Properties>,
}

/// One of `[[route.rules]]`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawRule {
    #[serde(rename = "match")]
    pub(super) conditions: Option<Spanned<Properties>>,
    pub(super) topic: Value,
    pub(super) partition: Value,
    pub(super) headers: Table<Properties>,
    pub(super) value: Value,
    pub(super) drop: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawTopics {
    pub(super) create: Value,
    pub(super) partitions: Value,
    pub(super) replication_factor: Value,
    pub(super) config: Table<Properties>,
    pub(super) allow: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawDelivery {
    pub(super) mode: Value,
    pub(super) window: Table<RawWindow>,
    pub(super) positions_topic: Value,
    pub(super) shutdown_timeout: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawWindow {
    pub(super) records: Value,
    pub(super) bytes: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawAdmin {
    pub(super) listen: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawBookmarks {
    pub(super) every: Value,
    pub(super) keep: Value,
    pub(super) max_retained_wal: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawHeartbeat {
    pub(super) interval: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawDeadLetters {
    pub(super) policy: Value,
    pub(super) max_aggregates: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawContracts {
    pub(super) directory: Value,
    pub(super) on_violation: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawShards {
    pub(super) count: Value,
    pub(super) only: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawLog {
    pub(super) level: Value,
    pub(super) format: Value,
}

/// What serde's error says was expected where a table must be.
pub(super) const TABLE: &str = "a table of keys and values";

/// What serde's error says was expected where an array of tables must be.
pub(super) const TABLES: &str = "a sequence";

/// A section, which must be a table; serde would also accept an array of the fields in their order.
#[derive(Default)]
pub(super) struct Table<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Table<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TableVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for TableVisitor<T> {
            type Value = Table<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(TABLE)
            }

            fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<Table<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(entries)).map(Table)
            }
        }

        deserializer.deserialize_map(TableVisitor(PhantomData))
    }
}

/// A table whose keys are defined elsewhere (librdkafka, the broker), quoted or dotted.
pub(super) type Properties = BTreeMap<Spanned<String>, Spanned<Node>>;

/// Any value.
pub(super) enum Node {
    Text(String),
    Integer(i64),
    Boolean(bool),
    Table(Properties),
    Array(Vec<Spanned<Node>>),
    /// The name of a type that no key accepts.
    Other(&'static str),
}

impl Node {
    /// The path, if this is `{ file = "..." }`.
    pub(super) fn as_file(&self) -> Option<&str> {
        let Node::Table(members) = self else { return None };
        let mut members = members.iter().map(|(key, value)| (key.get_ref().as_str(), value.get_ref()));
        match (members.next(), members.next()) {
            (Some(("file", Node::Text(path))), None) => Some(path),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Node, E> {
        Ok(Node::Boolean(truth))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Node, E> {
        Ok(Node::Integer(number))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Other("a number beyond 64 bits"))
    }

    fn visit_i128<E>(self, _: i128) -> Result<Node, E> {
        Ok(Node::Other("a number beyond 64 bits"))
    }

    fn visit_u128<E>(self, _: u128) -> Result<Node, E> {
        Ok(Node::Other("a number beyond 64 bits"))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Other("a number with a fraction"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element()? {
            array.push(item);
        }
        Ok(Node::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut members = Properties::new();
        while let Some((key, value)) = entries.next_entry()? {
            members.insert(key, value);
        }
        Ok(Node::Table(members))
    }
}
