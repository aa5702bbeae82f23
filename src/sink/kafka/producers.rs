//! The producers of a session: one that is idempotent, or two that are transactional and take turns.
//!
//! A transaction that has just been committed keeps its producer from beginning another for some milliseconds, while the
//! brokers write its markers. So there are two: one commits while the other takes what comes next. That one is committed
//! after it, never before, and takes its first record when all of the other's are acknowledged, so that the log of a
//! partition is in order and nothing is committed behind a gap.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::error::{KafkaError, RDKafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseRecord, Producer, PurgeConfig, ThreadedProducer};
use tokio::task::JoinHandle;

use super::client::Client;
use super::context::{POSITION, ProducerReports};
use super::position_report::{NotCommitted, PositionReport};
use super::{PARTITION, properties};
use crate::config::{Config, DeliveryMode};
use crate::error::{Error, Peer};
use crate::topic_name;

pub(super) type EventProducer = ThreadedProducer<ProducerReports>;

/// Of a call that blocks: after it, it is looked whether the session is over, and the call taken up again.
const SLICE: Duration = Duration::from_millis(200);

/// The same where each call asks at once, and librdkafka by itself only after half a second.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// How long the coordinator may take to end what an earlier router has left open.
const INIT: Duration = Duration::from_secs(30);

/// How long an abort may take. If it takes longer, the next start ends the transaction.
const ABORT: Duration = Duration::from_secs(2);

/// How often it is looked whether a position is acknowledged: first, and at last.
const DELIVERED: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(5));

/// What the guarantees rest on.
pub(super) struct Producers {
    /// Takes records.
    current: Client<EventProducer>,
    /// Takes the records of the next transaction, while `current` commits.
    next: Option<Client<EventProducer>>,
    /// A transaction of `current` is under way.
    open: bool,
    position: PositionRecord,
    /// Calls that block are to come back.
    leaving: Leaving,
}

/// Where positions go, and the last one that went there.
struct PositionRecord {
    topic: String,
    key: Vec<u8>,
    last: Option<Vec<u8>>,
}

impl PositionRecord {
    fn of<'a>(&'a self, value: &'a [u8]) -> BaseRecord<'a, [u8], [u8], usize> {
        BaseRecord::with_opaque_to(&self.topic, POSITION)
            .partition(PARTITION)
            .key(&self.key[..])
            .payload(value)
    }
}

/// Raised when dropped.
struct Leaving(Arc<AtomicBool>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A transaction that is being committed.
pub(super) struct Commit {
    done: JoinHandle<Result<(), NotCommitted>>,
    /// All records of it are acknowledged, and it is for the brokers to end it.
    ending: Arc<AtomicBool>,
}

impl Commit {
    /// Whether the brokers were asked to end it.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Waits for its end. May be dropped at any await, and called again.
    ///
    /// # Errors
    /// It is not committed, or not known to be.
    pub(super) async fn done(&mut self) -> Result<(), NotCommitted> {
        (&mut self.done)
            .await
            .unwrap_or_else(|error| Err(NotCommitted { reason: error.to_string(), remedy: "" }))
    }
}

impl Producers {
    /// Makes the clients; no broker is asked.
    pub(super) fn make(
        config: &Config,
        batch_bytes: usize,
        reports: &ProducerReports,
    ) -> Result<Self, Error> {
        let transactional = config.delivery.mode == DeliveryMode::ExactlyOnce;
        let make = |number: usize| -> Result<Client<EventProducer>, Error> {
            let mut settings = properties::producer(config, batch_bytes);
            if transactional {
                settings.set("transactional.id", transactional_id(&config.name, number));
            }
            let reports = ProducerReports { position: PositionReport::default(), ..reports.clone() };
            properties::make(&settings, reports).map(Client::new)
        };
        let (current, next) = (make(0)?, if transactional { Some(make(1)?) } else { None });
        let topic = config.delivery.positions_topic.as_deref().unwrap_or(topic_name::POSITIONS).to_owned();
        let position = PositionRecord { topic, key: config.name.clone().into_bytes(), last: None };
        Ok(Producers { current, next, open: false, position, leaving: Leaving(Arc::default()) })
    }

    /// Ends what an earlier router under this name may have left open, and shuts that one out.
    pub(super) fn take_over(&self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let transactional = self.all().filter(|_| self.are_transactional());
        let producers: Vec<_> = transactional.cloned().map(Client::new).collect();
        let leaving = Arc::clone(&self.leaving.0);
        async move {
            // both at once: each may have to wait until the coordinator has ended a transaction
            let begin = |producer: Client<EventProducer>| {
                let leaving = Arc::clone(&leaving);
                tokio::task::spawn_blocking(move || {
                    let deadline = Instant::now() + INIT;
                    persist(&leaving, ASK_AGAIN, Some(deadline), |slice| producer.init_transactions(slice))
                })
            };
            let begun: Vec<_> = producers.into_iter().map(begin).collect();
            for begun in begun {
                begun.await.unwrap_or(Err(KafkaError::Canceled)).map_err(|error| not_taken_over(&error))?;
            }
            Ok(())
        }
    }

    pub(super) fn are_transactional(&self) -> bool {
        self.next.is_some()
    }

    /// Where positions go.
    pub(super) fn positions_topic(&self) -> &str {
        &self.position.topic
    }

    /// The one that takes records.
    pub(super) fn current(&self) -> &EventProducer {
        &self.current
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &EventProducer> {
        std::iter::once(&*self.current).chain(self.next.as_deref())
    }

    /// Before each record. A transaction begins with the position that holds already: the coordinator and the leader learn
    /// of its partition together with those of the records, and not when everything waits for the commit.
    pub(super) fn begin(&mut self) -> Result<(), KafkaError> {
        if self.begin_transaction()?
            && let Some(last) = &self.position.last
        {
            // what keeps it out keeps the next one out, which is told
            let _ = self.current.send(self.position.of(last));
        }
        Ok(())
    }

    /// Whether one is begun by this.
    fn begin_transaction(&mut self) -> Result<bool, KafkaError> {
        let begins = self.are_transactional() && !self.open;
        if begins {
            self.current.begin_transaction()?;
            self.open = true;
        }
        Ok(begins)
    }

    /// Commits the transaction under way with this position in it, and lets the other producer take what comes. Everything
    /// sent so far has to be acknowledged, and the commit before has to be over.
    pub(super) fn commit(&mut self, position: Vec<u8>) -> Result<Commit, NotCommitted> {
        let refused = |error: &KafkaError| NotCommitted { reason: error.to_string(), remedy: "" };
        self.begin_transaction().map_err(|error| refused(&error))?;
        self.current.send(self.position.of(&position)).map_err(|(error, _)| refused(&error))?;
        self.position.last = Some(position);
        let (producer, leaving) = (self.current.clone(), Arc::clone(&self.leaving.0));
        if let Some(next) = &mut self.next {
            std::mem::swap(&mut self.current, next);
        }
        self.open = false;
        let ending = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&ending);
        let done = tokio::task::spawn_blocking(move || commit(&producer, &leaving, &ends));
        Ok(Commit { done, ending })
    }

    /// Why a position was not taken, of which only the commit would tell.
    pub(super) fn position_refused(&self) -> Option<NotCommitted> {
        self.all().find_map(|producer| producer.context().position.refused())
    }

    /// Throws away what is queued or under way. What is on its way to the broker may still arrive there. Never blocks: each
    /// thread of librdkafka does it before it sends anything else, and one that waits for a name server has no connection.
    pub(super) fn purge(&self) {
        for producer in self.all() {
            producer.purge(PurgeConfig::default().queue().inflight().non_blocking());
        }
    }

    /// Purges, aborts what is open and ends the producers. After it, every report has been made.
    pub(super) async fn close(self) {
        self.purge();
        let Producers { current, next, open, leaving, .. } = self;
        drop(leaving);
        let closed = move || {
            for producer in std::iter::once(&*current).chain(next.as_deref()) {
                producer.purge(PurgeConfig::default().queue().inflight());
            }
            if open {
                abort(&current);
            }
            current.end();
            next.into_iter().for_each(Client::end);
        };
        // an error would mean that the runtime is shutting down, and the producers with it
        let _ = tokio::task::spawn_blocking(closed).await;
    }
}

/// Shuts routers out that deliver exactly once under this name, and ends what they have left open.
pub(super) async fn shut_out(config: &Config) -> Result<(), Error> {
    let mut config = config.clone();
    config.delivery.mode = DeliveryMode::ExactlyOnce;
    let producers = Producers::make(&config, properties::DEFAULT_BATCH_BYTES, &ProducerReports::default())?;
    let shut_out = producers.take_over().await;
    producers.close().await;
    shut_out
}

/// Beginning with the router's name, so that one right covers both.
fn transactional_id(name: &str, number: usize) -> String {
    format!("{name}.{number}")
}

/// Blocks. A transaction of a session that is over meanwhile is ended all the same, one way or the other: left open it would
/// hide what others write behind it until it times out.
fn commit(producer: &EventProducer, leaving: &AtomicBool, ending: &AtomicBool) -> Result<(), NotCommitted> {
    if let Err(not_taken) = position_taken(producer, leaving) {
        abort(producer);
        return Err(not_taken);
    }
    ending.store(true, Ordering::Relaxed);
    let mut committed = persist(leaving, SLICE, None, |slice| producer.commit_transaction(slice));
    if committed.is_err() && leaving.load(Ordering::Acquire) {
        let deadline = Some(Instant::now() + ABORT);
        committed =
            persist(&AtomicBool::new(false), SLICE, deadline, |slice| producer.commit_transaction(slice));
    }
    committed.map_err(|error| NotCommitted { reason: reason(&error), remedy: "" })
}

/// Waits until the position is acknowledged.
fn position_taken(producer: &EventProducer, leaving: &AtomicBool) -> Result<(), NotCommitted> {
    // rdkafka would wait for a report in steps of 100 ms
    let mut pause = DELIVERED.0;
    while producer.in_flight_count() > 0 {
        if leaving.load(Ordering::Acquire) {
            return Err(NotCommitted { reason: "the session is over".to_owned(), remedy: "" });
        }
        std::thread::sleep(pause);
        pause = (pause + DELIVERED.0).min(DELIVERED.1);
    }
    producer.context().position.refused().map_or(Ok(()), Err)
}

/// Blocks.
fn abort(producer: &EventProducer) {
    let deadline = Instant::now() + ABORT;
    let aborted =
        persist(&AtomicBool::new(false), SLICE, Some(deadline), |slice| producer.abort_transaction(slice));
    if let Err(error) = aborted {
        tracing::debug!(peer = "kafka", %error, "the open transaction is left to the next start");
    }
}

/// Calls until there is an end to it. A call that ran out of time is taken up where it was.
fn persist(
    leaving: &AtomicBool,
    slice: Duration,
    deadline: Option<Instant>,
    mut call: impl FnMut(Duration) -> Result<(), KafkaError>,
) -> Result<(), KafkaError> {
    loop {
        match call(slice) {
            Err(error)
                if transaction(&error).is_some_and(RDKafkaError::is_retriable)
                    && !leaving.load(Ordering::Acquire)
                    && deadline.is_none_or(|deadline| Instant::now() < deadline) =>
            {
                std::thread::sleep(DELIVERED.1);
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

fn not_taken_over(error: &KafkaError) -> Error {
    let code = error.rdkafka_error_code().or_else(|| transaction(error).map(RDKafkaError::code));
    let what = format!("the brokers let the router begin no transactions: {}", reason(error));
    let remedy = match code {
        Some(Code::TransactionalIdAuthorizationFailed | Code::ClusterAuthorizationFailed) => {
            "Grant the router's principal WRITE and DESCRIBE on its transactional ids: `outbox-router init --print-acls` \
             prints all that it needs"
        }
        Some(Code::InvalidTransactionTimeout) => {
            "Lower transaction.timeout.ms under `[kafka]`, or raise the brokers' transaction.max.timeout.ms"
        }
        Some(Code::UnsupportedFeature) => {
            "Set `[delivery] mode` to \"at-least-once\", or use brokers that know transactions (0.11 and later)"
        }
        _ => return Error::transient(Peer::Kafka, what),
    };
    Error::refused(what, remedy)
}
