//! A broker seen from the consumer's side, and by its administrator.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Headers, Message};
use rdkafka::producer::{BaseProducer, BaseRecord, FutureProducer, FutureRecord, Producer};
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::eventually::{EVERY, eventually};
use super::shared;

const REQUEST: Duration = Duration::from_secs(10);

/// A broker's address and what a test does there.
#[derive(Clone)]
pub(crate) struct Kafka {
    pub(crate) bootstrap: String,
    consumer: Arc<Mutex<BaseConsumer>>,
    /// Shows what is committed, and nothing else.
    committed: Arc<Mutex<BaseConsumer>>,
}

/// One record as it lies in the log.
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

/// Who has a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Replicas {
    pub(crate) leader: Option<i32>,
    pub(crate) in_sync: usize,
    pub(crate) all: usize,
}

impl Record {
    /// The text of a header, of the first if there are several of one name.
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

    pub(crate) fn at(bootstrap: &str) -> Self {
        let consumer = |isolation| {
            let made = client(bootstrap)
                .set("auto.offset.reset", "earliest")
                .set("isolation.level", isolation)
                .set("enable.partition.eof", "true")
                .set("enable.auto.commit", "false")
                .set("group.id", "outbox-router-tests")
                .set("fetch.wait.max.ms", "20")
                .set("reconnect.backoff.max.ms", "500")
                .create();
            Arc::new(Mutex::new(made.unwrap()))
        };
        Kafka {
            bootstrap: bootstrap.to_owned(),
            consumer: consumer("read_uncommitted"),
            committed: consumer("read_committed"),
        }
    }

    /// All records of all topics that begin with the name `prefix` that a consumer of committed transactions is shown,
    /// up to the first transaction of a partition that is still open.
    pub(crate) async fn committed(&self, prefix: &str) -> Result<Vec<Record>, KafkaError> {
        let (consumer, prefix) = (Arc::clone(&self.committed), prefix.to_owned());
        let work = move || read_committed(&consumer.lock().unwrap(), &prefix);
        tokio::task::spawn_blocking(work).await.unwrap()
    }

    /// Whether no transaction is open in the topics that begin with the name `prefix`.
    pub(crate) async fn are_ended(&self, prefix: &str) -> Result<bool, KafkaError> {
        let all = {
            let prefix = prefix.to_owned();
            self.consume(move |consumer| ends(consumer, &prefix)).await?
        };
        let (consumer, prefix) = (Arc::clone(&self.committed), prefix.to_owned());
        let work = move || ends(&consumer.lock().unwrap(), &prefix);
        let ended = tokio::task::spawn_blocking(work).await.unwrap()?;
        Ok(all.iter().all(|(place, end)| ended.get(place).is_some_and(|ended| ended >= end)))
    }

    /// Waits until it is shown this many, and returns all that it is shown.
    pub(crate) async fn committed_when(&self, prefix: &str, count: usize) -> Vec<Record> {
        let what = format!("{count} records are committed in the topics of {prefix}");
        eventually(&what, async || self.committed(prefix).await.ok().filter(|now| now.len() >= count)).await
    }

    /// All records of all topics that begin with the name `prefix`, from the beginning to the end as of now; of each
    /// partition in the order of its log.
    pub(crate) async fn records(&self, prefix: &str) -> Vec<Record> {
        self.answered(&format!("the records of {prefix}"), async || {
            let prefix = prefix.to_owned();
            self.consume(move |consumer| read_all(consumer, &prefix)).await
        })
        .await
    }

    /// Waits until topics that begin with the name `prefix` hold this many records, and returns all that they hold.
    pub(crate) async fn records_when(&self, prefix: &str, count: usize) -> Vec<Record> {
        self.holds(prefix, count).await;
        self.records(prefix).await
    }

    /// Waits until topics that begin with the name `prefix` hold this many records.
    pub(crate) async fn holds(&self, prefix: &str, count: usize) {
        let what = format!("the topics of {prefix} hold {count} records");
        eventually(&what, async || self.count(prefix).await.ok().filter(|now| *now >= count)).await;
    }

    /// Waits until the first partitions of one topic hold this many records, whatever the brokers of others do.
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

    /// How many records there are in topics that begin with the name `prefix`.
    pub(crate) async fn count(&self, prefix: &str) -> Result<usize, KafkaError> {
        let prefix = prefix.to_owned();
        self.consume(move |consumer| {
            let ends = ends(consumer, &prefix)?;
            Ok(ends.values().map(|end| usize::try_from(*end).unwrap()).sum())
        })
        .await
    }

    /// How many partitions a topic has; 0 if there is no such topic.
    pub(crate) async fn partitions(&self, topic: &str) -> usize {
        self.answered(&format!("the partitions of {topic}"), async || {
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

    /// The partitions of all topics that begin with the name `prefix`.
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

    /// The broker that coordinates the transactions of each of these ids: the leader of a partition that the broker finds by the
    /// id's hash.
    pub(crate) async fn coordinators(&self, ids: &[String]) -> Vec<i32> {
        let (transactions, mut config) = ("__transaction_state", client(&self.bootstrap));
        config.set("transactional.id", "finds-coordinators");
        // the first transactional producer makes the topic
        let made = tokio::task::spawn_blocking(move || {
            let producer: BaseProducer = config.create().unwrap();
            producer.init_transactions(REQUEST).unwrap();
        });
        made.await.unwrap();
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

    /// Asks again where a request has timed out, as happens on a busy machine and where a broker has just come back.
    async fn answered<T>(&self, what: &str, ask: impl AsyncFn() -> Result<T, KafkaError>) -> T {
        eventually(what, async || match ask().await {
            Ok(answer) => Some(answer),
            Err(error) if error.rdkafka_error_code().is_some_and(timed_out) => None,
            Err(error) => panic!("{what}: {error}"),
        })
        .await
    }

    async fn consume<T: Send + 'static>(
        &self,
        work: impl FnOnce(&BaseConsumer) -> Result<T, KafkaError> + Send + 'static,
    ) -> Result<T, KafkaError> {
        let consumer = Arc::clone(&self.consumer);
        let work = move || work(&consumer.lock().unwrap());
        tokio::task::spawn_blocking(work).await.unwrap()
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        client(&self.bootstrap).create().unwrap()
    }

    /// Makes a topic, and comes back when the broker shows it.
    pub(crate) async fn create_topic(&self, topic: &str, partitions: i32, config: &[(&str, &str)]) {
        self.create_replicated_topic(topic, partitions, 1, config).await;
    }

    /// The same with so many replicas.
    pub(crate) async fn create_replicated_topic(
        &self,
        topic: &str,
        partitions: i32,
        replicas: i32,
        config: &[(&str, &str)],
    ) {
        self.create(topic, partitions, TopicReplication::Fixed(replicas), config).await;
    }

    /// The same with one partition whose replicas are on these brokers.
    pub(crate) async fn create_topic_on(&self, topic: &str, brokers: &[i32], config: &[(&str, &str)]) {
        self.create(topic, 1, TopicReplication::Variable(&[brokers]), config).await;
    }

    async fn create(
        &self,
        topic: &str,
        partitions: i32,
        replication: TopicReplication<'_>,
        config: &[(&str, &str)],
    ) {
        let mut new = NewTopic::new(topic, partitions, replication);
        for (name, value) in config {
            new = new.set(name, value);
        }
        let options = AdminOptions::new().operation_timeout(Some(REQUEST));
        let results = self.admin().create_topics([&new], &options).await.unwrap();
        results.into_iter().for_each(|result| drop(result.unwrap()));
        eventually(&format!("the broker shows the topic {topic}"), async || {
            (self.partitions(topic).await > 0).then_some(())
        })
        .await;
    }

    /// Makes a topic unless somebody was faster.
    pub(crate) async fn make_topic(&self, topic: &str, partitions: i32) {
        let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        let options = AdminOptions::new().operation_timeout(Some(REQUEST));
        for result in self.admin().create_topics([&new], &options).await.unwrap() {
            assert!(matches!(result, Ok(_) | Err((_, Code::TopicAlreadyExists))), "{result:?}");
        }
    }

    /// Gives a topic more partitions, and comes back when the broker shows them.
    pub(crate) async fn add_partitions(&self, topic: &str, count: usize) {
        let more = NewPartitions::new(topic, count);
        let results = self.admin().create_partitions([&more], &AdminOptions::new()).await.unwrap();
        results.into_iter().for_each(|result| drop(result.unwrap()));
        eventually(&format!("the broker shows {count} partitions of {topic}"), async || {
            (self.partitions(topic).await == count).then_some(())
        })
        .await;
    }

    /// Replaces the configuration of a topic, and comes back when the broker acts by it.
    pub(crate) async fn alter_topic(&self, topic: &str, config: &[(&str, &str)]) {
        let mut altered = AlterConfig::new(ResourceSpecifier::Topic(topic));
        for (name, value) in config {
            altered = altered.set(name, value);
        }
        let (admin, options) = (self.admin(), AdminOptions::new());
        let results = admin.alter_configs([&altered], &options).await.unwrap();
        results.into_iter().for_each(|result| drop(result.unwrap()));
        eventually(&format!("topic {topic} has its new configuration"), async || {
            let described =
                admin.describe_configs([&ResourceSpecifier::Topic(topic)], &options).await.unwrap();
            let described = described.into_iter().next().unwrap().unwrap();
            let now = |name: &str| described.get(name).and_then(|entry| entry.value.clone());
            config.iter().all(|(name, value)| now(name).as_deref() == Some(*value)).then_some(())
        })
        .await;
    }

    /// Writes a record to the first partition; without a value a tombstone.
    pub(crate) async fn write(&self, topic: &str, key: &str, value: Option<&str>) {
        let producer: FutureProducer = client(&self.bootstrap).create().unwrap();
        let mut record = FutureRecord::<str, str>::to(topic).partition(0).key(key);
        record.payload = value;
        producer.send(record, REQUEST).await.unwrap();
    }

    /// Writes a record to the first partition so many times.
    pub(crate) async fn write_times(&self, topic: &str, key: &str, value: &str, times: usize) {
        let producer: FutureProducer = client(&self.bootstrap).create().unwrap();
        let record = || FutureRecord::to(topic).partition(0).key(key).payload(value);
        for sent in (0..times).map(|_| producer.send(record(), REQUEST)).collect::<Vec<_>>() {
            sent.await.unwrap();
        }
    }

    /// Writes a record to the first partition in a transaction that stays open until the answer is dropped, or for so long.
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

    /// One setting of a topic.
    pub(crate) async fn topic_setting(&self, topic: &str, name: &str) -> String {
        let described =
            self.admin().describe_configs([&ResourceSpecifier::Topic(topic)], &AdminOptions::new()).await;
        let resource = described.unwrap().into_iter().next().unwrap().unwrap();
        resource.get(name).unwrap().value.clone().unwrap()
    }

    /// Deletes a topic, and comes back when it is gone.
    pub(crate) async fn delete_topic(&self, topic: &str) {
        let options = AdminOptions::new().operation_timeout(Some(REQUEST));
        let results = self.admin().delete_topics(&[topic], &options).await.unwrap();
        results.into_iter().for_each(|result| drop(result.unwrap()));
        let what = format!("topic {topic} is gone");
        eventually(&what, async || (self.partitions(topic).await == 0).then_some(())).await;
    }
}

fn client(bootstrap: &str) -> ClientConfig {
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

/// Whether a topic belongs to a test: `t1_1` is not the beginning of `t1_12.order`.
fn is_of(topic: &str, prefix: &str) -> bool {
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

/// A broker shows a new topic a moment before it leads its partitions, so the question is asked again.
fn end(consumer: &BaseConsumer, topic: &str, partition: i32) -> Result<i64, KafkaError> {
    let deadline = Instant::now() + REQUEST;
    loop {
        match consumer.fetch_watermarks(topic, partition, REQUEST) {
            Err(KafkaError::MetadataFetch(Code::NotLeaderForPartition)) if Instant::now() < deadline => {
                std::thread::sleep(EVERY);
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
            // it goes on by itself when the broker is back
            Some(Err(KafkaError::MessageConsumption(
                Code::BrokerTransportFailure | Code::AllBrokersDown,
            ))) => continue,
            Some(Err(KafkaError::PartitionEOF(_))) => continue,
            Some(Err(error)) => return Err(error),
            None => {
                panic!("no record of {prefix} for {REQUEST:?}, and these are not read to their end: {ends:?}")
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

/// One partition after the other: markers of transactions take offsets too, so an end is what the broker says is one.
fn read_committed(consumer: &BaseConsumer, prefix: &str) -> Result<Vec<Record>, KafkaError> {
    let mut records = Vec::new();
    for (topic, partition) in ends(consumer, prefix)?.into_keys() {
        let mut assignment = TopicPartitionList::new();
        assignment.add_partition_offset(&topic, partition, Offset::Beginning)?;
        consumer.assign(&assignment)?;
        loop {
            match consumer.poll(REQUEST) {
                // what was fetched for another assignment
                Some(Ok(message)) if (message.topic(), message.partition()) != (&topic, partition) => {}
                Some(Ok(message)) => records.push(owned(&message)),
                Some(Err(KafkaError::PartitionEOF(ended))) if ended == partition => break,
                Some(Err(KafkaError::PartitionEOF(_))) => {}
                // it goes on by itself when the broker is back
                Some(Err(KafkaError::MessageConsumption(
                    Code::BrokerTransportFailure | Code::AllBrokersDown,
                ))) => {}
                Some(Err(error)) => return Err(error),
                None => panic!("no end of partition {partition} of {topic} for {REQUEST:?}"),
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
