//! What goes to the sink.

use std::fmt;

use pg_logical::Redacted;

use super::Headers;
use crate::contracts::Violation;

/// What goes to the sink. It borrows from the receive buffer and from the [`super::Router`], until the next event.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// A name that Kafka takes.
    pub topic: &'a str,
    /// The number of the partition; `None`: the key decides.
    pub partition: Option<i32>,
    /// The text of `aggregate_id`; `None` for NULL: an event that has no order.
    pub key: Option<&'a [u8]>,
    /// The payload's bytes, or what is made of them; `None` for NULL: a tombstone.
    pub value: Option<&'a [u8]>,
    /// `id`, `type`, those of `[route.headers]` and of a rule, then the members of the `headers` column.
    pub headers: &'a Headers,
    /// Milliseconds since the Unix epoch, as `[route] timestamp` says.
    pub timestamp: i64,
    /// The commit time in the same unit, for a topic that does not take `timestamp`.
    pub commit_timestamp: i64,
    /// Members of the `headers` column that bore the name of one of the router's own.
    pub headers_dropped: u32,
    /// How the payload breaks its contract, if it does and is sent all the same.
    pub violation: Option<&'a Violation>,
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
