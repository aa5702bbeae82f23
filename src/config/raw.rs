//! The shape of the configuration file: which keys there are, not yet what their values mean.
//!
//! Every value keeps its place, and stays untyped until it is read: a number or a switch from the environment
//! is text, and any text may be `{ file = "..." }`.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use toml::Spanned;

/// A key's value, if the key is there.
pub(super) type Value = Option<Spanned<Scalar>>;

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawConfig {
    pub(super) name: Value,
    pub(super) postgres: RawPostgres,
    pub(super) outbox: RawOutbox,
    pub(super) route: RawRoute,
    pub(super) kafka: Properties,
    pub(super) topics: RawTopics,
    pub(super) delivery: RawDelivery,
    pub(super) admin: RawAdmin,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawPostgres {
    pub(super) url: Value,
    pub(super) password_file: Value,
    pub(super) slot: Value,
    pub(super) publication: Value,
    pub(super) wal_sender_timeout: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawOutbox {
    pub(super) table: Value,
    pub(super) columns: RawColumns,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawColumns {
    pub(super) id: Value,
    pub(super) aggregate_type: Value,
    pub(super) aggregate_id: Value,
    pub(super) event_type: Value,
    pub(super) payload: Value,
    pub(super) headers: Value,
    pub(super) created_at: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawRoute {
    pub(super) topic: Value,
    pub(super) timestamp: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawTopics {
    pub(super) create: Value,
    pub(super) partitions: Value,
    pub(super) replication_factor: Value,
    pub(super) config: Properties,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawDelivery {
    pub(super) mode: Value,
    pub(super) window: RawWindow,
    pub(super) shutdown_timeout: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawWindow {
    pub(super) records: Value,
    pub(super) bytes: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawAdmin {
    pub(super) listen: Value,
}

/// A table whose keys belong to somebody else (librdkafka, the broker), quoted or dotted.
pub(super) type Properties = BTreeMap<Spanned<String>, Spanned<Node>>;

/// Any value.
pub(super) enum Node {
    Text(String),
    Integer(i64),
    Boolean(bool),
    Table(Properties),
    /// A kind of value that no key takes, by its name.
    Other(&'static str),
}

/// A value that is not a table of its own.
pub(super) enum Scalar {
    Text(String),
    Integer(i64),
    Boolean(bool),
    /// `{ file = "..." }`
    File(String),
    /// A kind of value that no key takes, by its name.
    Other(&'static str),
}

impl Node {
    /// The path in `{ file = "..." }`, if that is what this is.
    pub(super) fn as_file(&self) -> Option<&str> {
        let Node::Table(members) = self else { return None };
        let mut members = members.iter().map(|(key, value)| (key.get_ref().as_str(), value.get_ref()));
        match (members.next(), members.next()) {
            (Some(("file", Node::Text(path))), None) => Some(path),
            _ => None,
        }
    }
}

impl From<Node> for Scalar {
    fn from(node: Node) -> Self {
        if let Some(path) = node.as_file() {
            return Scalar::File(path.to_owned());
        }
        match node {
            Node::Text(text) => Scalar::Text(text),
            Node::Integer(number) => Scalar::Integer(number),
            Node::Boolean(truth) => Scalar::Boolean(truth),
            Node::Table(_) => Scalar::Other("a table"),
            Node::Other(kind) => Scalar::Other(kind),
        }
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Node::deserialize(deserializer).map(Scalar::from)
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
        while items.next_element::<serde::de::IgnoredAny>()?.is_some() {}
        Ok(Node::Other("an array"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut members = Properties::new();
        while let Some((key, value)) = entries.next_entry()? {
            members.insert(key, value);
        }
        Ok(Node::Table(members))
    }
}
