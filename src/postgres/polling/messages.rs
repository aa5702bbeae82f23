//! The messages between a router that polls and the worker that claims rows for it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pg_logical::PgTimestamp;
use pg_logical::session::Row;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use crate::error::Error;
use crate::postgres::rows::TableRow;
use crate::progress::Sequence;

/// What the worker says to the source.
#[derive(Debug)]
pub enum FromWorker {
    /// The next rows. Their numbers follow on those of the rows before.
    Rows {
        /// In the order of their positions.
        rows: Vec<TableRow>,
        /// Until when they may be sent.
        send_by: Instant,
    },
    /// The rows of the table.
    Counted(CountedRows),
    /// Nothing was due, and no row of this router is in flight.
    Nothing,
    /// Why Postgres is waited for; `None`: it answers again.
    Silent(Option<String>),
    /// The session cannot go on.
    Failed(Error),
}

/// The rows of the table; 10,000 stands for that or more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountedRows {
    /// Those that are due.
    pub due: u64,
    /// When the oldest of them was inserted.
    pub oldest: Option<PgTimestamp>,
    /// Those that were refused too often.
    pub failed: u64,
    /// Those that were refused and are tried again, or wait behind such a row.
    pub refused: u64,
    /// When rows were last claimed, or none were found.
    pub polled: PgTimestamp,
}

impl CountedRows {
    /// Reads the answer to [`PolledTable::count`](super::sql::PolledTable::count), as of the time of the last poll.
    pub fn read(row: &Row, polled: PgTimestamp) -> Self {
        let number = |index: usize| row.get(index).and_then(|text| text.parse::<i64>().ok());
        let count =
            |index: usize| number(index).and_then(|count| u64::try_from(count).ok()).unwrap_or_default();
        CountedRows {
            due: count(0),
            oldest: number(1).map(PgTimestamp::from_unix_micros),
            failed: count(2),
            refused: count(3),
            polled,
        }
    }
}

/// What has become of a row. Its number counts all rows of the session, from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowResult {
    /// A broker has acknowledged it, or a rule drops it.
    Published(Sequence),
    /// It was refused, for this reason.
    Refused(Sequence, String),
    /// It was not sent, because an earlier row of its aggregate was refused.
    NotSent(Sequence),
}

/// A refusal is stored. Rows from this number on were claimed afterwards, so rows behind the refused one are not among them, unless
/// it was due again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusalStored {
    /// The row that was refused.
    pub refused: Sequence,
    /// The first row of the next claim.
    pub next: Sequence,
}

/// The worker's ends of the channels.
#[derive(Debug)]
pub(super) struct WorkerChannels {
    pub(super) to_source: UnboundedSender<FromWorker>,
    pub(super) results: UnboundedReceiver<RowResult>,
    pub(super) stored: UnboundedSender<RefusalStored>,
    pub(super) stopping: Arc<AtomicBool>,
}

/// The router's ends of the channels.
#[derive(Debug)]
pub struct RouterChannels {
    /// For the source.
    pub from_worker: UnboundedReceiver<FromWorker>,
    /// Set by the source: nothing more is to be claimed.
    pub stopping: Arc<AtomicBool>,
    /// For the sink. The worker ends once it is closed and everything is stored.
    pub results: UnboundedSender<RowResult>,
    /// For the sink.
    pub stored: UnboundedReceiver<RefusalStored>,
}

pub(super) fn channels() -> (WorkerChannels, RouterChannels) {
    let ((to_source, from_worker), (results_end, results), (stored, stored_end)) =
        (unbounded_channel(), unbounded_channel(), unbounded_channel());
    let stopping = Arc::new(AtomicBool::new(false));
    (
        WorkerChannels { to_source, results, stored, stopping: Arc::clone(&stopping) },
        RouterChannels { from_worker, stopping, results: results_end, stored: stored_end },
    )
}
