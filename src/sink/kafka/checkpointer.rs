//! What is acknowledged, on its way to the positions topic: nothing is confirmed to Postgres that is not durable there.

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

/// The end of a client, or of what it does last.
pub(super) type Ending<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// How positions are remembered.
pub(super) struct Checkpointer {
    how: How,
    /// What the session began with, which each record of it repeats but for the position.
    began: Checkpoint,
}

enum How {
    /// In the slot alone.
    Not,
    /// When the events before it are acknowledged.
    After(Box<CheckpointTopic>),
    /// Together with them.
    With(Box<Transactions>),
}

impl Checkpointer {
    pub(super) fn new(
        positions: CheckpointStore,
        began: Checkpoint,
        size: TransactionSize,
        timeout: Duration,
    ) -> Self {
        let how = match positions {
            CheckpointStore::Off => How::Not,
            CheckpointStore::After(topic) => How::After(topic),
            CheckpointStore::With(_) => How::With(Box::new(Transactions::new(began.clone(), size, timeout))),
        };
        Checkpointer { how, began }
    }

    /// Writes or commits the position if there is a new one and its time has come. Returns when to ask again.
    /// `settled`: no record is under way. `add` adds to a position what others want to find with it.
    pub(super) fn offer(
        &mut self,
        sink: &mut Publisher,
        progress: &Progress,
        settled: bool,
        intake: Intake,
        add: impl FnOnce(&mut Checkpoint),
    ) -> Result<Option<Instant>, Error> {
        let position = progress.position();
        match &mut self.how {
            How::Not => Ok(None),
            How::After(topic) => {
                let remembered = || now(&self.began, progress, add);
                Ok(topic.offer(position, progress.acknowledged(), intake == Intake::Paused, remembered))
            }
            How::With(transactions) => {
                let at = transactions.close_if_due(position, intake);
                if transactions.is_closing() && settled {
                    let remembered = now(&self.began, progress, add);
                    transactions.begin(remembered, |remembered| sink.commit(remembered))?;
                }
                Ok(at)
            }
        }
    }

    /// What a crash cannot take back; `None`: what the slot is confirmed up to.
    pub(super) fn survives(&self) -> Option<Position> {
        match &self.how {
            How::Not => None,
            How::After(topic) => Some(topic.durable_position()),
            How::With(transactions) => Some(transactions.committed().position),
        }
    }

    /// What the next session of this process begins with; and what is shown.
    pub(super) fn certain(&self, progress: &Progress) -> Position {
        match &self.how {
            How::Not | How::After(_) => progress.position(),
            How::With(transactions) => transactions.committed().position,
        }
    }

    /// The flush LSN that may be confirmed, as far as it depends on what is remembered.
    pub(super) fn durable(&self, progress: &Progress) -> Lsn {
        match &self.how {
            How::Not => progress.position().flush,
            How::After(topic) => topic.durable(),
            How::With(transactions) => transactions.committed().position.flush,
        }
    }

    /// Whether a record is under way.
    pub(super) fn waits(&self) -> bool {
        match &self.how {
            How::Not => false,
            How::After(topic) => topic.waits(),
            How::With(transactions) => transactions.waits(),
        }
    }

    /// Whether nothing may be sent before a commit has begun.
    pub(super) fn is_closing(&self) -> bool {
        self.transactions().is_some_and(Transactions::is_closing)
    }

    /// Whether no delivered event waits for its commit.
    pub(super) fn is_settled(&self) -> bool {
        self.transactions().is_none_or(Transactions::is_settled)
    }

    /// How many bytes of records may be sent now, by what the transaction takes.
    pub(super) fn room(&self) -> usize {
        self.transactions().map_or(usize::MAX, Transactions::room)
    }

    /// A record of so many bytes was sent.
    pub(super) fn sent(&mut self, bytes: usize) {
        if let How::With(transactions) = &mut self.how {
            transactions.sent(1, bytes);
        }
    }

    /// It is known what keeps transactions from ending.
    pub(super) fn held_up(&mut self) {
        if let How::With(transactions) = &mut self.how {
            transactions.held_up();
        }
    }

    /// Why commits take long, if it is because the brokers are slow.
    pub(super) fn slow(&self) -> Option<String> {
        self.transactions().and_then(Transactions::slow)
    }

    /// At the end of a session: how large transactions are to be from here on; and what to say if it may have `timed_out`
    /// because one was too large.
    pub(super) fn transaction_size(&self, timed_out: bool) -> (TransactionSize, Option<String>) {
        match self.transactions() {
            Some(transactions) if timed_out => transactions.next_size(),
            Some(transactions) => (transactions.size(), None),
            None => Default::default(),
        }
    }

    /// How many records were acknowledged and may yet be taken back, and when the oldest of their events was committed.
    pub(super) fn uncommitted(&self) -> (usize, Option<PgTimestamp>) {
        self.transactions().map_or((0, None), |transactions| (transactions.records(), transactions.oldest()))
    }

    /// Where records are counted that were acknowledged, if they are not certain by that.
    pub(super) fn uncounted(&mut self) -> Option<&mut DeliveryStats> {
        match &mut self.how {
            How::With(transactions) => Some(transactions.delivered()),
            How::Not | How::After(_) => None,
        }
    }

    /// For how long a commit has been under way.
    pub(super) fn waits_for(&self) -> Duration {
        self.transactions().map_or(Duration::ZERO, Transactions::waits_for)
    }

    /// Whether a commit takes long, or what has to be acknowledged before it. `records`: some are with the brokers.
    pub(super) fn is_late(&self, records: bool) -> bool {
        self.transactions().is_some_and(|transactions| transactions.is_late(records))
    }

    /// Whether it is the brokers' end of a transaction that takes long.
    pub(super) fn ends_late(&self) -> bool {
        self.transactions().is_some_and(Transactions::ends_late)
    }

    /// For how long a position that was sent has not been acknowledged.
    pub(super) fn position_waits_for(&self) -> Duration {
        match &self.how {
            How::Not => Duration::ZERO,
            How::After(topic) => topic.waits_for(),
            How::With(transactions) => transactions.position_waits_for(),
        }
    }

    /// The positions topic does not acknowledge the position, for this reason. With the events in one transaction that holds
    /// them back too, and else only the slot.
    pub(super) fn not_acknowledged(&mut self, reason: String, sink: &Publisher) {
        match &mut self.how {
            How::Not => {}
            How::After(topic) => topic.not_acknowledged(reason),
            How::With(_) => sink.held_back(reason),
        }
    }

    /// Why the slot stands still while events flow, if that is so.
    pub(super) fn obstacle(&self) -> Option<String> {
        match &self.how {
            How::After(topic) => topic.obstacle(),
            How::Not | How::With(_) => None,
        }
    }

    fn transactions(&self) -> Option<&Transactions> {
        match &self.how {
            How::With(transactions) => Some(transactions),
            How::Not | How::After(_) => None,
        }
    }

    /// Waits until something is known of what is under way, and takes it in: what was delivered by it, if anything is
    /// certain only now. For ever if positions are not remembered. May be dropped at any await.
    ///
    /// # Errors
    /// The transaction is not committed, or a client cannot be made.
    pub(super) async fn reported(&mut self) -> Result<DeliveryStats, Error> {
        match &mut self.how {
            How::Not => std::future::pending().await,
            How::After(topic) => {
                topic.reported().await;
                topic.settle().map(|()| DeliveryStats::default())
            }
            How::With(transactions) => transactions.done().await,
        }
    }

    /// Finds out why no report comes for long.
    pub(super) fn look_for_lost_sight(&self) {
        if let How::After(topic) = &self.how {
            topic.look_for_lost_sight();
        }
    }

    /// Shows why positions cannot be written, if that is so.
    pub(super) fn show(&self, monitor: &Monitor) {
        if let How::After(topic) = &self.how {
            monitor.positions_failed(topic.failed());
        }
    }

    /// The log is the one that was read. From here on other messages may be changes than before.
    pub(super) fn recognized(&mut self, message_prefix: Option<&str>) {
        if self.began.definition.message_prefix.as_deref() != message_prefix {
            self.began.definition.message_prefix = message_prefix.map(str::to_owned);
            self.began.fingerprint = LogFingerprint::Quiet { from: self.began.position.flush };
        }
    }

    /// Whether a position travels with the events before it, in one transaction.
    pub(super) fn is_transactional(&self) -> bool {
        self.transactions().is_some()
    }

    /// After the sink was closed and its last reports were taken in: where to go on, and whether that is further than
    /// before. `wait` waits for what may take as long as a name server does; it may give up.
    pub(super) async fn close(
        self,
        progress: &Progress,
        add: impl FnOnce(&mut Checkpoint),
        wait: impl AsyncFnOnce(Ending<'_>),
    ) -> (Checkpoint, bool) {
        match self.how {
            How::Not => {}
            How::After(topic) => wait(Box::pin(topic.close())).await,
            How::With(mut transactions) => {
                wait(Box::pin(transactions.last_commit())).await;
                return (transactions.committed().clone(), transactions.has_advanced());
            }
        }
        (now(&self.began, progress, add), progress.has_advanced())
    }
}

/// What there is to remember now.
fn now(began: &Checkpoint, progress: &Progress, add: impl FnOnce(&mut Checkpoint)) -> Checkpoint {
    let position = progress.position();
    let replay = began.replay.clone().filter(|replay| !replay.is_over(position));
    let fingerprint = progress.landmark().map_or(began.fingerprint, LogFingerprint::Landmark);
    let mut remembered = Checkpoint { position, fingerprint, replay, ..began.clone() };
    add(&mut remembered);
    remembered
}
