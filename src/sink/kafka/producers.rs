//! The producers of a session: one idempotent producer, or two transactional ones that alternate.
//!
//! After a commit, a producer cannot begin another transaction for some milliseconds, while the brokers write the markers.
//! So one producer commits while the other takes new records. The second transaction is committed after the first, never
//! before, and gets its first record when all of the first's are acknowledged. So the log of a partition is in order, and
//! nothing is committed beyond a gap.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::error::{KafkaError, RDKafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseRecord, Producer, PurgeConfig};
use tokio::task::JoinHandle;

use super::acls::MissingRight;
use super::checkpoint_failure::{CheckpointFailure, NotCommitted};
use super::client::Client;
use super::context::{CHECKPOINT_OPAQUE, EventProducerContext};
use super::event_sender::{EventProducer, EventSender, Placement};
use super::{PARTITION, properties};
use crate::config::{Config, DeliveryMode};
use crate::error::{Error, ErrorCode, Peer};
use crate::progress::Sequence;
use crate::routing::Record;
use crate::topic_name;

/// The timeout of one blocking call. After it, the call is repeated unless the session is over.
const CALL_TIMEOUT: Duration = Duration::from_millis(200);

/// The same for `init_transactions`, which asks the broker at each call but repeats by itself only after half a second.
const INIT_CALL_TIMEOUT: Duration = Duration::from_millis(20);

/// How long the coordinator may take to end transactions that an earlier router left open.
const INIT_TIMEOUT: Duration = Duration::from_secs(30);

/// How long an abort may take. After that, the next start ends the transaction.
const ABORT_TIMEOUT: Duration = Duration::from_secs(2);

/// How often to check whether the checkpoint is acknowledged: at first, and at most.
const POLL_INTERVAL: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(5));

/// The producers of one session.
pub(super) struct Producers {
    /// Takes records.
    current: EventSender,
    /// Takes the records of the next transaction, while `current` commits.
    next: Option<EventSender>,
    /// A transaction of `current` is open.
    open: bool,
    position: CheckpointRecord,
    /// Makes blocking calls return when it is dropped.
    stop_flag: StopFlag,
}

/// The topic and key of checkpoints, and the last one sent.
struct CheckpointRecord {
    topic: String,
    key: Vec<u8>,
    last: Option<Vec<u8>>,
}

impl CheckpointRecord {
    fn of<'a>(&'a self, value: &'a [u8]) -> BaseRecord<'a, [u8], [u8], usize> {
        BaseRecord::with_opaque_to(&self.topic, CHECKPOINT_OPAQUE)
            .partition(PARTITION)
            .key(&self.key[..])
            .payload(value)
    }
}

/// A flag that is set when this is dropped.
struct StopFlag(Arc<AtomicBool>);

impl Drop for StopFlag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A transaction that is being committed.
pub(super) struct Commit {
    done: JoinHandle<Result<Instant, NotCommitted>>,
    /// All its records are acknowledged, and the brokers have to end it.
    ending: Arc<AtomicBool>,
}

impl Commit {
    /// Whether the brokers were asked to end it.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Waits for its end, and returns when its checkpoint was acknowledged. Cancel-safe.
    ///
    /// # Errors
    /// It was not committed, or may not have been.
    pub(super) async fn done(&mut self) -> Result<Instant, NotCommitted> {
        (&mut self.done)
            .await
            .unwrap_or_else(|error| Err(NotCommitted { reason: error.to_string(), remedy: String::new() }))
    }
}

impl Producers {
    /// Creates the clients without asking a broker.
    pub(super) fn make(
        config: &Config,
        batch_bytes: usize,
        reports: &EventProducerContext,
    ) -> Result<Self, Error> {
        let transactional = config.delivery.mode == DeliveryMode::ExactlyOnce;
        let make = |number: usize| -> Result<EventSender, Error> {
            let mut settings = properties::producer(config, batch_bytes);
            if transactional {
                settings.set("transactional.id", transactional_id(&config.name, number));
            }
            let reports =
                EventProducerContext { checkpoint_failure: CheckpointFailure::default(), ..reports.clone() };
            properties::make(&settings, reports).map(|made| EventSender::new(Client::new(made)))
        };
        let (current, next) = (make(0)?, if transactional { Some(make(1)?) } else { None });
        let topic = config.delivery.positions_topic.as_deref().unwrap_or(topic_name::POSITIONS).to_owned();
        let position = CheckpointRecord { topic, key: config.name.clone().into_bytes(), last: None };
        Ok(Producers { current, next, open: false, position, stop_flag: StopFlag(Arc::default()) })
    }

    /// Ends transactions that an earlier router of this name left open, and fences that router.
    pub(super) fn init_transactions(&self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let missing = self.current.context().grants.missing_on_transactions(&self.name());
        let transactional = self.all().filter(|_| self.are_transactional());
        let producers: Vec<_> = transactional.cloned().map(Client::new).collect();
        let stop_flag = Arc::clone(&self.stop_flag.0);
        async move {
            // both at once, because each may wait for the coordinator
            let begin = |producer: Client<EventProducer>| {
                let stop_flag = Arc::clone(&stop_flag);
                tokio::task::spawn_blocking(move || {
                    let deadline = Instant::now() + INIT_TIMEOUT;
                    repeat(&stop_flag, INIT_CALL_TIMEOUT, Some(deadline), |timeout| {
                        producer.init_transactions(timeout)
                    })
                })
            };
            let begun: Vec<_> = producers.into_iter().map(begin).collect();
            for begun in begun {
                begun
                    .await
                    .unwrap_or(Err(KafkaError::Canceled))
                    .map_err(|error| init_failed(&error, &missing))?;
            }
            Ok(())
        }
    }

    /// The router's name, which is the key of its checkpoints.
    fn name(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.position.key)
    }

    pub(super) fn are_transactional(&self) -> bool {
        self.next.is_some()
    }

    /// The topic of checkpoints.
    pub(super) fn positions_topic(&self) -> &str {
        &self.position.topic
    }

    /// Queues a record with the producer that takes records.
    pub(super) fn send(
        &mut self,
        record: &Record<'_>,
        placement: Placement,
        sequence: Sequence,
    ) -> Result<(), KafkaError> {
        self.current.send_record(record, placement, sequence)
    }

    /// The producer that takes records.
    pub(super) fn current(&self) -> &EventProducer {
        &self.current
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &EventProducer> {
        std::iter::once(&*self.current).chain(self.next.as_deref())
    }

    /// Call this before each record. A transaction begins with the last checkpoint, so the coordinator and the leader learn
    /// of its partition together with those of the records, and the commit does not wait for that.
    pub(super) fn begin(&mut self) -> Result<(), KafkaError> {
        if self.begin_transaction()?
            && let Some(last) = &self.position.last
        {
            // an error here will also hit the next checkpoint, which reports it
            let _ = self.current.send(self.position.of(last));
        }
        Ok(())
    }

    /// Returns whether a transaction was begun.
    fn begin_transaction(&mut self) -> Result<bool, KafkaError> {
        let begins = self.are_transactional() && !self.open;
        if begins {
            self.current.begin_transaction()?;
            self.open = true;
        }
        Ok(begins)
    }

    /// Commits the open transaction with this checkpoint, and makes the other producer take new records. All records sent
    /// so far must be acknowledged, and the commit before must be over.
    pub(super) fn commit(&mut self, position: Vec<u8>) -> Result<Commit, NotCommitted> {
        let refused = |error: &KafkaError| NotCommitted { reason: error.to_string(), remedy: String::new() };
        self.begin_transaction().map_err(|error| refused(&error))?;
        self.current.send(self.position.of(&position)).map_err(|(error, _)| refused(&error))?;
        self.position.last = Some(position);
        let (producer, stop_flag) = (self.current.clone(), Arc::clone(&self.stop_flag.0));
        if let Some(next) = &mut self.next {
            std::mem::swap(&mut self.current, next);
        }
        self.open = false;
        let ending = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&ending);
        let done = tokio::task::spawn_blocking(move || commit(&producer, &stop_flag, &ends));
        Ok(Commit { done, ending })
    }

    /// Why a checkpoint was refused, if the commit has not reported it yet.
    pub(super) fn checkpoint_error(&self) -> Option<NotCommitted> {
        self.all().find_map(|producer| producer.context().checkpoint_failure.refused())
    }

    /// Purges what is queued or in flight. A record that is on its way to the broker may still be written. Never blocks:
    /// each thread of librdkafka purges before it sends anything else, and a thread that waits for a name server has no
    /// connection.
    pub(super) fn purge(&self) {
        for producer in self.all() {
            producer.purge(PurgeConfig::default().queue().inflight().non_blocking());
        }
    }

    /// Purges, aborts the open transaction and ends the producers. After that every report has been made.
    pub(super) async fn close(self) {
        self.purge();
        let Producers { current, next, open, stop_flag, .. } = self;
        drop(stop_flag);
        let closed = move || {
            for producer in std::iter::once(&*current).chain(next.as_deref()) {
                producer.purge(PurgeConfig::default().queue().inflight());
            }
            if open {
                abort(&current);
            }
            current.end();
            next.into_iter().for_each(EventSender::end);
        };
        // fails only while the runtime shuts down, which ends the producers too
        let _ = tokio::task::spawn_blocking(closed).await;
    }
}

/// Fences routers of this name that deliver exactly once, and ends transactions that they left open.
pub(crate) async fn fence(config: &Config) -> Result<(), Error> {
    let mut config = config.clone();
    config.delivery.mode = DeliveryMode::ExactlyOnce;
    let producers =
        Producers::make(&config, properties::DEFAULT_BATCH_BYTES, &EventProducerContext::default())?;
    let fence = producers.init_transactions().await;
    producers.close().await;
    fence
}

/// Begins with the router's name, so that one prefixed ACL covers both.
fn transactional_id(name: &str, number: usize) -> String {
    format!("{name}.{number}")
}

/// Blocks. The transaction is committed or aborted even if the session is over: left open, it would hide later records from
/// consumers until it times out. Returns when its checkpoint was acknowledged.
fn commit(
    producer: &EventProducer,
    stop_flag: &AtomicBool,
    ending: &AtomicBool,
) -> Result<Instant, NotCommitted> {
    if let Err(not_taken) = checkpoint_acknowledged(producer, stop_flag) {
        abort(producer);
        return Err(not_taken);
    }
    let acknowledged = Instant::now();
    ending.store(true, Ordering::Relaxed);
    let mut committed = repeat(stop_flag, CALL_TIMEOUT, None, |timeout| producer.commit_transaction(timeout));
    if committed.is_err() && stop_flag.load(Ordering::Acquire) {
        let deadline = Some(Instant::now() + ABORT_TIMEOUT);
        committed = repeat(&AtomicBool::new(false), CALL_TIMEOUT, deadline, |timeout| {
            producer.commit_transaction(timeout)
        });
    }
    committed
        .map(|()| acknowledged)
        .map_err(|error| NotCommitted { reason: reason(&error), remedy: String::new() })
}

/// Waits until the checkpoint is acknowledged.
fn checkpoint_acknowledged(producer: &EventProducer, stop_flag: &AtomicBool) -> Result<(), NotCommitted> {
    // rdkafka's own flush waits in steps of 100 ms
    let mut pause = POLL_INTERVAL.0;
    while producer.in_flight_count() > 0 {
        if stop_flag.load(Ordering::Acquire) {
            return Err(NotCommitted { reason: "the session is over".to_owned(), remedy: String::new() });
        }
        std::thread::sleep(pause);
        pause = (pause + POLL_INTERVAL.0).min(POLL_INTERVAL.1);
    }
    producer.context().checkpoint_failure.refused().map_or(Ok(()), Err)
}

/// Blocks.
fn abort(producer: &EventProducer) {
    let deadline = Instant::now() + ABORT_TIMEOUT;
    let aborted = repeat(&AtomicBool::new(false), CALL_TIMEOUT, Some(deadline), |timeout| {
        producer.abort_transaction(timeout)
    });
    if let Err(error) = aborted {
        tracing::debug!(peer = "kafka", %error, "the open transaction was not aborted; the next start ends it");
    }
}

/// Repeats a call until it succeeds or fails for good. A call that timed out continues where it was.
fn repeat(
    stop_flag: &AtomicBool,
    timeout: Duration,
    deadline: Option<Instant>,
    mut call: impl FnMut(Duration) -> Result<(), KafkaError>,
) -> Result<(), KafkaError> {
    loop {
        match call(timeout) {
            Err(error)
                if transaction(&error).is_some_and(RDKafkaError::is_retriable)
                    && !stop_flag.load(Ordering::Acquire)
                    && deadline.is_none_or(|deadline| Instant::now() < deadline) =>
            {
                std::thread::sleep(POLL_INTERVAL.1);
            }
            end => return end,
        }
    }
}

fn transaction(error: &KafkaError) -> Option<&RDKafkaError> {
    match error {
        KafkaError::Transaction(error) => Some(error),
        _ => None,
    }
}

fn is_fenced(code: Code) -> bool {
    matches!(code, Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch)
}

fn reason(error: &KafkaError) -> String {
    let Some(error) = transaction(error) else { return error.to_string() };
    let code = error.code();
    let (code, said) = (code.to_string(), error.string());
    if is_fenced(error.code()) {
        return format!(
            "it took longer than transaction.timeout.ms, or another router has taken over ({code})"
        );
    }
    if said.is_empty() { code } else { said }
}

fn init_failed(error: &KafkaError, missing: &MissingRight) -> Error {
    let code = error.rdkafka_error_code().or_else(|| transaction(error).map(RDKafkaError::code));
    let reason = reason(error);
    // the brokers' messages may end with a full stop
    let mut what = format!(
        "the brokers do not let the router begin transactions: {}",
        reason.strip_suffix('.').unwrap_or(&reason)
    );
    let remedy = match code {
        Some(Code::TransactionalIdAuthorizationFailed | Code::ClusterAuthorizationFailed) => {
            what = format!("{what}: {}", missing.what());
            missing.remedy.as_str()
        }
        Some(Code::InvalidTransactionTimeout) => {
            "Lower transaction.timeout.ms under `[kafka]`, or raise the brokers' transaction.max.timeout.ms"
        }
        Some(Code::UnsupportedFeature) => {
            "Set `[delivery] mode` to \"at-least-once\", or use brokers that support transactions (0.11 and later)"
        }
        _ => return Error::transient(Peer::Kafka, what),
    };
    Error::refused(ErrorCode::KafkaTransactions, what, remedy)
}
