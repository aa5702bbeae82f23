//! Consumers and producers of a Kafka cluster.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Headers, Message};
use rdkafka::producer::{BaseProducer, BaseRecord, FutureProducer, FutureRecord, Producer};
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::eventually::{INTERVAL, eventually};
use super::shared;

pub(super) const REQUEST: Duration = Duration::from_secs(10);

/// How often a request that times out is made.
const ATTEMPTS: u32 = 6;

/// A Kafka cluster, with two consumers. The topics of a `prefix` are those whose names begin with that word.
#[derive(Clone)]
pub(crate) struct Kafka {
    pub(crate) bootstrap: String,
    consumer: Arc<Mutex<Reader>>,
    /// Reads only committed transactions.
    committed: Arc<Mutex<Reader>>,
}

/// A consumer, and what it was made of.
struct Reader {
    config: ClientConfig,
    consumer: BaseConsumer,
}

impl Reader {
    fn new(bootstrap: &str, isolation: &str) -> Self {
        let mut config = client(bootstrap);
        config
            .set("auto.offset.reset", "earliest")
            .set("isolation.level", isolation)
            .set("enable.partition.eof", "true")
            .set("enable.auto.commit", "false")
            .set("group.id", "outbox-router-tests")
            .set("fetch.wait.max.ms", "20")
            .set("reconnect.backoff.max.ms", "500");
        let consumer = config.create().unwrap();
        Reader { config, consumer }
    }

    /// Repeats what times out, as happens on a busy machine, with a new consumer: librdkafka forgets all brokers for good if it
    /// asks one whose session with the controller has expired, as that of a frozen broker does.
    fn ask<T>(&mut self, work: impl Fn(&BaseConsumer) -> Result<T, KafkaError>) -> Result<T, KafkaError> {
        let mut answer = work(&self.consumer);
        for _ in 1..ATTEMPTS {
            if !matches!(&answer, Err(error) if error.rdkafka_error_code().is_some_and(timed_out)) {
                break;
            }
            self.consumer = self.config.create().unwrap();
            answer = work(&self.consumer);
        }
        answer
    }
}

/// One record of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) timestamp: Option<i64>,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, Option<Vec<u8>>)>,
}

/// The replicas of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Replicas {
    pub(crate) leader: Option<i32>,
    pub(crate) in_sync: usize,
    pub(crate) all: usize,
}

impl Record {
    /// The text of the first header of this name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(known, _)| known == name)?;
        Some(std::str::from_utf8(value.as_ref()?).unwrap())
    }

    /// The event's id.
    pub(crate) fn id(&self) -> &str {
        self.header("id").unwrap()
    }

    pub(crate) fn key(&self) -> Option<&str> {
        self.key.as_deref().map(|key| std::str::from_utf8(key).unwrap())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(self.value.as_ref().unwrap()).unwrap()
    }

    /// The member `n` of a JSON payload.
    pub(crate) fn number(&self) -> u64 {
        serde_json::from_str::<serde_json::Value>(self.text()).unwrap()["n"].as_u64().unwrap()
    }
}

impl Kafka {
    /// The broker that all tests share.
    pub(crate) fn shared() -> Self {
        Self::at(shared::kafka())
    }

    /// Whether other tests use this broker too.
    pub(crate) fn is_shared(&self) -> bool {
        self.bootstrap == shared::kafka()
    }

    pub(crate) fn at(bootstrap: &str) -> Self {
        let consumer = |isolation| Arc::new(Mutex::new(Reader::new(bootstrap, isolation)));
        Kafka {
            bootstrap: bootstrap.to_owned(),
            consumer: consumer("read_uncommitted"),
            committed: consumer("read_committed"),
        }
    }

    /// All records that a consumer of committed transactions sees in the topics of `prefix`, in each partition up to the first
    /// open transaction.
    pub(crate) async fn committed(&self, prefix: &str) -> Result<Vec<Record>, KafkaError> {
        let prefix = prefix.to_owned();
        with_consumer(&self.committed, move |consumer| read_committed(consumer, &prefix)).await
    }

    /// Whether no transaction is open in the topics of `prefix`.
    pub(crate) async fn has_no_open_transaction(&self, prefix: &str) -> Result<bool, KafkaError> {
        let ends_seen_by = async |consumer| {
            let prefix = prefix.to_owned();
            with_consumer(consumer, move |consumer| ends(consumer, &prefix)).await
        };
        let (all, ended) = (ends_seen_by(&self.consumer).await?, ends_seen_by(&self.committed).await?);
        Ok(all.iter().all(|(place, end)| ended.get(place).is_some_and(|ended| ended >= end)))
    }

    /// Waits until a consumer of committed transactions sees this many records, and returns all that it sees.
    pub(crate) async fn committed_when(&self, prefix: &str, count: usize) -> Vec<Record> {
        let what = format!("{count} records are committed in the topics of {prefix}");
        eventually(&what, async || self.committed(prefix).await.ok().filter(|now| now.len() >= count)).await
    }

    /// All records of the topics of `prefix` up to their present end. Those of each partition are in the order of its log.
    pub(crate) async fn records(&self, prefix: &str) -> Vec<Record> {
        self.retry_timeouts(&format!("the records of {prefix}"), async || {
            let prefix = prefix.to_owned();
            self.consume(move |consumer| read_all(consumer, &prefix)).await
        })
        .await
    }

    /// Waits until the topics of `prefix` hold this many records, and returns all that they hold.
    pub(crate) async fn records_when(&self, prefix: &str, count: usize) -> Vec<Record> {
        self.holds(prefix, count).await;
        self.records(prefix).await
    }

    /// Waits until the topics of `prefix` hold this many records.
    pub(crate) async fn holds(&self, prefix: &str, count: usize) {
        let what = format!("the topics of {prefix} hold {count} records");
        eventually(&what, async || self.count(prefix).await.ok().filter(|now| *now >= count)).await;
    }

    /// Waits until the first partitions of one topic hold this many records. The leaders of other topics may be away.
    pub(crate) async fn holds_in(&self, topic: &str, partitions: i32, count: usize) {
        let what = format!("the topic {topic} holds {count} records");
        eventually(&what, async || {
            let topic = topic.to_owned();
            let counted = self.consume(move |consumer| {
                let end = |partition| Ok(consumer.fetch_watermarks(&topic, partition, REQUEST)?.1);
                (0..partitions).map(end).sum::<Result<i64, KafkaError>>()
            });
            counted.await.ok().filter(|now| usize::try_from(*now).unwrap() >= count)
        })
        .await;
    }

    /// The number of records in the topics of `prefix`. The markers of transactions count too.
    pub(crate) async fn count(&self, prefix: &str) -> Result<usize, KafkaError> {
        let prefix = prefix.to_owned();
        self.consume(move |consumer| {
            let ends = ends(consumer, &prefix)?;
            Ok(ends.values().map(|end| usize::try_from(*end).unwrap()).sum())
        })
        .await
    }

    /// The number of partitions of a topic; 0 if it does not exist.
    pub(crate) async fn partitions(&self, topic: &str) -> usize {
        self.retry_timeouts(&format!("the partitions of {topic}"), async || {
            let topic = topic.to_owned();
            self.consume(move |consumer| {
                let metadata = consumer.fetch_metadata(None, REQUEST)?;
                let found = metadata.topics().iter().find(|found| found.name() == topic);
                Ok(found.map_or(0, |found| found.partitions().len()))
            })
            .await
        })
        .await
    }

    /// The replicas of each partition of the topics of `prefix`.
    pub(crate) async fn replicas(&self, prefix: &str) -> Result<Vec<Replicas>, KafkaError> {
        let prefix = prefix.to_owned();
        self.consume(move |consumer| {
            let metadata = consumer.fetch_metadata(None, REQUEST)?;
            let topics = metadata.topics().iter().filter(|topic| is_of(topic.name(), &prefix));
            let partitions = topics.flat_map(|topic| topic.partitions());
            let replicas = partitions.map(|partition| Replicas {
                leader: Some(partition.leader()).filter(|leader| *leader >= 0),
                in_sync: partition.isr().len(),
                all: partition.replicas().len(),
            });
            Ok(replicas.collect())
        })
        .await
    }

    /// The broker that coordinates the transactions of each of these ids. It is the leader of the partition that the id's hash
    /// selects.
    pub(crate) async fn coordinators(&self, ids: &[String]) -> Vec<i32> {
        let (transactions, mut config) = ("__transaction_state", client(&self.bootstrap));
        config.set("transactional.id", "finds-coordinators");
        // the first transactional producer creates the topic
        let created = tokio::task::spawn_blocking(move || {
            let producer: BaseProducer = config.create().unwrap();
            producer.init_transactions(REQUEST).unwrap();
        });
        created.await.unwrap();
        let leaders = self.consume(move |consumer| {
            let metadata = consumer.fetch_metadata(Some(transactions), REQUEST)?;
            let mut partitions: Vec<_> = metadata.topics()[0]
                .partitions()
                .iter()
                .map(|partition| (partition.id(), partition.leader()))
                .collect();
            partitions.sort_unstable();
            Ok(partitions)
        });
        let leaders = leaders.await.unwrap();
        let hash = |id: &str| {
            id.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(unit.into()))
        };
        ids.iter().map(|id| leaders[hash(id).unsigned_abs() as usize % leaders.len()].1).collect()
    }

    /// Repeats requests for longer than [`Reader::ask`]: a broker that restarts refuses them at once.
    async fn retry_timeouts<T>(&self, what: &str, ask: impl AsyncFn() -> Result<T, KafkaError>) -> T {
        eventually(what, async || match ask().await {
            Ok(answer) => Some(answer),
            Err(error) if error.rdkafka_error_code().is_some_and(timed_out) => None,
            Err(error) => panic!("{what}: {error}"),
        })
        .await
    }

    async fn consume<T: Send + 'static>(
        &self,
        work: impl Fn(&BaseConsumer) -> Result<T, KafkaError> + Send + 'static,
    ) -> Result<T, KafkaError> {
        with_consumer(&self.consumer, work).await
    }

    /// Writes a record to the first partition. Without a value it is a tombstone.
    pub(crate) async fn write(&self, topic: &str, key: &str, value: Option<&str>) {
        let producer: FutureProducer = client(&self.bootstrap).create().unwrap();
        let mut record = FutureRecord::<str, str>::to(topic).partition(0).key(key);
        record.payload = value;
        producer.send(record, REQUEST).await.unwrap();
    }

    /// Writes the same record to the first partition several times.
    pub(crate) async fn write_times(&self, topic: &str, key: &str, value: &str, times: usize) {
        let producer: FutureProducer = client(&self.bootstrap).create().unwrap();
        let record = || FutureRecord::to(topic).partition(0).key(key).payload(value);
        for sent in (0..times).map(|_| producer.send(record(), REQUEST)).collect::<Vec<_>>() {
            sent.await.unwrap();
        }
    }

    /// Writes a record to the first partition in a transaction that stays open until the returned producer aborts it, or until
    /// the timeout.
    pub(crate) async fn leave_open(&self, topic: &str, key: &str, timeout: Duration) -> BaseProducer {
        let mut config = client(&self.bootstrap);
        config
            .set("transactional.id", format!("{topic}.{key}"))
            .set("transaction.timeout.ms", timeout.as_millis().to_string());
        let (topic, key) = (topic.to_owned(), key.to_owned());
        let opened = tokio::task::spawn_blocking(move || {
            let producer: BaseProducer = config.create().unwrap();
            producer.init_transactions(REQUEST).unwrap();
            producer.begin_transaction().unwrap();
            producer.send(BaseRecord::to(&topic).partition(0).key(&key).payload("{}")).unwrap();
            producer.flush(REQUEST).unwrap();
            producer
        });
        opened.await.unwrap()
    }
}

/// Runs blocking work with a consumer on another thread.
async fn with_consumer<T: Send + 'static>(
    consumer: &Arc<Mutex<Reader>>,
    work: impl Fn(&BaseConsumer) -> Result<T, KafkaError> + Send + 'static,
) -> Result<T, KafkaError> {
    let consumer = Arc::clone(consumer);
    tokio::task::spawn_blocking(move || consumer.lock().unwrap().ask(work)).await.unwrap()
}

pub(super) fn client(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap).set("log_level", "0");
    config
}

fn timed_out(code: Code) -> bool {
    matches!(
        code,
        Code::OperationTimedOut | Code::RequestTimedOut | Code::BrokerTransportFailure | Code::AllBrokersDown
    )
}

/// Whether the name of a topic begins with the word `prefix`. The topic `t1_12.order` does not belong to `t1_1`.
pub(super) fn is_of(topic: &str, prefix: &str) -> bool {
    topic.strip_prefix(prefix).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
}

/// The next offset of each partition.
fn ends(consumer: &BaseConsumer, prefix: &str) -> Result<BTreeMap<(String, i32), i64>, KafkaError> {
    let metadata = consumer.fetch_metadata(None, REQUEST)?;
    let mut ends = BTreeMap::new();
    for topic in metadata.topics().iter().filter(|topic| is_of(topic.name(), prefix)) {
        for partition in topic.partitions() {
            let end = end(consumer, topic.name(), partition.id())?;
            ends.insert((topic.name().to_owned(), partition.id()), end);
        }
    }
    Ok(ends)
}

/// A broker shows a new topic a moment before it leads its partitions, so this repeats the request.
fn end(consumer: &BaseConsumer, topic: &str, partition: i32) -> Result<i64, KafkaError> {
    let deadline = Instant::now() + REQUEST;
    loop {
        match consumer.fetch_watermarks(topic, partition, REQUEST) {
            Err(KafkaError::MetadataFetch(Code::NotLeaderForPartition)) if Instant::now() < deadline => {
                std::thread::sleep(INTERVAL);
            }
            found => return found.map(|(_, end)| end),
        }
    }
}

fn read_all(consumer: &BaseConsumer, prefix: &str) -> Result<Vec<Record>, KafkaError> {
    let mut ends = ends(consumer, prefix)?;
    ends.retain(|_, end| *end > 0);
    let mut assignment = TopicPartitionList::new();
    for (topic, partition) in ends.keys() {
        assignment.add_partition_offset(topic, *partition, Offset::Beginning)?;
    }
    consumer.assign(&assignment)?;
    let mut records = Vec::new();
    while !ends.is_empty() {
        let message = match consumer.poll(REQUEST) {
            Some(Ok(message)) => message,
            // the consumer continues when the broker returns
            Some(Err(KafkaError::MessageConsumption(
                Code::BrokerTransportFailure | Code::AllBrokersDown,
            ))) => continue,
            Some(Err(KafkaError::PartitionEOF(_))) => continue,
            Some(Err(error)) => return Err(error),
            None => {
                println!(
                    "no record of {prefix} for {REQUEST:?}, and the ends of these are not reached: {ends:?}"
                );
                return Err(KafkaError::MessageConsumption(Code::OperationTimedOut));
            }
        };
        let place = (message.topic().to_owned(), message.partition());
        if let Some(end) = ends.get(&place) {
            if message.offset() + 1 >= *end {
                ends.remove(&place);
            }
            records.push(owned(&message));
        }
    }
    consumer.unassign()?;
    records.sort_by(|a, b| (&a.topic, a.partition, a.offset).cmp(&(&b.topic, b.partition, b.offset)));
    Ok(records)
}

/// Reads one partition after the other. The markers of transactions take offsets too, so only the broker can say where the end
/// is.
fn read_committed(consumer: &BaseConsumer, prefix: &str) -> Result<Vec<Record>, KafkaError> {
    let mut records = Vec::new();
    for (topic, partition) in ends(consumer, prefix)?.into_keys() {
        let mut assignment = TopicPartitionList::new();
        assignment.add_partition_offset(&topic, partition, Offset::Beginning)?;
        consumer.assign(&assignment)?;
        loop {
            match consumer.poll(REQUEST) {
                // a record that was fetched for the previous assignment
                Some(Ok(message)) if (message.topic(), message.partition()) != (&topic, partition) => {}
                Some(Ok(message)) => records.push(owned(&message)),
                Some(Err(KafkaError::PartitionEOF(ended))) if ended == partition => break,
                Some(Err(KafkaError::PartitionEOF(_))) => {}
                // the consumer continues when the broker returns
                Some(Err(KafkaError::MessageConsumption(
                    Code::BrokerTransportFailure | Code::AllBrokersDown,
                ))) => {}
                Some(Err(error)) => return Err(error),
                None => {
                    println!("no end of partition {partition} of {topic} for {REQUEST:?}");
                    return Err(KafkaError::MessageConsumption(Code::OperationTimedOut));
                }
            }
        }
    }
    consumer.unassign()?;
    Ok(records)
}

fn owned(message: &impl Message) -> Record {
    let headers = message.headers().map_or_else(Vec::new, |headers| {
        let header = |header: rdkafka::message::Header<'_, &[u8]>| {
            (header.key.to_owned(), header.value.map(<[u8]>::to_vec))
        };
        headers.iter().map(header).collect()
    });
    Record {
        topic: message.topic().to_owned(),
        partition: message.partition(),
        offset: message.offset(),
        timestamp: message.timestamp().to_millis(),
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers,
    }
}
