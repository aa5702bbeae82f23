//! The consumer: reads every record of its topics from the beginning, on a thread of its own, and notes when each
//! arrived.
//!
//! It assigns itself the partitions, without a group: nothing is read twice because of a rebalance, so that a record
//! that appears twice is twice in the log.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

const ANSWER: Duration = Duration::from_secs(10);

/// A client that has received nothing for this long is asked whether it still knows the topics.
const QUIET: Duration = Duration::from_secs(3);

/// How long it may take to answer that.
const METADATA_TIMEOUT: Duration = Duration::from_secs(1);

/// After this many failures in a row the client is replaced: librdkafka may forget its brokers for good (its issue 5301). It is
/// replaced long before the campaign calls it a standstill of the router.
const MISSES: u32 = 3;

/// One record as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    /// Names and values, in the record's order.
    pub(crate) headers: Vec<(String, Option<Vec<u8>>)>,
    pub(crate) arrived: Instant,
}

impl Received {
    /// The text of the header `id`.
    pub(crate) fn id(&self) -> Option<&str> {
        self.header("id")
    }

    /// The text of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let value =
            self.headers.iter().find(|(found, _)| found == name).and_then(|(_, value)| value.as_deref());
        value.and_then(|value| std::str::from_utf8(value).ok())
    }
}

/// The consumer at work.
pub(crate) struct Reading {
    records: Receiver<Received>,
    read: Arc<AtomicU64>,
    last_lap: Arc<AtomicBool>,
    given_up: Arc<AtomicBool>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Reading {
    /// Begins to read `topics`, also those that do not exist yet.
    pub(crate) fn begin(brokers: &str, topics: Vec<String>) -> anyhow::Result<Self> {
        Self::begin_with(brokers, topics, &[])
    }

    /// The same, with settings of librdkafka's besides.
    pub(crate) fn begin_with(
        brokers: &str,
        topics: Vec<String>,
        settings: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", brokers)
            .set("client.id", "consumer")
            // librdkafka wants one, though nothing is committed to it
            .set("group.id", "consumer")
            // what is measured is the router's way back to a broker, not the consumer's
            .set("reconnect.backoff.ms", "20")
            .set("reconnect.backoff.max.ms", "100")
            .set("fetch.error.backoff.ms", "20")
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "error")
            .set("allow.auto.create.topics", "false")
            // markers of transactions take offsets too: where a log ends is what the broker says
            .set("isolation.level", "read_committed")
            .set("enable.partition.eof", "true");
        for (name, value) in settings {
            config.set(*name, *value);
        }
        let consumer = config.create().context("create a consumer")?;
        let (sender, records) = mpsc::channel();
        let read = Arc::new(AtomicU64::new(0));
        let last_lap = Arc::new(AtomicBool::new(false));
        let given_up = Arc::new(AtomicBool::new(false));
        let worker = Worker {
            config,
            consumer,
            heard: Instant::now(),
            misses: 0,
            missing: topics.into_iter().collect(),
            assigned: Vec::new(),
            sender,
            read: Arc::clone(&read),
            last_lap: Arc::clone(&last_lap),
            given_up: Arc::clone(&given_up),
        };
        let thread = thread::Builder::new()
            .name("consumer".to_owned())
            .spawn(move || worker.run())
            .context("start the consumer's thread")?;
        Ok(Reading { records, read, last_lap, given_up, thread: Some(thread) })
    }

    /// How many records were read so far.
    pub(crate) fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.read)
    }

    /// Appends what arrived since the last call.
    ///
    /// # Errors
    /// The consumer ended by itself.
    pub(crate) fn take(&mut self, into: &mut Vec<Received>) -> anyhow::Result<()> {
        into.extend(self.records.try_iter());
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            self.join()?;
        }
        Ok(())
    }

    /// Reads on to what is the end of every partition now, appends it and ends. Call it when nobody writes any more.
    ///
    /// # Errors
    /// The ends were not reached within half a minute, or the consumer had ended by itself.
    pub(crate) fn finish(mut self, into: &mut Vec<Received>) -> anyhow::Result<()> {
        self.last_lap.store(true, Ordering::Relaxed);
        into.extend(self.records.iter());
        self.join()
    }

    fn join(&mut self) -> anyhow::Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().map_err(|_| anyhow::anyhow!("the consumer panicked"))?
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.given_up.store(true, Ordering::Relaxed);
        let _ = self.join();
    }
}

struct Worker {
    config: ClientConfig,
    consumer: BaseConsumer,
    /// When the last record came, or the client was asked what it knows.
    heard: Instant,
    misses: u32,
    /// Topics that do not exist yet.
    missing: HashSet<String>,
    assigned: Vec<Assigned>,
    sender: Sender<Received>,
    read: Arc<AtomicU64>,
    last_lap: Arc<AtomicBool>,
    given_up: Arc<AtomicBool>,
}

/// A partition that is read.
struct Assigned {
    topic: String,
    partition: i32,
    /// The offset behind the last record.
    next: Option<i64>,
}

impl Assigned {
    fn offset(&self) -> Offset {
        self.next.map_or(Offset::Beginning, Offset::Offset)
    }
}

impl Worker {
    fn run(mut self) -> anyhow::Result<()> {
        while !self.given_up.load(Ordering::Relaxed) {
            if self.last_lap.load(Ordering::Relaxed) {
                return self.read_to_the_end();
            }
            if self.missing.is_empty() {
                self.poll(Duration::from_millis(100))?;
            } else {
                self.look_for_topics()?;
                self.poll(Duration::from_millis(20))?;
            }
            if self.heard.elapsed() > QUIET {
                self.look_after_client()?;
            }
        }
        Ok(())
    }

    /// To ask is enough where the client has only heard that a topic is gone, from a broker that had just come back.
    fn look_after_client(&mut self) -> anyhow::Result<()> {
        let known = self.consumer.fetch_metadata(None, METADATA_TIMEOUT).is_ok_and(|metadata| {
            let there =
                |wanted: &Assigned| metadata.topics().iter().any(|topic| topic.name() == wanted.topic);
            self.assigned.iter().all(there)
        });
        if known {
            (self.misses, self.heard) = (0, Instant::now());
            return Ok(());
        }
        self.misses += 1;
        if self.misses < MISSES { Ok(()) } else { self.begin_anew() }
    }

    /// Reads on with a new client.
    fn begin_anew(&mut self) -> anyhow::Result<()> {
        (self.misses, self.heard) = (0, Instant::now());
        self.consumer = self.config.create().context("create a consumer")?;
        let mut list = TopicPartitionList::new();
        for assigned in &self.assigned {
            list.add_partition_offset(&assigned.topic, assigned.partition, assigned.offset())?;
        }
        self.consumer.assign(&list).context("assign partitions")
    }

    /// Assigns the partitions of topics that have come to be.
    fn look_for_topics(&mut self) -> anyhow::Result<()> {
        // of all topics: to ask for one by name may create it
        let metadata = match self.consumer.fetch_metadata(None, ANSWER) {
            Ok(metadata) => metadata,
            // a broker that is away comes back, and the deadline for the records is somebody else's
            Err(KafkaError::MetadataFetch(_)) => return Ok(()),
            Err(error) => return Err(error).context("ask for the topics"),
        };
        for topic in metadata.topics() {
            if topic.partitions().is_empty() || !self.missing.remove(topic.name()) {
                continue;
            }
            let mut list = TopicPartitionList::new();
            for partition in topic.partitions() {
                list.add_partition_offset(topic.name(), partition.id(), Offset::Beginning)?;
                let (topic, partition) = (topic.name().to_owned(), partition.id());
                self.assigned.push(Assigned { topic, partition, next: None });
            }
            self.consumer.incremental_assign(&list).context("assign partitions")?;
        }
        Ok(())
    }

    fn poll(&mut self, timeout: Duration) -> anyhow::Result<()> {
        match self.consumer.poll(timeout) {
            None | Some(Err(KafkaError::PartitionEOF(_))) => {}
            Some(Ok(message)) => {
                let record = received(&message, Instant::now());
                drop(message);
                self.hand_on(record);
            }
            // librdkafka reports a lost connection and makes it again by itself
            Some(Err(KafkaError::MessageConsumption(code)))
                if code != rdkafka::types::RDKafkaErrorCode::AutoOffsetReset => {}
            Some(Err(error)) => return Err(error).context("read"),
        }
        Ok(())
    }

    fn hand_on(&mut self, record: Received) {
        self.read.fetch_add(1, Ordering::Relaxed);
        self.heard = record.arrived;
        let of = |assigned: &&mut Assigned| {
            assigned.partition == record.partition && assigned.topic == record.topic
        };
        if let Some(assigned) = self.assigned.iter_mut().find(of) {
            assigned.next = Some(record.offset + 1);
        }
        // nobody takes them any more when the program has been interrupted
        let _ = self.sender.send(record);
    }

    fn read_to_the_end(&mut self) -> anyhow::Result<()> {
        self.look_for_topics()?;
        self.begin_anew()?;
        let mut behind = Vec::new();
        for Assigned { topic, partition, next } in &self.assigned {
            let (begin, end) = self
                .consumer
                .fetch_watermarks(topic, *partition, ANSWER)
                .with_context(|| format!("ask for the end of {topic}/{partition}"))?;
            let next = next.unwrap_or(begin);
            if next < end {
                behind.push((topic.clone(), *partition, next));
            }
        }
        let deadline = Instant::now() + Duration::from_secs(30);
        // one after the other, for an end does not say of which topic it is
        for (topic, partition, next) in behind {
            let mut alone = TopicPartitionList::new();
            alone.add_partition_offset(&topic, partition, Offset::Offset(next))?;
            self.consumer.assign(&alone).context("assign a partition")?;
            loop {
                anyhow::ensure!(
                    Instant::now() < deadline,
                    "the end of {topic}/{partition} was not reached in 30 s"
                );
                if self.given_up.load(Ordering::Relaxed) {
                    return Ok(());
                }
                match self.consumer.poll(Duration::from_millis(100)) {
                    Some(Err(KafkaError::PartitionEOF(ended))) if ended == partition => break,
                    Some(Ok(message)) if (message.topic(), message.partition()) == (&*topic, partition) => {
                        let record = received(&message, Instant::now());
                        drop(message);
                        self.hand_on(record);
                    }
                    // of an assignment before, or a connection that is made again by itself
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn received(message: &BorrowedMessage<'_>, arrived: Instant) -> Received {
    let headers = message.headers().map(|headers| {
        headers.iter().map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec))).collect()
    });
    Received {
        topic: message.topic().to_owned(),
        partition: message.partition(),
        offset: message.offset(),
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers: headers.unwrap_or_default(),
        arrived,
    }
}
