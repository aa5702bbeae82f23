//! Whether a topic accepts a record, as far as that is known before sending.

use super::durability::TopicDurability;
use crate::relay::NotSent;
use crate::routing::Record;
use crate::unsendable::{Reason, Unsendable};

/// The minimum size of a record batch in addition to its records (`DefaultRecordBatch.RECORD_BATCH_OVERHEAD`).
const BATCH_OVERHEAD: usize = 61;

/// A topic's limits, as far as the broker reports them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TopicLimits {
    /// How many partitions it has.
    pub partitions: Option<usize>,
    /// `max.message.bytes`: the largest batch, and so the largest record.
    pub max_message_bytes: Option<usize>,
    /// `message.timestamp.before.max.ms`: how far a timestamp may be behind the broker's clock.
    pub timestamp_before_ms: Option<i64>,
    /// `message.timestamp.after.max.ms`: how far it may be ahead.
    pub timestamp_after_ms: Option<i64>,
    /// How safe its acknowledged records are.
    pub durability: TopicDurability,
    /// How many brokers the cluster has.
    pub brokers: Option<usize>,
    /// `cleanup.policy`
    pub cleanup_policy: Option<String>,
}

/// Whether the producer accepts the record's size. Its limit is configured and does not change.
pub(super) fn producer(record: &Record<'_>, message_max_bytes: usize) -> Result<(), NotSent> {
    let remedy = "Raise message.max.bytes under `[kafka]` and on the broker";
    if record.size() > message_max_bytes {
        return Err(too_large(record, message_max_bytes, "message.max.bytes of the producer", remedy));
    }
    Ok(())
}

/// Whether the topic accepted the record at the last check. A compressed record may still fit, so its size is not checked.
pub(super) fn topic(record: &Record<'_>, limits: &TopicLimits, compressed: bool) -> Result<(), NotSent> {
    match limits.max_message_bytes {
        Some(limit) if !compressed && record.size() + BATCH_OVERHEAD > limit => {
            let limit = limit.saturating_sub(BATCH_OVERHEAD);
            let setting = format!(
                "max.message.bytes of the topic {} less {BATCH_OVERHEAD} for the batch",
                record.topic
            );
            let remedy = format!(
                "Raise the topic's max.message.bytes (kafka-configs.sh --bootstrap-server BROKER --alter --topic {} --add-config \
                 max.message.bytes={}) or set a compression.type under `[kafka]`",
                record.topic,
                record.size() + BATCH_OVERHEAD
            );
            Err(too_large(record, limit, &setting, &remedy))
        }
        _ => partition(record, limits),
    }
}

fn too_large(record: &Record<'_>, limit: usize, setting: &str, remedy: &str) -> NotSent {
    NotSent::Impossible(Unsendable::new(
        Reason::TooLarge,
        format!("the record of {} bytes is larger than {setting} ({limit} bytes)", record.size()),
        remedy,
    ))
}

fn partition(record: &Record<'_>, limits: &TopicLimits) -> Result<(), NotSent> {
    match (record.partition, limits.partitions) {
        (Some(partition), Some(count)) if usize::try_from(partition).is_ok_and(|number| number >= count) => {
            Err(NotSent::Impossible(Unsendable::new(
                Reason::Unroutable,
                format!(
                    "it is for partition {partition} of the topic {}, which had {count} partitions at the last check, \
                     counted from 0",
                    record.topic
                ),
                "Add partitions to the topic, or correct `[route] partition` or the rule that sets it",
            )))
        }
        _ => Ok(()),
    }
}

impl TopicLimits {
    /// The record's timestamp if the topic accepts it, else the commit time, else the current time.
    pub(super) fn timestamp(&self, record: &Record<'_>, now: i64) -> i64 {
        // for librdkafka 0 means "now", for Kafka -1 means "none"
        let earliest = self.timestamp_before_ms.map_or(1, |before| now.saturating_sub(before).max(1));
        let latest = self.timestamp_after_ms.map_or(i64::MAX, |after| now.saturating_add(after));
        let taken = |timestamp: &i64| (earliest..=latest).contains(timestamp);
        [record.timestamp, record.commit_timestamp].into_iter().find(taken).unwrap_or(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::Headers;

    fn reason(found: Result<(), NotSent>) -> Option<Reason> {
        match found {
            Ok(()) => None,
            Err(NotSent::Impossible(why)) => Some(why.reason),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn limits_give_the_reason() {
        let headers = Headers::default();
        let record = Record {
            topic: "t",
            partition: Some(2),
            key: None,
            value: Some(&[b'x'; 1000]),
            headers: &headers,
            timestamp: 1,
            commit_timestamp: 1,
            headers_dropped: 0,
            violation: None,
        };
        let limits = |partitions, max_message_bytes| TopicLimits {
            partitions: Some(partitions),
            max_message_bytes: Some(max_message_bytes),
            ..TopicLimits::default()
        };
        let own = |limit| reason(producer(&record, limit));
        assert_eq!([own(1000), own(999)], [None, Some(Reason::TooLarge)]);
        let size = |limit, compressed| reason(topic(&record, &limits(3, limit), compressed));
        assert_eq!([size(1061, false), size(1060, true)], [None; 2]);
        assert_eq!(size(1060, false), Some(Reason::TooLarge));
        let partition = |count| reason(topic(&record, &limits(count, 9999), false));
        assert_eq!([partition(3), partition(2)], [None, Some(Reason::Unroutable)]);
    }
}
