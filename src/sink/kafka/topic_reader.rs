//! Looks for one record of a topic, as a consumer of committed records sees it.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::{Offset, TopicPartitionList};

use super::context::ReaderContext;
use super::error_policy::error_of_kafka;
use super::properties;
use crate::config::Config;
use crate::error::{Error, ErrorCode, Exit, Peer};

const CONTEXT: ReaderContext = ReaderContext("connection of the end-to-end check");

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How long one poll waits, and how often a missing topic is looked for.
const INTERVAL: Duration = Duration::from_millis(50);

/// Reads a topic from its end at a certain time. It joins no group and commits no offset.
pub struct TopicReader {
    consumer: BaseConsumer<ReaderContext>,
    topic: String,
    /// Whether the topic exists and is being read.
    assigned: bool,
}

/// Where to begin.
#[derive(Clone, Copy)]
enum Begin {
    AtStart,
    AtEnd,
}

impl TopicReader {
    /// Begins at the present end of the topic. One that does not exist yet is read from its beginning.
    ///
    /// # Errors
    /// No answer in time, or the principal may not read the topic.
    pub async fn at_end(config: &Config, topic: &str) -> Result<Self, Error> {
        let consumer = properties::make(&properties::consumer(config), CONTEXT)?;
        let mut reader = TopicReader { consumer, topic: topic.to_owned(), assigned: false };
        blocking(move || {
            reader.assign(Begin::AtEnd, ANSWER_TIMEOUT)?;
            reader.wait_for_answer()?;
            Ok(reader)
        })
        .await
    }

    /// Waits until the topic has a record of which a header is `mark`, or the value contains it. Returns when it was seen;
    /// `None` if it was not seen before `deadline`.
    ///
    /// # Errors
    /// The principal may not read the topic.
    pub async fn find(mut self, mark: String, deadline: Instant) -> Result<Option<Instant>, Error> {
        blocking(move || {
            loop {
                let rest = deadline.saturating_duration_since(Instant::now());
                if rest.is_zero() {
                    return Ok(None);
                }
                if !self.assigned {
                    match self.assign(Begin::AtStart, rest.min(ANSWER_TIMEOUT)) {
                        Err(Error::Definite(denied)) => return Err(denied.into()),
                        // the topic may be about to be created
                        _ => std::thread::sleep(INTERVAL),
                    }
                    continue;
                }
                match self.consumer.poll(INTERVAL) {
                    Some(Ok(record)) if has(&record, &mark) => return Ok(Some(Instant::now())),
                    Some(Err(error)) => self.not_denied(&error)?,
                    _ => {}
                }
            }
        })
        .await
    }

    /// Reads all partitions of the topic, if it exists. Each answer may take this long.
    fn assign(&mut self, begin: Begin, timeout: Duration) -> Result<(), Error> {
        let failed = |error: KafkaError| {
            error_of_kafka(&format!("read the topic {}", self.topic), &error, Exit::Refused)
        };
        let metadata = self.consumer.fetch_metadata(Some(&self.topic), timeout).map_err(failed)?;
        let mut partitions = TopicPartitionList::new();
        for topic in metadata.topics().iter().filter(|topic| topic.name() == self.topic) {
            if let Some(error) = topic.error() {
                self.not_denied(&KafkaError::MetadataFetch(error.into()))?;
            }
            for partition in topic.partitions() {
                let offset = match begin {
                    Begin::AtStart => Offset::Beginning,
                    Begin::AtEnd => {
                        let ends = self.consumer.fetch_watermarks(&self.topic, partition.id(), timeout);
                        Offset::Offset(ends.map_err(failed)?.1)
                    }
                };
                partitions.add_partition_offset(&self.topic, partition.id(), offset).map_err(failed)?;
            }
        }
        self.consumer.assign(&partitions).map_err(failed)?;
        self.assigned = partitions.count() > 0;
        Ok(())
    }

    /// Waits for the first answer, which may be that the topic may not be read.
    fn wait_for_answer(&self) -> Result<(), Error> {
        if !self.assigned {
            return Ok(());
        }
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            match self.consumer.poll(INTERVAL) {
                Some(Ok(_) | Err(KafkaError::PartitionEOF(_))) => return Ok(()),
                Some(Err(error)) => self.not_denied(&error)?,
                None if Instant::now() >= deadline => {
                    let what = format!(
                        "the brokers did not answer a request for the topic {}, or a transaction of another producer in it is open",
                        self.topic
                    );
                    return Err(Error::transient(Peer::Kafka, what));
                }
                None => {}
            }
        }
    }

    /// The error if the principal may not read the topic. After any other, the consumer tries again.
    fn not_denied(&self, error: &KafkaError) -> Result<(), Error> {
        match error.rdkafka_error_code() {
            Some(Code::TopicAuthorizationFailed) => Err(Error::refused(
                ErrorCode::KafkaRefused,
                format!("the topic {} may not be read, so no event can be looked for", self.topic),
                "Grant the router's principal READ on the topic, which only this check needs",
            )),
            _ => Ok(()),
        }
    }
}

fn has(record: &BorrowedMessage<'_>, mark: &str) -> bool {
    let mark = mark.as_bytes();
    let in_value = record.payload().is_some_and(|value| value.windows(mark.len()).any(|part| part == mark));
    in_value || record.headers().is_some_and(|all| all.iter().any(|header| header.value == Some(mark)))
}

/// Runs calls of librdkafka that block.
async fn blocking<T: Send + 'static>(
    calls: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(calls).await;
    done.map_err(|error| Error::transient(Peer::Kafka, format!("reading the topic: {error}")))?
}
