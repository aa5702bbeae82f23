//! Shows the slot and the parked events while no session of this router streams: while another router is active, and at each
//! start before Kafka is reached.

use pg_logical::QueryError;
use pg_logical::session::{Row, Session};

use crate::config::Config;
use crate::error::Error;
use crate::monitor::{self, Monitor};
use crate::postgres::catalog::{Catalog, Slot};
use crate::postgres::dead_letters::sql as dead_letters;
use crate::postgres::slot_headroom::safe_bytes;

/// Standbys must not be delayed.
const LIMITS: &str = "SET LOCAL lock_timeout = '100ms'; SET LOCAL statement_timeout = '200ms'";

/// Reads the slot and the number of parked events, and shows them.
pub(super) async fn show(session: &mut Session, config: &Config, monitor: &Monitor) -> Result<(), Error> {
    let catalog = Catalog::query_slot(session, &config.postgres, &config.outbox).await?;
    if let Some(slot) = &catalog.slot {
        show_slot(slot, monitor);
    }
    if !config.dead_letters.park() {
        return Ok(());
    }
    let count = dead_letters::count_both(&config.name, "true");
    match session.query(&format!("{LIMITS}; {count}")).await {
        Ok(rows) => {
            let number = |n| rows.first().and_then(|row: &Row| row.get(n)?.parse::<u64>().ok());
            if let (Some(events), Some(aggregates)) = (number(0), number(1)) {
                monitor.dead_letters(usize::try_from(aggregates).unwrap_or(usize::MAX), events);
            }
        }
        Err(QueryError::Connection(error)) => return Err(error.into()),
        // The last known number stays. The parking session reports the error.
        Err(error) => tracing::debug!(%error, "counting parked events"),
    }
    Ok(())
}

fn show_slot(slot: &Slot, monitor: &Monitor) {
    monitor.slot(monitor::Slot {
        at: None,
        retained_bytes: slot.retained_bytes,
        wal_status: slot.wal_status.clone(),
        safe_wal_bytes: safe_bytes(slot),
        // needs several observations, which the streaming session makes
        safe_wal_seconds: None,
        room: monitor.slot_headroom_level(),
        held_by: monitor.slot_held_by(),
    });
}
