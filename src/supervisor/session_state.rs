//! What one process remembers from session to session, so that it need not guess.

use std::collections::BTreeMap;
use std::sync::Arc;

use pg_logical::Lsn;

use crate::checkpoint::{Checkpoint, OtherLog, Reading};
use crate::contracts::Contracts;
use crate::dead_letters::Key;
use crate::progress::Partial;
use crate::sink::kafka::{DEFAULT_BATCH_BYTES, Suspect, TopicCache, TransactionSize};
use crate::source::slot::HeldLock;
use crate::unsendable::{Reason, Unsendable};

/// Grows with each session.
#[derive(Debug)]
pub(super) struct SessionState {
    /// Where to go on; `None` before the first session.
    pub(super) remembered: Option<Checkpoint>,
    /// The gap that was accepted on the command line, until a session has come past it.
    pub(super) accepted_gap: Option<Lsn>,
    /// Where this router's part of the log ends.
    pub(super) until: Option<Lsn>,
    /// What the last session found where the log was to be recognized, and the epoch that it had begun.
    pub(super) other_log: Option<(u64, OtherLog)>,
    /// The publication and table that it was read from.
    pub(super) reading: Option<Reading>,
    /// The largest batch that every topic takes.
    pub(super) batch_bytes: usize,
    /// How large Kafka transactions are.
    pub(super) transaction_size: TransactionSize,
    /// What is known of topics.
    pub(super) topics: Arc<TopicCache>,
    /// The last session ended as it had begun: the next one is not worth a line before it has lasted.
    pub(super) fruitless: bool,
    /// The record that may be to blame for a refused batch.
    pub(super) suspect: Suspect,
    /// Events that the brokers refuse, where such events are parked.
    pub(super) refused: BTreeMap<Partial, Unsendable>,
    /// A parked event that was refused again, and why.
    pub(super) failed_retry: Option<(Key, Reason, String)>,
    /// A batch of parked events was refused.
    pub(super) retry_alone: bool,
    /// The server process of the last session, or of the last attempt that got as far as the slot.
    pub(super) server_process: Option<i32>,
    /// What payloads are judged by, read at the start of the process.
    pub(super) contracts: Option<Arc<Contracts>>,
    /// The last session, where it holds the slot's lock for the next one, or until none can be made.
    pub(super) lock: Option<HeldLock>,
    /// This session has it from there.
    pub(super) handed_over: bool,
    /// The session that reads in bulk is being made; the log ended there.
    pub(super) goes_over: Option<Lsn>,
    /// Bulk reads have failed: up to there the slot is streamed.
    pub(super) stream_until: Lsn,
    /// Whether a session of this process has got as far as the stream.
    pub(super) was_active: bool,
}

impl Default for SessionState {
    fn default() -> Self {
        SessionState {
            remembered: None,
            accepted_gap: None,
            until: None,
            other_log: None,
            reading: None,
            batch_bytes: DEFAULT_BATCH_BYTES,
            transaction_size: TransactionSize::default(),
            topics: Arc::default(),
            fruitless: false,
            suspect: Suspect::None,
            refused: BTreeMap::new(),
            failed_retry: None,
            retry_alone: false,
            server_process: None,
            contracts: None,
            lock: None,
            handed_over: false,
            goes_over: None,
            stream_until: Lsn::INVALID,
            was_active: false,
        }
    }
}

impl SessionState {
    /// No session could be made. One that holds the lock may have been in its way, and the next one does not try the same.
    pub(super) fn not_started(&mut self) {
        self.lock = None;
        if let Some(until) = self.goes_over.take() {
            self.stream_until = until;
            tracing::warn!(
                remedy = "Going over takes a second walsender for a moment: look at max_wal_senders",
                "the session that was to read in bulk could not be made; the slot is streamed up to {until}"
            );
        }
    }
}
