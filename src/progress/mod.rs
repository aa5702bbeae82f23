//! Turns acknowledged sequence numbers into the flush LSN. Pure: knows no event, sink or server.
//! ```text
//!   begin A   change change   commit A   begin B   change change change ...
//!             #0     #1                            #2     #3     #4
//!   acknowledged:  #0 #1 #3   ->   flush LSN = end of A;  of B nothing, because #2 is missing
//! ```
//!
//! Every change of the stream gets the next [`Sequence`], in the order in which Postgres sent it. Every change is
//! acknowledged exactly once, in any order. [`Progress::position`] is what is acknowledged without a gap: the end of the last
//! complete transaction, and the number of changes of the next one.

mod acknowledged;

use std::collections::VecDeque;

use acknowledged::Acknowledged;
use pg_logical::pgoutput::Begin;
use pg_logical::{Lsn, PgTimestamp};

/// The number of one change, counted from the start of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

impl Sequence {
    /// The first number of parked events that are sent again, above all numbers of changes.
    pub const FIRST_RETRY: Sequence = Sequence(1 << 62);
}

/// Where to continue after a restart without losing an event, and with as few repetitions as possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// The `end_lsn` of the last transaction that is completely acknowledged, or a later position up to which the stream had
    /// no changes.
    pub flush: Lsn,
    /// The acknowledged part of the next transaction.
    pub partial: Option<Partial>,
}

impl Position {
    /// Whether this change, of the transaction with this `final_lsn`, lies before the position.
    pub fn covers(self, final_lsn: Lsn, ordinal: u64) -> bool {
        // a commit record begins before its `end_lsn`, which becomes the flush LSN
        final_lsn < self.flush
            || self.partial.is_some_and(|done| done.final_lsn == final_lsn && ordinal <= done.changes)
    }
}

/// The first changes of one transaction. Unlike a [`Sequence`], this means the same in every session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Partial {
    /// The transaction's `final_lsn`, which increases in the order of the stream.
    pub final_lsn: Lsn,
    /// How many of its changes, counted from the first without a gap.
    pub changes: u64,
}

/// Identifies a transaction, and by it a log: another log has a different transaction at this place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Landmark {
    /// The LSN of its commit record.
    pub final_lsn: Lsn,
    /// The transaction id.
    pub xid: u32,
    /// When it was committed.
    pub commit_time: PgTimestamp,
}

impl From<Begin> for Landmark {
    fn from(Begin { final_lsn, commit_time, xid }: Begin) -> Self {
        Landmark { final_lsn, xid, commit_time }
    }
}

/// A transaction that is not yet completely acknowledged.
#[derive(Debug)]
struct Transaction {
    itself: Landmark,
    /// The last transaction with changes, if it has absorbed later ones; otherwise the same as `itself`.
    last: Landmark,
    first: Sequence,
    /// Known once its Commit was read: the sequence after its last change, and its `end_lsn`.
    end: Option<(Sequence, Lsn)>,
}

/// Follows one session of the stream.
#[derive(Debug)]
pub struct Progress {
    flush: Lsn,
    acknowledged: Acknowledged,
    next: Sequence,
    transactions: VecDeque<Transaction>,
    resume: Option<Partial>,
    /// Earlier sessions have acknowledged the transactions whose commit records begin before this LSN.
    covered: Lsn,
    /// How many changes of the current transaction an earlier session has acknowledged.
    skip: u64,
    /// How many changes this session skipped for that reason.
    skipped: u64,
    /// The last transaction with changes that was completely acknowledged in this session.
    landmark: Option<Landmark>,
    /// The LSN of the last keepalive, unless another message followed.
    reached: Lsn,
}

/// A change's number, or that an earlier session has already delivered it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Handle it, then acknowledge this number.
    New(Sequence),
    /// An earlier session delivered it, so it is already acknowledged.
    Delivered,
}

/// The stream violated the protocol, so no position can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OutOfStep {
    /// A Begin arrived inside a transaction.
    #[error("a transaction began before the one before it was complete")]
    BeginInside,
    /// A change or Commit arrived outside of a transaction.
    #[error("a change or commit arrived outside of a transaction")]
    Outside,
}

impl Progress {
    /// Continues at `position`. The stream must start there or earlier.
    pub fn new(position: Position) -> Self {
        Progress {
            flush: position.flush,
            acknowledged: Acknowledged::default(),
            next: Sequence(0),
            transactions: VecDeque::new(),
            resume: position.partial,
            covered: position.flush,
            skip: 0,
            skipped: 0,
            landmark: None,
            reached: Lsn::INVALID,
        }
    }

    /// Handles a Begin message.
    pub fn begin(&mut self, transaction: Landmark) -> Result<(), OutOfStep> {
        if self.inside_transaction() {
            return Err(OutOfStep::BeginInside);
        }
        let final_lsn = transaction.final_lsn;
        // either the partly acknowledged transaction is the first with its final LSN, or it is not in the stream
        self.skip = match self.resume {
            _ if final_lsn < self.covered => u64::MAX,
            Some(partial) if partial.final_lsn == final_lsn => partial.changes,
            _ => 0,
        };
        // the partial position stays until a later transaction arrives
        if self.resume.is_some_and(|partial| partial.final_lsn < final_lsn) {
            self.resume = None;
        }
        self.transactions.push_back(Transaction {
            itself: transaction,
            last: transaction,
            first: self.next,
            end: None,
        });
        self.reached = Lsn::INVALID;
        Ok(())
    }

    /// Numbers the next change of the transaction.
    pub fn change(&mut self) -> Result<Change, OutOfStep> {
        if !self.inside_transaction() {
            return Err(OutOfStep::Outside);
        }
        let sequence = self.next;
        self.next = Sequence(sequence.0 + 1);
        if self.skip == 0 {
            return Ok(Change::New(sequence));
        }
        self.skip -= 1;
        self.skipped += 1;
        self.acknowledge(sequence);
        Ok(Change::Delivered)
    }

    /// Handles a Commit message.
    pub fn commit(&mut self, end_lsn: Lsn) -> Result<(), OutOfStep> {
        let next = self.next;
        let last =
            self.transactions.back_mut().filter(|last| last.end.is_none()).ok_or(OutOfStep::Outside)?;
        last.end = Some((next, end_lsn));
        let settled = self.acknowledged.has_all(last.first.0, next.0);
        // Transactions without unacknowledged changes must not pile up behind one that waits: it absorbs their end.
        if settled && self.transactions.len() > 1 {
            let settled = self.transactions.pop_back();
            if let Some((before, settled)) = self.transactions.back_mut().zip(settled) {
                before.end = Some((next, end_lsn));
                if settled.first < next {
                    before.last = settled.itself;
                }
            }
        }
        self.advance();
        Ok(())
    }

    /// Acknowledges `sequence`. Repetitions, and numbers that were never issued, have no effect.
    pub fn acknowledge(&mut self, sequence: Sequence) {
        if sequence < self.next && self.acknowledged.insert(sequence.0) {
            self.advance();
        }
    }

    /// The server has sent all of its log up to `wal_end`. This counts once everything before is acknowledged, unless another
    /// message follows: the server may not repeat it for a while.
    pub fn reached(&mut self, wal_end: Lsn) {
        if !self.inside_transaction() {
            self.reached = wal_end;
            self.advance();
        }
    }

    /// The stream restarts at the position, after all changes were acknowledged.
    pub fn restart_stream(&mut self) {
        debug_assert_eq!(self.span(), 0, "there are unacknowledged changes");
        let position = self.position();
        self.transactions.clear();
        (self.resume, self.covered) = (position.partial, position.flush);
        (self.skip, self.reached) = (0, Lsn::INVALID);
    }

    /// The position that may be confirmed, and at which to continue after a restart.
    pub fn position(&self) -> Position {
        let done = self.acknowledged.prefix();
        let partial = self.transactions.front().map(|transaction| Partial {
            final_lsn: transaction.itself.final_lsn,
            changes: done.saturating_sub(transaction.first.0),
        });
        let partial = partial.filter(|partial| partial.changes > 0 && partial.final_lsn >= self.covered);
        Position { flush: self.flush, partial: partial.max(self.resume) }
    }

    /// The transaction with the last change before the position, if it was acknowledged in this session.
    pub fn landmark(&self) -> Option<Landmark> {
        let done = self.acknowledged.prefix();
        let partial =
            self.transactions.front().filter(|front| front.first.0 < done).map(|front| front.itself);
        partial.filter(|partial| partial.final_lsn >= self.covered).or(self.landmark)
    }

    /// Whether all changes so far are acknowledged and no transaction is open.
    pub fn is_idle(&self) -> bool {
        self.transactions.is_empty() && self.resume.is_none()
    }

    /// Whether a Begin has arrived without its Commit.
    pub fn inside_transaction(&self) -> bool {
        self.transactions.back().is_some_and(|last| last.end.is_none())
    }

    /// Whether an earlier session has completely acknowledged the current transaction.
    pub fn is_replaying(&self) -> bool {
        self.transactions.back().is_some_and(|last| last.itself.final_lsn < self.covered)
    }

    /// The number of changes from the oldest unacknowledged one to the newest.
    pub fn span(&self) -> u64 {
        self.next.0 - self.acknowledged.prefix()
    }

    /// The number of changes acknowledged without a gap.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.prefix()
    }

    /// Whether this session has acknowledged anything new.
    pub fn has_advanced(&self) -> bool {
        self.acknowledged.prefix() > self.skipped
    }

    /// The number of a change of the current transaction within it, counted from 1.
    pub fn ordinal(&self, sequence: Sequence) -> u64 {
        self.transactions.back().map_or(0, |last| sequence.0.saturating_sub(last.first.0) + 1)
    }

    /// The part of its transaction up to this change; `None` if that transaction is completely acknowledged.
    pub fn partial_up_to(&self, sequence: Sequence) -> Option<Partial> {
        if sequence >= self.next {
            return None;
        }
        let after = self.transactions.partition_point(|transaction| transaction.first <= sequence);
        let transaction = self.transactions.get(after.checked_sub(1)?)?;
        Some(Partial {
            final_lsn: transaction.itself.final_lsn,
            changes: sequence.0 - transaction.first.0 + 1,
        })
    }

    fn advance(&mut self) {
        let done = self.acknowledged.prefix();
        while let Some(front) = self.transactions.front() {
            let Some((after_last, end_lsn)) = front.end.filter(|(after_last, _)| after_last.0 <= done) else {
                break;
            };
            if front.first < after_last && front.last.final_lsn >= self.covered {
                self.landmark = Some(front.last);
            }
            self.flush = self.flush.max(end_lsn);
            self.transactions.pop_front();
        }
        if self.resume.is_some_and(|partial| partial.final_lsn < self.flush) {
            self.resume = None;
        }
        if self.is_idle() {
            self.flush = self.flush.max(self.reached);
        }
    }
}

#[cfg(test)]
mod tests;
