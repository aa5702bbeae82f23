//! Exactly-once mode: decides when a Kafka transaction ends, and knows what is committed.
//!
//! ```text
//!   records --> acknowledged, in one transaction --> + their checkpoint --> committed
//! ```
//!
//! A transaction is closed in three steps: nothing more is sent; all sent records are acknowledged; the checkpoint is added
//! and the commit begins. From then on the next transaction takes records. It is closed when this one is committed.

use tokio::time::{Duration, Instant};

use super::STALLED;
use super::checkpoint_failure::NotCommitted;
use super::delivery_stats::DeliveryStats;
use super::producers::Commit;
use super::transaction_size::{TimedOut, TransactionSize};
use crate::checkpoint::Checkpoint;
use crate::error::Error;
use crate::progress::Position;
use crate::relay::Intake;

/// The duration of a transaction while there is a backlog. Each transaction costs the brokers some writes, and the router a
/// moment with nothing in flight.
const BACKLOG_INTERVAL: Duration = Duration::from_millis(100);

/// The same after [`LONG_BACKLOG`] transactions in a row with a backlog.
const LONG_BACKLOG_INTERVAL: Duration = Duration::from_millis(400);

const LONG_BACKLOG: u32 = 10;

/// The maximum number of records in a transaction: that many are sent again if it is aborted.
const MAX_RECORDS: usize = 100_000;

/// The minimum time between two commits while there is no backlog. An event waits for half of it on average; the rest of a
/// transaction takes one to two milliseconds.
const COMMIT_INTERVAL: Duration = Duration::from_millis(2);

/// The same if only the position has moved.
const WHEN_IDLE: Duration = Duration::from_secs(1);

/// The transactions of one session.
pub(super) struct Transactions {
    /// The checkpoint of the last commit.
    committed: Checkpoint,
    /// The position of the source that it stands for.
    position: Position,
    /// The transaction that takes records.
    open: Option<Open>,
    /// The acknowledged records of the open transaction.
    delivered: DeliveryStats,
    /// When the transaction was closed to new records, if it is about to be committed.
    closing: Option<Instant>,
    committing: Option<Committing>,
    /// The transaction that failed, and how many bytes of it were acknowledged.
    failed: Option<(Open, usize)>,
    /// How many transactions in a row began with a backlog.
    backlog_transactions: u32,
    /// When the last commit began.
    last: Option<Instant>,
    /// Whether a transaction with records was committed.
    advanced: bool,
    size: TransactionSize,
    /// `transaction.timeout.ms`.
    timeout: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    since: Instant,
    records: usize,
    /// The size of the records.
    bytes: usize,
    /// A cause other than its size delays the commit.
    delay_is_explained: bool,
}

struct Committing {
    commit: Commit,
    since: Instant,
    /// When the transaction was closed to new records.
    closed: Instant,
    checkpoint: Checkpoint,
    position: Position,
    delivered: DeliveryStats,
    open: Option<Open>,
}

impl Committing {
    /// Logs how long each step took, in microseconds. `acknowledged`: when the checkpoint was acknowledged.
    fn trace(&self, acknowledged: Instant) {
        let first = self.open.map_or(self.closed, |open| open.since);
        let us = |from: Instant, to: Instant| to.saturating_duration_since(from).as_micros() as u64;
        tracing::trace!(
            peer = "kafka",
            records = self.open.map_or(0, |open| open.records),
            open = us(first, self.closed),
            records_acknowledged = us(self.closed, self.since),
            checkpoint_acknowledged = us(self.since, acknowledged),
            ended = us(acknowledged, Instant::now()),
            "transaction committed; times in microseconds"
        );
    }
}

/// Whether it is time to commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Now,
    At(Instant),
    Not,
}

impl Transactions {
    /// `position`: that of the source for which `committed` stands.
    pub(super) fn new(
        committed: Checkpoint,
        position: Position,
        size: TransactionSize,
        timeout: Duration,
    ) -> Self {
        Transactions {
            committed,
            position,
            open: None,
            delivered: DeliveryStats::default(),
            closing: None,
            committing: None,
            failed: None,
            backlog_transactions: 0,
            last: None,
            advanced: false,
            size,
            timeout,
        }
    }

    /// Records were sent.
    pub(super) fn sent(&mut self, records: usize, bytes: usize) {
        let open = self.open.get_or_insert_with(|| Open {
            since: Instant::now(),
            records: 0,
            bytes: 0,
            delay_is_explained: false,
        });
        open.records += records;
        open.bytes += bytes;
    }

    /// How many more bytes the transaction takes.
    pub(super) fn remaining_bytes(&self) -> usize {
        self.size.limit().saturating_sub(self.open.map_or(0, |open| open.bytes))
    }

    pub(super) fn size(&self) -> TransactionSize {
        self.size
    }

    /// Why commits are slow, if the cause is the rate of the brokers. The text does not change while nothing is
    /// acknowledged.
    pub(super) fn slow(&self) -> Option<String> {
        self.size.slow().or_else(|| {
            let (Open { bytes, .. }, acknowledged) = self.unfinished()?;
            (acknowledged > 0).then(|| {
                format!(
                    "the brokers are slow to acknowledge a transaction of {bytes} bytes: a producer quota throttles the router, the link \
                     to them is slow, or their logs say why"
                )
            })
        })
    }

    /// The cause of the delay is known, so the duration says nothing about the size.
    pub(super) fn delay_is_explained(&mut self) {
        let committing = self.committing.as_mut().and_then(|committing| committing.open.as_mut());
        committing.into_iter().chain(&mut self.open).for_each(|open| open.delay_is_explained = true);
    }

    /// The size for the next session, and the message if a transaction timed out.
    pub(super) fn next_size(&self) -> (TransactionSize, Option<String>) {
        let mut size = self.size;
        let timed_out = self.unfinished().filter(|(open, _)| !open.delay_is_explained);
        let timed_out = timed_out.and_then(|(Open { since, records, bytes, .. }, acknowledged)| {
            let took = since.elapsed();
            let timed_out = TimedOut { records, bytes, acknowledged, took };
            (took >= self.timeout * 9 / 10).then(|| size.timed_out(timed_out, self.timeout))
        });
        (size, timed_out)
    }

    /// The oldest uncommitted transaction with records, and how many bytes of it are acknowledged.
    fn unfinished(&self) -> Option<(Open, usize)> {
        let committing = || {
            self.committing
                .as_ref()
                .and_then(|committing| Some((committing.open?, committing.delivered.bytes())))
        };
        self.failed.or_else(committing).or_else(|| Some((self.open?, self.delivered.bytes())))
    }

    /// Whether nothing may be sent until the commit has begun.
    pub(super) fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// Whether every sent record is committed.
    pub(super) fn is_settled(&self) -> bool {
        self.open.is_none() && self.committing.is_none()
    }

    /// The acknowledged records of the open transaction.
    pub(super) fn delivered(&mut self) -> &mut DeliveryStats {
        &mut self.delivered
    }

    /// The Postgres commit time of the oldest acknowledged event that is not committed to Kafka.
    pub(super) fn oldest(&self) -> Option<pg_logical::PgTimestamp> {
        self.committing
            .as_ref()
            .and_then(|committing| committing.delivered.oldest())
            .or(self.delivered.oldest())
    }

    /// The number of acknowledged records that are not committed.
    pub(super) fn records(&self) -> usize {
        self.delivered.records()
            + self.committing.as_ref().map_or(0, |committing| committing.delivered.records())
    }

    /// The position up to which everything is committed.
    pub(super) fn position(&self) -> Position {
        self.position
    }

    /// The last committed checkpoint.
    pub(super) fn committed(&self) -> &Checkpoint {
        &self.committed
    }

    /// Whether a commit is under way.
    pub(super) fn is_committing(&self) -> bool {
        self.committing.is_some()
    }

    /// How long the current commit has been running.
    pub(super) fn commit_duration(&self) -> Duration {
        self.committing.as_ref().map_or(Duration::ZERO, |committing| committing.since.elapsed())
    }

    /// Whether a commit, or the acknowledgement of the records before it, is overdue. `records`: some are with the brokers.
    pub(super) fn is_overdue(&self, records: bool) -> bool {
        let closing = self.closing.filter(|_| records).map_or(Duration::ZERO, |since| since.elapsed());
        self.commit_duration().max(closing) > STALLED
    }

    /// Whether the brokers take too long to end the transaction, after they have its checkpoint.
    pub(super) fn end_is_overdue(&self) -> bool {
        self.is_overdue(false)
            && self.committing.as_ref().is_some_and(|committing| committing.commit.is_ending())
    }

    /// How long the transaction's checkpoint has not been acknowledged.
    pub(super) fn position_waits_for(&self) -> Duration {
        let position = self.committing.as_ref().filter(|committing| !committing.commit.is_ending());
        position.map_or(Duration::ZERO, |committing| committing.since.elapsed())
    }

    /// Closes the transaction if it is time. `position` is acknowledged. Returns when to call again.
    pub(super) fn close_if_due(&mut self, position: Position, intake: Intake) -> Option<Instant> {
        if self.is_closing() {
            return None;
        }
        match self.due(position, intake, Instant::now()) {
            Due::Now => {
                self.closing = Some(Instant::now());
                self.backlog_transactions =
                    if intake == Intake::Behind { self.backlog_transactions.saturating_add(1) } else { 0 };
                None
            }
            Due::At(at) => Some(at),
            Due::Not => None,
        }
    }

    fn due(&self, position: Position, intake: Intake, now: Instant) -> Due {
        // only one commit runs at a time
        if self.committing.is_some() {
            return Due::Not;
        }
        let at = match (self.open, intake) {
            (_, Intake::Verifying) => return Due::Not,
            (Some(_), Intake::Paused) => return Due::Now,
            (Some(Open { records, .. }), _) if records >= MAX_RECORDS => return Due::Now,
            (Some(_), _) if self.remaining_bytes() == 0 => return Due::Now,
            (Some(_), Intake::Live) => self.last.map(|last| last + COMMIT_INTERVAL),
            (Some(Open { since, .. }), Intake::Behind) if self.backlog_transactions >= LONG_BACKLOG => {
                Some(since + LONG_BACKLOG_INTERVAL)
            }
            (Some(Open { since, .. }), Intake::Behind) => Some(since + BACKLOG_INTERVAL),
            (None, _) if position == self.position => return Due::Not,
            (None, Intake::Paused) => return Due::Now,
            (None, _) => self.last.map(|last| last + WHEN_IDLE),
        };
        at.filter(|at| *at > now).map_or(Due::Now, Due::At)
    }

    /// Commits the transaction, which must be closed and whose records must all be acknowledged. `position`: that of the source.
    pub(super) fn begin(
        &mut self,
        checkpoint: Checkpoint,
        position: Position,
        commit: impl FnOnce(&Checkpoint) -> Result<Commit, NotCommitted>,
    ) -> Result<(), Error> {
        let commit = commit(&checkpoint)?;
        let (open, since) = (self.open.take(), Instant::now());
        let delivered = std::mem::take(&mut self.delivered);
        let closed = self.closing.take().unwrap_or(since);
        self.committing = Some(Committing { commit, since, closed, checkpoint, position, delivered, open });
        self.last = Some(since);
        Ok(())
    }

    /// Waits for the current commit to end, forever if there is none. Returns its records. Cancel-safe.
    pub(super) async fn done(&mut self) -> Result<DeliveryStats, Error> {
        let Some(committing) = &mut self.committing else { return std::future::pending().await };
        let done = committing.commit.done().await;
        // it is over, even if its result is unknown
        let Some(over) = self.committing.take() else { return Ok(DeliveryStats::default()) };
        match done {
            Ok(acknowledged) => over.trace(acknowledged.into()),
            Err(not_committed) => {
                self.failed = over.open.map(|open| (open, over.delivered.bytes()));
                return Err(not_committed.into());
            }
        }
        (self.committed, self.position) = (over.checkpoint, over.position);
        if let Some(Open { since, bytes, delay_is_explained, .. }) = over.open {
            self.advanced = true;
            if !delay_is_explained {
                self.size.committed(bytes, since.elapsed(), self.timeout);
            }
        }
        Ok(over.delivered)
    }

    /// After the producers were closed: waits for the current commit to end. Even if this reports a failure, the commit may
    /// have succeeded; the positions topic tells the next session. Cancel-safe.
    pub(super) async fn last_commit(&mut self) {
        if self.is_committing()
            && let Err(error) = self.done().await
        {
            tracing::debug!(peer = "kafka", %error, "the last transaction");
        }
    }

    /// Whether a transaction with records was committed.
    pub(super) fn has_advanced(&self) -> bool {
        self.advanced
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::sample_checkpoint;
    use pg_logical::Lsn;

    fn at(flush: u64) -> Position {
        Position { flush: Lsn(flush), partial: None }
    }

    fn committing(flush: u64) -> Transactions {
        Transactions::new(
            Checkpoint { position: at(flush), ..sample_checkpoint() },
            at(flush),
            TransactionSize::default(),
            Duration::from_secs(60),
        )
    }

    fn open(since: Instant) -> Open {
        Open { since, records: 1, bytes: 1, delay_is_explained: false }
    }

    #[test]
    fn an_event_that_comes_alone_is_committed_at_once() {
        let mut live = committing(5);
        let now = Instant::now();
        assert_eq!(live.due(at(5), Intake::Live, now), Due::Not);
        live.sent(1, 1);
        assert_eq!(live.due(at(5), Intake::Live, now), Due::Now);
        live.last = Some(now);
        assert_eq!(live.due(at(5), Intake::Live, now), Due::At(now + COMMIT_INTERVAL));
        assert_eq!(live.due(at(5), Intake::Live, now + COMMIT_INTERVAL), Due::Now);
        assert_eq!(live.due(at(5), Intake::Paused, now), Due::Now);
    }

    #[test]
    fn a_backlog_goes_in_large_transactions() {
        let mut transactions = committing(5);
        transactions.sent(1, 1);
        let since = transactions.open.unwrap().since;
        assert_eq!(transactions.due(at(5), Intake::Behind, since), Due::At(since + BACKLOG_INTERVAL));
        assert_eq!(transactions.due(at(5), Intake::Behind, since + BACKLOG_INTERVAL), Due::Now);
        // a lasting backlog goes in larger ones
        for _ in 0..LONG_BACKLOG {
            transactions.open = Some(open(since));
            assert_eq!(transactions.due(at(5), Intake::Behind, since), Due::At(since + BACKLOG_INTERVAL));
            transactions.open = Some(open(since - BACKLOG_INTERVAL * 9));
            assert_eq!(transactions.close_if_due(at(5), Intake::Behind), None);
            transactions.closing = None;
        }
        transactions.open = Some(open(since));
        assert_eq!(transactions.due(at(5), Intake::Behind, since), Due::At(since + LONG_BACKLOG_INTERVAL));
        assert_eq!(transactions.close_if_due(at(5), Intake::Live), None);
        transactions.closing = None;
        assert_eq!(transactions.due(at(5), Intake::Behind, since), Due::At(since + BACKLOG_INTERVAL));
        transactions.sent(MAX_RECORDS - 1, 1);
        assert_eq!(transactions.due(at(5), Intake::Behind, since), Due::Now);
    }

    #[test]
    fn a_transaction_takes_one_record_beyond_its_limit_and_then_no_more() {
        let mut full = committing(5);
        full.sent(1, full.size.limit() - 1);
        assert_eq!(full.remaining_bytes(), 1);
        full.sent(1, 20);
        assert_eq!(full.remaining_bytes(), 0);
        full.delivered = DeliveryStats::default();
        assert_eq!(full.remaining_bytes(), 0, "acknowledged, but still of the same transaction");
    }

    #[test]
    fn a_transaction_that_is_full_is_committed_and_one_that_timed_out_leaves_a_smaller_size() {
        let mut full = committing(5);
        let limit = full.size.limit();
        assert_eq!(full.remaining_bytes(), limit);
        full.sent(3, limit - 1);
        let since = full.open.unwrap().since;
        assert_eq!(
            (full.remaining_bytes(), full.due(at(5), Intake::Behind, since)),
            (1, Due::At(since + BACKLOG_INTERVAL))
        );
        full.sent(1, 9);
        assert_eq!((full.remaining_bytes(), full.due(at(5), Intake::Behind, since)), (0, Due::Now));
        assert_eq!(full.next_size(), (full.size, None));
        full.timeout = Duration::ZERO;
        let (size, message) = full.next_size();
        assert!(size.limit() <= limit / 2 && message.is_some());
        full.delay_is_explained();
        assert_eq!(full.next_size(), (full.size, None), "it was not for its size");
    }

    #[test]
    fn a_position_without_records_is_committed_once_a_second_and_at_the_end() {
        let mut idle = committing(5);
        let now = Instant::now();
        idle.last = Some(now);
        assert_eq!(idle.due(at(5), Intake::Live, now + WHEN_IDLE), Due::Not);
        assert_eq!(idle.due(at(6), Intake::Live, now), Due::At(now + WHEN_IDLE));
        assert_eq!(idle.due(at(6), Intake::Paused, now), Due::Now);
        assert_eq!(idle.due(at(5), Intake::Paused, now), Due::Not);
    }

    #[test]
    fn slow_acknowledgements_make_a_transaction_overdue() {
        let mut slow = committing(5);
        slow.sent(2, 20_000);
        assert_eq!((slow.close_if_due(at(5), Intake::Paused), slow.is_overdue(true)), (None, false));
        slow.closing = slow.closing.and_then(|since| since.checked_sub(2 * STALLED));
        assert!(slow.is_overdue(true) && !slow.end_is_overdue());
        assert!(!slow.is_overdue(false), "what is to be parked waits for Postgres");
        assert_eq!(slow.slow(), None, "it may be something else");
    }

    #[tokio::test]
    async fn nothing_is_sent_between_the_close_and_the_commit_and_what_failed_is_not_certain() {
        let mut closing = committing(5);
        closing.sent(1, 1);
        assert_eq!(closing.close_if_due(at(5), Intake::Paused), None);
        assert!(closing.is_closing() && !closing.is_settled());
        let failed = NotCommitted { reason: "fenced".into(), remedy: String::new() };
        let next = Checkpoint { position: at(9), ..sample_checkpoint() };
        assert!(closing.begin(next, at(9), |_| Err(failed)).is_err());
        closing.last_commit().await;
        assert_eq!(
            (closing.committed().position, closing.position(), closing.has_advanced()),
            (at(5), at(5), false)
        );
    }
}
