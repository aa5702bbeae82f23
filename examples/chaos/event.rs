//! An event as it was committed and as it arrived. Contents are stored as hashes, so that a campaign of hours fits into memory.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

use crate::stage::consumer::Received;
use crate::stage::outbox_table::Row;

/// The header of records that a replay repeats.
pub(crate) const REPLAY: &str = "outbox-router-replay";

/// The `id` of an event.
pub(crate) type Id = u128;

/// The number of a uuid.
pub(crate) fn id_of(text: &str) -> Option<Id> {
    Id::from_str_radix(&text.replace('-', ""), 16).ok()
}

/// Hashes of the parts that must arrive as they were committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Content {
    topic: u64,
    key: u64,
    payload: u64,
    headers: u64,
}

impl Content {
    pub(crate) fn of_row(row: &Row) -> Self {
        let own = [("id", &row.id), ("type", &row.event_type)]
            .map(|(name, text)| (name.to_owned(), Some(text.clone().into_bytes())));
        Content {
            topic: hash(&row.topic()),
            key: hash(&Some(row.aggregate_id.as_bytes())),
            payload: hash(&row.payload.as_deref().map(str::as_bytes)),
            headers: hash(&(
                own.as_slice(),
                row.own_headers().unwrap_or_default().iter().collect::<Vec<_>>(),
            )),
        }
    }

    fn of_record(record: &Received) -> Self {
        let (own, rest) = record.headers.split_at(record.headers.len().min(2));
        let mut rest: Vec<_> = rest.iter().filter(|(name, _)| name != REPLAY).collect();
        rest.sort();
        Content {
            topic: hash(&record.topic),
            key: hash(&record.key.as_deref()),
            payload: hash(&record.value.as_deref()),
            headers: hash(&(own, rest)),
        }
    }

    /// The first part in which two contents differ.
    pub(crate) fn difference(&self, other: &Self) -> Option<&'static str> {
        let parts = [
            ("topic", self.topic == other.topic),
            ("key", self.key == other.key),
            ("payload", self.payload == other.payload),
            ("headers", self.headers == other.headers),
        ];
        parts.into_iter().find(|(_, same)| !same).map(|(part, _)| part)
    }
}

fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// A committed event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: Id,
    pub(crate) aggregate: Box<str>,
    /// Its number within its aggregate, from 1 without a gap.
    pub(crate) sequence: i64,
    pub(crate) content: Content,
}

impl Event {
    pub(crate) fn of_row(row: &Row) -> Option<Self> {
        Some(Event {
            id: id_of(&row.id)?,
            aggregate: row.aggregate_id.as_str().into(),
            sequence: row.sequence,
            content: Content::of_row(row),
        })
    }
}

/// A record in a topic.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    /// `None`: it has no `id` header, or the header is not a uuid.
    pub(crate) id: Option<Id>,
    /// The index of the topic, by first arrival.
    pub(crate) topic: usize,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) content: Content,
    /// The value of its replay header.
    pub(crate) mark: Option<Box<str>>,
    /// When the consumer received it.
    pub(crate) at: Instant,
}

impl Arrival {
    pub(crate) fn of_record(record: &Received, topic: usize) -> Self {
        Arrival {
            id: record.id().and_then(id_of),
            topic,
            partition: record.partition,
            offset: record.offset,
            content: Content::of_record(record),
            mark: record.header(REPLAY).map(Into::into),
            at: record.arrived,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Event number `sequence` of an aggregate.
    pub(crate) fn row(aggregate: &str, sequence: i64) -> Row {
        let number = aggregate.bytes().map(u128::from).sum::<u128>() * 1_000 + sequence as u128;
        let hex = format!("{number:032x}");
        Row {
            id: [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-"),
            aggregate_type: "order".to_owned(),
            aggregate_id: aggregate.to_owned(),
            event_type: "Changed".to_owned(),
            payload: Some(format!(r#"{{"sequence": {sequence}}}"#)),
            headers: r#"{"writer": 3, "tenant": null, "trace": "é"}"#.to_owned(),
            sequence,
        }
    }

    /// The record that the router has to send for the row.
    pub(crate) fn record(row: &Row, offset: i64, arrived: Instant) -> Received {
        let header = |name: &str, value: &str| (name.to_owned(), Some(value.as_bytes().to_vec()));
        Received {
            topic: row.topic(),
            partition: 2,
            offset,
            key: Some(row.aggregate_id.clone().into_bytes()),
            value: row.payload.clone().map(String::into_bytes),
            headers: vec![
                header("id", &row.id),
                header("type", &row.event_type),
                header("writer", "3"),
                ("tenant".to_owned(), None),
                header("trace", "é"),
            ],
            arrived,
        }
    }

    #[test]
    fn difference_names_altered_part() {
        type Alteration = fn(&mut Received);
        let row = row("a", 1);
        let committed = Content::of_row(&row);
        let difference = |alter: Alteration| {
            let mut record = record(&row, 0, Instant::now());
            alter(&mut record);
            committed.difference(&Content::of_record(&record))
        };
        assert_eq!(difference(|_| {}), None);
        let alterations: [(&str, Alteration); 9] = [
            ("topic", |record| record.topic.push('s')),
            ("key", |record| record.key = None),
            ("key", |record| record.key = Some(Vec::new())),
            ("payload", |record| record.value.as_mut().unwrap()[2] = b'x'),
            ("payload", |record| record.value = None),
            ("headers", |record| record.headers[1].1 = Some(b"Other".to_vec())),
            ("headers", |record| record.headers.swap(0, 1)),
            ("headers", |record| record.headers.truncate(4)),
            ("headers", |record| record.headers[3].1 = Some(Vec::new())),
        ];
        for (what, alter) in alterations {
            assert_eq!(difference(alter), Some(what));
        }
    }
}
