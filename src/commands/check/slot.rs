//! The slot: whether it is there, who reads it, and what it costs.

use super::finding::Findings;
use super::server::Server;
use crate::config::Config;
use crate::error::Error;
use crate::postgres::catalog::{self, Catalog, Slot};
use crate::postgres::session::Session;
use crate::size::bytes;

pub(super) async fn judge(
    session: &mut Session,
    config: &Config,
    server: &Server,
    catalog: &Catalog,
    findings: &mut Findings,
) -> Result<(), Error> {
    let name = &config.postgres.slot;
    let reader = match catalog.slot.as_ref().and_then(|slot| slot.active_pid) {
        Some(pid) => format!("read by {}", catalog::holder(session, pid).await?),
        None => "nobody reads it now".to_owned(),
    };
    let fine = catalog.slot.as_ref().map(|slot| describe(name, slot, &reader)).unwrap_or_default();
    if findings.verdict("slot", catalog.slot_verdict(&config.postgres), fine)
        && let Some(slot) = &catalog.slot
    {
        judge_room(name, slot, server, findings);
    }
    Ok(())
}

fn describe(name: &str, slot: &Slot, reader: &str) -> String {
    let status = slot.wal_status.as_deref().unwrap_or("unknown");
    let confirmed = slot.confirmed_flush_lsn.map(|lsn| lsn.to_string()).unwrap_or_default();
    let retained = bytes(slot.retained_bytes.unwrap_or_default());
    format!(
        "{name}: {reader}; confirmed up to {confirmed}, holds back {retained} of log, wal_status {status}"
    )
}

/// How near the slot is to being lost.
fn judge_room(name: &str, slot: &Slot, server: &Server, findings: &mut Findings) {
    const REMEDY: &str = "Start the router now, or raise max_slot_wal_keep_size and reload";
    if slot.wal_status.as_deref() == Some("unreserved") {
        let what =
            format!("the slot {name} is behind max_slot_wal_keep_size and is lost at the next checkpoint");
        return findings.error("slot_room", what, REMEDY);
    }
    let (Some(limit), Some(left)) = (server.keep_bytes, slot.safe_wal_size) else { return };
    let left = u64::try_from(left).unwrap_or(0);
    if left < limit / 5 {
        let what = format!("the slot {name} is lost after {} more of log (of {})", bytes(left), bytes(limit));
        findings.warning("slot_room", what, REMEDY);
    }
}
