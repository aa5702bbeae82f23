//! Writes acknowledged positions to the positions topic. Postgres gets a confirmation only of positions that are durable
//! there.

use std::pin::Pin;

use pg_logical::{Lsn, PgTimestamp};
use tokio::time::{Duration, Instant};

use super::checkpoint_topic::{CheckpointStore, CheckpointTopic};
use super::delivery_stats::DeliveryStats;
use super::publisher::Publisher;
use super::transaction_size::TransactionSize;
use super::transactions::Transactions;
use crate::checkpoint::{Checkpoint, LogFingerprint};
use crate::error::Error;
use crate::monitor::Monitor;
use crate::progress::{Position, Progress};
use crate::relay::Intake;

/// A future that ends a client, or its last commit.
pub(super) type Ending<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Where and when checkpoints are written.
pub(super) struct Checkpointer {
    mode: Mode,
    /// The checkpoint that the session resumed from; the template for new ones.
    resumed_from: Checkpoint,
}

enum Mode {
    /// No checkpoints; only the slot holds the position.
    SlotOnly,
    /// After the events before it are acknowledged, by a separate producer.
    Separate(Box<CheckpointTopic>),
    /// In the same Kafka transaction as the events before it.
    Transactional(Box<Transactions>),
}

impl Checkpointer {
    /// `start`: the position of the source for which `resumed_from` stands.
    pub(super) fn new(
        store: CheckpointStore,
        resumed_from: Checkpoint,
        start: Position,
        size: TransactionSize,
        timeout: Duration,
    ) -> Self {
        let mode = match store {
            CheckpointStore::Off => Mode::SlotOnly,
            CheckpointStore::Separate(mut topic) => {
                topic.stands_for(start);
                Mode::Separate(topic)
            }
            CheckpointStore::Transactional(_) => {
                let committed = resumed_from.clone();
                Mode::Transactional(Box::new(Transactions::new(committed, start, size, timeout)))
            }
        };
        Checkpointer { mode, resumed_from }
    }

    /// Writes or commits a checkpoint if the position is new and the time has come. Returns when to call again. `settled`:
    /// no record is in flight. `add` adds to the checkpoint what other parts store in it.
    pub(super) fn offer(
        &mut self,
        sink: &mut Publisher,
        progress: &Progress,
        settled: bool,
        intake: Intake,
        add: impl FnOnce(&mut Checkpoint),
    ) -> Result<Option<Instant>, Error> {
        let position = progress.position();
        match &mut self.mode {
            Mode::SlotOnly => Ok(None),
            Mode::Separate(topic) => {
                let checkpoint = || now(&self.resumed_from, progress, add);
                Ok(topic.offer(position, progress.acknowledged(), intake == Intake::Paused, checkpoint))
            }
            Mode::Transactional(transactions) => {
                let at = transactions.close_if_due(position, intake);
                if transactions.is_closing() && settled {
                    let checkpoint = now(&self.resumed_from, progress, add);
                    transactions.begin(checkpoint, position, |checkpoint| sink.commit(checkpoint))?;
                }
                Ok(at)
            }
        }
    }

    /// The position that survives any crash; `None`: the slot's confirmed position.
    pub(super) fn survives(&self) -> Option<Position> {
        match &self.mode {
            Mode::SlotOnly => None,
            Mode::Separate(topic) => Some(topic.durable_position()),
            Mode::Transactional(transactions) => Some(transactions.position()),
        }
    }

    /// The position that the next session of this process resumes from, and that status shows.
    pub(super) fn resume_position(&self, progress: &Progress) -> Position {
        match &self.mode {
            Mode::SlotOnly | Mode::Separate(_) => progress.position(),
            Mode::Transactional(transactions) => transactions.position(),
        }
    }

    /// The flush LSN that may be confirmed, as far as checkpoints decide it.
    pub(super) fn durable(&self, progress: &Progress) -> Lsn {
        match &self.mode {
            Mode::SlotOnly => progress.position().flush,
            Mode::Separate(topic) => topic.durable(),
            Mode::Transactional(transactions) => transactions.position().flush,
        }
    }

    /// Whether a checkpoint is being written.
    pub(super) fn is_writing(&self) -> bool {
        match &self.mode {
            Mode::SlotOnly => false,
            Mode::Separate(topic) => topic.is_writing(),
            Mode::Transactional(transactions) => transactions.is_committing(),
        }
    }

    /// Whether nothing may be sent until a commit has begun.
    pub(super) fn is_closing(&self) -> bool {
        self.transactions().is_some_and(Transactions::is_closing)
    }

    /// Whether every sent record is committed.
    pub(super) fn is_settled(&self) -> bool {
        self.transactions().is_none_or(Transactions::is_settled)
    }

    /// How many more bytes of records the transaction accepts.
    pub(super) fn remaining_bytes(&self) -> usize {
        self.transactions().map_or(usize::MAX, Transactions::remaining_bytes)
    }

    /// A record was sent.
    pub(super) fn sent(&mut self, bytes: usize) {
        if let Mode::Transactional(transactions) = &mut self.mode {
            transactions.sent(1, bytes);
        }
    }

    /// The cause of the delay is known, and it is not the size of the transactions.
    pub(super) fn delay_is_explained(&mut self) {
        if let Mode::Transactional(transactions) = &mut self.mode {
            transactions.delay_is_explained();
        }
    }

    /// Why commits are slow, if the cause is the rate of the brokers.
    pub(super) fn slow(&self) -> Option<String> {
        self.transactions().and_then(Transactions::slow)
    }

    /// At the end of a session: the size of future transactions, and the message if a transaction may have `timed_out`
    /// because of its size.
    pub(super) fn transaction_size(&self, timed_out: bool) -> (TransactionSize, Option<String>) {
        match self.transactions() {
            Some(transactions) if timed_out => transactions.next_size(),
            Some(transactions) => (transactions.size(), None),
            None => Default::default(),
        }
    }

    /// The number of acknowledged records that are not committed to Kafka, and the oldest commit time of their events in
    /// Postgres.
    pub(super) fn uncommitted(&self) -> (usize, Option<PgTimestamp>) {
        self.transactions().map_or((0, None), |transactions| (transactions.records(), transactions.oldest()))
    }

    /// Collects acknowledged records that are not durable before a commit; `None`: they are durable at once.
    pub(super) fn uncounted(&mut self) -> Option<&mut DeliveryStats> {
        match &mut self.mode {
            Mode::Transactional(transactions) => Some(transactions.delivered()),
            Mode::SlotOnly | Mode::Separate(_) => None,
        }
    }

    /// How long the current commit has been running.
    pub(super) fn waits_for(&self) -> Duration {
        self.transactions().map_or(Duration::ZERO, Transactions::commit_duration)
    }

    /// Whether a commit, or the acknowledgement of the records before it, is overdue. `records`: some are with the brokers.
    pub(super) fn is_overdue(&self, records: bool) -> bool {
        self.transactions().is_some_and(|transactions| transactions.is_overdue(records))
    }

    /// Whether the brokers take too long to end a transaction.
    pub(super) fn end_is_overdue(&self) -> bool {
        self.transactions().is_some_and(Transactions::end_is_overdue)
    }

    /// How long the checkpoint in flight has not been acknowledged.
    pub(super) fn position_waits_for(&self) -> Duration {
        match &self.mode {
            Mode::SlotOnly => Duration::ZERO,
            Mode::Separate(topic) => topic.waits_for(),
            Mode::Transactional(transactions) => transactions.position_waits_for(),
        }
    }

    /// The brokers do not acknowledge a checkpoint, for this reason. In exactly-once mode that blocks the events of its
    /// transaction too, otherwise only the slot.
    pub(super) fn not_acknowledged(&mut self, reason: String, sink: &Publisher) {
        match &mut self.mode {
            Mode::SlotOnly => {}
            Mode::Separate(topic) => topic.not_acknowledged(reason),
            Mode::Transactional(_) => sink.set_stall_reason(reason),
        }
    }

    /// Why the slot does not advance although events flow.
    pub(super) fn stall_reason(&self) -> Option<String> {
        match &self.mode {
            Mode::Separate(topic) => topic.stall_reason(),
            Mode::SlotOnly | Mode::Transactional(_) => None,
        }
    }

    fn transactions(&self) -> Option<&Transactions> {
        match &self.mode {
            Mode::Transactional(transactions) => Some(transactions),
            Mode::SlotOnly | Mode::Separate(_) => None,
        }
    }

    /// Waits until a checkpoint is written or refused. Returns the records that are durable only now. Waits forever without
    /// checkpoints. Cancel-safe.
    ///
    /// # Errors
    /// The transaction was not committed, or a client cannot be created.
    pub(super) async fn reported(&mut self) -> Result<DeliveryStats, Error> {
        match &mut self.mode {
            Mode::SlotOnly => std::future::pending().await,
            Mode::Separate(topic) => {
                topic.reported().await;
                topic.settle().map(|()| DeliveryStats::default())
            }
            Mode::Transactional(transactions) => transactions.done().await,
        }
    }

    /// Checks whether the producer of checkpoints has stale metadata.
    pub(super) fn check_stale_metadata(&self) {
        if let Mode::Separate(topic) = &self.mode {
            topic.check_stale_metadata();
        }
    }

    /// Publishes why checkpoints cannot be written.
    pub(super) fn show(&self, monitor: &Monitor) {
        if let Mode::Separate(topic) = &self.mode {
            monitor.checkpoints_failed(topic.failed());
        }
    }

    /// The resume check has succeeded. From now on, logical messages with another prefix may be events.
    pub(super) fn log_verified(&mut self, message_prefix: Option<&str>) {
        if self.resumed_from.definition.message_prefix.as_deref() != message_prefix {
            self.resumed_from.definition.message_prefix = message_prefix.map(str::to_owned);
            self.resumed_from.fingerprint = LogFingerprint::Quiet { from: self.resumed_from.position.flush };
        }
    }

    /// Whether checkpoints are part of the events' transactions.
    pub(super) fn is_transactional(&self) -> bool {
        self.transactions().is_some()
    }

    /// After the producers were closed and their last reports handled: the final checkpoint, and whether the session has
    /// advanced. `wait` waits for a client to end, which a slow name server can delay, and may give up.
    pub(super) async fn close(
        self,
        progress: &Progress,
        add: impl FnOnce(&mut Checkpoint),
        wait: impl AsyncFnOnce(Ending<'_>),
    ) -> (Checkpoint, bool) {
        match self.mode {
            Mode::SlotOnly => {}
            Mode::Separate(topic) => wait(Box::pin(topic.close())).await,
            Mode::Transactional(mut transactions) => {
                wait(Box::pin(transactions.last_commit())).await;
                return (transactions.committed().clone(), transactions.has_advanced());
            }
        }
        (now(&self.resumed_from, progress, add), progress.has_advanced())
    }
}

/// The checkpoint of the current progress.
fn now(resumed_from: &Checkpoint, progress: &Progress, add: impl FnOnce(&mut Checkpoint)) -> Checkpoint {
    let position = progress.position();
    let replay = resumed_from.replay.clone().filter(|replay| !replay.is_over(position));
    let fingerprint = progress.landmark().map_or(resumed_from.fingerprint, LogFingerprint::Landmark);
    let mut checkpoint = Checkpoint { position, fingerprint, replay, ..resumed_from.clone() };
    add(&mut checkpoint);
    checkpoint
}
