//! Sends records by topic handles.
//!
//! rdkafka passes the name of the topic with each record, and librdkafka searches a list of all topics for it. With a
//! thousand topics that takes most of the time.

use std::ops::Deref;

use rdkafka::error::KafkaError;
use rdkafka::producer::ThreadedProducer;
use rdkafka_topic::Topic;

use super::client::Client;
use super::context::EventProducerContext;
use crate::progress::Sequence;
use crate::routing::Record;

pub(super) type EventProducer = ThreadedProducer<EventProducerContext>;

/// A producer, and the handles of the topics that it has sent to.
pub(super) struct EventSender {
    /// By the topics' numbers.
    handles: Vec<Option<Topic<EventProducerContext>>>,
    // dropped after the handles, which refer to it
    producer: Client<EventProducer>,
}

/// What is decided about a record before it is sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placement {
    /// The number of the record's topic in this session.
    pub(super) topic: usize,
    /// The partition; `None`: any.
    pub(super) partition: Option<i32>,
    /// In milliseconds since the Unix epoch.
    pub(super) timestamp: i64,
}

impl EventSender {
    pub(super) fn new(producer: Client<EventProducer>) -> Self {
        EventSender { handles: Vec::new(), producer }
    }

    /// Queues a record. Never blocks.
    pub(super) fn send_record(
        &mut self,
        record: &Record<'_>,
        placement: Placement,
        sequence: Sequence,
    ) -> Result<(), KafkaError> {
        let Placement { topic, partition, timestamp } = placement;
        if topic >= self.handles.len() {
            self.handles.resize_with(topic + 1, || None);
        }
        let Some(handle) = self.handles.get_mut(topic) else { return Err(KafkaError::Canceled) };
        let handle = match handle {
            Some(handle) => handle,
            None => handle.insert(Topic::new(&self.producer, record.topic)?),
        };
        handle.send(rdkafka_topic::Record {
            partition,
            key: record.key,
            value: record.value,
            timestamp: Some(timestamp),
            headers: record.headers.iter(),
            opaque: sequence.0 as usize,
        })
    }

    /// Ends the producer on this thread, if there is no other reference. Blocks.
    pub(super) fn end(self) {
        let EventSender { handles, producer } = self;
        drop(handles);
        producer.end();
    }
}

impl Deref for EventSender {
    type Target = EventProducer;

    fn deref(&self) -> &EventProducer {
        &self.producer
    }
}
