//! Exactly once: when a Kafka transaction ends, and what is certain since.
//!
//! ```text
//!   records --> acknowledged, in one transaction --> + the position behind them --> committed
//! ```
//!
//! A transaction is closed in three steps: nothing more is sent; all that was sent is acknowledged; the position is added
//! and the commit begins. From then on the next transaction takes records, and is closed when this one is committed.

use tokio::time::{Duration, Instant};

use super::STALLED;
use super::delivery_stats::DeliveryStats;
use super::position_report::NotCommitted;
use super::producers::Commit;
use super::transaction_size::{TimedOut, TransactionSize};
use crate::checkpoint::Checkpoint;
use crate::error::Error;
use crate::progress::Position;
use crate::relay::Intake;

/// While there is a backlog a transaction takes what comes within this time. Each costs the brokers some writes, and the
/// router a moment without anything under way.
const BEHIND: Duration = Duration::from_millis(100);

/// The same once there has been a backlog for [`LASTING`] transactions.
const LONG_BEHIND: Duration = Duration::from_millis(400);

const LASTING: u32 = 10;

/// How many records a transaction takes at most: as many are sent again if it is aborted.
const MOST_RECORDS: usize = 100_000;

/// How long after one commit the next is begun at the earliest, where the stream is idle in between.
const APART: Duration = Duration::from_millis(5);

/// The same where only the position moves.
const WHEN_IDLE: Duration = Duration::from_secs(1);

/// The transactions of one session.
pub(super) struct Transactions {
    /// What the last commit has made certain.
    committed: Checkpoint,
    /// The transaction that takes records.
    open: Option<Open>,
    /// What was acknowledged in it.
    delivered: DeliveryStats,
    /// Since when nothing more is sent: it is about to be committed.
    closing: Option<Instant>,
    under_way: Option<UnderWay>,
    /// The one that was not committed, and how many bytes of it were acknowledged.
    failed: Option<(Open, usize)>,
    /// How many transactions in a row there was a backlog.
    behind: u32,
    /// When the last commit began.
    last: Option<Instant>,
    /// Whether a transaction with records in it was committed.
    advanced: bool,
    size: TransactionSize,
    /// `transaction.timeout.ms`.
    timeout: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    since: Instant,
    records: usize,
    /// Of the records.
    bytes: usize,
    /// Something other than its size keeps it from ending.
    held_up: bool,
}

struct UnderWay {
    commit: Commit,
    since: Instant,
    remembered: Checkpoint,
    delivered: DeliveryStats,
    open: Option<Open>,
}

/// Whether it is time to commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Now,
    At(Instant),
    Not,
}

impl Transactions {
    pub(super) fn new(committed: Checkpoint, size: TransactionSize, timeout: Duration) -> Self {
        Transactions {
            committed,
            open: None,
            delivered: DeliveryStats::default(),
            closing: None,
            under_way: None,
            failed: None,
            behind: 0,
            last: None,
            advanced: false,
            size,
            timeout,
        }
    }

    /// So many records were sent, of so many bytes.
    pub(super) fn sent(&mut self, records: usize, bytes: usize) {
        let open = self.open.get_or_insert_with(|| Open {
            since: Instant::now(),
            records: 0,
            bytes: 0,
            held_up: false,
        });
        open.records += records;
        open.bytes += bytes;
    }

    /// How many bytes the transaction still takes.
    pub(super) fn room(&self) -> usize {
        self.size.limit().saturating_sub(self.open.map_or(0, |open| open.bytes))
    }

    pub(super) fn size(&self) -> TransactionSize {
        self.size
    }

    /// Why commits take long, if it is because the brokers are slow. Stays the same while nothing is acknowledged.
    pub(super) fn slow(&self) -> Option<String> {
        self.size.slow().or_else(|| {
            let (Open { bytes, .. }, acknowledged) = self.unfinished()?;
            (acknowledged > 0).then(|| {
                format!(
                    "the brokers take long for a transaction of {bytes} bytes: a producer quota holds the router back, the link \
                     to them is slow, or their logs say why"
                )
            })
        })
    }

    /// The brokers have said what keeps the transactions from ending. How long they take says nothing of their size then.
    pub(super) fn held_up(&mut self) {
        let under_way = self.under_way.as_mut().and_then(|under_way| under_way.open.as_mut());
        under_way.into_iter().chain(&mut self.open).for_each(|open| open.held_up = true);
    }

    /// The size after this session, and what to say if a transaction of it was not committed in time.
    pub(super) fn next_size(&self) -> (TransactionSize, Option<String>) {
        let mut size = self.size;
        let timed_out = self.unfinished().filter(|(open, _)| !open.held_up);
        let timed_out = timed_out.and_then(|(Open { since, records, bytes, .. }, acknowledged)| {
            let took = since.elapsed();
            let timed_out = TimedOut { records, bytes, acknowledged, took };
            (took >= self.timeout * 9 / 10).then(|| size.timed_out(timed_out, self.timeout))
        });
        (size, timed_out)
    }

    /// The oldest transaction with records that is not committed, and how many bytes of it are acknowledged.
    fn unfinished(&self) -> Option<(Open, usize)> {
        let under_way = || {
            self.under_way.as_ref().and_then(|under_way| Some((under_way.open?, under_way.delivered.bytes())))
        };
        self.failed.or_else(under_way).or_else(|| Some((self.open?, self.delivered.bytes())))
    }

    /// Nothing may be sent just now.
    pub(super) fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// Whether nothing was sent that is not committed.
    pub(super) fn is_settled(&self) -> bool {
        self.open.is_none() && self.under_way.is_none()
    }

    /// What was acknowledged since the last commit.
    pub(super) fn delivered(&mut self) -> &mut DeliveryStats {
        &mut self.delivered
    }

    /// When the oldest event was committed to Postgres that is acknowledged, and not yet committed to Kafka.
    pub(super) fn oldest(&self) -> Option<pg_logical::PgTimestamp> {
        self.under_way.as_ref().and_then(|under_way| under_way.delivered.oldest()).or(self.delivered.oldest())
    }

    /// How many records are acknowledged and not yet committed.
    pub(super) fn records(&self) -> usize {
        self.delivered.records()
            + self.under_way.as_ref().map_or(0, |under_way| under_way.delivered.records())
    }

    /// What is certain.
    pub(super) fn committed(&self) -> &Checkpoint {
        &self.committed
    }

    /// Whether a commit is under way.
    pub(super) fn waits(&self) -> bool {
        self.under_way.is_some()
    }

    /// For how long one has been under way.
    pub(super) fn waits_for(&self) -> Duration {
        self.under_way.as_ref().map_or(Duration::ZERO, |under_way| under_way.since.elapsed())
    }

    /// Whether one takes long, or what has to be acknowledged before it. `records`: some are with the brokers.
    pub(super) fn is_late(&self, records: bool) -> bool {
        let closing = self.closing.filter(|_| records).map_or(Duration::ZERO, |since| since.elapsed());
        self.waits_for().max(closing) > STALLED
    }

    /// Whether it is the brokers' end of the transaction that takes long, and not the position in it.
    pub(super) fn ends_late(&self) -> bool {
        self.is_late(false) && self.under_way.as_ref().is_some_and(|under_way| under_way.commit.is_ending())
    }

    /// For how long the position in the transaction has not been acknowledged.
    pub(super) fn position_waits_for(&self) -> Duration {
        let position = self.under_way.as_ref().filter(|under_way| !under_way.commit.is_ending());
        position.map_or(Duration::ZERO, |under_way| under_way.since.elapsed())
    }

    /// Looks whether it is time to close the transaction. `position` is what is acknowledged. Returns when to ask again.
    pub(super) fn close_if_due(&mut self, position: Position, intake: Intake) -> Option<Instant> {
        if self.is_closing() {
            return None;
        }
        match self.due(position, intake, Instant::now()) {
            Due::Now => {
                self.closing = Some(Instant::now());
                self.behind = if intake == Intake::Behind { self.behind.saturating_add(1) } else { 0 };
                None
            }
            Due::At(at) => Some(at),
            Due::Not => None,
        }
    }

    fn due(&self, position: Position, intake: Intake, now: Instant) -> Due {
        // they are committed one after the other
        if self.under_way.is_some() {
            return Due::Not;
        }
        let at = match (self.open, intake) {
            (_, Intake::Verifying) => return Due::Not,
            (Some(_), Intake::Paused) => return Due::Now,
            (Some(Open { records, .. }), _) if records >= MOST_RECORDS => return Due::Now,
            (Some(_), _) if self.room() == 0 => return Due::Now,
            (Some(_), Intake::Live) => self.last.map(|last| last + APART),
            (Some(Open { since, .. }), Intake::Behind) if self.behind >= LASTING => Some(since + LONG_BEHIND),
            (Some(Open { since, .. }), Intake::Behind) => Some(since + BEHIND),
            (None, _) if position == self.committed.position => return Due::Not,
            (None, Intake::Paused) => return Due::Now,
            (None, _) => self.last.map(|last| last + WHEN_IDLE),
        };
        at.filter(|at| *at > now).map_or(Due::Now, Due::At)
    }

    /// Commits the transaction, which is to be closed and all of whose records are acknowledged.
    pub(super) fn begin(
        &mut self,
        remembered: Checkpoint,
        commit: impl FnOnce(&Checkpoint) -> Result<Commit, NotCommitted>,
    ) -> Result<(), Error> {
        let commit = commit(&remembered)?;
        let (open, since) = (self.open.take(), Instant::now());
        let delivered = std::mem::take(&mut self.delivered);
        self.under_way = Some(UnderWay { commit, since, remembered, delivered, open });
        (self.last, self.closing) = (Some(since), None);
        Ok(())
    }

    /// Waits for the end of the commit under way, for ever if there is none. Returns what was delivered by it. May be
    /// dropped at any await.
    pub(super) async fn done(&mut self) -> Result<DeliveryStats, Error> {
        let Some(under_way) = &mut self.under_way else { return std::future::pending().await };
        let done = under_way.commit.done().await;
        // known or not, it is over
        let Some(over) = self.under_way.take() else { return Ok(DeliveryStats::default()) };
        if let Err(not_committed) = done {
            self.failed = over.open.map(|open| (open, over.delivered.bytes()));
            return Err(not_committed.into());
        }
        self.committed = over.remembered;
        if let Some(Open { since, bytes, held_up, .. }) = over.open {
            self.advanced = true;
            if !held_up {
                self.size.committed(bytes, since.elapsed(), self.timeout);
            }
        }
        Ok(over.delivered)
    }

    /// After the producers were closed: waits for the end of a commit under way. It may yet have been made where this says
    /// otherwise; the topic says so then. May be dropped at any await.
    pub(super) async fn last_commit(&mut self) {
        if self.waits()
            && let Err(error) = self.done().await
        {
            tracing::debug!(peer = "kafka", %error, "the last transaction");
        }
    }

    /// Whether a transaction with records in it was committed.
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
            TransactionSize::default(),
            Duration::from_secs(60),
        )
    }

    fn open(since: Instant) -> Open {
        Open { since, records: 1, bytes: 1, held_up: false }
    }

    #[test]
    fn an_event_that_comes_alone_is_committed_at_once() {
        let mut live = committing(5);
        let now = Instant::now();
        assert_eq!(live.due(at(5), Intake::Live, now), Due::Not);
        live.sent(1, 1);
        assert_eq!(live.due(at(5), Intake::Live, now), Due::Now);
        live.last = Some(now);
        assert_eq!(live.due(at(5), Intake::Live, now), Due::At(now + APART));
        assert_eq!(live.due(at(5), Intake::Live, now + APART), Due::Now);
        assert_eq!(live.due(at(5), Intake::Paused, now), Due::Now);
    }

    #[test]
    fn a_backlog_goes_in_large_transactions() {
        let mut behind = committing(5);
        behind.sent(1, 1);
        let since = behind.open.unwrap().since;
        assert_eq!(behind.due(at(5), Intake::Behind, since), Due::At(since + BEHIND));
        assert_eq!(behind.due(at(5), Intake::Behind, since + BEHIND), Due::Now);
        // one that lasts, in larger ones
        for _ in 0..LASTING {
            behind.open = Some(open(since));
            assert_eq!(behind.due(at(5), Intake::Behind, since), Due::At(since + BEHIND));
            behind.open = Some(open(since - BEHIND * 9));
            assert_eq!(behind.close_if_due(at(5), Intake::Behind), None);
            behind.closing = None;
        }
        behind.open = Some(open(since));
        assert_eq!(behind.due(at(5), Intake::Behind, since), Due::At(since + LONG_BEHIND));
        assert_eq!(behind.close_if_due(at(5), Intake::Live), None);
        behind.closing = None;
        assert_eq!(behind.due(at(5), Intake::Behind, since), Due::At(since + BEHIND));
        behind.sent(MOST_RECORDS - 1, 1);
        assert_eq!(behind.due(at(5), Intake::Behind, since), Due::Now);
    }

    #[test]
    fn a_transaction_takes_one_record_beyond_its_limit_and_then_no_more() {
        let mut full = committing(5);
        full.sent(1, full.size.limit() - 1);
        assert_eq!(full.room(), 1);
        full.sent(1, 20);
        assert_eq!(full.room(), 0);
        full.delivered = DeliveryStats::default();
        assert_eq!(full.room(), 0, "acknowledged, but still of the same transaction");
    }

    #[test]
    fn a_transaction_that_is_full_is_committed_and_one_that_timed_out_leaves_a_smaller_size() {
        let mut full = committing(5);
        let limit = full.size.limit();
        assert_eq!(full.room(), limit);
        full.sent(3, limit - 1);
        let since = full.open.unwrap().since;
        assert_eq!((full.room(), full.due(at(5), Intake::Behind, since)), (1, Due::At(since + BEHIND)));
        full.sent(1, 9);
        assert_eq!((full.room(), full.due(at(5), Intake::Behind, since)), (0, Due::Now));
        assert_eq!(full.next_size(), (full.size, None));
        full.timeout = Duration::ZERO;
        let (size, says) = full.next_size();
        assert!(size.limit() <= limit / 2 && says.is_some());
        full.held_up();
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
    fn one_whose_records_are_acknowledged_slowly_is_late() {
        let mut slow = committing(5);
        slow.sent(2, 20_000);
        assert_eq!((slow.close_if_due(at(5), Intake::Paused), slow.is_late(true)), (None, false));
        slow.closing = slow.closing.and_then(|since| since.checked_sub(2 * STALLED));
        assert!(slow.is_late(true) && !slow.ends_late());
        assert!(!slow.is_late(false), "what is to be parked waits for Postgres");
        assert_eq!(slow.slow(), None, "it may be something else");
    }

    #[tokio::test]
    async fn nothing_is_sent_between_the_close_and_the_commit_and_what_failed_is_not_certain() {
        let mut closing = committing(5);
        closing.sent(1, 1);
        assert_eq!(closing.close_if_due(at(5), Intake::Paused), None);
        assert!(closing.is_closing() && !closing.is_settled());
        let failed = NotCommitted { reason: "fenced".into(), remedy: "" };
        let next = Checkpoint { position: at(9), ..sample_checkpoint() };
        assert!(closing.begin(next, |_| Err(failed)).is_err());
        closing.last_commit().await;
        assert_eq!((closing.committed().position, closing.has_advanced()), (at(5), false));
    }
}
