//! The backlog for the catch-up, and parked aggregates.

use std::collections::HashSet;

use anyhow::Context;

use crate::measure::backlog::Backlog;
use crate::measure::ground::{Ground, Id, Run};
use crate::measure::progress::Progress;

/// The slot that begins before the backlog, and the aggregate type of its rows.
pub(crate) const NAME: &str = "backlog";
/// The number of parked aggregates, and how many of them the backlog has events of. Those events are parked too.
pub(crate) const PARKED: u64 = 500;
const PARKED_OF_BACKLOG: u64 = 10;

/// Writes the backlog; returns its ids.
pub(crate) async fn write(ground: &Ground, rows: u64, progress: &Progress) -> anyhow::Result<HashSet<Id>> {
    let backlog = Backlog {
        name: NAME.to_owned(),
        rows,
        payload: 286,
        rows_of_a_transaction: 10,
        aggregates: 1_000,
        types: 1,
    };
    backlog.write(ground, progress).await?;
    ground.rows_of_type(NAME).await
}

/// Parks aggregates for the router of `run`, as if each had an event before the backlog that cannot be sent.
pub(crate) async fn park(ground: &Ground, run: &Run) -> anyhow::Result<()> {
    let sql = "INSERT INTO outbox_router.dead_letters \
               (router, final_lsn, change, xid, committed_at, source, aggregate_id, reason, detail, event) \
               SELECT $1, '0/1', n, 1, now(), 'public.outbox', \
               CASE WHEN n < $3::bigint THEN 'key-' ELSE 'other-' END || n, 'refused', 'for a measurement', '{}' \
               FROM generate_series(0, $2::bigint - 1) n";
    let (parked, of_backlog) = (PARKED as i64, PARKED_OF_BACKLOG as i64);
    ground.client.execute(sql, &[&run.name, &parked, &of_backlog]).await.context("park aggregates")?;
    Ok(())
}

/// The ids of the backlog's rows that a router sends after [`park`].
pub(crate) async fn ids_of_others(ground: &Ground) -> anyhow::Result<HashSet<Id>> {
    let parked: Vec<String> = (0..PARKED_OF_BACKLOG).map(|n| format!("key-{n}")).collect();
    ground.rows_but_for(NAME, &parked).await
}
