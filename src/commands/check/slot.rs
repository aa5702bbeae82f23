//! The slot: whether it exists, who reads it, and how much log it retains.

use std::time::Duration;

use pg_logical::session::Session;

use super::finding::Findings;
use crate::config::Config;
use crate::error::{Error, ErrorCode, Transient};
use crate::postgres::catalog::{self, Catalog, Slot};
use crate::postgres::open_transaction::OpenTransaction;
use crate::postgres::slot_headroom::{self, Level};
use crate::postgres::slot_lock;
use crate::quantity::bytes;

pub(super) async fn check(
    session: &mut Session,
    config: &Config,
    catalog: &Catalog,
    findings: &mut Findings,
) -> Result<(), Error> {
    let name = &config.postgres.slot;
    let pid = catalog.slot.as_ref().and_then(|slot| slot.active_pid);
    let reader = match pid {
        Some(pid) => format!("read by {}", catalog::holder(session, pid).await?),
        None => "nobody reads it".to_owned(),
    };
    let fine = catalog.slot.as_ref().map(|slot| describe(name, slot, &reader)).unwrap_or_default();
    let checked = catalog.check_prepared(config.source()).and_then(|()| catalog.check_slot(config.source()));
    if let Err(Error::Transient(Transient { refusal: Some(waiting), .. })) = &checked {
        findings.warning("slot", &waiting.what, waiting.remedy.clone());
        return Ok(());
    }
    if checked.is_ok() && pid.is_some() && slot_lock::holder(session, name).await? != pid {
        let remedy = "Stop it before you start the router, which waits for as long as it is connected. A Debezium \
                      connector that is only paused stays connected: PUT /connectors/NAME/stop";
        findings.warning("slot", format!("{fine}; the reader is not a router"), remedy);
    } else if !findings.result("slot", checked, fine) {
        return Ok(());
    }
    if let Some(slot) = &catalog.slot {
        let held_by = match slot_headroom::may_be_held(slot) {
            true => OpenTransaction::oldest(session, Duration::ZERO).await?,
            false => None,
        };
        check_headroom(name, slot, held_by.as_ref(), findings);
    }
    Ok(())
}

fn describe(name: &str, slot: &Slot, reader: &str) -> String {
    let status = slot.wal_status.as_deref().unwrap_or("unknown");
    let confirmed = slot.confirmed_flush_lsn.map(|lsn| lsn.to_string()).unwrap_or_default();
    let retained = bytes(slot.retained_bytes.unwrap_or_default());
    format!("{name}: {reader}; confirmed up to {confirmed}, retains {retained} of log, wal_status {status}")
}

/// How much may be written until the slot is lost.
fn check_headroom(name: &str, slot: &Slot, held_by: Option<&OpenTransaction>, findings: &mut Findings) {
    let (level, what, remedy) = slot_headroom::describe_once(name, slot, held_by);
    match level {
        Level::Ample => {}
        Level::Unreserved => findings.error("slot_headroom_level", ErrorCode::SlotHeadroom, what, remedy),
        Level::Extended | Level::Short => findings.warning("slot_headroom_level", what, remedy),
    }
}
