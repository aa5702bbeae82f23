//! Reads the checkpoints in the topic, up to its current end.

use std::time::{Duration, Instant};

use pg_logical::Lsn;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{Message, Offset, TopicPartitionList};

use super::PARTITION;
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::{Error, ErrorCode, Exit, Peer, Remedy, Step};
use crate::sink::kafka::acls::Grants;
use crate::sink::kafka::context::ReaderContext;
use crate::sink::kafka::error_policy::{error_of_kafka, error_of_request};
use crate::sink::kafka::properties;

const CONTEXT: ReaderContext = ReaderContext("connection of the positions");

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long reading may take, not counting the wait for open transactions.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// How long callers that try again later wait for an open transaction.
pub(super) const OPEN_TRANSACTION_TIMEOUT: Duration = Duration::from_secs(30);

/// After this time, callers that do not try again log that they wait.
const LOG_WAIT_AFTER: Duration = Duration::from_secs(2);

/// How many of the last records are searched before everything is read.
const TAIL_RECORDS: i64 = 1_000;

/// The checkpoints that may count.
pub struct StoredCheckpoints {
    /// One entry, `None` if there is no checkpoint. With open transactions, each that may count after they have ended.
    records: Vec<Option<Checkpoint>>,
    open: bool,
}

impl StoredCheckpoints {
    /// No checkpoint.
    pub(super) fn nothing() -> Self {
        StoredCheckpoints { records: vec![None], open: false }
    }

    /// Each checkpoint that may count.
    pub fn records(&self) -> impl Iterator<Item = Option<&Checkpoint>> {
        self.records.iter().map(Option::as_ref)
    }

    /// The checkpoint that counts, if nobody can be in a transaction under this name.
    pub(super) fn settled(mut self) -> Option<Option<Checkpoint>> {
        let in_transactions = self.records().flatten().any(|known| known.exactly_once);
        if self.open || in_transactions { None } else { self.records.pop() }
    }
}

/// The checkpoint that counts under the router's name. `confirmed` is the slot's position: if the last checkpoint is before
/// it, its router was late, and the one that counts may be far earlier in the topic. Waits up to `wait_limit` for a
/// transaction that may hide a record.
pub(super) async fn read(
    config: &Config,
    topic: &str,
    confirmed: Lsn,
    wait_limit: Duration,
) -> Result<Option<Checkpoint>, Error> {
    Ok(search(config, topic, confirmed, Some(wait_limit)).await?.committed.flatten())
}

/// The same without waiting for transactions.
pub(super) async fn read_without_waiting(
    config: &Config,
    topic: &str,
    confirmed: Lsn,
) -> Result<StoredCheckpoints, Error> {
    let Latest { committed, hidden } = search(config, topic, confirmed, None).await?;
    Ok(match hidden {
        None => StoredCheckpoints { records: vec![committed.flatten()], open: false },
        Some(hidden) => {
            StoredCheckpoints { records: committed.into_iter().chain([hidden]).collect(), open: true }
        }
    })
}

async fn search(
    config: &Config,
    topic: &str,
    confirmed: Lsn,
    wait_limit: Option<Duration>,
) -> Result<Latest, Error> {
    let mut settings = properties::consumer(config);
    settings.set("queued.max.messages.kbytes", "1024").set("fetch.message.max.bytes", "1048576");
    // uncommitted records of another router may be aborted
    let committed: BaseConsumer<ReaderContext> = properties::make(&settings, CONTEXT)?;
    settings.set("isolation.level", "read_uncommitted");
    let uncommitted: BaseConsumer<ReaderContext> = properties::make(&settings, CONTEXT)?;
    let (topic, key, grants) = (topic.to_owned(), config.name.clone(), Grants::of(config));
    let read = move || {
        let reader = Reader { committed, uncommitted, topic, key, grants, confirmed, wait_limit };
        let read = reader.read();
        // ending a consumer takes up to 100 ms; do not wait for it
        drop(tokio::task::spawn_blocking(move || drop(reader)));
        read
    };
    tokio::task::spawn_blocking(read)
        .await
        .map_err(|error| Error::transient(Peer::Kafka, format!("reading the positions: {error}")))?
}

struct Reader {
    committed: BaseConsumer<ReaderContext>,
    uncommitted: BaseConsumer<ReaderContext>,
    topic: String,
    key: String,
    grants: Grants,
    confirmed: Lsn,
    /// `None`: do not wait for transactions.
    wait_limit: Option<Duration>,
}

/// The last checkpoint found. The inner `None` is a tombstone, which somebody wrote to make the router forget.
struct Latest {
    committed: Option<Option<Checkpoint>>,
    /// The last one after the start of an open transaction: it may be committed, aborted, or undecided.
    hidden: Option<Option<Checkpoint>>,
}

/// A record with the router's name as its key.
struct OwnRecord {
    offset: i64,
    value: Option<Vec<u8>>,
}

impl OwnRecord {
    /// Whether it is certain because it was written outside of a transaction. Any other may be aborted.
    fn is_certain(&self) -> bool {
        let value = self.value.as_deref().map(Checkpoint::decode);
        matches!(value, Some(Ok(checkpoint)) if !checkpoint.exactly_once)
    }
}

/// Its methods block.
impl Reader {
    fn read(&self) -> Result<Latest, Error> {
        let deadline = Instant::now() + READ_TIMEOUT;
        // the real end; a read_committed consumer sees only the records before the first open transaction
        let (low, high) = match self.uncommitted.fetch_watermarks(&self.topic, PARTITION, ANSWER_TIMEOUT) {
            Ok(ends) => ends,
            Err(error) if is_missing(&error) => {
                // librdkafka reports the same error for a partition without a leader, which must not count as an empty
                // topic
                if self.partition_exists()? {
                    return Err(self.incomplete(&format!("its partition {PARTITION} has no leader: {error}")));
                }
                return Ok(Latest { committed: None, hidden: None });
            }
            Err(error) => return Err(self.read_error(&error)),
        };
        let near = low.max(high.saturating_sub(TAIL_RECORDS));
        let found = self.read_range(near, high, deadline)?;
        let is_overdue = |found: &Checkpoint| found.position.flush < self.confirmed;
        match &found.committed {
            Some(Some(committed)) if is_overdue(committed) => {}
            Some(_) => return Ok(found),
            None => {}
        }
        self.read_range(low, high, deadline)
    }

    /// The last of our checkpoints in this range of offsets, `to` excluded, ignoring aborted ones.
    fn read_range(&self, from: i64, to: i64, deadline: Instant) -> Result<Latest, Error> {
        if from >= to {
            return Ok(Latest { committed: None, hidden: None });
        }
        let open_from = self.end(&self.committed)?;
        if open_from >= to {
            let ours = self.ours(&self.committed, from, to, deadline)?;
            return Ok(Latest { committed: self.latest(&ours)?, hidden: None });
        }
        // Somebody's transaction is open. It matters only if one of our records may be part of it.
        let mut all = self.ours(&self.uncommitted, from, to, deadline)?;
        let doubtful = all.iter().rev().find(|ours| !ours.is_certain());
        let Some(doubtful) = doubtful.map(|ours| ours.offset) else {
            return Ok(Latest { committed: self.latest(&all)?, hidden: None });
        };
        if open_from <= doubtful {
            let Some(wait_limit) = self.wait_limit else {
                let shown = self.ours(&self.committed, from, open_from, deadline)?;
                all.retain(|ours| ours.offset >= open_from);
                return Ok(Latest { committed: self.latest(&shown)?, hidden: self.latest(&all)? });
            };
            self.wait_for_transaction(doubtful, wait_limit)?;
        }
        let mut found = self.ours(&self.committed, from, doubtful + 1, Instant::now() + READ_TIMEOUT)?;
        found.extend(all.into_iter().filter(|ours| ours.offset > doubtful));
        Ok(Latest { committed: self.latest(&found)?, hidden: None })
    }

    /// Waits until a read_committed consumer sees everything up to this offset.
    fn wait_for_transaction(&self, offset: i64, wait_limit: Duration) -> Result<(), Error> {
        let (begun, mut logged) = (Instant::now(), false);
        while self.end(&self.committed)? <= offset {
            let waited = begun.elapsed();
            if waited >= wait_limit {
                return Err(self.incomplete(
                    "a transaction in it is still open; Kafka ends it after its transaction.timeout.ms",
                ));
            }
            if waited >= LOG_WAIT_AFTER && wait_limit > OPEN_TRANSACTION_TIMEOUT && !logged {
                logged = true;
                tracing::warn!(
                    topic = self.topic,
                    name = self.key,
                    "waiting for an interrupted transaction to end; Kafka ends it after its transaction.timeout.ms"
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Whether the brokers know the partition.
    fn partition_exists(&self) -> Result<bool, Error> {
        let metadata = self.uncommitted.fetch_metadata(Some(&self.topic), ANSWER_TIMEOUT);
        let metadata = metadata.map_err(|error| self.read_error(&error))?;
        Ok(metadata.topics().iter().any(|topic| topic.name() == self.topic && !topic.partitions().is_empty()))
    }

    fn end(&self, consumer: &BaseConsumer<ReaderContext>) -> Result<i64, Error> {
        let ends = consumer.fetch_watermarks(&self.topic, PARTITION, ANSWER_TIMEOUT);
        ends.map(|(_, high)| high).map_err(|error| self.read_error(&error))
    }

    /// Our records in this range, as this consumer sees them.
    fn ours(
        &self,
        consumer: &BaseConsumer<ReaderContext>,
        from: i64,
        to: i64,
        deadline: Instant,
    ) -> Result<Vec<OwnRecord>, Error> {
        // after the last stable offset librdkafka reports neither records nor an end
        if from >= to {
            return Ok(Vec::new());
        }
        let mut assignment = TopicPartitionList::new();
        let assigned = assignment
            .add_partition_offset(&self.topic, PARTITION, Offset::Offset(from))
            .and_then(|()| consumer.assign(&assignment));
        assigned.map_err(|error| self.read_error(&error))?;
        let mut found = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match consumer.poll(left.min(ANSWER_TIMEOUT)) {
                Some(Ok(message)) => {
                    let offset = message.offset();
                    if offset < to && message.key() == Some(self.key.as_bytes()) {
                        found.push(OwnRecord { offset, value: message.payload().map(<[u8]>::to_vec) });
                    }
                    if offset + 1 >= to {
                        return Ok(found);
                    }
                }
                Some(Err(KafkaError::PartitionEOF(_))) => return Ok(found),
                // group errors do not matter; the other errors pass when a broker is back
                Some(Err(KafkaError::MessageConsumption(
                    Code::BrokerTransportFailure | Code::AllBrokersDown | Code::GroupAuthorizationFailed,
                ))) if !left.is_zero() => {}
                Some(Err(error)) => return Err(self.read_error(&error)),
                None if left.is_zero() => return Err(self.incomplete("the brokers do not answer")),
                None => {}
            }
        }
    }

    /// The checkpoint that counts among these. `Some(None)`: a tombstone, which somebody wrote to make the router forget.
    fn latest(&self, found: &[OwnRecord]) -> Result<Option<Option<Checkpoint>>, Error> {
        let mut latest = None;
        for ours in found {
            let before = latest.take().unwrap_or(Ok(None));
            latest = Some(self.take(before, ours.value.as_deref()));
        }
        latest.transpose()
    }

    /// A tombstone also removes what cannot be read; nothing else does.
    fn take(
        &self,
        before: Result<Option<Checkpoint>, Error>,
        value: Option<&[u8]>,
    ) -> Result<Option<Checkpoint>, Error> {
        let Some(value) = value else { return Ok(None) };
        let before = before?;
        let next = Checkpoint::decode(value).map_err(|error| {
            Error::not_safe(ErrorCode::CheckpointUnreadable,
                format!("the position of the router {} in the topic {} cannot be read: {error}", self.key, self.topic),
                Remedy::steps([Step::new("Run the version of the router that wrote it")]).or(
                    "To resume at the slot's own position, which may be older: what was sent since is sent twice",
                    [
                        Step::new(format!(
                            "Write a record with the key {} and no value (a tombstone) to the topic {}",
                            self.key, self.topic
                        )),
                        Step::new("Start the router. If it stops with OBR-3110, run the --accept-gap command that it prints")
                            .typing("outbox-router run"),
                    ],
                ),
            )
        })?;
        Ok(Checkpoint::later(before, next))
    }

    fn read_error(&self, error: &KafkaError) -> Error {
        let what = format!("read the topic {}", self.topic);
        match error.rdkafka_error_code() {
            Some(code) => error_of_request(&what, code, Exit::Refused, || {
                self.grants.missing_on_topic("READ", &self.topic)
            }),
            None => error_of_kafka(&what, error, Exit::Refused),
        }
    }

    fn incomplete(&self, why: &str) -> Error {
        Error::transient(Peer::Kafka, format!("the topic {} cannot be read to its end: {why}", self.topic))
    }
}

fn is_missing(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition)
    )
}
