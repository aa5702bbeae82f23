//! Kafka, by librdkafka's own threads.
//!
//! - sending: `publisher` owns the clients, `producers` (one that is idempotent, or two that are transactional), `properties` they are
//!   made with, `context` and `outcomes` what comes back, `client` and `closing` how they end, `record_limits` whether a topic takes a
//!   record, `first_in_partition` before a partition's second record, `suspect` the record that may be to blame for a refusal
//! - topics: `topics` and `topic_setup` before the first record, `topic_cache` what is known of them, `durability` what an acknowledgement
//!   is worth, `topic_monitor` while records flow
//! - checkpoints: `checkpointer`, `checkpoint_topic`, `transactions` and `transaction_size` where they go with the events
//! - when nothing is acknowledged: `stall_detector`, `stall_probes`, `stall_reason`, `unreachable` when no broker answers, `stale_metadata` when the
//!   client is at fault, `background_probe` how brokers are asked meanwhile
//! - `error_policy` what an error means, `cluster_info` what `check` asks, `delivery_stats` what is counted

mod background_probe;
pub mod checkpoint_topic;
mod checkpointer;
mod client;
mod closing;
pub mod cluster_info;
mod context;
mod delivery_stats;
pub mod durability;
mod error_policy;
mod first_in_partition;
mod outcomes;
mod position_report;
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
mod topic_monitor;
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
use crate::error::{Error, Peer};
use crate::monitor::{Monitor, TopicCounters};
use crate::pipeline::PipelineOutput;
use crate::progress::{Partial, Progress, Sequence};
use crate::relay::{
    Durability, Health, InFlight, Intake, LoopState, NotSent, Outcome, Refusal, Sent, Sink, SinkEvent,
    Stalled, until,
};
use crate::routing::Routed;
use checkpoint_topic::CheckpointStore;
use checkpointer::{Checkpointer, Ending};
use client::Client;
use closing::Closing;
use delivery_stats::DeliveryStats;
pub(crate) use outcomes::Outcomes;
use publisher::Admitted;
pub(crate) use publisher::Publisher;
use stall_detector::{StallDetector, Unacknowledged};
use suspect::{Admission, Isolation};
pub use suspect::{SentAlone, Suspect};
pub use topic_cache::TopicCache;
pub use transaction_size::TransactionSize;

/// How long the first answer of a broker may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a sign of life from the brokers may take; it is asked for about once a second.
const LOOK_TIMEOUT: Duration = Duration::from_millis(800);

/// After so long without an acknowledgement it is worth a look.
const LOOK_AFTER: Duration = Duration::from_secs(1);

/// How often it is looked whether anything stands still.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The partition of the positions topic that checkpoints are in, whatever their number, so that more of them move nothing.
const PARTITION: i32 = 0;

/// A broker that answers and has acknowledged nothing, or ended no transaction, for so long is worth a line.
const STALLED: Duration = Duration::from_secs(5);

/// How long the end of a client is waited for that has sent no events.
pub(crate) const UNUSED: Duration = Duration::from_secs(2);

/// The smallest limit of any topic, before any is known.
pub const DEFAULT_BATCH_BYTES: usize = properties::DEFAULT_BATCH_BYTES;

/// What a session sends to, and how.
pub(crate) struct KafkaParts {
    /// The producers, which have shut out whoever was there before.
    pub(crate) publisher: Publisher,
    /// What they report to.
    pub(crate) outcomes: Arc<Outcomes>,
    /// Where checkpoints are stored.
    pub(crate) store: CheckpointStore,
    /// What the session began with.
    pub(crate) began: Checkpoint,
    /// How large Kafka transactions are.
    pub(crate) transaction_size: TransactionSize,
    /// `transaction.timeout.ms`
    pub(crate) transaction_timeout: Duration,
    /// What an earlier session has found out of a refused batch.
    pub(crate) suspect: Suspect,
    /// The prefix of the messages that are events, as it is now.
    pub(crate) message_prefix: Option<String>,
    /// Shows what goes on.
    pub(crate) monitor: Monitor,
    /// Cancelled when the router is asked to stop.
    pub(crate) stop: CancellationToken,
}

/// One session with Kafka.
pub(crate) struct KafkaSink {
    publisher: Publisher,
    outcomes: Arc<Outcomes>,
    checkpointer: Checkpointer,
    stalls: StallDetector,
    isolation: Isolation,
    waiting: Unacknowledged,
    counters: Vec<TopicCounters>,
    /// What was delivered for certain, to be counted.
    delivered: DeliveryStats,
    /// Taken reports, kept for its allocation.
    reports: Vec<Sequence>,
    /// A checkpoint was stored since the last turn.
    checkpointed: bool,
    /// When a checkpoint is to be written.
    checkpoint_at: Option<Instant>,
    /// Why no broker can be reached, as it was first known.
    down: Option<String>,
    message_prefix: Option<String>,
    look_timer: Interval,
    monitor: Monitor,
    stop: CancellationToken,
}

/// What a session leaves behind.
#[derive(Debug)]
pub struct KafkaLeft {
    /// Where to go on.
    pub checkpoint: Checkpoint,
    /// Whether any change was acknowledged.
    pub advanced: bool,
    /// The last change that may have been refused together with others.
    pub doubtful: Option<Partial>,
    /// The record that was under way alone, if records were sent one at a time.
    pub alone: Option<SentAlone>,
    /// The largest batch that all topics take.
    pub batch_bytes: usize,
    /// How large Kafka transactions are to be.
    pub transaction_size: TransactionSize,
}

impl KafkaSink {
    /// Goes on where `parts` says.
    pub(crate) fn new(parts: KafkaParts) -> Self {
        let start = parts.began.position;
        let mut look_timer = interval(LOOK_EVERY);
        look_timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        KafkaSink {
            publisher: parts.publisher,
            outcomes: parts.outcomes,
            checkpointer: Checkpointer::new(
                parts.store,
                parts.began,
                parts.transaction_size,
                parts.transaction_timeout,
            ),
            stalls: StallDetector::new(start),
            isolation: Isolation::new(parts.suspect),
            waiting: Unacknowledged { oldest_topic: None, with_brokers: false },
            counters: Vec::new(),
            delivered: DeliveryStats::default(),
            reports: Vec::new(),
            checkpointed: false,
            checkpoint_at: None,
            down: None,
            message_prefix: parts.message_prefix,
            look_timer,
            monitor: parts.monitor,
            stop: parts.stop,
        }
    }

    /// Records of one more topic can be sent, or of one again.
    fn admitted(&mut self, admitted: Option<Admitted>) {
        let Some(Admitted { topic, name, grown }) = admitted else { return };
        // topics are numbered as they are admitted; one that was looked at again has its number
        if topic == self.counters.len() {
            self.counters.push(self.monitor.topic_counters(&name));
        }
        if grown {
            self.monitor.partitions_grown(1);
        }
    }

    /// Something is known of the checkpoint that was under way, and this is delivered by it.
    fn stored(&mut self, mut delivered: DeliveryStats) {
        self.checkpointer.show(&self.monitor);
        self.checkpointed = true;
        if delivered.records() > 0 {
            self.stalls.acknowledged();
            delivered.count(&self.counters, &self.monitor, PgTimestamp::now());
        }
    }

    /// Notes that the position has moved, or need not.
    fn progressed(&mut self, state: &LoopState<'_>) {
        let records = state.window.records();
        let with_brokers = state.elsewhere == 0 || state.elsewhere < records;
        if !with_brokers {
            // nothing waits for a broker
            self.stalls.acknowledged();
        }
        self.waiting = Unacknowledged { oldest_topic: state.window.oldest_target(), with_brokers };
        // what is acknowledged and not committed is shown to nobody
        let position = self.checkpointer.certain(state.progress);
        let nothing_waits = state.idle && state.window.is_empty() && self.checkpointer.is_settled();
        let moved = self.stalls.turned(position, nothing_waits);
        if moved || nothing_waits && state.source.caught_up {
            self.publisher.flowing();
        }
        let down = self.publisher.brokers_down();
        self.stalls.reached(down.is_none());
        if down.is_none() || self.down.is_none() {
            self.down = down;
        }
    }

    /// Whether a Kafka transaction that was not committed in time may have ended the session.
    fn may_have_timed_out(&self, outcome: &Outcome) -> bool {
        may_be_a_timeout(outcome)
            && !self.publisher.obstacle_is_told()
            && self.publisher.brokers_down().is_none()
    }
}

impl Sink for KafkaSink {
    type End = KafkaLeft;

    fn is_ready(&self) -> bool {
        !self.publisher.is_setting_up() && !self.checkpointer.is_closing() && self.checkpointer.room() > 0
    }

    fn send(&mut self, made: &PipelineOutput<'_>, sequence: Sequence) -> Result<Sent, NotSent> {
        let record = match &made.routed {
            Ok(Routed::Record(record)) => record,
            Ok(Routed::Dropped) => return Ok(Sent::Nothing),
            Err(why) => return Err(NotSent::Impossible(why.clone())),
        };
        let settled = self.checkpointer.is_settled();
        let admission = self.isolation.admits(&made.event, settled, self.publisher.has_records());
        if admission == Admission::Later {
            return Err(NotSent::Later);
        }
        let accepted = self.publisher.send(record, sequence)?;
        let (bytes, memory) = (record.size(), record.memory());
        self.checkpointer.sent(bytes);
        self.isolation.sent(admission, &made.event, record.topic);
        if accepted.timestamp_replaced {
            self.monitor.timestamps_replaced(1);
        }
        let commit_time = made.event.origin.commit_time;
        Ok(Sent::Record(InFlight { bytes, memory, commit_time, target: accepted.topic }))
    }

    fn reports(&mut self, event: &mut impl FnMut(SinkEvent) -> Option<InFlight>) -> Option<Refusal> {
        // the records of one turn share a look at the clock
        let now = PgTimestamp::now();
        self.publisher.turned(now);
        if std::mem::take(&mut self.checkpointed) {
            event(SinkEvent::Checkpointed);
        }
        let refusal = self.outcomes.take(&mut self.reports);
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
            // nothing may be sent behind a refused record
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
        let settled = state.window.is_empty() && !self.publisher.has_records();
        if settled && self.checkpointer.is_settled() {
            self.publisher.settled()?;
        }
        self.checkpoint_at = None;
        if state.source.intake == Intake::Verifying || !self.publisher.has_producers() {
            return Ok(false);
        }
        self.checkpointer.recognized(self.message_prefix.as_deref());
        let waits = self.publisher.is_setting_up() || self.isolation.waits_for_commit();
        let intake = if waits { Intake::Paused } else { state.source.intake };
        let closing = self.checkpointer.is_closing();
        self.checkpoint_at =
            self.checkpointer.offer(&mut self.publisher, state.progress, settled, intake, note)?;
        // the commit has begun, and what was held back until then need not wait for its end
        Ok(closing && !self.checkpointer.is_closing())
    }

    fn durability(&self, progress: &Progress) -> Durability {
        let (uncommitted, oldest) = self.checkpointer.uncommitted();
        let has_producers = self.publisher.has_producers();
        Durability {
            position: self.checkpointer.certain(progress),
            durable: self.checkpointer.durable(progress),
            survives: self.checkpointer.survives(),
            settled: has_producers && !self.publisher.has_records() && self.checkpointer.is_settled(),
            checkpoint_pending: has_producers && (self.checkpoint_at.is_some() || self.checkpointer.waits()),
            uncommitted,
            oldest,
            is_down: self.down.is_some(),
            awaits: None,
        }
    }

    async fn wait(&mut self) -> Result<(), Error> {
        // What frees memory comes first.
        tokio::select! {
            biased;
            () = self.outcomes.changed() => {}
            delivered = self.checkpointer.reported() => {
                let delivered = delivered.map_err(|error| self.publisher.explained(error))?;
                self.stored(delivered);
            }
            admitted = self.publisher.set_up() => self.admitted(admitted?),
            _ = self.look_timer.tick() => {
                self.stalls.look(&mut self.publisher, &mut self.checkpointer, &self.monitor, self.waiting);
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
        let obstacle = self.publisher.obstacle().or_else(|| self.checkpointer.obstacle());
        obstacle.map_or(Health::Flowing, |reason| Health::Stalled(stalled(reason)))
    }

    async fn close(
        self,
        outcome: Outcome,
        progress: &mut Progress,
        log_verified: bool,
        note: &mut dyn FnMut(&mut Checkpoint),
    ) -> (Outcome, KafkaLeft) {
        let timed_out = self.may_have_timed_out(&outcome);
        let KafkaSink { publisher, outcomes, mut checkpointer, isolation, monitor, stop, .. } = self;
        let mut closing = Closing::new(&outcome, &monitor, &stop);
        let batch_bytes = publisher.batch_bytes();
        let (transaction_size, too_large) = checkpointer.transaction_size(timed_out);
        if let Some(reason) = &too_large {
            publisher.transaction_timed_out(reason.clone());
        }
        closing.wait(publisher.close()).await;
        if log_verified {
            checkpointer.recognized(self.message_prefix.as_deref());
        }
        let mut reports = Vec::new();
        let refusal = outcomes.take(&mut reports);
        for sequence in reports {
            progress.acknowledge(sequence);
        }
        let doubtful = refusal.as_ref().and_then(|refusal| progress.partial_up_to(refusal.last));
        let outcome = match (outcome, refusal) {
            // closing brought the reports of the whole batch
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
        (outcome, KafkaLeft { checkpoint, advanced, doubtful, alone, batch_bytes, transaction_size })
    }
}

/// Whether a Kafka transaction that was not committed in time may have come to this.
fn may_be_a_timeout(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Failed(Error::Transient(failure)) => failure.peer == Peer::Kafka,
        Outcome::Refused(refusal) => refusal.transient && !refusal.waits_for_a_person(),
        _ => false,
    }
}

/// Ends a producer on a thread that may block: it joins librdkafka's own.
async fn discard<C: ProducerContext + 'static>(producer: Client<ThreadedProducer<C>>) {
    // an error would mean that the runtime is shutting down, and the producer with it
    let _ = tokio::task::spawn_blocking(move || producer.end()).await;
}
