//! Reading: everything of the topic that counts, up to its end as of now.

use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{ClientContext, Message, Offset, TopicPartitionList};

use super::PARTITION;
use crate::config::Config;
use crate::error::{Error, Exit, Peer};
use crate::positions::Remembered;
use crate::sink::kafka::context::log;
use crate::sink::kafka::properties;
use crate::sink::kafka::verdict::failed;

/// How long one answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long all of it may take.
const IN_ALL: Duration = Duration::from_secs(30);

/// How far back the last record of a router is looked for before everything is read.
const STRETCH: i64 = 1_000;

/// The record that counts under the router's name.
pub(super) async fn read(config: &Config, topic: &str) -> Result<Option<Remembered>, Error> {
    let mut settings = properties::client(config);
    settings
        // librdkafka reads nothing without a group's name; it joins none, and commits nothing
        .set("group.id", &config.name)
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        // what another router has not committed may yet be taken back
        .set("isolation.level", "read_committed")
        // the end is asked for, not waited for
        .set("fetch.wait.max.ms", "10")
        .set("queued.max.messages.kbytes", "1024")
        .set("fetch.message.max.bytes", "1048576");
    let committed: BaseConsumer<Quiet> = properties::make(&settings, Quiet)?;
    settings.set("isolation.level", "read_uncommitted");
    let uncommitted: BaseConsumer<Quiet> = properties::make(&settings, Quiet)?;
    let (topic, key) = (topic.to_owned(), config.name.clone());
    let read = move || Reader { committed, uncommitted, topic, key }.read();
    tokio::task::spawn_blocking(read)
        .await
        .map_err(|error| Error::transient(Peer::Kafka, format!("reading the positions: {error}")))?
}

struct Reader {
    committed: BaseConsumer<Quiet>,
    uncommitted: BaseConsumer<Quiet>,
    topic: String,
    key: String,
}

/// Blocks.
impl Reader {
    fn read(self) -> Result<Option<Remembered>, Error> {
        let deadline = Instant::now() + IN_ALL;
        // the true end; who reads what is committed is shown one before the first open transaction
        let (low, high) = match self.uncommitted.fetch_watermarks(&self.topic, PARTITION, ANSWER_TIMEOUT) {
            Ok(ends) => ends,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(self.failed(&error)),
        };
        while self.end(&self.committed)? < high {
            if Instant::now() >= deadline {
                return Err(self.late("a transaction in it stays open"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let near = low.max(high.saturating_sub(STRETCH));
        let found = match self.stretch(near, high, deadline)? {
            None => self.stretch(low, near, deadline)?,
            found => found,
        };
        Ok(found.flatten())
    }

    fn end(&self, consumer: &BaseConsumer<Quiet>) -> Result<i64, Error> {
        let ends = consumer.fetch_watermarks(&self.topic, PARTITION, ANSWER_TIMEOUT);
        ends.map(|(_, high)| high).map_err(|error| self.failed(&error))
    }

    /// What counts among the records from one offset up to, not including, another. `Some(None)`: somebody has made the
    /// router forget, with a tombstone.
    fn stretch(&self, from: i64, to: i64, deadline: Instant) -> Result<Option<Option<Remembered>>, Error> {
        if from >= to {
            return Ok(None);
        }
        let mut assignment = TopicPartitionList::new();
        let assigned = assignment
            .add_partition_offset(&self.topic, PARTITION, Offset::Offset(from))
            .and_then(|()| self.committed.assign(&assignment));
        assigned.map_err(|error| self.failed(&error))?;
        let mut found: Option<Result<Option<Remembered>, Error>> = None;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.committed.poll(left.min(ANSWER_TIMEOUT)) {
                Some(Ok(message)) => {
                    if message.offset() < to && message.key() == Some(self.key.as_bytes()) {
                        let before = found.take().unwrap_or(Ok(None));
                        found = Some(self.take(before, message.payload()));
                    }
                    if message.offset() + 1 >= to {
                        break;
                    }
                }
                Some(Err(KafkaError::PartitionEOF(_))) => break,
                // what concerns the group is no matter; the rest goes on by itself when a broker is back
                Some(Err(KafkaError::MessageConsumption(
                    Code::BrokerTransportFailure | Code::AllBrokersDown | Code::GroupAuthorizationFailed,
                ))) if !left.is_zero() => {}
                Some(Err(error)) => return Err(self.failed(&error)),
                None if left.is_zero() => return Err(self.late("the brokers do not answer")),
                None => {}
            }
        }
        found.transpose()
    }

    /// A tombstone makes the router forget also what cannot be read; nothing else makes up for that.
    fn take(
        &self,
        before: Result<Option<Remembered>, Error>,
        value: Option<&[u8]>,
    ) -> Result<Option<Remembered>, Error> {
        let Some(value) = value else { return Ok(None) };
        let before = before?;
        let next = Remembered::decode(value).map_err(|error| {
            Error::not_safe(
                format!("the position of the router {} in the topic {} cannot be read: {error}", self.key, self.topic),
                "Run the version that wrote it. Or let the router go on at the slot's own position: write a record with the \
                 same key and no value (a tombstone) behind it, or set another `[delivery] positions_topic`",
            )
        })?;
        Ok(Remembered::later(before, next))
    }

    fn failed(&self, error: &KafkaError) -> Error {
        failed(&format!("read the topic {}", self.topic), error, Exit::Refused)
    }

    fn late(&self, why: &str) -> Error {
        Error::transient(Peer::Kafka, format!("the topic {} cannot be read to its end: {why}", self.topic))
    }
}

fn is_missing(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition)
    )
}

/// That brokers are away is what the producer of the events says.
struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(peer = "kafka", %error, reason, "connection of the positions");
    }
}

impl ConsumerContext for Quiet {}
