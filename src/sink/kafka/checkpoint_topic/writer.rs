//! Writes checkpoints, one at a time, always the newest.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pg_logical::Lsn;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{CheckpointTopic, PARTITION, prepare};
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::config::kafka_properties::without_users_of_urls;
use crate::error::{Error, ErrorCode, Peer};
use crate::progress::Position;
use crate::sink::kafka::acls::Grants;
use crate::sink::kafka::client::Client;
use crate::sink::kafka::context::log;
use crate::sink::kafka::error_policy::{ErrorPolicy, error_policy, in_words};
use crate::sink::kafka::properties;
use crate::sink::kafka::stale_metadata::knows_brokers;

/// The minimum time between two checkpoints after acknowledged events. A crash repeats the events acknowledged since the
/// last one.
const AFTER_EVENTS: Duration = Duration::from_millis(25);

/// The same if only the position of an idle outbox has moved.
const WHEN_IDLE: Duration = Duration::from_secs(1);

/// The pause after a refused checkpoint.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// An acknowledgement takes this long only if something is wrong.
const OVERDUE_AFTER: Duration = Duration::from_secs(5);

/// How often to check for a fatal error while waiting.
const FAILURE_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// How long the first checkpoint of a session may take.
const FIRST_TIMEOUT: Duration = Duration::from_secs(15);

/// What happens if nobody has to act.
const REPEATED: &str = "The router repeats it, and creates a missing topic again if `[topics] create` allows it; if this lasts, the \
                        brokers' logs say why";

/// The state of writing.
#[derive(Debug, Default)]
pub struct WriterState {
    durable: Option<Position>,
    in_flight: Option<InFlightRecord>,
    serial: usize,
    /// How many changes were acknowledged when the last checkpoint was sent.
    acknowledged: u64,
    /// When the next checkpoint may be written: after events, and if only the position has moved.
    next: Option<(Instant, Instant)>,
    /// Why the last checkpoint was refused. Logged once.
    failed: Option<String>,
}

/// A checkpoint in flight.
#[derive(Debug)]
struct InFlightRecord {
    /// The number in its delivery report.
    serial: usize,
    position: Position,
    since: Instant,
}

/// Reports from librdkafka's thread.
#[derive(Debug, Default)]
pub(super) struct Shared {
    report: Mutex<Option<Report>>,
    changed: Notify,
    topic: String,
    grants: Grants,
}

#[derive(Debug, Clone)]
struct Report {
    /// The record's number; `None`: the record in flight, whichever it is.
    serial: Option<usize>,
    result: Result<(), Refused>,
}

#[derive(Debug, Clone)]
struct Refused {
    reason: String,
    remedy: String,
    /// The producer has failed for good.
    fatal: bool,
}

impl CheckpointTopic {
    /// Writes the first checkpoint of a session, and waits for its acknowledgement.
    ///
    /// # Errors
    /// It is refused, or is not acknowledged in time.
    pub async fn begin(&mut self, first: &Checkpoint) -> Result<(), Error> {
        self.send(first.position, first);
        let deadline = Instant::now() + FIRST_TIMEOUT;
        loop {
            let pause = deadline.min(Instant::now() + FAILURE_CHECK_INTERVAL);
            let _ = tokio::time::timeout_at(pause, self.shared.changed.notified()).await;
            self.check_fatal_error();
            match self.take_report() {
                Some(Ok(())) => return Ok(()),
                Some(Err(refused)) => {
                    let what = format!(
                        "the position cannot be written to the topic {}: {}",
                        self.topic, refused.reason
                    );
                    return Err(if refused.remedy.is_empty() {
                        Error::transient(Peer::Kafka, what)
                    } else {
                        Error::refused(ErrorCode::PositionsTopic, what, refused.remedy)
                    });
                }
                None if Instant::now() >= deadline => {
                    let what = format!("no acknowledgement for the position in the topic {}", self.topic);
                    return Err(Error::transient(Peer::Kafka, what));
                }
                None => {}
            }
        }
    }

    /// The durable checkpoint stands for this position of the source.
    pub fn stands_for(&mut self, position: Position) {
        self.state.durable = Some(position);
    }

    /// The flush LSN of the last durable checkpoint.
    pub fn durable(&self) -> Lsn {
        self.durable_position().flush
    }

    /// The position of the last durable checkpoint.
    pub fn durable_position(&self) -> Position {
        self.state.durable.unwrap_or_default()
    }

    /// Checks for a fatal error. librdkafka's error callback gives the cause but not that it is fatal, and there may be no
    /// delivery report.
    fn check_fatal_error(&self) {
        if let Some((code, reason)) = self.producer.client().fatal_error() {
            let refused = match error_policy(code) {
                ErrorPolicy::Denied => self.shared.denied(reason, code),
                _ => Refused { reason, remedy: String::new(), fatal: true },
            };
            self.shared.report(Report { serial: None, result: Err(refused) });
        }
    }

    /// If the checkpoint in flight is overdue, checks whether the client has stale metadata. If so, it is replaced.
    pub fn check_stale_metadata(&self) {
        self.check_fatal_error();
        if self.state.in_flight.as_ref().is_none_or(|in_flight| in_flight.since.elapsed() < OVERDUE_AFTER) {
            return;
        }
        let (producer, shared) = (self.producer.clone(), Arc::clone(&self.shared));
        let lost = move || {
            let reason = "the client no longer finds the brokers, although a new one does".to_owned();
            shared.report(Report {
                serial: None,
                result: Err(Refused { reason, remedy: String::new(), fatal: true }),
            });
        };
        let knows_brokers = move |timeout| knows_brokers(producer.client(), timeout);
        self.stale_metadata.check(properties::client(&self.config), knows_brokers, lost);
    }

    /// How long the checkpoint in flight has not been acknowledged.
    pub fn waits_for(&self) -> Duration {
        self.state.in_flight.as_ref().map_or(Duration::ZERO, |in_flight| in_flight.since.elapsed())
    }

    /// The brokers answer but do not acknowledge the checkpoint in flight, for this reason.
    pub fn not_acknowledged(&mut self, reason: String) {
        self.cannot_be_written(reason, "");
    }

    /// Logs each reason once.
    fn cannot_be_written(&mut self, reason: String, remedy: &str) {
        let shown = if remedy.is_empty() { reason.clone() } else { format!("{reason}. {remedy}") };
        if self.state.failed.as_ref() != Some(&shown) {
            tracing::warn!(
                peer = "kafka",
                topic = self.topic,
                reason,
                remedy = if remedy.is_empty() { REPEATED } else { remedy },
                "the position cannot be written; the slot does not advance until it can"
            );
        }
        self.state.failed = Some(shown);
    }

    /// Why the slot does not advance.
    pub fn stall_reason(&self) -> Option<String> {
        let reason = self.failed()?;
        Some(format!("the position cannot be written to the topic {}: {reason}", self.topic))
    }

    /// Why checkpoints cannot be written.
    pub fn failed(&self) -> Option<&str> {
        self.state.failed.as_deref()
    }

    /// Writes a checkpoint if the source's `position` is new and the time has come. `acknowledged` counts changes. `at_once`: no
    /// newer position will come soon. Returns when to call again.
    pub fn offer(
        &mut self,
        position: Position,
        acknowledged: u64,
        at_once: bool,
        checkpoint: impl FnOnce() -> Checkpoint,
    ) -> Option<Instant> {
        if self.state.in_flight.is_some() || self.state.durable == Some(position) {
            return None;
        }
        let (after_events, when_idle) = self.state.next.unwrap_or_else(|| (Instant::now(), Instant::now()));
        let events = acknowledged != self.state.acknowledged;
        let due = if events || at_once { after_events } else { when_idle };
        // even then, pause after a refusal: the client may refuse without asking a broker
        let paced = !at_once || self.state.failed.is_some();
        if paced && Instant::now() < due {
            return Some(due);
        }
        self.state.acknowledged = acknowledged;
        self.send(position, &checkpoint());
        None
    }

    /// Waits for a report. Cancel-safe.
    pub async fn reported(&self) {
        self.shared.changed.notified().await;
    }

    /// Whether a checkpoint is in flight.
    pub fn is_writing(&self) -> bool {
        self.state.in_flight.is_some()
    }

    /// Handles the report, if there is one.
    ///
    /// # Errors
    /// The producer has failed for good and a new one cannot be created.
    pub fn settle(&mut self) -> Result<(), Error> {
        match self.take_report() {
            None => Ok(()),
            Some(Ok(())) => {
                if self.state.failed.take().is_some() {
                    tracing::info!(topic = self.topic, "positions are written again");
                }
                Ok(())
            }
            Some(Err(refused)) => {
                self.cannot_be_written(refused.reason, &refused.remedy);
                // Recreates the topic if it was deleted; if that fails, the next record reports it. An attempt waits for
                // the brokers as long as necessary, so there is only one at a time.
                if self.preparing.as_ref().is_none_or(AbortOnDropHandle::is_finished) {
                    let (config, topic) = (Arc::clone(&self.config), self.topic.clone());
                    let task = tokio::spawn(async move { prepare(&config, &topic).await });
                    self.preparing = Some(AbortOnDropHandle::new(task));
                }
                if refused.fatal {
                    self.producer = producer(&self.config, &self.shared)?;
                }
                Ok(())
            }
        }
    }

    fn take_report(&mut self) -> Option<Result<(), Refused>> {
        let Report { serial, result } = self.shared.lock().take()?;
        // a replaced client may still report its record
        let ours = |in_flight: &mut InFlightRecord| serial.is_none_or(|serial| serial == in_flight.serial);
        let InFlightRecord { position, .. } = self.state.in_flight.take_if(ours)?;
        let wait = match &result {
            Ok(()) => {
                self.state.durable = Some(position);
                AFTER_EVENTS
            }
            Err(_) => AFTER_FAILURE,
        };
        let now = Instant::now();
        self.state.next = Some((now + wait, now + WHEN_IDLE));
        Some(result)
    }

    fn send(&mut self, position: Position, checkpoint: &Checkpoint) {
        let value = checkpoint.encode();
        self.state.serial += 1;
        let serial = self.state.serial;
        self.state.in_flight = Some(InFlightRecord { serial, position, since: Instant::now() });
        let record = BaseRecord::with_opaque_to(&self.topic, serial);
        let record = record.partition(PARTITION).key(self.config.name.as_bytes()).payload(&value);
        if let Err((error, _)) = self.producer.send(record) {
            self.shared.report(Report { serial: Some(serial), result: Err(self.shared.refused(&error)) });
        }
    }
}

impl Shared {
    pub(super) fn new(config: &Config, topic: &str) -> Self {
        Shared { topic: topic.to_owned(), grants: Grants::of(config), ..Shared::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Report>> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, report: Report) {
        *self.lock() = Some(report);
        self.changed.notify_one();
    }

    fn refused(&self, error: &KafkaError) -> Refused {
        let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
        let fatal = code == Code::Fatal;
        match error_policy(code) {
            ErrorPolicy::Denied => Refused { fatal, ..self.denied(in_words(code), code) },
            ErrorPolicy::Refused(remedy) => {
                Refused { reason: in_words(code), remedy: remedy.to_owned(), fatal }
            }
            ErrorPolicy::Retry | ErrorPolicy::Consequence => {
                Refused { reason: in_words(code), remedy: String::new(), fatal }
            }
        }
    }

    /// A right is missing. An idempotent producer needs one before its first record.
    fn denied(&self, reason: String, code: Code) -> Refused {
        let missing = self.grants.missing_for(code, &self.topic);
        Refused { reason: format!("{reason}: {}", missing.what()), remedy: missing.remedy, fatal: true }
    }
}

/// An idempotent producer with a queue for few records, because only one is in flight.
pub(super) fn producer(
    config: &Config,
    shared: &Arc<Shared>,
) -> Result<Client<ThreadedProducer<Reports>>, Error> {
    let mut settings = properties::client(config);
    properties::never_expires(properties::in_order(&mut settings))
        .set("compression.type", "none")
        .set("queue.buffering.max.messages", "10")
        .set("queue.buffering.max.kbytes", "1024");
    properties::make(&settings, Reports(Arc::clone(shared))).map(Client::new)
}

/// The producer's callbacks.
#[derive(Debug)]
pub(super) struct Reports(Arc<Shared>);

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    /// Errors are only logged for debugging: the producer of events reports brokers that are down.
    fn error(&self, error: KafkaError, reason: &str) {
        let reason = &*without_users_of_urls(reason);
        tracing::debug!(peer = "kafka", %error, reason, "connection of the positions");
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, report: &DeliveryResult<'_>, serial: usize) {
        let result = match report {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(self.0.refused(error)),
        };
        self.0.report(Report { serial: Some(serial), result });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::sample_checkpoint;
    use crate::config::load::load;
    use crate::dead_letters::Key;
    use pg_logical::Environment;

    /// A checkpoint that the client refuses without asking a broker.
    fn too_large(flush: u64) -> Checkpoint {
        let key = Key { final_lsn: Lsn(u64::MAX), change: 1 };
        let position = Position { flush: Lsn(flush), partial: None };
        Checkpoint { position, retried: vec![key; 100_000], ..sample_checkpoint() }
    }

    #[tokio::test]
    async fn a_refused_checkpoint_is_not_retried_at_once() {
        let env = Environment::empty()
            .with_variable("OUTBOX_ROUTER_POSTGRES__URL", "postgres://router@db/shop")
            .with_variable("OUTBOX_ROUTER_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1");
        let config = Arc::new(load(None, &env).unwrap().config);
        let shared = Arc::new(Shared::default());
        let mut topic = CheckpointTopic {
            topic: "positions".to_owned(),
            producer: producer(&config, &shared).unwrap(),
            shared,
            config,
            state: WriterState::default(),
            stale_metadata: Arc::default(),
            preparing: None,
        };
        let record = too_large(5);
        let before = Instant::now();
        assert_eq!(topic.offer(record.position, 1, true, || record.clone()), None);
        topic.reported().await;
        topic.settle().unwrap();
        assert!(topic.failed().is_some());
        let again = topic.offer(record.position, 1, true, || panic!("it is offered again"));
        assert!(again.is_some_and(|again| again >= before + AFTER_FAILURE), "{again:?}");
        topic.close().await;
    }
}
