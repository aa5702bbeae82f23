//! Rows from before the slot that are still to be sent.

use pg_logical::session::Session;

use super::finding::Findings;
use crate::config::Config;
use crate::error::Error;
use crate::postgres::backfills::{self, Backfill, Stored, access};
use crate::postgres::rows::layout::TableLayout;
use crate::quantity::counted;

pub(super) async fn check(
    session: &mut Session,
    config: &Config,
    findings: &mut Findings,
) -> Result<(), Error> {
    if backfills::is_readable(session).await? != Some(true) {
        return Ok(());
    }
    match backfills::find(session, &config.postgres.slot).await? {
        Some(Stored::Begun(backfill)) if !backfill.finished => {
            let left = backfill.selection.rows.saturating_sub(backfill.done.rows);
            let fine = format!(
                "{} from before the slot are still to be sent, before it is streamed",
                counted(left, "row")
            );
            findings.result("backfill", verify(session, config, &backfill).await, fine);
        }
        Some(Stored::Incomplete) => findings.warning(
            "backfill",
            format!("init --backfill is creating the slot {}, or was interrupted", config.postgres.slot),
            "Wait for it, or run it again: outbox-router init --backfill",
        ),
        Some(Stored::Begun(_)) | None => {}
    }
    Ok(())
}

/// Whether the router can read them.
async fn verify(session: &mut Session, config: &Config, backfill: &Backfill) -> Result<(), Error> {
    let table = access::table(&config.outbox.tables, backfill)?;
    // that it is missing is a finding of its own
    let Some(layout) = TableLayout::query(session, table).await? else { return Ok(()) };
    access::verify(session, &config.postgres.conninfo.user, &layout, table).await
}
