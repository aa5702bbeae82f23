//! Whether anybody deletes old rows of the outbox.

use pg_logical::quoting::literal;
use pg_logical::session::Session;

use super::finding::Findings;
use crate::config::{Config, TableName};
use crate::error::{Error, Remedy, Step};
use crate::postgres::rows::read_only;

/// With more rows than this, somebody should have deleted some.
const MANY: u64 = 10_000_000;

pub(super) async fn check(
    session: &mut Session,
    config: &Config,
    findings: &mut Findings,
) -> Result<(), Error> {
    if config.retention.keep.is_some() {
        return Ok(());
    }
    for table in &config.outbox.tables {
        check_table(session, table, findings).await?;
    }
    Ok(())
}

/// Asks only the catalogues and statistics. Partitions are dropped instead, which is not counted.
async fn check_table(session: &mut Session, table: &TableName, findings: &mut Findings) -> Result<(), Error> {
    let sql = format!(
        "SELECT c.reltuples::bigint FROM pg_class c WHERE c.oid = to_regclass({}) AND c.relkind = 'r' \
         AND c.reltuples > {MANY} AND coalesce(pg_stat_get_tuples_deleted(c.oid), 0) = 0",
        literal(&table.in_sql())
    );
    if let Some(rows) = session.query_one(&read_only(&sql)).await?.and_then(|rows| rows.parse::<u64>().ok()) {
        findings.warning(
            "retention",
            format!("{table} has about {} million rows, and nobody deletes old ones", rows / 1_000_000),
            Remedy::steps([Step::new("Set `keep` under `[retention]`, or have cron run this every day")
                .typing("outbox-router prune --older-than 30d")]),
        );
    }
    Ok(())
}
