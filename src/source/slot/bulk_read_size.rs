//! How much of the log a bulk read takes, and whether bulk reads are quicker than the stream there. Pure.
//!
//! ```text
//!   restart_lsn          confirmed_flush_lsn        upto            end of the log
//!        |---- read again by ----|---- the bulk read ------|------- later ------|
//!              each bulk read
//! ```
//!
//! The server reads the log from `restart_lsn` on for each bulk read, which follows the slot only every few seconds of log. A bulk read has
//! to be large beside that.

use pg_logical::Lsn;
use pg_logical::bulk_read::Extent;
use pg_logical::replication::BulkRead;

/// A row of a bulk read, before there has been one.
const ROW: u64 = 300;

/// The first bulk read of a session: small, so that events come soon.
const FIRST: u64 = 10_000;

/// The server keeps a bulk read in temporary files where it is larger than `work_mem`; no larger ones than these, but where a single
/// transaction is larger, for which `MOST_LOG` is the limit.
const MOST: u64 = 256 << 20;

/// How much log a bulk read is looked for in: a transaction of a million rows is to lie in one, and where there are few events the
/// first is not to wait for more than seconds.
const MOST_LOG: u64 = 1 << 30;

/// How much of the log the server passes over in the time that a row is brought sooner by a bulk read than by the stream:
/// about 5 us, and 10 ms for 24 MB.
const LOG_FOR_A_ROW: u64 = 8 << 10;

/// A bulk read of less log says nothing of the next.
const LEAST_LOG: u64 = 16 << 20;

/// Where bulk reads do not pay, the stream reads this many times as much as the last one before they are tried again.
const STREAM_FOR: u64 = 4;

/// Where the slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotAt {
    /// `confirmed_flush_lsn`
    pub(super) confirmed: Lsn,
    /// `restart_lsn`
    pub(super) restart: Lsn,
    /// The server's `work_mem`, in bytes.
    pub(super) work_mem: u64,
}

impl SlotAt {
    /// What each bulk read reads again.
    fn again(self) -> u64 {
        self.confirmed.0.saturating_sub(self.restart.0)
    }
}

/// Learns from each bulk read.
#[derive(Debug)]
pub(super) struct BulkReadSize {
    /// At least so many bytes: half of what may be under way to Kafka arrives while the server reads the next one.
    least: u64,
    /// Of the last bulk read.
    row_bytes: u64,
    first: bool,
}

impl BulkReadSize {
    /// `window`: how many bytes may be under way.
    pub(super) fn new(window: usize) -> Self {
        let window = u64::try_from(window).unwrap_or(u64::MAX);
        BulkReadSize { least: window / 2, row_bytes: ROW, first: true }
    }

    /// The next bulk read, where all is well with the log up to `checked`.
    pub(super) fn next(&self, slot: SlotAt, checked: Lsn) -> Extent {
        // what is read again takes a fifth of the time, or less
        let bytes = slot.work_mem.max(slot.again() / 4).max(self.least).min(MOST);
        let rows = if self.first { FIRST } else { (bytes / self.row_bytes).max(1) };
        let upto = checked.min(Lsn(slot.confirmed.0.saturating_add(MOST_LOG)));
        Extent { upto, rows: u32::try_from(rows.min(i32::MAX as u64)).unwrap_or(u32::MAX) }
    }

    /// A bulk read has taken the slot on from where it was to `reached`. Returns up to where the stream is the quicker, if it is.
    pub(super) fn brought(&mut self, slot: SlotAt, bitten: BulkRead, reached: Lsn) -> Option<Lsn> {
        let first = std::mem::replace(&mut self.first, false);
        let rows = u64::from(bitten.rows);
        if let Some(mean) = u64::try_from(bitten.bytes).unwrap_or(u64::MAX).checked_div(rows) {
            self.row_bytes = mean.max(1);
        }
        let passed = reached.0.saturating_sub(slot.confirmed.0);
        let read_again = slot.again().saturating_add(passed);
        // a small one is no verdict
        let verdict = passed >= LEAST_LOG && !(first && rows >= FIRST);
        let slower = verdict && rows.saturating_mul(LOG_FOR_A_ROW) < read_again;
        slower.then(|| Lsn(reached.0.saturating_add(passed.saturating_mul(STREAM_FOR))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn slot(again: u64) -> SlotAt {
        SlotAt { confirmed: Lsn(1 << 40), restart: Lsn((1 << 40) - again), work_mem: 4 * MIB }
    }

    fn learnt(row_bytes: usize) -> BulkReadSize {
        let mut size = BulkReadSize::new(1 << 20);
        let bitten = BulkRead { rows: 10_000, bytes: 10_000 * row_bytes };
        assert_eq!(size.brought(slot(0), bitten, Lsn((1 << 40) + 5 * MIB)), None);
        size
    }

    const FAR: Lsn = Lsn(2 << 40);

    #[test]
    fn the_first_bulk_read_is_small_and_later_ones_fill_what_the_server_sorts_in_memory() {
        let mut size = BulkReadSize::new(1 << 20);
        assert_eq!(u64::from(size.next(slot(0), FAR).rows), FIRST);
        size = learnt(400);
        assert_eq!(u64::from(size.next(slot(0), FAR).rows), 4 * MIB / 400);
    }

    #[test]
    fn the_more_is_read_again_the_larger_it_is_and_temporary_files_have_a_bound() {
        let size = learnt(400);
        assert_eq!(u64::from(size.next(slot(64 * MIB), FAR).rows), 16 * MIB / 400);
        assert_eq!(u64::from(size.next(slot(1 << 40), FAR).rows), MOST / 400);
        let window = BulkReadSize { least: 8 * MIB, ..size };
        assert_eq!(u64::from(window.next(slot(0), FAR).rows), 8 * MIB / 400);
        let large = BulkReadSize { row_bytes: 512 * MIB, ..window };
        assert_eq!(large.next(slot(0), FAR).rows, 1);
    }

    #[test]
    fn no_bulk_read_goes_past_what_was_checked_or_far_through_a_log_of_others() {
        let size = learnt(400);
        assert_eq!(size.next(slot(0), Lsn((1 << 40) + 1)).upto, Lsn((1 << 40) + 1));
        assert_eq!(size.next(slot(0), FAR).upto, Lsn((1 << 40) + MOST_LOG));
    }

    #[test]
    fn where_few_events_lie_in_much_log_the_stream_is_quicker() {
        let mut size = learnt(400);
        let reached = Lsn((1 << 40) + 100 * MIB);
        let bitten = |rows| BulkRead { rows, bytes: 0 };
        assert_eq!(size.brought(slot(0), bitten(100_000), reached), None);
        assert_eq!(size.brought(slot(0), bitten(1_000), reached), Some(Lsn((1 << 40) + 500 * MIB)));
        assert!(size.brought(slot(1 << 33), bitten(100_000), reached).is_some());
        assert!(size.brought(slot(0), bitten(0), reached).is_some(), "an empty one");
    }

    #[test]
    fn a_small_first_bulk_read_is_no_verdict_unless_there_was_no_more() {
        let mut size = BulkReadSize::new(1 << 20);
        let reached = Lsn((1 << 40) + 20 * MIB);
        assert_eq!(size.brought(slot(200 * MIB), BulkRead { rows: 10_000, bytes: 0 }, reached), None);
        size = BulkReadSize::new(1 << 20);
        assert!(size.brought(slot(200 * MIB), BulkRead { rows: 100, bytes: 0 }, reached).is_some());
        size = BulkReadSize::new(1 << 20);
        let near = Lsn((1 << 40) + 15 * MIB);
        assert_eq!(size.brought(slot(200 * MIB), BulkRead { rows: 100, bytes: 0 }, near), None);
    }
}
