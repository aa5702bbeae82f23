//! The record that goes to the sink.

use std::fmt;

use pg_logical::Redacted;

use super::Headers;
use crate::contracts::Violation;

/// A record for the sink. Until the next event, it borrows from the receive buffer and from the [`super::Router`].
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// A valid topic name.
    pub topic: &'a str,
    /// The number of the partition; `None`: the key decides.
    pub partition: Option<i32>,
    /// The text of `aggregate_id`; `None` for NULL: an event without an order.
    pub key: Option<&'a [u8]>,
    /// The payload's bytes, or a value made from them; `None` for NULL: a tombstone.
    pub value: Option<&'a [u8]>,
    /// `id`, `type`, the headers of `[route.headers]` and of a rule, then the members of the `headers` column.
    pub headers: &'a Headers,
    /// Milliseconds since the Unix epoch, from the source in `[route] timestamp`.
    pub timestamp: i64,
    /// The commit time in the same unit, for topics that do not accept `timestamp`.
    pub commit_timestamp: i64,
    /// How many members of the `headers` column had the name of one of the router's own headers.
    pub headers_dropped: u32,
    /// How the payload violates its contract, if the record is sent although it does.
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

/// Roughly what librdkafka stores for each record and each header besides their bytes.
const MEMORY_PER_RECORD: usize = 256;
const MEMORY_PER_HEADER: usize = 80;

impl Record<'_> {
    /// The memory it takes while in flight, which counts towards the window.
    pub fn memory(&self) -> usize {
        self.size() + MEMORY_PER_RECORD + self.headers.len() * MEMORY_PER_HEADER
    }

    /// The bytes of key, value and headers.
    pub fn size(&self) -> usize {
        self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len) + self.headers.size()
    }
}
