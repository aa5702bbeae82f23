//! What a process carries over from session to session.

use std::collections::BTreeMap;
use std::sync::Arc;

use pg_logical::Lsn;

use crate::checkpoint::{Checkpoint, LogMismatch, StreamDefinition};
use crate::contracts::Contracts;
use crate::dead_letters::Key;
use crate::error::{Remedy, Transient};
use crate::progress::Partial;
use crate::sink::kafka::{DEFAULT_BATCH_BYTES, Suspect, TopicCache, TransactionSize};
use crate::source::slot::HeldLock;
use crate::unsendable::{Reason, Unsendable};

/// The state that sessions read and update.
#[derive(Debug)]
pub(super) struct SessionState {
    /// Where to resume; `None` before the first session.
    pub(super) checkpoint: Option<Checkpoint>,
    /// The gap that `--accept-gap` names, until a session has passed it.
    pub(super) accepted_gap: Option<Lsn>,
    /// Where this router's part of the log ends.
    pub(super) until: Option<Lsn>,
    /// Whether other shards take over at `until`.
    pub(super) hands_over: bool,
    /// The mismatch that the last session's resume check found, and that session's epoch.
    pub(super) log_mismatch: Option<(u64, LogMismatch)>,
    /// The publication and tables of the last session.
    pub(super) definition: Option<StreamDefinition>,
    /// The warnings about tables that were logged.
    pub(super) unwatched: Vec<(String, String)>,
    /// The largest batch in bytes that every topic accepts.
    pub(super) batch_bytes: usize,
    /// The current size of Kafka transactions.
    pub(super) transaction_size: TransactionSize,
    /// The topic cache.
    pub(super) topics: Arc<TopicCache>,
    /// The last session ended without progress, so the next is logged only once it has run for `STABLE_AFTER`.
    pub(super) no_progress: bool,
    /// How the server has ended the last session, if that was no failure.
    pub(super) idle_end: Option<Transient>,
    /// The record that may have caused a refused batch.
    pub(super) suspect: Suspect,
    /// Events that the brokers refused and that are to be parked.
    pub(super) refused: BTreeMap<Partial, Unsendable>,
    /// A retried parked event that was refused again, and why.
    pub(super) failed_retry: Option<(Key, Reason, String)>,
    /// Retry parked events one at a time until the process ends, because Kafka refused a batch of them.
    pub(super) retry_alone: bool,
    /// The server process of the last session, or of the last attempt that reached the slot.
    pub(super) last_backend_pid: Option<i32>,
    /// The payload contracts, read when the process started.
    pub(super) contracts: Option<Arc<Contracts>>,
    /// The last session, kept open to hold the slot's lock until the next session takes it over.
    pub(super) lock: Option<HeldLock>,
    /// Set from the end of a session that streamed until bulk reads have started: the end of the log at the time.
    pub(super) switch_to_bulk: Option<Lsn>,
    /// Stream up to this position because bulk reads failed.
    pub(super) stream_until: Lsn,
    /// The steps for rows that the server cannot decode, if the stream of the last session ends there.
    pub(super) recovery: Remedy,
    /// Identifies the claims of the last session that polled, until they are ended.
    pub(super) token: Option<String>,
    /// Whether a session of this process has started to send.
    pub(super) was_active: bool,
    /// Whether one has started to stream.
    pub(super) streamed: bool,
}

impl Default for SessionState {
    fn default() -> Self {
        SessionState {
            checkpoint: None,
            accepted_gap: None,
            until: None,
            hands_over: false,
            log_mismatch: None,
            definition: None,
            unwatched: Vec::new(),
            batch_bytes: DEFAULT_BATCH_BYTES,
            transaction_size: TransactionSize::default(),
            topics: Arc::default(),
            no_progress: false,
            idle_end: None,
            suspect: Suspect::None,
            refused: BTreeMap::new(),
            failed_retry: None,
            retry_alone: false,
            last_backend_pid: None,
            contracts: None,
            lock: None,
            recovery: Remedy::default(),
            switch_to_bulk: None,
            stream_until: Lsn::INVALID,
            token: None,
            was_active: false,
            streamed: false,
        }
    }
}

impl SessionState {
    /// The start failed. The held session may be the reason, so the next start does without it.
    pub(super) fn not_started(&mut self) {
        self.lock = None;
        if let Some(until) = self.switch_to_bulk.take() {
            self.stream_until = until;
            tracing::warn!(
                remedy = "If all walsenders are in use, raise max_wal_senders: the switch takes a second one for a moment",
                "the session for bulk reads could not be started; the router streams the slot up to {until}"
            );
        }
    }
}
