//! The consumer: reads every record of its topics from the beginning, on its own thread, and records when each arrived.
//!
//! It assigns the partitions itself instead of joining a group. So no rebalance repeats records, and a record that appears twice
//! is in the log twice.

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

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// If no record arrives for this long, the topics are looked up, to check that the client still works.
const CHECK_AFTER: Duration = Duration::from_secs(3);

/// How long that lookup may take.
const METADATA_TIMEOUT: Duration = Duration::from_secs(1);

/// After this many failures in a row the client is replaced: librdkafka may forget its brokers for good (its issue 5301). That is
/// early enough for the campaign not to report a standstill of the router.
const MAX_FAILURES: u32 = 3;

/// One received record.
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

/// The running consumer; dropping it ends it.
pub(crate) struct TopicReader {
    records: Receiver<Received>,
    read: Arc<AtomicU64>,
    finishing: Arc<AtomicBool>,
    cancelled: Arc<AtomicBool>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl TopicReader {
    /// Starts reading `topics`, including those that do not exist yet.
    pub(crate) fn start(brokers: &str, topics: Vec<String>) -> anyhow::Result<Self> {
        Self::start_with(brokers, topics, &[])
    }

    /// The same with additional librdkafka settings.
    pub(crate) fn start_with(
        brokers: &str,
        topics: Vec<String>,
        settings: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", brokers)
            .set("client.id", "consumer")
            // librdkafka requires a group, even if nothing is committed
            .set("group.id", "consumer")
            // reconnect fast: recovery times should be the router's, not the consumer's
            .set("reconnect.backoff.ms", "20")
            .set("reconnect.backoff.max.ms", "100")
            .set("fetch.error.backoff.ms", "20")
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "error")
            .set("allow.auto.create.topics", "false")
            // transaction markers take offsets too, so the end of a log is known only from the broker's EOF
            .set("isolation.level", "read_committed")
            .set("enable.partition.eof", "true");
        for (name, value) in settings {
            config.set(*name, *value);
        }
        let consumer = config.create().context("create a consumer")?;
        let (sender, records) = mpsc::channel();
        let read = Arc::new(AtomicU64::new(0));
        let finishing = Arc::new(AtomicBool::new(false));
        let cancelled = Arc::new(AtomicBool::new(false));
        let worker = Worker {
            config,
            consumer,
            last_activity: Instant::now(),
            failures: 0,
            missing: topics.into_iter().collect(),
            assigned: Vec::new(),
            sender,
            read: Arc::clone(&read),
            finishing: Arc::clone(&finishing),
            cancelled: Arc::clone(&cancelled),
        };
        let thread = thread::Builder::new()
            .name("consumer".to_owned())
            .spawn(move || worker.run())
            .context("start the consumer's thread")?;
        Ok(TopicReader { records, read, finishing, cancelled, thread: Some(thread) })
    }

    /// A counter of the records read.
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

    /// Reads to the present end of every partition, appends the records and ends. Call it after the last writer has ended.
    ///
    /// # Errors
    /// The ends were not reached within 30 s, or the consumer had ended by itself.
    pub(crate) fn finish(mut self, into: &mut Vec<Received>) -> anyhow::Result<()> {
        self.finishing.store(true, Ordering::Relaxed);
        into.extend(self.records.iter());
        self.join()
    }

    fn join(&mut self) -> anyhow::Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().map_err(|_| anyhow::anyhow!("the consumer panicked"))?
    }
}

impl Drop for TopicReader {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
        let _ = self.join();
    }
}

struct Worker {
    config: ClientConfig,
    consumer: BaseConsumer,
    /// When the last record arrived or the last check succeeded.
    last_activity: Instant,
    failures: u32,
    /// Topics that do not exist yet.
    missing: HashSet<String>,
    assigned: Vec<Assigned>,
    sender: Sender<Received>,
    read: Arc<AtomicU64>,
    finishing: Arc<AtomicBool>,
    cancelled: Arc<AtomicBool>,
}

/// A partition that is read.
struct Assigned {
    topic: String,
    partition: i32,
    /// The offset after the last record.
    next: Option<i64>,
}

impl Assigned {
    fn offset(&self) -> Offset {
        self.next.map_or(Offset::Beginning, Offset::Offset)
    }
}

impl Worker {
    fn run(mut self) -> anyhow::Result<()> {
        while !self.cancelled.load(Ordering::Relaxed) {
            if self.finishing.load(Ordering::Relaxed) {
                return self.read_to_the_end();
            }
            if self.missing.is_empty() {
                self.poll(Duration::from_millis(100))?;
            } else {
                self.look_for_topics()?;
                self.poll(Duration::from_millis(20))?;
            }
            if self.last_activity.elapsed() > CHECK_AFTER {
                self.check_client()?;
            }
        }
        Ok(())
    }

    /// Looks up the topics, and replaces the client after repeated failures. The lookup alone repairs a client that was told by a
    /// restarting broker that a topic is gone.
    fn check_client(&mut self) -> anyhow::Result<()> {
        let known = self.consumer.fetch_metadata(None, METADATA_TIMEOUT).is_ok_and(|metadata| {
            let there =
                |wanted: &Assigned| metadata.topics().iter().any(|topic| topic.name() == wanted.topic);
            self.assigned.iter().all(there)
        });
        if known {
            (self.failures, self.last_activity) = (0, Instant::now());
            return Ok(());
        }
        self.failures += 1;
        if self.failures < MAX_FAILURES { Ok(()) } else { self.replace_client() }
    }

    /// Continues with a new client.
    fn replace_client(&mut self) -> anyhow::Result<()> {
        (self.failures, self.last_activity) = (0, Instant::now());
        self.consumer = self.config.create().context("create a consumer")?;
        let mut list = TopicPartitionList::new();
        for assigned in &self.assigned {
            list.add_partition_offset(&assigned.topic, assigned.partition, assigned.offset())?;
        }
        self.consumer.assign(&list).context("assign partitions")
    }

    /// Assigns the partitions of topics that exist now.
    fn look_for_topics(&mut self) -> anyhow::Result<()> {
        // all topics, since a request for one by name may create it
        let metadata = match self.consumer.fetch_metadata(None, REQUEST_TIMEOUT) {
            Ok(metadata) => metadata,
            // try again later; the caller sets the deadline
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
                self.forward(record);
            }
            // librdkafka reports a lost connection, and reconnects by itself
            Some(Err(KafkaError::MessageConsumption(code)))
                if code != rdkafka::types::RDKafkaErrorCode::AutoOffsetReset => {}
            Some(Err(error)) => return Err(error).context("read"),
        }
        Ok(())
    }

    fn forward(&mut self, record: Received) {
        self.read.fetch_add(1, Ordering::Relaxed);
        self.last_activity = record.arrived;
        let of = |assigned: &&mut Assigned| {
            assigned.partition == record.partition && assigned.topic == record.topic
        };
        if let Some(assigned) = self.assigned.iter_mut().find(of) {
            assigned.next = Some(record.offset + 1);
        }
        // the receiver is gone if the program was interrupted
        let _ = self.sender.send(record);
    }

    fn read_to_the_end(&mut self) -> anyhow::Result<()> {
        self.look_for_topics()?;
        self.replace_client()?;
        let mut behind = Vec::new();
        for Assigned { topic, partition, next } in &self.assigned {
            let (begin, end) = self
                .consumer
                .fetch_watermarks(topic, *partition, REQUEST_TIMEOUT)
                .with_context(|| format!("ask for the end of {topic}/{partition}"))?;
            let next = next.unwrap_or(begin);
            if next < end {
                behind.push((topic.clone(), *partition, next));
            }
        }
        let deadline = Instant::now() + Duration::from_secs(30);
        // one partition at a time, because an EOF does not name its topic
        for (topic, partition, next) in behind {
            let mut alone = TopicPartitionList::new();
            alone.add_partition_offset(&topic, partition, Offset::Offset(next))?;
            self.consumer.assign(&alone).context("assign a partition")?;
            loop {
                anyhow::ensure!(
                    Instant::now() < deadline,
                    "the end of {topic}/{partition} was not reached within 30 s"
                );
                if self.cancelled.load(Ordering::Relaxed) {
                    return Ok(());
                }
                match self.consumer.poll(Duration::from_millis(100)) {
                    Some(Err(KafkaError::PartitionEOF(ended))) if ended == partition => break,
                    Some(Ok(message)) if (message.topic(), message.partition()) == (&*topic, partition) => {
                        let record = received(&message, Instant::now());
                        drop(message);
                        self.forward(record);
                    }
                    // from an earlier assignment, or a lost connection that librdkafka restores
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
