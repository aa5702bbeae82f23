//! Writing: one record at a time, the newest position each time.

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
use crate::error::{Error, Peer};
use crate::progress::Position;
use crate::sink::kafka::client::Client;
use crate::sink::kafka::context::log;
use crate::sink::kafka::error_policy::{ErrorPolicy, verdict};
use crate::sink::kafka::properties;
use crate::sink::kafka::stale_metadata::knows_brokers;

/// How long after one position that follows acknowledged events the next is written at the earliest. A crash repeats
/// what was acknowledged since the last one.
const AFTER_EVENTS: Duration = Duration::from_millis(25);

/// The same for one that follows the log of an idle outbox.
const WHEN_IDLE: Duration = Duration::from_secs(1);

/// How long a refused one waits before the next.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// How long an acknowledgement takes only if something is wrong.
const LONG: Duration = Duration::from_secs(5);

/// How often a client that says nothing is looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How long the first position of a session may take.
const FIRST: Duration = Duration::from_secs(15);

/// What is in the topic, and what is on its way there.
#[derive(Debug, Default)]
pub struct Written {
    durable: Option<Position>,
    under_way: Option<UnderWay>,
    serial: usize,
    /// How many changes were acknowledged when the last one was sent.
    acknowledged: u64,
    /// When the next may be written, by what it follows.
    next: Option<(Instant, Instant)>,
    /// Why the last one was refused, which is said once.
    failed: Option<String>,
}

/// A record without a report yet.
#[derive(Debug)]
struct UnderWay {
    /// The number that its report will bear.
    serial: usize,
    position: Position,
    since: Instant,
}

/// What the client's thread reports.
#[derive(Debug, Default)]
pub(super) struct Shared {
    report: Mutex<Option<Report>>,
    changed: Notify,
}

#[derive(Debug, Clone)]
struct Report {
    /// Of the record; `None` stands for whichever is under way.
    serial: Option<usize>,
    result: Result<(), Refused>,
}

#[derive(Debug, Clone)]
struct Refused {
    reason: String,
    remedy: &'static str,
    /// The client will send nothing any more.
    fatal: bool,
}

impl CheckpointTopic {
    /// Writes the position that a session starts with, and waits for it.
    ///
    /// # Errors
    /// It is refused, or is not acknowledged in time.
    pub async fn begin(&mut self, first: &Checkpoint) -> Result<(), Error> {
        self.send(first);
        let deadline = Instant::now() + FIRST;
        loop {
            let pause = deadline.min(Instant::now() + LOOK_EVERY);
            let _ = tokio::time::timeout_at(pause, self.shared.changed.notified()).await;
            self.look_for_failure();
            match self.take_report() {
                Some(Ok(())) => return Ok(()),
                Some(Err(refused)) => {
                    let what = format!(
                        "the position cannot be written to the topic {}: {}",
                        self.topic, refused.reason
                    );
                    return Err(match refused.remedy {
                        "" => Error::transient(Peer::Kafka, what),
                        remedy => Error::refused(what, remedy),
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

    /// What is durable in the topic.
    pub fn durable(&self) -> Lsn {
        self.durable_position().flush
    }

    /// The same with what there is of the transaction behind it.
    pub fn durable_position(&self) -> Position {
        self.written.durable.unwrap_or_default()
    }

    /// librdkafka's error callback tells the cause of a fatal error, but not that it is fatal, and there may be no report.
    fn look_for_failure(&self) {
        if let Some((_, reason)) = self.producer.client().fatal_error() {
            let refused = Refused { reason, remedy: "", fatal: true };
            self.shared.report(Report { serial: None, result: Err(refused) });
        }
    }

    /// If no report has come for long, finds out whether the client has lost sight of the brokers. Then it is made anew.
    pub fn look_for_lost_sight(&self) {
        self.look_for_failure();
        if self.written.under_way.as_ref().is_none_or(|under_way| under_way.since.elapsed() < LONG) {
            return;
        }
        let (producer, shared) = (self.producer.clone(), Arc::clone(&self.shared));
        let lost = move || {
            let reason = "the client has lost sight of the brokers, which answer a new one".to_owned();
            shared.report(Report { serial: None, result: Err(Refused { reason, remedy: "", fatal: true }) });
        };
        let known = move |timeout| knows_brokers(producer.client(), timeout);
        self.lost_sight.look(properties::client(&self.config), known, lost);
    }

    /// For how long the position under way has not been acknowledged.
    pub fn waits_for(&self) -> Duration {
        self.written.under_way.as_ref().map_or(Duration::ZERO, |under_way| under_way.since.elapsed())
    }

    /// The brokers answer, and do not acknowledge the position under way, for this reason.
    pub fn not_acknowledged(&mut self, reason: String) {
        self.cannot_be_written(reason, "");
    }

    /// Told once for each reason.
    fn cannot_be_written(&mut self, reason: String, remedy: &str) {
        if self.written.failed.as_ref() != Some(&reason) {
            tracing::warn!(
                peer = "kafka",
                topic = self.topic,
                reason,
                remedy = (!remedy.is_empty()).then_some(remedy),
                "the position cannot be written; the slot is not moved until it can"
            );
        }
        self.written.failed = Some(reason);
    }

    /// Why the slot stands still, if that is so.
    pub fn obstacle(&self) -> Option<String> {
        let reason = self.failed()?;
        Some(format!("the position cannot be written to the topic {}: {reason}", self.topic))
    }

    /// Why positions cannot be written, if that is so.
    pub fn failed(&self) -> Option<&str> {
        self.written.failed.as_deref()
    }

    /// Writes `position` if it is a new one and its time has come. `acknowledged` counts changes. `at_once`: there will be no
    /// newer one soon. Returns when to ask again.
    pub fn offer(
        &mut self,
        position: Position,
        acknowledged: u64,
        at_once: bool,
        remembered: impl FnOnce() -> Checkpoint,
    ) -> Option<Instant> {
        if self.written.under_way.is_some() || self.written.durable == Some(position) {
            return None;
        }
        let (after_events, when_idle) = self.written.next.unwrap_or_else(|| (Instant::now(), Instant::now()));
        let events = acknowledged != self.written.acknowledged;
        let due = if events || at_once { after_events } else { when_idle };
        // not even then one refusal after the other: the client may refuse without asking a broker
        let paced = !at_once || self.written.failed.is_some();
        if paced && Instant::now() < due {
            return Some(due);
        }
        self.written.acknowledged = acknowledged;
        self.send(&remembered());
        None
    }

    /// Waits until something is known of the record under way. May be dropped at any await.
    pub async fn reported(&self) {
        self.shared.changed.notified().await;
    }

    /// Whether a record is under way.
    pub fn waits(&self) -> bool {
        self.written.under_way.is_some()
    }

    /// Takes in what is known of it.
    ///
    /// # Errors
    /// A new client, where the old one has given up, cannot be made.
    pub fn settle(&mut self) -> Result<(), Error> {
        match self.take_report() {
            None => Ok(()),
            Some(Ok(())) => {
                if self.written.failed.take().is_some() {
                    tracing::info!(topic = self.topic, "positions are written again");
                }
                Ok(())
            }
            Some(Err(refused)) => {
                self.cannot_be_written(refused.reason, refused.remedy);
                // One that was deleted is made again; if it cannot be, the next record says so. An attempt waits for the
                // brokers as long as it takes, so there is one at a time.
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
        // a client that was replaced may yet report what it had under way
        let ours = |under_way: &mut UnderWay| serial.is_none_or(|serial| serial == under_way.serial);
        let UnderWay { position, .. } = self.written.under_way.take_if(ours)?;
        let wait = match &result {
            Ok(()) => {
                self.written.durable = Some(position);
                AFTER_EVENTS
            }
            Err(_) => AFTER_FAILURE,
        };
        let now = Instant::now();
        self.written.next = Some((now + wait, now + WHEN_IDLE));
        Some(result)
    }

    fn send(&mut self, remembered: &Checkpoint) {
        let value = remembered.encode();
        self.written.serial += 1;
        let serial = self.written.serial;
        self.written.under_way =
            Some(UnderWay { serial, position: remembered.position, since: Instant::now() });
        let record = BaseRecord::with_opaque_to(&self.topic, serial);
        let record = record.partition(PARTITION).key(self.config.name.as_bytes()).payload(&value);
        if let Err((error, _)) = self.producer.send(record) {
            self.shared.report(Report { serial: Some(serial), result: Err(refused(&error)) });
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Report>> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, report: Report) {
        *self.lock() = Some(report);
        self.changed.notify_one();
    }
}

fn refused(error: &KafkaError) -> Refused {
    let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
    let remedy = match verdict(code) {
        ErrorPolicy::Refused(remedy) | ErrorPolicy::Denied(remedy) => remedy,
        ErrorPolicy::Again | ErrorPolicy::Consequence => "",
    };
    Refused { reason: code.to_string(), remedy, fatal: code == Code::Fatal }
}

/// An idempotent producer with room for one record.
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

/// What librdkafka calls back.
#[derive(Debug)]
pub(super) struct Reports(Arc<Shared>);

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    /// That brokers are away is what the producer of the events says.
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(peer = "kafka", %error, reason, "connection of the positions");
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, report: &DeliveryResult<'_>, serial: usize) {
        let result = match report {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(refused(error)),
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

    /// The client refuses it without asking a broker.
    fn too_large(flush: u64) -> Checkpoint {
        let key = Key { final_lsn: Lsn(u64::MAX), change: 1 };
        let position = Position { flush: Lsn(flush), partial: None };
        Checkpoint { position, retried: vec![key; 100_000], ..sample_checkpoint() }
    }

    #[tokio::test]
    async fn a_position_that_is_refused_at_once_is_not_tried_again_at_once() {
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
            written: Written::default(),
            lost_sight: Arc::default(),
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
