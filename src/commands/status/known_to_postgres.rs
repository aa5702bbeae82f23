//! What Postgres knows about a router that does not answer: its slot, and who holds it; or the rows of a table that is polled.

use std::fmt;

use pg_logical::PgTimestamp;
use pg_logical::connect::Startup;
use serde::Serialize;

use super::table::rows_line;
use crate::commands::connect;
use crate::config::{Config, Polling as PollingConfig};
use crate::error::{Error, ErrorCode, Peer, Remedy};
use crate::monitor::rows_in_report;
use crate::postgres::catalog::{self, Catalog};
use crate::postgres::polling::messages::CountedRows;
use crate::postgres::polling::table::Found;
use crate::quantity::bytes;
use crate::terminal;

/// The slot as the catalogues show it. The members are keys of `status --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct SlotReport {
    /// Its name.
    pub slot: String,
    /// Whether it exists.
    pub exists: bool,
    /// The server process that reads it; null if none does.
    pub active_pid: Option<i32>,
    /// The client of that process, as far as this role may see it.
    pub holder: Option<String>,
    /// The last confirmed position.
    pub confirmed: Option<String>,
    /// The oldest log that it retains.
    pub restart: Option<String>,
    /// Bytes of log that it retains.
    pub retained_bytes: Option<u64>,
    /// reserved, extended, unreserved or lost
    pub wal_status: Option<String>,
    /// Bytes that may be written before the slot may be lost; null if there is no limit.
    pub safe_wal_size: Option<i64>,
    /// Why `run` would refuse it; null if it would not.
    pub problem: Option<String>,
    /// The code of that refusal.
    pub code: Option<ErrorCode>,
    /// The steps.
    pub ways: Remedy,
    /// All of it, for a person.
    #[serde(skip)]
    pub refusal: String,
}

/// The rows of a table that is polled.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct RowsReport {
    /// Its name.
    table: String,
    // the others are those of the router's report
    rows_due: u64,
    oldest_due_seconds: f64,
    rows_refused: u64,
    rows_failed: u64,
    /// All of it, for a person.
    #[serde(skip)]
    line: String,
}

/// The slot, or the slots of all shards, or the rows of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum Known {
    /// With polling.
    Rows(RowsReport),
    /// Without shards.
    One(Box<SlotReport>),
    /// With shards, in the order of their numbers.
    Shards(Vec<SlotReport>),
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Known::Rows(rows) => writeln!(f, "table {}: {}", rows.table, rows.line),
            Known::One(slot) => slot.fmt(f),
            Known::Shards(slots) => slots.iter().try_for_each(|slot| slot.fmt(f)),
        }
    }
}

/// Asks Postgres.
///
/// # Errors
/// It cannot be reached, or refuses.
pub(super) async fn ask(config: &Config) -> Result<Known, Error> {
    if let Some(polling) = &config.polling {
        return Ok(Known::Rows(ask_rows(config, polling).await?));
    }
    if config.shards.count == 1 {
        return Ok(Known::One(Box::new(ask_one(config).await?)));
    }
    let mut slots = Vec::new();
    for shard in config.local_shards() {
        slots.push(ask_one(&shard).await?);
    }
    Ok(Known::Shards(slots))
}

async fn ask_rows(config: &Config, polling: &PollingConfig) -> Result<RowsReport, Error> {
    let mut session = connect(config, "status", Startup::default()).await?;
    let conninfo = &config.postgres.conninfo;
    let found = Found::usable(&mut session, &config.outbox, polling, conninfo).await?;
    let counted = match found.statements(&config.outbox, polling) {
        Some(table) => session.query(&table.count()).await?,
        None => Vec::new(),
    };
    session.close().await;
    let row =
        counted.first().ok_or_else(|| Error::transient(Peer::Postgres, "the server has given no answer"))?;
    let now = PgTimestamp::now();
    let rows = rows_in_report(&CountedRows::read(row, now), now);
    Ok(RowsReport {
        table: config.outbox.table_names(),
        rows_due: rows.rows_due,
        oldest_due_seconds: rows.oldest_due_seconds,
        rows_refused: rows.rows_refused,
        rows_failed: rows.rows_failed,
        line: rows_line(&rows),
    })
}

async fn ask_one(config: &Config) -> Result<SlotReport, Error> {
    let mut session = connect(config, "status", Startup::default()).await?;
    let catalog = Catalog::query_slot(&mut session, &config.postgres, &config.outbox).await?;
    let active_pid = catalog.slot.as_ref().and_then(|slot| slot.active_pid);
    let holder = match active_pid {
        Some(pid) => Some(catalog::holder(&mut session, pid).await?),
        None => None,
    };
    session.close().await;
    let problem = catalog.check_slot(config.source()).err();
    let (code, ways, refusal) = match &problem {
        Some(Error::Definite(definite)) => {
            (Some(definite.code), definite.remedy.clone(), definite.in_lines())
        }
        Some(Error::Transient(transient)) => (None, Remedy::default(), transient.to_string()),
        None => (None, Remedy::default(), String::new()),
    };
    let slot = catalog.slot.as_ref();
    Ok(SlotReport {
        slot: config.postgres.slot.clone(),
        exists: slot.is_some(),
        active_pid,
        holder,
        confirmed: slot.and_then(|slot| slot.confirmed_flush_lsn).map(|lsn| lsn.to_string()),
        restart: slot.and_then(|slot| slot.restart_lsn).map(|lsn| lsn.to_string()),
        retained_bytes: slot.and_then(|slot| slot.retained_bytes),
        wal_status: slot.and_then(|slot| slot.wal_status.clone()),
        safe_wal_size: slot.and_then(|slot| slot.safe_wal_size),
        problem: problem.map(|error| error.to_string()),
        code,
        ways,
        refusal,
    })
}

impl fmt::Display for SlotReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.exists {
            let holder = self.holder.as_deref();
            writeln!(
                f,
                "slot {}: {}",
                self.slot,
                holder.map_or("nobody reads it".to_owned(), |holder| format!("read by {holder}"))
            )?;
            if let Some(confirmed) = &self.confirmed {
                writeln!(f, "confirmed up to {confirmed}")?;
            }
            if let Some(retained) = self.retained_bytes {
                let status = self.wal_status.as_deref().unwrap_or("unknown");
                writeln!(f, "retains {} of log, wal_status {status}", bytes(retained))?;
            }
            if let Some(left) = self.safe_wal_size {
                let left = u64::try_from(left).unwrap_or(0);
                writeln!(f, "may be lost after {} more of log", bytes(left))?;
            }
        }
        f.write_str(&terminal::harmless(&self.refusal))
    }
}
