//! What one process remembers from session to session, so that it need not guess.

use std::sync::Arc;

use crate::contracts::Contracts;
use crate::error::Error;
use crate::lsn::Lsn;
use crate::postgres::catalog::{Fingerprint, Slot, moved_by_another};
use crate::postgres::timeline::System;
use crate::progress::{Partial, Position};
use crate::sink::kafka::{DEFAULT_BATCH_BYTES, KnownTopics};

/// Grows with each session.
#[derive(Debug)]
pub(super) struct Memory {
    /// Where to go on; `None` before the first session.
    pub(super) position: Option<Position>,
    /// The server that it belongs to.
    pub(super) system: Option<System>,
    /// The publication and table that it was read from.
    pub(super) fingerprint: Option<Fingerprint>,
    /// The largest batch that every topic takes.
    pub(super) batch_bytes: usize,
    /// What is known of topics.
    pub(super) topics: Arc<KnownTopics>,
    /// The last session ended as it had begun: the next one is not worth a line.
    pub(super) fruitless: bool,
    /// The last change of those that are sent one at a time.
    pub(super) alone_up_to: Option<Partial>,
    /// The server process of the last session.
    pub(super) walsender: Option<i32>,
    /// What payloads are judged by, read at the start of the process.
    pub(super) contracts: Option<Arc<Contracts>>,
    /// Whether a session of this process has got as far as the stream.
    pub(super) was_active: bool,
}

impl Default for Memory {
    fn default() -> Self {
        Memory {
            position: None,
            system: None,
            fingerprint: None,
            batch_bytes: DEFAULT_BATCH_BYTES,
            topics: Arc::default(),
            fruitless: false,
            alone_up_to: None,
            walsender: None,
            contracts: None,
            was_active: false,
        }
    }
}

impl Memory {
    /// Where the stream is to start: at the remembered position, or at the slot's own if there is none.
    pub(super) fn start(&self, slot_name: &str, slot: &Slot) -> Result<Position, Error> {
        let confirmed = slot.confirmed_flush_lsn.unwrap_or(Lsn::INVALID);
        match self.position {
            None => Ok(Position { flush: confirmed, partial: None }),
            // Postgres would silently start at the slot's position
            Some(position) if confirmed > position.flush => {
                Err(moved_by_another(slot_name, confirmed, position.flush))
            }
            Some(position) => Ok(position),
        }
    }
}
