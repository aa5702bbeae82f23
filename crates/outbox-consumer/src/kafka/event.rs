//! An event: a record of a topic.

use rdkafka::Message;
use rdkafka::message::Headers;
use serde_json::{Value, json};

use crate::hex::hex;

/// A record of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The text of the header with the id.
    pub id: String,
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
    /// The key of the record.
    pub key: Option<Vec<u8>>,
    /// The value of the record.
    pub value: Option<Vec<u8>>,
    /// Names and values of the headers.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Event {
    /// `None`: the record has no header `id_header`, or its value is empty or cannot be stored by Postgres as text.
    pub(super) fn from_record(record: &impl Message, id_header: &str) -> Option<Self> {
        let headers = record.headers().map(|headers| {
            let owned = |header: rdkafka::message::Header<'_, &[u8]>| {
                (header.key.to_owned(), header.value.map(<[u8]>::to_vec))
            };
            headers.iter().map(owned).collect::<Vec<_>>()
        });
        let event = Event {
            id: String::new(),
            topic: record.topic().to_owned(),
            partition: record.partition(),
            offset: record.offset(),
            key: record.key().map(<[u8]>::to_vec),
            value: record.payload().map(<[u8]>::to_vec),
            headers: headers.unwrap_or_default(),
        };
        let id = event.header(id_header).filter(|id| !id.is_empty() && !id.contains('\0'))?.to_owned();
        Some(Event { id, ..event })
    }

    /// The bytes of key, value and headers.
    pub(super) fn size(&self) -> usize {
        let length = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        let headers = self.headers.iter().map(|(name, value)| name.len() + length(value));
        length(&self.key) + length(&self.value) + headers.sum::<usize>()
    }

    /// The text of the first header of this name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(known, _)| known == name)?;
        std::str::from_utf8(value.as_ref()?).ok()
    }

    /// Events with the same key stay in order. The aggregate is the key as text, or its hexadecimal digits if Postgres cannot store
    /// it as text: a serialized number often contains a NUL.
    pub(super) fn aggregate(&self) -> Option<String> {
        let key = self.key.as_ref().filter(|key| !key.is_empty())?;
        let text = std::str::from_utf8(key).ok().filter(|text| !text.contains('\0'));
        Some(text.map_or_else(|| hex(key), str::to_owned))
    }

    /// The event as it waits in the queue of the inbox.
    pub(super) fn to_json(&self) -> Vec<u8> {
        let headers: Vec<Value> =
            self.headers.iter().map(|(name, value)| json!([name, bytes(value.as_deref())])).collect();
        let event = json!({
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "key": bytes(self.key.as_deref()),
            "value": bytes(self.value.as_deref()),
            "headers": headers,
        });
        event.to_string().into_bytes()
    }

    /// `None`: it was not put by [`Event::to_json`].
    pub(super) fn from_json(id: &str, json: &[u8]) -> Option<Self> {
        let event: Value = serde_json::from_slice(json).ok()?;
        let header =
            |header: &Value| Some((header.get(0)?.as_str()?.to_owned(), from_bytes(header.get(1)?)?));
        Some(Event {
            id: id.to_owned(),
            topic: event.get("topic")?.as_str()?.to_owned(),
            partition: i32::try_from(event.get("partition")?.as_i64()?).ok()?,
            offset: event.get("offset")?.as_i64()?,
            key: from_bytes(event.get("key")?)?,
            value: from_bytes(event.get("value")?)?,
            headers: event.get("headers")?.as_array()?.iter().map(header).collect::<Option<_>>()?,
        })
    }
}

/// A text as it is, other bytes as an object with hexadecimal digits.
fn bytes(bytes: Option<&[u8]>) -> Value {
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => Value::Null,
        Some((_, Ok(text))) => json!(text),
        Some((bytes, Err(_))) => json!({ "hex": hex(bytes) }),
    }
}

fn from_bytes(value: &Value) -> Option<Option<Vec<u8>>> {
    match value {
        Value::Null => Some(None),
        Value::String(text) => Some(Some(text.clone().into_bytes())),
        other => from_hex(other.get("hex")?.as_str()?).map(Some),
    }
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let pair = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    (0..digits.len()).step_by(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aggregate_is_a_text_that_postgres_can_store() {
        let aggregate = |key: Option<&[u8]>| {
            let key = key.map(<[u8]>::to_vec);
            let (id, topic, headers) = (String::new(), String::new(), Vec::new());
            Event { id, topic, partition: 0, offset: 0, key, value: None, headers }.aggregate()
        };
        assert_eq!(aggregate(Some(b"42")).as_deref(), Some("42"));
        assert_eq!(aggregate(Some(&42_i64.to_be_bytes())).as_deref(), Some("000000000000002a"));
        assert_eq!(aggregate(Some(b"\xff")).as_deref(), Some("ff"));
        assert_eq!((aggregate(Some(b"")), aggregate(None)), (None, None));
    }

    #[test]
    fn an_event_comes_back_from_the_queue_byte_for_byte() {
        let event = Event {
            id: "3f1c".to_owned(),
            topic: "orders".to_owned(),
            partition: 3,
            offset: 1 << 40,
            key: Some(b"42".to_vec()),
            value: Some(b"\xff\0".to_vec()),
            headers: vec![
                ("type".to_owned(), Some("gr\u{fc}n\0".as_bytes().to_vec())),
                ("none".to_owned(), None),
                ("empty".to_owned(), Some(Vec::new())),
            ],
        };
        assert_eq!(Event::from_json("3f1c", &event.to_json()), Some(event.clone()));
        let tombstone = Event { key: None, value: None, headers: Vec::new(), ..event };
        assert_eq!(Event::from_json("3f1c", &tombstone.to_json()), Some(tombstone));
        assert_eq!(Event::from_json("3f1c", b"{}"), None);
    }
}
