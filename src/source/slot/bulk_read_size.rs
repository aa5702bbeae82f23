//! How much log a bulk read takes, and whether bulk reads are faster than the stream there. Pure.
//!
//! ```text
//!   restart_lsn          confirmed_flush_lsn        upto            end of the log
//!        |---- read again by ----|---- the bulk read ------|------- later ------|
//!              each bulk read
//! ```
//!
//! For each bulk read the server reads the log again from `restart_lsn`, which follows the slot only every few seconds of log. So
//! a bulk read has to be large compared with that distance.

use pg_logical::Lsn;
use pg_logical::bulk_read::Extent;
use pg_logical::replication::BulkRead;

/// The assumed size of a row in bytes before the first bulk read.
const DEFAULT_ROW_BYTES: u64 = 300;

/// The rows of the first bulk read of a session: few, so that the first events come soon.
const FIRST_ROWS: u64 = 10_000;

/// The largest bulk read in bytes. The server stores one that is larger than `work_mem` in temporary files. Only a single
/// transaction may be larger; [`MAX_LOG`] is its limit.
const MAX_BYTES: u64 = 256 << 20;

/// The largest range of log of a bulk read in bytes. A transaction of a million rows has to fit; but where events are rare, the
/// first must not take more than seconds.
const MAX_LOG: u64 = 1 << 30;

/// How many bytes of log the server decodes in the time that a bulk read saves for each row: about 5 us per row, and 10 ms for 24
/// MB of log.
const LOG_PER_ROW: u64 = 8 << 10;

/// A bulk read of less log than this (bytes) does not decide whether bulk reads are faster.
const MIN_LOG: u64 = 16 << 20;

/// Where the stream is faster, it reads this many times as much log as the last bulk read before the next one is tried.
const STREAM_FACTOR: u64 = 4;

/// The state of the slot.
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
    /// How many bytes of log each bulk read reads again.
    fn reread_bytes(self) -> u64 {
        self.confirmed.0.saturating_sub(self.restart.0)
    }
}

/// Sizes bulk reads by the previous ones.
#[derive(Debug)]
pub(super) struct BulkReadSize {
    /// At least this many bytes: half of the in-flight window arrives while the server reads the next bulk read.
    min_bytes: u64,
    /// The mean size of a row in the last bulk read, in bytes.
    row_bytes: u64,
    first: bool,
}

impl BulkReadSize {
    /// `window`: how many bytes may be in flight.
    pub(super) fn new(window: usize) -> Self {
        let window = u64::try_from(window).unwrap_or(u64::MAX);
        BulkReadSize { min_bytes: window / 2, row_bytes: DEFAULT_ROW_BYTES, first: true }
    }

    /// The next bulk read, if the catalogues were checked up to `checked`.
    pub(super) fn next(&self, slot: SlotAt, checked: Lsn) -> Extent {
        // at most a fifth of the time goes into log that is read again
        let bytes = slot.work_mem.max(slot.reread_bytes() / 4).max(self.min_bytes).min(MAX_BYTES);
        let rows = if self.first { FIRST_ROWS } else { (bytes / self.row_bytes).max(1) };
        let upto = checked.min(Lsn(slot.confirmed.0.saturating_add(MAX_LOG)));
        Extent { upto, rows: u32::try_from(rows.min(i32::MAX as u64)).unwrap_or(u32::MAX) }
    }

    /// Takes the result of a bulk read that moved the slot to `reached`. Returns up to which position the stream is faster, if it
    /// is.
    pub(super) fn completed(&mut self, slot: SlotAt, read: BulkRead, reached: Lsn) -> Option<Lsn> {
        let first = std::mem::replace(&mut self.first, false);
        let rows = u64::from(read.rows);
        if let Some(mean) = u64::try_from(read.bytes).unwrap_or(u64::MAX).checked_div(rows) {
            self.row_bytes = mean.max(1);
        }
        let passed = reached.0.saturating_sub(slot.confirmed.0);
        let log_read = slot.reread_bytes().saturating_add(passed);
        // a small bulk read does not decide
        let conclusive = passed >= MIN_LOG && !(first && rows >= FIRST_ROWS);
        let slower = conclusive && rows.saturating_mul(LOG_PER_ROW) < log_read;
        slower.then(|| Lsn(reached.0.saturating_add(passed.saturating_mul(STREAM_FACTOR))))
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
        let read = BulkRead { rows: 10_000, bytes: 10_000 * row_bytes };
        assert_eq!(size.completed(slot(0), read, Lsn((1 << 40) + 5 * MIB)), None);
        size
    }

    const FAR: Lsn = Lsn(2 << 40);

    #[test]
    fn the_first_bulk_read_is_small_and_later_ones_fill_work_mem() {
        let mut size = BulkReadSize::new(1 << 20);
        assert_eq!(u64::from(size.next(slot(0), FAR).rows), FIRST_ROWS);
        size = learnt(400);
        assert_eq!(u64::from(size.next(slot(0), FAR).rows), 4 * MIB / 400);
    }

    #[test]
    fn the_more_is_log_read_the_larger_it_is_and_temporary_files_have_a_bound() {
        let size = learnt(400);
        assert_eq!(u64::from(size.next(slot(64 * MIB), FAR).rows), 16 * MIB / 400);
        assert_eq!(u64::from(size.next(slot(1 << 40), FAR).rows), MAX_BYTES / 400);
        let window = BulkReadSize { min_bytes: 8 * MIB, ..size };
        assert_eq!(u64::from(window.next(slot(0), FAR).rows), 8 * MIB / 400);
        let large = BulkReadSize { row_bytes: 512 * MIB, ..window };
        assert_eq!(large.next(slot(0), FAR).rows, 1);
    }

    #[test]
    fn a_bulk_read_ends_at_the_last_check_and_after_max_log() {
        let size = learnt(400);
        assert_eq!(size.next(slot(0), Lsn((1 << 40) + 1)).upto, Lsn((1 << 40) + 1));
        assert_eq!(size.next(slot(0), FAR).upto, Lsn((1 << 40) + MAX_LOG));
    }

    #[test]
    fn the_stream_is_faster_where_events_are_rare() {
        let mut size = learnt(400);
        let reached = Lsn((1 << 40) + 100 * MIB);
        let read = |rows| BulkRead { rows, bytes: 0 };
        assert_eq!(size.completed(slot(0), read(100_000), reached), None);
        assert_eq!(size.completed(slot(0), read(1_000), reached), Some(Lsn((1 << 40) + 500 * MIB)));
        assert!(size.completed(slot(1 << 33), read(100_000), reached).is_some());
        assert!(size.completed(slot(0), read(0), reached).is_some(), "an empty one");
    }

    #[test]
    fn a_small_first_bulk_read_decides_nothing_unless_it_was_not_full() {
        let mut size = BulkReadSize::new(1 << 20);
        let reached = Lsn((1 << 40) + 20 * MIB);
        assert_eq!(size.completed(slot(200 * MIB), BulkRead { rows: 10_000, bytes: 0 }, reached), None);
        size = BulkReadSize::new(1 << 20);
        assert!(size.completed(slot(200 * MIB), BulkRead { rows: 100, bytes: 0 }, reached).is_some());
        size = BulkReadSize::new(1 << 20);
        let near = Lsn((1 << 40) + 15 * MIB);
        assert_eq!(size.completed(slot(200 * MIB), BulkRead { rows: 100, bytes: 0 }, near), None);
    }
}
