//! Which part of the stream is safe: sequence numbers in, the flush LSN out. Pure; knows no event, sink or server.
//!
//! ```text
//!   begin A   change change   commit A   begin B   change change change ...
//!             #0     #1                            #2     #3     #4
//!   acknowledged:  #0 #1 #3   ->   flush LSN = end of A;  of B nothing, for #2 is missing
//! ```
//!
//! Every change of the stream gets the next [`Sequence`], in the order in which Postgres sent it, and every change is
//! acknowledged exactly once, in whatever order its outcome becomes known. [`Progress::position`] is what has been
//! acknowledged without a hole: the end of the last whole transaction, and how many changes of the one after it.

mod acknowledged;

use std::collections::VecDeque;

use acknowledged::Acknowledged;
use pg_logical::pgoutput::Begin;
use pg_logical::{Lsn, PgTimestamp};

/// The number of one change, counted from the start of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

/// Where to go on after a restart without losing an event, and with as few repetitions as can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// The `end_lsn` of the last transaction that is acknowledged as a whole, or a later position up to which the
    /// stream held nothing.
    pub flush: Lsn,
    /// What is acknowledged of the transaction after it.
    pub partial: Option<Partial>,
}

impl Position {
    /// Whether the change with this number, of the transaction with this `final_lsn`, lies before it.
    pub fn covers(self, final_lsn: Lsn, ordinal: u64) -> bool {
        // a commit begins before the `end_lsn` that it makes the flush LSN
        final_lsn < self.flush
            || self.partial.is_some_and(|done| done.final_lsn == final_lsn && ordinal <= done.changes)
    }
}

/// The beginning of one transaction. Unlike a [`Sequence`] it means the same in every session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Partial {
    /// The transaction's `final_lsn`. In the order of the stream, as those of later transactions are greater.
    pub final_lsn: Lsn,
    /// How many of its changes, from the first one on and without a hole.
    pub changes: u64,
}

/// A transaction by which a log is known again: in another one, another lies there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Landmark {
    /// Where its commit begins.
    pub final_lsn: Lsn,
    /// Its number.
    pub xid: u32,
    /// When it was committed.
    pub commit_time: PgTimestamp,
}

impl From<Begin> for Landmark {
    fn from(Begin { final_lsn, commit_time, xid }: Begin) -> Self {
        Landmark { final_lsn, xid, commit_time }
    }
}

/// A transaction that is not yet acknowledged as a whole.
#[derive(Debug)]
struct Transaction {
    itself: Landmark,
    /// The last one whose end it has taken over, if that had changes; else itself.
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
    /// Transactions whose commits begin before it were acknowledged by an earlier session.
    covered: Lsn,
    /// How many changes of the transaction under way an earlier session has acknowledged already.
    skip: u64,
    /// How many were acknowledged so in this session.
    skipped: u64,
    /// The last transaction with changes that this session has acknowledged as a whole.
    landmark: Option<Landmark>,
    /// What the last keepalive said that nothing has followed yet.
    reached: Lsn,
}

/// A change's number, and whether an earlier session has already delivered it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// To be handled, and then acknowledged under this number.
    New(Sequence),
    /// Delivered before the restart. Acknowledged; nothing to do.
    Delivered,
}

/// The stream broke its own rules, so no position can be trusted any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OutOfStep {
    /// A Begin came inside a transaction.
    #[error("a transaction began before the one before it was complete")]
    BeginInside,
    /// A change or Commit came outside of one.
    #[error("a change or commit arrived outside of a transaction")]
    Outside,
}

impl Progress {
    /// Goes on at `position`. The stream must have been started there, or before.
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

    /// A transaction starts.
    pub fn begin(&mut self, transaction: Landmark) -> Result<(), OutOfStep> {
        if self.inside_transaction() {
            return Err(OutOfStep::BeginInside);
        }
        let final_lsn = transaction.final_lsn;
        // the transaction that was under way is the first to arrive with its final LSN, or it is not in the stream at all
        self.skip = match self.resume {
            _ if final_lsn < self.covered => u64::MAX,
            Some(partial) if partial.final_lsn == final_lsn => partial.changes,
            _ => 0,
        };
        // what was acknowledged of it counts until more is
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

    /// The next change of the transaction.
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

    /// The transaction is complete.
    pub fn commit(&mut self, end_lsn: Lsn) -> Result<(), OutOfStep> {
        let next = self.next;
        let last =
            self.transactions.back_mut().filter(|last| last.end.is_none()).ok_or(OutOfStep::Outside)?;
        last.end = Some((next, end_lsn));
        let settled = self.acknowledged.has_all(last.first.0, next.0);
        // What has nothing left to acknowledge must not pile up behind a transaction that waits: its end takes theirs over.
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

    /// The outcome of `sequence` is certain. Saying so twice, or of a number never given out, changes nothing.
    pub fn acknowledge(&mut self, sequence: Sequence) {
        if sequence < self.next && self.acknowledged.insert(sequence.0) {
            self.advance();
        }
    }

    /// The server says that it has sent all of the log up to `wal_end`. Counts as soon as all that was sent before is
    /// acknowledged, if nothing has come since: the server may not say it again for a while.
    pub fn reached(&mut self, wal_end: Lsn) {
        if !self.inside_transaction() {
            self.reached = wal_end;
            self.advance();
        }
    }

    /// The stream begins anew at the position, when every change that came was acknowledged.
    pub fn begin_again(&mut self) {
        debug_assert_eq!(self.span(), 0, "there are changes under way");
        let position = self.position();
        self.transactions.clear();
        (self.resume, self.covered) = (position.partial, position.flush);
        (self.skip, self.reached) = (0, Lsn::INVALID);
    }

    /// What may be confirmed, and where to go on after a restart.
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

    /// Whether every change so far is acknowledged and no transaction is under way.
    pub fn is_idle(&self) -> bool {
        self.transactions.is_empty() && self.resume.is_none()
    }

    /// Whether a Begin has come without its Commit.
    pub fn inside_transaction(&self) -> bool {
        self.transactions.back().is_some_and(|last| last.end.is_none())
    }

    /// Whether the transaction under way was acknowledged as a whole by an earlier session.
    pub fn repeats(&self) -> bool {
        self.transactions.back().is_some_and(|last| last.itself.final_lsn < self.covered)
    }

    /// How many changes lie between the oldest unacknowledged one and the newest.
    pub fn span(&self) -> u64 {
        self.next.0 - self.acknowledged.prefix()
    }

    /// How many changes are acknowledged without a hole.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.prefix()
    }

    /// Whether anything was acknowledged that was not before.
    pub fn has_advanced(&self) -> bool {
        self.acknowledged.prefix() > self.skipped
    }

    /// The number of a change of the transaction under way within it, counted from 1.
    pub fn ordinal(&self, sequence: Sequence) -> u64 {
        self.transactions.back().map_or(0, |last| sequence.0.saturating_sub(last.first.0) + 1)
    }

    /// Its transaction up to and including a change, if that transaction is not yet acknowledged as a whole.
    pub fn up_to(&self, sequence: Sequence) -> Option<Partial> {
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
