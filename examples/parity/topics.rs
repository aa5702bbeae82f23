//! The topics of a case: all topics of the broker except its internal ones and the one of the router's checkpoints.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::record::{Bytes, Record};

const ANSWER: Duration = Duration::from_secs(10);
/// If no record arrives for this long, all have arrived.
const SETTLED: Duration = Duration::from_millis(400);
/// From which Debezium's own headers are told, which say nothing of the row.
const CONTEXT_HEADERS: &str = "__debezium.context.";

/// A record with its partition and offset.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) record: Record,
    pub(crate) offset: i64,
}

/// The offset after the last record, by topic and partition.
pub(crate) type Ends = BTreeMap<(String, i32), i64>;

/// The broker that both sides write to in turn.
pub(crate) struct Broker {
    consumer: BaseConsumer,
    admin: AdminClient<DefaultClientContext>,
}

impl Broker {
    pub(crate) fn new(address: &str) -> anyhow::Result<Self> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", address).set("client.id", "parity");
        let admin = config.create().context("create an admin client")?;
        let consumer = config
            .set("group.id", "parity")
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "error")
            .set("allow.auto.create.topics", "false")
            .set("fetch.wait.max.ms", "20")
            .create()
            .context("create a consumer")?;
        Ok(Broker { consumer, admin })
    }

    /// Names and numbers of partitions.
    fn topics(&self) -> anyhow::Result<Vec<(String, usize)>> {
        let metadata = self.consumer.fetch_metadata(None, ANSWER).context("ask for the topics")?;
        let ours = |name: &str| !name.starts_with("__") && name != outbox_router::topic_name::POSITIONS;
        let ours = metadata.topics().iter().filter(|topic| ours(topic.name()));
        Ok(ours.map(|topic| (topic.name().to_owned(), topic.partitions().len())).collect())
    }

    /// All present records, with partition and timestamp.
    pub(crate) fn read(&self) -> anyhow::Result<Vec<Stored>> {
        let mut list = TopicPartitionList::new();
        let mut behind = Vec::new();
        for (topic, partitions) in self.topics()? {
            for partition in 0..i32::try_from(partitions)? {
                let (begin, end) = self.ends(&topic, partition)?;
                if begin < end {
                    list.add_partition_offset(&topic, partition, Offset::Beginning)?;
                    behind.push((topic.clone(), partition, end));
                }
            }
        }
        self.consumer.assign(&list).context("assign partitions")?;
        let mut records = Vec::new();
        let deadline = Instant::now() + ANSWER;
        while !behind.is_empty() {
            ensure!(Instant::now() < deadline, "the ends of {} partitions were not reached", behind.len());
            let Some(message) = self.consumer.poll(Duration::from_millis(100)) else { continue };
            let message = message.context("read")?;
            let (topic, partition, offset) = (message.topic(), message.partition(), message.offset());
            behind.retain(|(t, p, end)| (t.as_str(), *p) != (topic, partition) || offset + 1 < *end);
            records.push(Stored { record: record(&message), offset });
        }
        self.consumer.unassign().context("let go of the partitions")?;
        Ok(records)
    }

    /// Waits until no more records arrive, and returns all. A producer sends to each partition independently, so the last row may
    /// arrive before others.
    pub(crate) async fn read_settled(&self) -> anyhow::Result<Vec<Stored>> {
        let mut records = self.read()?;
        loop {
            tokio::time::sleep(SETTLED).await;
            let again = self.read()?;
            if again.len() == records.len() {
                return Ok(again);
            }
            records = again;
        }
    }

    /// Waits until no more records arrive, and returns the offset after the last record by topic and partition.
    pub(crate) async fn settled_ends(&self) -> anyhow::Result<Ends> {
        let mut ends = self.all_ends()?;
        loop {
            tokio::time::sleep(SETTLED).await;
            let again = self.all_ends()?;
            if again == ends {
                return Ok(again);
            }
            ends = again;
        }
    }

    /// The number of present records. Nothing is ever deleted from the topics.
    pub(crate) fn count(&self) -> anyhow::Result<i64> {
        Ok(self.all_ends()?.values().sum())
    }

    fn all_ends(&self) -> anyhow::Result<Ends> {
        let mut ends = Ends::new();
        for (topic, partitions) in self.topics()? {
            for partition in 0..i32::try_from(partitions)? {
                let (_, end) = self.ends(&topic, partition)?;
                ends.insert((topic.clone(), partition), end);
            }
        }
        Ok(ends)
    }

    /// The first offset of a partition and the one after its last.
    fn ends(&self, topic: &str, partition: i32) -> anyhow::Result<(i64, i64)> {
        let deadline = Instant::now() + ANSWER;
        loop {
            match self.consumer.fetch_watermarks(topic, partition, ANSWER) {
                Ok(ends) => return Ok(ends),
                // a topic that was just created and has no leader yet
                Err(KafkaError::MetadataFetch(_)) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(error).context(format!("ask for the end of {topic}/{partition}")),
            }
        }
    }

    /// Deletes every topic.
    pub(crate) async fn clear(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + ANSWER;
        loop {
            let topics = self.topics()?;
            if topics.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{} topics are not deleted", topics.len());
            let names: Vec<&str> = topics.iter().map(|(name, _)| name.as_str()).collect();
            // a topic may be gone already; the next iteration checks
            self.admin.delete_topics(&names, &AdminOptions::new()).await.context("delete topics")?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn record(message: &BorrowedMessage<'_>) -> Record {
    let bytes = |value: &[u8]| Bytes(value.to_vec());
    let headers = message.headers().map(|headers| {
        let ours = headers.iter().filter(|header| !header.key.starts_with(CONTEXT_HEADERS));
        ours.map(|header| (header.key.to_owned(), header.value.map(bytes))).collect()
    });
    Record {
        topic: message.topic().to_owned(),
        partition: Some(message.partition()),
        timestamp: message.timestamp().to_millis(),
        key: message.key().map(bytes),
        headers: headers.unwrap_or_default(),
        value: message.payload().map(bytes),
    }
}
