//! Reading: everything of the topic that counts, up to its end as of now.

use std::time::{Duration, Instant};

use pg_logical::Lsn;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{ClientContext, Message, Offset, TopicPartitionList};

use super::PARTITION;
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::{Error, Exit, Peer};
use crate::sink::kafka::context::log;
use crate::sink::kafka::error_policy::failed;
use crate::sink::kafka::properties;

/// How long one answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long all of it may take, but for transactions that are open.
const IN_ALL: Duration = Duration::from_secs(30);

/// How long a transaction may be open for who tries again later.
pub(super) const AMPLE: Duration = Duration::from_secs(30);

/// After which it is said that one is waited for, by who does not try again.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// How far back the last record of a router is looked for before everything is read.
const STRETCH: i64 = 1_000;

/// What may be the record that counts.
pub struct Seen {
    /// The one, or nothing; where transactions are open, each that may count when they have ended.
    records: Vec<Option<Checkpoint>>,
    open: bool,
}

impl Seen {
    /// Nothing is remembered.
    pub(super) fn nothing() -> Self {
        Seen { records: vec![None], open: false }
    }

    /// Each record that may count.
    pub fn records(&self) -> impl Iterator<Item = Option<&Checkpoint>> {
        self.records.iter().map(Option::as_ref)
    }

    /// The record that counts, if nobody can be in a transaction under this name.
    pub(super) fn settled(mut self) -> Option<Option<Checkpoint>> {
        let in_transactions = self.records().flatten().any(|known| known.exactly_once);
        if self.open || in_transactions { None } else { self.records.pop() }
    }
}

/// The record that counts under the router's name. `confirmed`: what the slot confirms. A router that wrote less last was late,
/// and what counts may lie far before that. A transaction that may hide a record is waited for, `patience` long.
pub(super) async fn read(
    config: &Config,
    topic: &str,
    confirmed: Lsn,
    patience: Duration,
) -> Result<Option<Checkpoint>, Error> {
    Ok(search(config, topic, confirmed, Some(patience)).await?.committed.flatten())
}

/// The same without waiting for anybody.
pub(super) async fn look(config: &Config, topic: &str, confirmed: Lsn) -> Result<Seen, Error> {
    let Latest { committed, hidden } = search(config, topic, confirmed, None).await?;
    Ok(match hidden {
        None => Seen { records: vec![committed.flatten()], open: false },
        Some(hidden) => Seen { records: committed.into_iter().chain([hidden]).collect(), open: true },
    })
}

async fn search(
    config: &Config,
    topic: &str,
    confirmed: Lsn,
    patience: Option<Duration>,
) -> Result<Latest, Error> {
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
    let read = move || {
        let reader = Reader { committed, uncommitted, topic, key, confirmed, patience };
        let read = reader.read();
        // ending a consumer takes up to 100 ms, and nothing waits for it
        drop(tokio::task::spawn_blocking(move || drop(reader)));
        read
    };
    tokio::task::spawn_blocking(read)
        .await
        .map_err(|error| Error::transient(Peer::Kafka, format!("reading the positions: {error}")))?
}

struct Reader {
    committed: BaseConsumer<Quiet>,
    uncommitted: BaseConsumer<Quiet>,
    topic: String,
    key: String,
    confirmed: Lsn,
    /// `None`: nothing is waited for.
    patience: Option<Duration>,
}

/// The last of the records. Inside, `None` is a tombstone: somebody has made the router forget.
struct Latest {
    committed: Option<Option<Checkpoint>>,
    /// Of those behind an open transaction, which may be committed, taken back, or neither yet.
    hidden: Option<Option<Checkpoint>>,
}

/// A record under the router's name.
struct Ours {
    offset: i64,
    value: Option<Vec<u8>>,
}

impl Ours {
    /// Whether it counts by being there. Any other may be in a transaction that is taken back.
    fn stands_alone(&self) -> bool {
        let value = self.value.as_deref().map(Checkpoint::decode);
        matches!(value, Some(Ok(remembered)) if !remembered.exactly_once)
    }
}

/// Blocks.
impl Reader {
    fn read(&self) -> Result<Latest, Error> {
        let deadline = Instant::now() + IN_ALL;
        // the true end; a read_committed consumer sees one before the first open transaction
        let (low, high) = match self.uncommitted.fetch_watermarks(&self.topic, PARTITION, ANSWER_TIMEOUT) {
            Ok(ends) => ends,
            Err(error) if is_missing(&error) => {
                // librdkafka says the same of a partition without a leader, and what cannot be read is not nothing
                if self.is_there()? {
                    return Err(self.late(&format!("its partition {PARTITION} has no leader: {error}")));
                }
                return Ok(Latest { committed: None, hidden: None });
            }
            Err(error) => return Err(self.failed(&error)),
        };
        let near = low.max(high.saturating_sub(STRETCH));
        let found = self.stretch(near, high, deadline)?;
        let is_late = |found: &Checkpoint| found.position.flush < self.confirmed;
        match &found.committed {
            Some(Some(committed)) if is_late(committed) => {}
            Some(_) => return Ok(found),
            None => {}
        }
        self.stretch(low, high, deadline)
    }

    /// The last of our records from one offset up to, not including, another, but for those that were taken back.
    fn stretch(&self, from: i64, to: i64, deadline: Instant) -> Result<Latest, Error> {
        if from >= to {
            return Ok(Latest { committed: None, hidden: None });
        }
        let open_from = self.end(&self.committed)?;
        if open_from >= to {
            let ours = self.ours(&self.committed, from, to, deadline)?;
            return Ok(Latest { committed: self.latest(&ours)?, hidden: None });
        }
        // Transactions of others are open, and nobody waits for what they hide unless it may be in one itself.
        let mut all = self.ours(&self.uncommitted, from, to, deadline)?;
        let doubtful = all.iter().rev().find(|ours| !ours.stands_alone());
        let Some(doubtful) = doubtful.map(|ours| ours.offset) else {
            return Ok(Latest { committed: self.latest(&all)?, hidden: None });
        };
        if open_from <= doubtful {
            let Some(patience) = self.patience else {
                let shown = self.ours(&self.committed, from, open_from, deadline)?;
                all.retain(|ours| ours.offset >= open_from);
                return Ok(Latest { committed: self.latest(&shown)?, hidden: self.latest(&all)? });
            };
            self.wait_for_transaction(doubtful, patience)?;
        }
        let mut found = self.ours(&self.committed, from, doubtful + 1, Instant::now() + IN_ALL)?;
        found.extend(all.into_iter().filter(|ours| ours.offset > doubtful));
        Ok(Latest { committed: self.latest(&found)?, hidden: None })
    }

    /// Until a read_committed consumer sees everything up to this offset.
    fn wait_for_transaction(&self, offset: i64, patience: Duration) -> Result<(), Error> {
        let (begun, mut told) = (Instant::now(), false);
        while self.end(&self.committed)? <= offset {
            let waited = begun.elapsed();
            if waited >= patience {
                return Err(self.late(
                    "a transaction in it stays open; Kafka ends it when its transaction.timeout.ms is over",
                ));
            }
            if waited >= TOLD_AFTER && patience > AMPLE && !told {
                told = true;
                tracing::warn!(
                    topic = self.topic,
                    name = self.key,
                    "waiting for the end of a transaction that somebody was cut off in; Kafka ends it when its transaction.timeout.ms is over"
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Whether the brokers know the partition.
    fn is_there(&self) -> Result<bool, Error> {
        let metadata = self.uncommitted.fetch_metadata(Some(&self.topic), ANSWER_TIMEOUT);
        let metadata = metadata.map_err(|error| self.failed(&error))?;
        Ok(metadata.topics().iter().any(|topic| topic.name() == self.topic && !topic.partitions().is_empty()))
    }

    fn end(&self, consumer: &BaseConsumer<Quiet>) -> Result<i64, Error> {
        let ends = consumer.fetch_watermarks(&self.topic, PARTITION, ANSWER_TIMEOUT);
        ends.map(|(_, high)| high).map_err(|error| self.failed(&error))
    }

    /// As this consumer is shown them.
    fn ours(
        &self,
        consumer: &BaseConsumer<Quiet>,
        from: i64,
        to: i64,
        deadline: Instant,
    ) -> Result<Vec<Ours>, Error> {
        // behind the last stable offset librdkafka reports neither records nor an end
        if from >= to {
            return Ok(Vec::new());
        }
        let mut assignment = TopicPartitionList::new();
        let assigned = assignment
            .add_partition_offset(&self.topic, PARTITION, Offset::Offset(from))
            .and_then(|()| consumer.assign(&assignment));
        assigned.map_err(|error| self.failed(&error))?;
        let mut found = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match consumer.poll(left.min(ANSWER_TIMEOUT)) {
                Some(Ok(message)) => {
                    let offset = message.offset();
                    if offset < to && message.key() == Some(self.key.as_bytes()) {
                        found.push(Ours { offset, value: message.payload().map(<[u8]>::to_vec) });
                    }
                    if offset + 1 >= to {
                        return Ok(found);
                    }
                }
                Some(Err(KafkaError::PartitionEOF(_))) => return Ok(found),
                // what concerns the group is no matter; the rest goes on by itself when a broker is back
                Some(Err(KafkaError::MessageConsumption(
                    Code::BrokerTransportFailure | Code::AllBrokersDown | Code::GroupAuthorizationFailed,
                ))) if !left.is_zero() => {}
                Some(Err(error)) => return Err(self.failed(&error)),
                None if left.is_zero() => return Err(self.late("the brokers do not answer")),
                None => {}
            }
        }
    }

    /// What counts among these. `Some(None)`: somebody has made the router forget, with a tombstone.
    fn latest(&self, found: &[Ours]) -> Result<Option<Option<Checkpoint>>, Error> {
        let mut latest = None;
        for ours in found {
            let before = latest.take().unwrap_or(Ok(None));
            latest = Some(self.take(before, ours.value.as_deref()));
        }
        latest.transpose()
    }

    /// A tombstone makes the router forget also what cannot be read; nothing else makes up for that.
    fn take(
        &self,
        before: Result<Option<Checkpoint>, Error>,
        value: Option<&[u8]>,
    ) -> Result<Option<Checkpoint>, Error> {
        let Some(value) = value else { return Ok(None) };
        let before = before?;
        let next = Checkpoint::decode(value).map_err(|error| {
            Error::not_safe(
                format!("the position of the router {} in the topic {} cannot be read: {error}", self.key, self.topic),
                "Run the version that wrote it. Or let the router go on at the slot's own position: write a record with the \
                 same key and no value (a tombstone) behind it, or set another `[delivery] positions_topic`",
            )
        })?;
        Ok(Checkpoint::later(before, next))
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
