//! The positions of the stream: received, acknowledged, stored and confirmed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pg_logical::Lsn;

use super::lock;
use super::report;

/// A position, or unknown.
#[derive(Debug, Default)]
pub(super) struct AtomicLsn(AtomicU64);

impl AtomicLsn {
    pub(super) fn set(&self, lsn: Lsn) {
        self.0.store(lsn.0, Relaxed);
    }

    fn get(&self) -> Option<Lsn> {
        Some(Lsn(self.0.load(Relaxed))).filter(|lsn| *lsn != Lsn::INVALID)
    }
}

/// The positions of one router.
#[derive(Debug, Default)]
pub(super) struct Positions {
    pub(super) server_wal_end: AtomicLsn,
    pub(super) received: AtomicLsn,
    pub(super) flushed: AtomicLsn,
    pub(super) remembered: AtomicLsn,
    pub(super) confirmed: AtomicLsn,
    /// Why checkpoints cannot be written.
    failed: Mutex<Option<String>>,
}

impl Positions {
    /// Sets why checkpoints cannot be written; `None` if they can.
    pub(super) fn failed(&self, reason: Option<&str>) {
        let mut failed = lock(&self.failed);
        if failed.as_deref() != reason {
            *failed = reason.map(str::to_owned);
        }
    }

    /// Makes all of them unknown.
    pub(super) fn forget(&self) {
        let places = [&self.server_wal_end, &self.received, &self.flushed, &self.remembered, &self.confirmed];
        places.into_iter().for_each(|place| place.set(Lsn::INVALID));
        self.failed(None);
    }

    /// Bytes of log between the flush LSN and the end of the server's log.
    pub(super) fn lag_bytes(&self) -> Option<u64> {
        // flushed is read first: otherwise it could advance past the end that was read before
        let flushed = self.flushed.get();
        let end = self.server_wal_end.get();
        flushed.zip(end).map(|(flushed, end)| end.bytes_since(flushed))
    }

    pub(super) fn report(&self) -> report::Positions {
        let text = |place: &AtomicLsn| place.get().map(|lsn| lsn.to_string());
        report::Positions {
            server_wal_end: text(&self.server_wal_end),
            received: text(&self.received),
            flushed: text(&self.flushed),
            remembered: text(&self.remembered),
            not_remembered: lock(&self.failed).clone(),
            confirmed: text(&self.confirmed),
        }
    }
}
