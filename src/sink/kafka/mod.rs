//! The Kafka sink, built on librdkafka.
//!
//! - sending: `publisher` owns the clients; `producers` (one idempotent producer, or two transactional ones), `properties`
//!   (their configuration), `context` and `delivery_reports` (what librdkafka calls back), `client` and `closing` (how
//!   clients end), `record_limits` (whether a topic accepts a record), `first_in_partition` (holds back a partition's
//!   second record), `suspect` (finds the record that caused a refusal)
//! - topics: `topics` before the first record, with `admin`, `topic_lookup`, `topic_creation` and `topic_settings`; `topic_cache` (what is known of topics), `durability` (how
//!   safe an acknowledged record is), `topic_monitor` while records flow
//! - checkpoints: `checkpointer`, `checkpoint_topic` and `checkpoint_failure`; in exactly-once mode `transactions` and `transaction_size`
//! - when nothing is acknowledged: `stall_detector`, `stall_probes`, `stall_reason`, `unreachable` (no broker answers),
//!   `stale_metadata` (the client no longer finds the brokers), `background_probe` (asks brokers without blocking)
//! - `error_policy` (what an error means), `cluster_info` (what `check` asks), `delivery_stats` (metrics of delivered
//!   records)

pub mod acls;
mod admin;
mod background_probe;
mod checkpoint_failure;
pub mod checkpoint_topic;
mod checkpointer;
mod client;
mod closing;
pub mod cluster_info;
mod context;
mod delivery_reports;
mod delivery_stats;
pub mod durability;
mod error_policy;
mod event_sender;
mod first_in_partition;
mod producers;
pub mod properties;
mod publisher;
mod record_limits;
mod stale_metadata;
mod stall_detector;
mod stall_probes;
mod stall_reason;
mod suspect;
mod topic_cache;
pub mod topic_creation;
mod topic_lookup;
mod topic_monitor;
pub mod topic_reader;
mod topic_settings;
mod topics;
mod transaction_size;
mod transactions;
mod unreachable;

use std::sync::Arc;

use pg_logical::PgTimestamp;
use rdkafka::producer::{ProducerContext, ThreadedProducer};
use tokio::time::{Duration, Instant, Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::{Error, Peer};
use crate::monitor::{Monitor, TopicCounters};
use crate::pipeline::PipelineOutput;
use crate::progress::{Partial, Position, Progress, Sequence};
use crate::relay::{
    Durability, Health, InFlight, Intake, LoopState, NotSent, Outcome, Refusal, Sent, Sink, SinkEvent,
    Stalled, until,
};
use crate::routing::Routed;
use checkpoint_topic::CheckpointStore;
use checkpointer::{Checkpointer, Ending};
use client::Client;
use closing::Closing;
pub(crate) use delivery_reports::DeliveryReports;
use delivery_stats::DeliveryStats;
pub(crate) use producers::fence;
use publisher::Admitted;
pub(crate) use publisher::Publisher;
use stall_detector::{RecordsInFlight, StallDetector, Unacknowledged};
use suspect::{Admission, Isolation};
pub use suspect::{SentAlone, Suspect};
pub use topic_cache::TopicCache;
pub use transaction_size::TransactionSize;

/// How long the first answer of a broker may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a metadata request may take that only checks whether the brokers answer. It is repeated about once a second.
const METADATA_TIMEOUT: Duration = Duration::from_millis(800);

/// The silence after which the brokers are asked why nothing is acknowledged.
const PROBE_AFTER: Duration = Duration::from_secs(1);

/// How often stalls are looked for.
const STALL_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The partition that holds checkpoints, however many the positions topic has: adding partitions moves nothing.
const PARTITION: i32 = 0;

/// The silence after which a stall is logged, although the brokers answer.
const STALLED: Duration = Duration::from_secs(5);

/// How long to wait for a client to end that has sent no events.
pub(crate) const UNUSED_CLIENT_TIMEOUT: Duration = Duration::from_secs(2);

/// The batch size before any topic's limit is known, in bytes.
pub const DEFAULT_BATCH_BYTES: usize = properties::DEFAULT_BATCH_BYTES;

/// What a session needs to send records.
pub(crate) struct KafkaParts {
    /// The producers. In exactly-once mode they have fenced any earlier router.
    pub(crate) publisher: Publisher,
    /// Where they report deliveries.
    pub(crate) delivery_reports: Arc<DeliveryReports>,
    /// Where checkpoints are stored.
    pub(crate) store: CheckpointStore,
    /// The checkpoint that the session resumed from.
    pub(crate) resumed_from: Checkpoint,
    /// The position of the source for which it stands.
    pub(crate) start: Position,
    /// The size of Kafka transactions.
    pub(crate) transaction_size: TransactionSize,
    /// `transaction.timeout.ms`
    pub(crate) transaction_timeout: Duration,
    /// What an earlier session found out about a refused batch.
    pub(crate) suspect: Suspect,
    /// The configured prefix of logical messages that are events.
    pub(crate) message_prefix: Option<String>,
    /// Receives metrics and status.
    pub(crate) monitor: Monitor,
    /// Cancelled when the router is asked to stop.
    pub(crate) stop: CancellationToken,
}

impl KafkaParts {
    /// For a loop that stores no checkpoints, because the rows of a table tell where to go on.
    pub(crate) fn without_checkpoints(
        config: &Config,
        (publisher, delivery_reports): (Publisher, Arc<DeliveryReports>),
        suspect: Suspect,
        monitor: Monitor,
        stop: CancellationToken,
    ) -> Self {
        KafkaParts {
            publisher,
            delivery_reports,
            store: CheckpointStore::Off,
            resumed_from: Checkpoint::none(),
            start: Position::default(),
            transaction_size: TransactionSize::default(),
            transaction_timeout: properties::transaction_timeout(config),
            suspect,
            message_prefix: None,
            monitor,
            stop,
        }
    }
}

/// One session with Kafka.
pub(crate) struct KafkaSink {
    publisher: Publisher,
    delivery_reports: Arc<DeliveryReports>,
    checkpointer: Checkpointer,
    stalls: StallDetector,
    isolation: Isolation,
    waiting: Unacknowledged,
    counters: Vec<TopicCounters>,
    /// Delivered records that are not counted in the metrics yet.
    delivered: DeliveryStats,
    /// Reports being handled; reused to save allocations.
    reports: Vec<Sequence>,
    /// A transaction was committed since the last iteration.
    committed: bool,
    /// When the next checkpoint is due.
    checkpoint_at: Option<Instant>,
    /// Why no broker can be reached; the first reason found.
    down: Option<String>,
    message_prefix: Option<String>,
    stall_timer: Interval,
    monitor: Monitor,
    stop: CancellationToken,
}

/// What the next session needs to know.
#[derive(Debug)]
pub struct KafkaEnd {
    /// Where to resume.
    pub checkpoint: Checkpoint,
    /// Whether the session has delivered anything: in exactly-once mode, whether it has committed records.
    pub advanced: bool,
    /// The last change that may belong to the refused batch.
    pub last_suspect: Option<Partial>,
    /// The record in flight, if records were sent one at a time.
    pub alone: Option<SentAlone>,
    /// The largest batch that all topics accept, in bytes.
    pub batch_bytes: usize,
    /// The size of Kafka transactions from now on.
    pub transaction_size: TransactionSize,
}

impl KafkaSink {
    pub(crate) fn new(parts: KafkaParts) -> Self {
        let start = parts.start;
        let mut stall_timer = interval(STALL_CHECK_INTERVAL);
        stall_timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        KafkaSink {
            publisher: parts.publisher,
            delivery_reports: parts.delivery_reports,
            checkpointer: Checkpointer::new(
                parts.store,
                parts.resumed_from,
                start,
                parts.transaction_size,
                parts.transaction_timeout,
            ),
            stalls: StallDetector::new(start),
            isolation: Isolation::new(parts.suspect),
            waiting: Unacknowledged { oldest_topic: None, with_brokers: false },
            counters: Vec::new(),
            delivered: DeliveryStats::default(),
            reports: Vec::new(),
            committed: false,
            checkpoint_at: None,
            down: None,
            message_prefix: parts.message_prefix,
            stall_timer,
            monitor: parts.monitor,
            stop: parts.stop,
        }
    }

    /// A topic is ready, for the first time or after another check.
    fn admitted(&mut self, admitted: Admitted) {
        let Admitted { topic, name, grown } = admitted;
        // topics are numbered in this order; one that was checked again keeps its number
        if topic == self.counters.len() {
            self.counters.push(self.monitor.topic_counters(&name));
        }
        if grown {
            self.monitor.counts().partitions_grown.add(1);
        }
    }

    /// A checkpoint was written or refused. `delivered`: the records that its transaction has committed.
    fn stored(&mut self, mut delivered: DeliveryStats) {
        self.checkpointer.show(&self.monitor);
        self.committed = self.checkpointer.is_transactional();
        if delivered.records() > 0 {
            self.stalls.acknowledged();
            delivered.count(&self.counters, &self.monitor, PgTimestamp::now());
        }
    }

    /// Updates the clocks of the stall detector.
    fn progressed(&mut self, state: &LoopState<'_>) {
        let records = state.window.records();
        let with_brokers = state.elsewhere == 0 || state.elsewhere < records;
        if !with_brokers {
            // what is in flight waits for Postgres only
            self.stalls.acknowledged();
        }
        // the oldest record may be one that waits for Postgres, and parked events that are sent again are not part of the window
        let oldest = state.window.oldest_target().filter(|topic| self.publisher.is_topic(*topic));
        let oldest_topic = oldest.or_else(|| self.publisher.topic_in_flight());
        self.waiting = Unacknowledged { oldest_topic, with_brokers };
        // uncommitted records do not count: consumers cannot see them
        let position = self.checkpointer.resume_position(state.progress);
        let in_flight = self.records_in_flight(state);
        let moved = self.stalls.progressed(position, in_flight);
        if moved || in_flight == RecordsInFlight::None && state.source.caught_up {
            self.publisher.clear_stall_reason();
        }
        // with the present reason: after a restart a broker may refuse the credentials
        self.down = self.publisher.brokers_down();
        self.stalls.reached(self.down.is_none());
    }

    fn records_in_flight(&self, state: &LoopState<'_>) -> RecordsInFlight {
        if !state.idle || !state.window.is_empty() || !self.checkpointer.is_settled() {
            RecordsInFlight::Stream
        } else if self.publisher.has_records() {
            RecordsInFlight::Retries
        } else {
            RecordsInFlight::None
        }
    }

    /// Whether the session may have ended because a Kafka transaction timed out.
    fn may_have_timed_out(&self, outcome: &Outcome) -> bool {
        may_be_a_timeout(outcome)
            && !self.publisher.stall_is_explained()
            && self.publisher.brokers_down().is_none()
    }
}

impl Sink for KafkaSink {
    type End = KafkaEnd;

    fn is_ready(&self) -> bool {
        !self.publisher.is_setting_up()
            && !self.checkpointer.is_closing()
            && self.checkpointer.remaining_bytes() > 0
    }

    fn send(&mut self, output: &PipelineOutput<'_>, sequence: Sequence) -> Result<Sent, NotSent> {
        let record = match &output.routed {
            Ok(Routed::Record(record)) => record,
            Ok(Routed::Dropped) => return Ok(Sent::Nothing),
            Err(why) => return Err(NotSent::Impossible(why.clone())),
        };
        let settled = self.checkpointer.is_settled();
        let admission = self.isolation.admit(&output.event, settled, self.publisher.has_records());
        if admission == Admission::Later {
            return Err(NotSent::Later);
        }
        let accepted = self.publisher.send(record, sequence)?;
        let (bytes, memory) = (record.size(), record.memory());
        self.checkpointer.sent(bytes);
        self.isolation.sent(admission, &output.event, record.topic);
        if accepted.timestamp_replaced {
            self.monitor.counts().timestamps_replaced.add(1);
        }
        let commit_time = output.event.origin.commit_time;
        Ok(Sent::Record(InFlight { bytes, memory, commit_time, target: accepted.topic }))
    }

    fn looks_ahead(&self) -> bool {
        self.publisher.takes_more_topics()
    }

    fn look_ahead(&mut self, output: &PipelineOutput<'_>) -> bool {
        if let Ok(Routed::Record(record)) = &output.routed {
            self.publisher.set_up_too(record.topic);
        }
        self.publisher.takes_more_topics()
    }

    fn reports(&mut self, event: &mut impl FnMut(SinkEvent) -> Option<InFlight>) -> Option<Refusal> {
        // one clock reading for all records of an iteration
        let now = PgTimestamp::now();
        self.publisher.start_turn(now);
        if std::mem::take(&mut self.committed) {
            event(SinkEvent::Committed);
        }
        let refusal = self.delivery_reports.take(&mut self.reports);
        if !self.reports.is_empty() {
            self.stalls.acknowledged();
        }
        let stats = self.checkpointer.uncounted().unwrap_or(&mut self.delivered);
        for sequence in self.reports.drain(..) {
            self.publisher.acknowledged(sequence);
            if let Some(record) = event(SinkEvent::Delivered(sequence)) {
                stats.add(record);
            }
        }
        self.delivered.count(&self.counters, &self.monitor, now);
        if refusal.is_some() {
            // no record may follow a refused one
            self.publisher.purge();
        }
        refusal
    }

    fn after_dispatch(
        &mut self,
        state: &LoopState<'_>,
        note: &mut dyn FnMut(&mut Checkpoint),
    ) -> Result<bool, Error> {
        self.progressed(state);
        self.publisher.start_setup();
        let settled = state.window.is_empty() && !self.publisher.has_records();
        if settled && self.checkpointer.is_settled() {
            self.publisher.settled()?;
        }
        self.checkpoint_at = None;
        if state.source.intake == Intake::Verifying || !self.publisher.has_producers() {
            return Ok(false);
        }
        self.checkpointer.log_verified(self.message_prefix.as_deref());
        let waits = self.publisher.is_setting_up() || self.isolation.waits_for_commit();
        let intake = if waits { Intake::Paused } else { state.source.intake };
        let closing = self.checkpointer.is_closing();
        self.checkpoint_at =
            self.checkpointer.offer(&mut self.publisher, state.progress, settled, intake, note)?;
        // the commit has begun, so records that waited for it can be sent
        Ok(closing && !self.checkpointer.is_closing())
    }

    fn durability(&self, progress: &Progress) -> Durability {
        let (uncommitted, oldest) = self.checkpointer.uncommitted();
        let has_producers = self.publisher.has_producers();
        Durability {
            position: self.checkpointer.resume_position(progress),
            durable: self.checkpointer.durable(progress),
            survives: self.checkpointer.survives(),
            settled: has_producers && !self.publisher.has_records() && self.checkpointer.is_settled(),
            checkpoint_pending: has_producers
                && (self.checkpoint_at.is_some() || self.checkpointer.is_writing()),
            uncommitted,
            oldest,
            is_down: self.down.is_some(),
            awaits: None,
        }
    }

    async fn wait(&mut self) -> Result<(), Error> {
        // Deliveries first: they free memory.
        tokio::select! {
            biased;
            () = self.delivery_reports.changed() => {}
            delivered = self.checkpointer.reported() => {
                let delivered = delivered.map_err(|error| self.publisher.explained(error))?;
                self.stored(delivered);
            }
            admitted = self.publisher.set_up() => {
                admitted?.into_iter().for_each(|admitted| self.admitted(admitted));
            }
            _ = self.stall_timer.tick() => {
                self.stalls.check(&mut self.publisher, &mut self.checkpointer, &self.monitor, self.waiting);
            }
            () = until(self.checkpoint_at) => {}
        }
        Ok(())
    }

    fn health(&self) -> Health {
        let stalled = |reason: String| Stalled { peer: Peer::Kafka, reason };
        if let Some(reason) = &self.down {
            return Health::Down(stalled(reason.clone()));
        }
        let stall_reason = self.publisher.stall_reason().or_else(|| self.checkpointer.stall_reason());
        let busy = || self.publisher.setup_progress().map_or(Health::Flowing, Health::Busy);
        stall_reason.map_or_else(busy, |reason| Health::Stalled(stalled(reason)))
    }

    async fn close(
        self,
        outcome: Outcome,
        progress: &mut Progress,
        log_verified: bool,
        note: &mut dyn FnMut(&mut Checkpoint),
    ) -> (Outcome, KafkaEnd) {
        let timed_out = self.may_have_timed_out(&outcome);
        let KafkaSink { publisher, delivery_reports, mut checkpointer, isolation, monitor, stop, .. } = self;
        let mut closing = Closing::new(&outcome, &monitor, &stop);
        let batch_bytes = publisher.batch_bytes();
        let (transaction_size, too_large) = checkpointer.transaction_size(timed_out);
        if let Some(reason) = &too_large {
            publisher.transaction_timed_out(reason.clone());
        }
        closing.wait(publisher.close()).await;
        if log_verified {
            checkpointer.log_verified(self.message_prefix.as_deref());
        }
        let mut reports = Vec::new();
        let refusal = delivery_reports.take(&mut reports);
        for sequence in reports {
            progress.acknowledge(sequence);
        }
        let last_suspect = refusal.as_ref().and_then(|refusal| progress.partial_up_to(refusal.last));
        let outcome = match (outcome, refusal) {
            // closing has delivered the reports of the whole batch
            (Outcome::Refused(_), Some(refusal)) => Outcome::Refused(refusal),
            (outcome, _) => outcome,
        };
        let outcome = match too_large {
            Some(reason) if may_be_a_timeout(&outcome) => {
                Outcome::Failed(Error::transient(Peer::Kafka, reason))
            }
            _ => outcome,
        };
        let wait = async |ending: Ending<'_>| closing.wait(ending).await;
        let (checkpoint, advanced) = checkpointer.close(progress, note, wait).await;
        let alone = isolation.alone();
        (outcome, KafkaEnd { checkpoint, advanced, last_suspect, alone, batch_bytes, transaction_size })
    }
}

/// Whether the outcome can be the consequence of a transaction that timed out.
fn may_be_a_timeout(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Failed(Error::Transient(failure)) => failure.peer == Peer::Kafka,
        Outcome::Refused(refusal) => refusal.transient && !refusal.waits_for_a_person(),
        _ => false,
    }
}

/// Ends a producer on a blocking thread, because it joins librdkafka's threads.
async fn discard<C: ProducerContext + 'static>(producer: Client<ThreadedProducer<C>>) {
    // fails only while the runtime shuts down, which ends the producer too
    let _ = tokio::task::spawn_blocking(move || producer.end()).await;
}
