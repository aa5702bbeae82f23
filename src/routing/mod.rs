//! What becomes of an event: an [`OutboxEvent`] in, a [`Record`] out. Pure, and without allocation per event.

mod filters;
mod headers;
mod origin;
mod template;
mod timestamp;

use std::fmt;

pub use headers::Headers;
pub use origin::Origin;
pub use template::field;

use crate::config::{Columns, Config, RecordTimestamp, Route};
use crate::outbox::{ExtraColumn, Field, IN_ROUTE_HEADERS, IN_TOPIC, OutboxEvent, printable};
use crate::redacted::Redacted;
use crate::topic_name::{self, TopicNameError};
use template::{Bound, Extra};

/// What goes to the sink. It borrows from the receive buffer and from the [`Router`], until the next event.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// A name that Kafka takes.
    pub topic: &'a str,
    /// The text of `aggregate_id`; `None` for NULL: an event that has no order.
    pub key: Option<&'a [u8]>,
    /// The payload's bytes; `None` for NULL: a tombstone.
    pub value: Option<&'a [u8]>,
    /// `id`, `type`, then the members of the `headers` column.
    pub headers: &'a Headers,
    /// Milliseconds since the Unix epoch, as `[route] timestamp` says.
    pub timestamp: i64,
    /// The commit time in the same unit, for a topic that does not take `timestamp`.
    pub commit_timestamp: i64,
    /// Members of the `headers` column that bore the name of one of the router's own.
    pub headers_dropped: u32,
}

impl fmt::Debug for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("topic", &self.topic)
            .field("key", &self.key.map(Redacted))
            .field("value", &self.value.map(Redacted))
            .field("headers", &self.headers)
            .field("timestamp", &self.timestamp)
            .finish_non_exhaustive()
    }
}

/// What librdkafka keeps for each record, and for each header, besides their bytes: about.
const MEMORY_PER_RECORD: usize = 256;
const MEMORY_PER_HEADER: usize = 80;

impl Record<'_> {
    /// The memory that it takes while it is under way: what the window counts.
    pub fn memory(&self) -> usize {
        self.size() + MEMORY_PER_RECORD + self.headers.len() * MEMORY_PER_HEADER
    }

    /// The bytes of key, value and headers.
    pub fn size(&self) -> usize {
        self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len) + self.headers.size()
    }
}

/// Why an event has no place to go. Says nothing of payloads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unroutable {
    /// The template's result is no topic.
    #[error("the topic \"{name}\" is not possible: {error}")]
    Topic {
        /// What the template gave, printable.
        name: String,
        /// Why Kafka would refuse it.
        error: TopicNameError,
    },
    /// A column that the topic is made of has no usable value.
    #[error("the topic cannot be made: `{name}` {reason}")]
    NoValue {
        /// As the template names it.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A value that a header is made of is missing.
    #[error("the header `{header}` cannot be made: `{name}` {reason}")]
    Header {
        /// The header's name.
        header: String,
        /// As the template names it.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The `headers` column is not what headers can be made of. The text of the error quotes none of it.
    #[error("the headers column is not a JSON object, or a name in it holds a zero character (at byte {at})")]
    Headers {
        /// Where reading stopped.
        at: usize,
    },
    /// A `bytea` payload that is not in hexadecimal.
    #[error("the payload is a bytea that the server did not print in hexadecimal (bytea_output)")]
    Bytea,
}

/// Makes records. Holds the buffers that they borrow from.
pub struct Router {
    topic_template: Bound,
    header_templates: Vec<(String, Bound)>,
    extra: Extra,
    timestamp: RecordTimestamp,
    topic: String,
    header: String,
    headers: Headers,
    payload: Vec<u8>,
}

impl Router {
    /// Routes as `config` says.
    pub fn of(config: &Config) -> Self {
        Self::new(&config.route, &config.outbox.columns)
    }

    /// Routes by `route`; `columns` names the columns of the fields.
    pub fn new(route: &Route, columns: &Columns) -> Self {
        let mut extra = Extra::default();
        let mut bind = |template, key| Bound::new(template, columns, key, &mut extra);
        Router {
            topic_template: bind(&route.topic, IN_TOPIC),
            header_templates: route
                .headers
                .iter()
                .map(|header| (header.name.clone(), bind(&header.value, IN_ROUTE_HEADERS)))
                .collect(),
            extra,
            timestamp: route.timestamp,
            topic: String::new(),
            header: String::new(),
            headers: Headers::default(),
            payload: Vec::new(),
        }
    }

    /// The columns that are wanted besides those of `[outbox] columns`, for [`crate::outbox::Outbox::of`].
    pub fn extra_columns(&self) -> &[ExtraColumn] {
        self.extra.columns()
    }

    /// The record of one event.
    pub fn route<'a>(
        &'a mut self,
        event: &OutboxEvent<'a>,
        origin: &Origin,
    ) -> Result<Record<'a>, Unroutable> {
        self.topic_template
            .render(event, origin, &mut self.topic)
            .map_err(|missing| Unroutable::NoValue { name: missing.name, reason: missing.reason })?;
        topic_name::check(&self.topic)
            .map_err(|error| Unroutable::Topic { name: printable(self.topic.as_bytes()), error })?;

        self.headers.clear();
        self.headers.push(headers::ID, event.field(Field::Id));
        self.headers.push(headers::TYPE, event.field(Field::EventType));
        for (name, value) in &self.header_templates {
            let present = value.render_or_null(event, origin, &mut self.header);
            let present = present.map_err(|missing| Unroutable::Header {
                header: name.clone(),
                name: missing.name,
                reason: missing.reason,
            })?;
            self.headers.push(name, present.then_some(self.header.as_bytes()));
        }
        let headers_dropped = match event.field(Field::Headers) {
            Some(json) => self
                .headers
                .push_members(json)
                .map_err(|error| Unroutable::Headers { at: offset(json, &error) })?,
            None => 0,
        };

        let value = match event.field(Field::Payload) {
            Some(hex) if event.payload_is_bytea() => {
                decode_bytea(hex, &mut self.payload).ok_or(Unroutable::Bytea)?;
                Some(self.payload.as_slice())
            }
            other => other,
        };
        let commit_timestamp = origin.commit_time.unix_millis();
        let timestamp = match self.timestamp {
            RecordTimestamp::Commit => commit_timestamp,
            // what no record can bear is left to the topic's bounds to replace
            RecordTimestamp::CreatedAt => {
                event.field(Field::CreatedAt).and_then(timestamp::parse_millis).unwrap_or(i64::MIN)
            }
        };
        Ok(Record {
            topic: &self.topic,
            key: event.field(Field::AggregateId),
            value,
            headers: &self.headers,
            timestamp,
            commit_timestamp,
            headers_dropped,
        })
    }
}

/// Where reading JSON stopped, counted from 1.
fn offset(json: &[u8], error: &serde_json::Error) -> usize {
    let before = json.split_inclusive(|byte| *byte == b'\n').take(error.line().saturating_sub(1));
    before.map(<[u8]>::len).sum::<usize>() + error.column()
}

/// How much of the memory of a large payload is kept for the next.
const KEPT_PAYLOAD: usize = 1 << 20;

/// `\x0aff` to bytes (Postgres manual, "bytea Hex Format").
fn decode_bytea(text: &[u8], into: &mut Vec<u8>) -> Option<()> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.strip_prefix(b"\\x")?.as_chunks::<2>();
    into.clear();
    into.shrink_to(KEPT_PAYLOAD);
    for [high, low] in pairs {
        into.push(digit(high)? << 4 | digit(low)?);
    }
    rest.is_empty().then_some(())
}

#[cfg(test)]
mod tests;
