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
use pg_logical::stream::TransportKind;

/// The assumed size of a row in bytes before the first bulk read with rows.
const DEFAULT_ROW_BYTES: u64 = 300;

/// The largest bulk read in bytes, if its rows are as large as the last ones. The server stores one that is larger than
/// `work_mem` in temporary files.
const MAX_BYTES: u64 = 256 << 20;

/// The range of log of the first bulk read of a session in bytes: small, so that the first events come soon and little is lost if
/// the stream is faster. A smaller range decides nothing.
const MIN_LOG: u64 = 4 << 20;

/// The largest range of log of a bulk read in bytes. A transaction of a million rows has to fit; but where events are rare, they
/// must not wait for more than seconds.
const MAX_LOG: u64 = 1 << 30;

/// How many times as much log as the last one a bulk read covers at most: rows may suddenly be much larger.
const LOG_FACTOR: u64 = 4;

/// The same after a bulk read with few rows, which may have ended inside a large transaction.
const LOG_FACTOR_AFTER_FEW: u64 = 16;

/// A bulk read has few rows if it covers more log than this (bytes) for each.
const FEW: u64 = 8 << 10;

/// The rows of a bulk read are typical of what follows if they are at least this part of its log.
const TYPICAL_SHARE: u64 = 8;

/// Events are rare if two bulk reads in a row have few rows and the second covers this much log (bytes).
const RARE_LOG: u64 = 256 << 20;

/// Where the stream is faster, it reads this much log (bytes) before the next bulk read is tried, which takes another session.
const STREAMED_LOG: u64 = 4 << 30;

/// The time that a bulk read saves for each message, in picoseconds: the walsender's system call, its TLS record, and waking
/// the router. Measured like the next two with `scripts/bench --part bulk-reads`; only their proportions matter.
const fn picoseconds_saved(transport: TransportKind) -> u64 {
    match transport {
        TransportKind::Tls => 5_600_000,
        TransportKind::Tcp | TransportKind::Unix => 2_400_000,
    }
}

/// The time that a bulk read costs for each byte that it returns: the server stores the rows before it sends them.
const PICOSECONDS_PER_BYTE: u64 = 2_700;

/// The time that it costs for each byte of log that is read again.
const PICOSECONDS_PER_BYTE_REREAD: u64 = 400;

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

/// Why the stream is faster than bulk reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slower {
    LargeRows,
    RareEvents,
}

/// Sizes bulk reads by the previous ones.
#[derive(Debug)]
pub(super) struct BulkReadSize {
    transport: TransportKind,
    /// At least this many bytes: half of the in-flight window arrives while the server reads the next bulk read.
    min_bytes: u64,
    /// The mean size of a row in the last bulk read with rows, in bytes.
    row_bytes: u64,
    /// The largest range of log of the next bulk read, in bytes.
    log: u64,
    /// Whether the last bulk read had few rows.
    few: bool,
    first: bool,
}

impl BulkReadSize {
    /// `window`: how many bytes may be in flight.
    pub(super) fn new(transport: TransportKind, window: usize) -> Self {
        let min_bytes = u64::try_from(window).unwrap_or(u64::MAX) / 2;
        let row_bytes = DEFAULT_ROW_BYTES;
        BulkReadSize { transport, min_bytes, row_bytes, log: MIN_LOG, few: false, first: true }
    }

    /// The next bulk read, if the catalogues were checked up to `checked`.
    pub(super) fn next(&self, slot: SlotAt, checked: Lsn) -> Extent {
        // at most a fifth of the time goes into log that is read again
        let bytes = slot.work_mem.max(slot.reread_bytes() / 4).max(self.min_bytes).min(MAX_BYTES);
        let rows = (bytes / self.row_bytes).max(1);
        let upto = checked.min(Lsn(slot.confirmed.0.saturating_add(self.log)));
        Extent { upto, rows: u32::try_from(rows.min(i32::MAX as u64)).unwrap_or(u32::MAX) }
    }

    /// The bulk read after `current`, requested while `current` arrives, which is expected to move the slot to `slot`. A server may
    /// move a slot back that is read up to an earlier position, so it does not end before `current`.
    pub(super) fn next_after(&self, current: Extent, slot: SlotAt, checked: Lsn) -> Extent {
        let next = self.next(slot, checked);
        Extent { upto: next.upto.max(current.upto), ..next }
    }

    /// Takes the result of a bulk read that moved the slot to `reached`. Returns whether the stream is faster, and up to which
    /// position it is used then.
    pub(super) fn completed(&mut self, slot: SlotAt, read: BulkRead, reached: Lsn) -> Option<(Slower, Lsn)> {
        let passed = reached.0.saturating_sub(slot.confirmed.0);
        if passed == 0 {
            return None;
        }
        let (rows, bytes) = (u64::from(read.rows), u64::try_from(read.bytes).unwrap_or(u64::MAX));
        if let Some(mean) = bytes.checked_div(rows) {
            self.row_bytes = mean.max(1);
        }
        let few = rows.saturating_mul(FEW) < passed;
        let factor = if few { LOG_FACTOR_AFTER_FEW } else { LOG_FACTOR };
        self.log = passed.saturating_mul(factor).clamp(MIN_LOG, MAX_LOG);
        let repeatedly_few = std::mem::replace(&mut self.few, few) && few;
        // The first is small compared with what is read again. Later ones are not, see `next`.
        let reread = if std::mem::replace(&mut self.first, false) || few { 0 } else { slot.reread_bytes() };
        let saved = rows.saturating_mul(picoseconds_saved(self.transport));
        let cost = bytes
            .saturating_mul(PICOSECONDS_PER_BYTE)
            .saturating_add(reread.saturating_mul(PICOSECONDS_PER_BYTE_REREAD));
        let is_typical = passed >= MIN_LOG && bytes.saturating_mul(TYPICAL_SHARE) >= passed;
        let slower = if is_typical && saved < cost {
            Slower::LargeRows
        } else if repeatedly_few && passed >= RARE_LOG {
            Slower::RareEvents
        } else {
            return None;
        };
        Some((slower, Lsn(reached.0.saturating_add(STREAMED_LOG))))
    }

    /// Whether no bulk read has completed yet.
    pub(super) fn is_first(&self) -> bool {
        self.first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const START: Lsn = Lsn(1 << 40);
    const FAR: Lsn = Lsn(2 << 40);

    /// A slot whose last `reread` bytes of log are read again.
    fn slot(reread: u64) -> SlotAt {
        SlotAt { confirmed: START, restart: Lsn(START.0 - reread), work_mem: 4 * MIB }
    }

    fn new() -> BulkReadSize {
        BulkReadSize::new(TransportKind::Tls, 1 << 20)
    }

    /// Completes a bulk read of these rows, and this much log.
    fn completed(
        size: &mut BulkReadSize,
        reread: u64,
        rows: u32,
        row_bytes: usize,
        passed: u64,
    ) -> Option<Slower> {
        let read = BulkRead { rows, bytes: rows as usize * row_bytes };
        let verdict = size.completed(slot(reread), read, Lsn(START.0 + passed));
        verdict.map(|(slower, until)| {
            assert_eq!(until, Lsn(START.0 + passed + STREAMED_LOG));
            slower
        })
    }

    fn learnt(row_bytes: usize) -> BulkReadSize {
        let mut size = new();
        assert_eq!(completed(&mut size, 0, 10_000, row_bytes, 5 * MIB), None);
        size
    }

    fn rows(size: &BulkReadSize, reread: u64) -> u64 {
        size.next(slot(reread), FAR).rows.into()
    }

    /// The log that the next bulk read may cover.
    fn log(size: &BulkReadSize) -> u64 {
        size.next(slot(0), FAR).upto.0 - START.0
    }

    #[test]
    fn the_first_bulk_read_is_small_and_later_ones_fill_work_mem() {
        assert_eq!(log(&new()), MIN_LOG);
        assert_eq!(rows(&learnt(400), 0), 4 * MIB / 400);
    }

    #[test]
    fn the_more_is_read_again_the_larger_it_is_and_temporary_files_have_a_bound() {
        let size = learnt(400);
        assert_eq!(rows(&size, 64 * MIB), 16 * MIB / 400);
        assert_eq!(rows(&size, 1 << 40), MAX_BYTES / 400);
        let window = BulkReadSize { min_bytes: 8 * MIB, ..size };
        assert_eq!(rows(&window, 0), 8 * MIB / 400);
        let large = BulkReadSize { row_bytes: 512 * MIB, ..window };
        assert_eq!(rows(&large, 0), 1);
    }

    #[test]
    fn it_ends_where_the_catalogues_were_checked() {
        let near = Lsn(START.0 + 1);
        assert_eq!(learnt(400).next(slot(0), near).upto, near);
    }

    #[test]
    fn one_that_is_requested_early_does_not_end_before_the_one_that_arrives() {
        let mut size = learnt(400);
        let current = Extent { upto: Lsn(START.0 + 98 * MIB), rows: 1 };
        assert_eq!(size.next_after(current, slot(0), FAR).upto, current.upto);
        completed(&mut size, 0, 100_000, 400, 60 * MIB);
        assert_eq!(size.next_after(current, slot(0), FAR).upto, Lsn(START.0 + 240 * MIB));
    }

    #[test]
    fn rows_that_become_a_thousand_times_as_large_do_not_fill_the_disk() {
        let mut size = learnt(400);
        assert_eq!(log(&size), 20 * MIB);
        completed(&mut size, 0, 1_000_000, 400, 600 * MIB);
        assert_eq!(log(&size), MAX_LOG);
    }

    #[test]
    fn a_large_transaction_is_reached_in_a_few_steps() {
        // three messages of a heartbeat, then the transaction, which ends later
        let mut size = new();
        for (passed, next) in [(4, 64), (64, 1_024)] {
            assert_eq!(completed(&mut size, 0, 3, 100, passed * MIB), None);
            assert_eq!(log(&size), next * MIB);
        }
        assert_eq!(completed(&mut size, 0, 1_000_000, 400, 600 * MIB), None);
    }

    #[test]
    fn the_stream_is_faster_where_events_are_rare() {
        let mut size = learnt(400);
        assert_eq!(completed(&mut size, 64 * MIB, 3, 100, 300 * MIB), None, "it may be a large transaction");
        assert_eq!(completed(&mut size, 64 * MIB, 0, 0, 300 * MIB), Some(Slower::RareEvents));
        let mut size = learnt(400);
        assert_eq!(completed(&mut size, 0, 0, 0, 300 * MIB), None);
        assert_eq!(completed(&mut size, 0, 0, 0, 255 * MIB), None);
    }

    #[test]
    fn one_that_moves_nothing_teaches_nothing() {
        let (mut size, before) = (learnt(400), learnt(400));
        assert_eq!(completed(&mut size, 0, 0, 0, 0), None);
        assert_eq!((log(&size), rows(&size, 0), size.few), (log(&before), rows(&before, 0), before.few));
    }

    #[test]
    fn what_is_read_again_counts_from_the_second_on() {
        let mut size = new();
        assert_eq!(completed(&mut size, 1 << 40, 10_000, 300, 10 * MIB), None);
        assert_eq!(completed(&mut size, 1 << 40, 10_000, 300, 10 * MIB), Some(Slower::LargeRows));
    }

    #[test]
    fn with_tls_rows_may_be_larger() {
        let is_slower = |transport, row_bytes: usize| {
            let mut size = BulkReadSize::new(transport, 1 << 20);
            completed(&mut size, 0, 100_000, row_bytes, 100_000 * row_bytes as u64).is_some()
        };
        let limits = [TransportKind::Unix, TransportKind::Tcp, TransportKind::Tls]
            .map(|transport| (1..).find(|bytes| is_slower(transport, *bytes)));
        assert_eq!(limits, [Some(889), Some(889), Some(2_075)]);
    }

    #[test]
    fn a_single_large_row_in_much_log_decides_nothing() {
        assert_eq!(completed(&mut new(), 0, 1, 5_000, 4 * MIB), None);
        assert_eq!(completed(&mut new(), 0, 4, 1_000_000, 4 * MIB), Some(Slower::LargeRows));
    }
}
