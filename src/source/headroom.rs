//! Shows how much log the slot may still hold back, and logs changes.

use std::time::Instant;

use crate::error::with_config_file;
use crate::monitor::{self, Monitor};
use crate::postgres::catalog::Slot;
use crate::postgres::open_transaction::OpenTransaction;
use crate::postgres::slot_headroom::{Level, SlotHeadroom, safe_bytes};

/// The headroom of a slot, while a session of the router holds it.
pub(super) struct Headroom {
    slot: String,
    samples: SlotHeadroom,
}

impl Headroom {
    /// Before the first sample of a session.
    pub(super) fn new(slot: &str, monitor: &Monitor) -> Self {
        Headroom { slot: slot.to_owned(), samples: SlotHeadroom::new(monitor.slot_headroom_level()) }
    }

    /// How long it lasts at the current rate; `None`: it does not shrink, or has no limit.
    pub(super) fn left(&self) -> Option<std::time::Duration> {
        self.samples.left()
    }

    /// Adds a sample. `held_by` is the transaction that makes the slot retain log, if it is one.
    pub(super) fn show(&mut self, slot: &Slot, held_by: Option<&OpenTransaction>, monitor: &Monitor) {
        let changed = self.samples.add_sample(Instant::now(), slot);
        let held_by = held_by.filter(|_| self.samples.level() > Level::Ample);
        let who = held_by.map(|transaction| transaction.who.clone());
        let another = who.is_some() && who != monitor.slot_held_by();
        let (before, room) = (monitor.slot_headroom_level(), self.samples.level());
        monitor.slot(monitor::Slot {
            at: None,
            retained_bytes: slot.retained_bytes,
            wal_status: slot.wal_status.clone(),
            safe_wal_bytes: safe_bytes(slot),
            safe_wal_seconds: self.left().map(|left| left.as_secs_f64()),
            room,
            held_by: who,
        });
        if changed.is_none() && !another {
            return;
        }
        let (what, remedy) = self.samples.describe(&self.slot, slot, held_by);
        let remedy = with_config_file(remedy);
        match room {
            Level::Ample => tracing::info!("the slot has room again: {what}"),
            _ if room < before => tracing::info!("the slot has more room: {what}"),
            Level::Unreserved => tracing::error!(remedy, "{what}"),
            Level::Extended | Level::Short => tracing::warn!(remedy, "{what}"),
        }
        if room > before || another {
            monitor.last_problem(what);
        }
    }
}
