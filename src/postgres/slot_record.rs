//! Reads and writes the table of the slots' records.

use pg_logical::QueryError;
use pg_logical::quoting::literal;
use pg_logical::session::{Row, Session};

use super::slot_lock_key;
use crate::checkpoint::SlotRecord;

const TABLE: &str = SlotRecord::TABLE;

/// Reads the record of a slot.
///
/// # Errors
/// The server refuses, or the session is lost.
pub async fn read(session: &mut Session, slot: &str) -> Result<SlotRecord, QueryError> {
    let known = access(session).await?;
    if !known.usable {
        return Ok(known);
    }
    let rows = session.query(&select(slot)).await?;
    let (ours, others): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.get(0) == Some(slot));
    let text = |row: &Row, index| row.get(index).map(str::to_owned);
    let mut others: Vec<_> = others.into_iter().filter_map(|row| text(row, 0).zip(text(row, 1))).collect();
    others.sort();
    let ours = ours.first();
    Ok(SlotRecord {
        router: ours.and_then(|row| text(row, 1)),
        created_at: ours.and_then(|row| row.get(2)?.parse().ok()),
        others,
        ..known
    })
}

/// Whether a router has read a slot of this name, as far as the role may know.
///
/// # Errors
/// The server refuses, or the session is lost.
pub async fn may_have_been_read(session: &mut Session, slot: &str) -> Result<bool, QueryError> {
    if session.query_one(&format!("SELECT pg_catalog.to_regclass({})", literal(TABLE))).await?.is_none() {
        return Ok(false);
    }
    let record = read(session, slot).await?;
    Ok(!record.usable || record.router.is_some())
}

/// Records that this router reads the slot, unless that is already recorded or the role may not write it.
///
/// # Errors
/// The server refuses, or the session is lost.
pub async fn claim(session: &mut Session, slot: &str, router: &str) -> Result<(), QueryError> {
    if access(session).await?.usable {
        session.query(&write(slot, router)).await?;
    }
    Ok(())
}

/// Whether the role may use the table. Asks only the catalogues, so that a role without rights causes no errors in the server's log.
async fn access(session: &mut Session) -> Result<SlotRecord, QueryError> {
    let privileges = SlotRecord::REQUIRED_PRIVILEGES
        .map(|privilege| format!("pg_catalog.has_table_privilege(c.oid, '{privilege}')"));
    let sql = format!(
        "SELECT current_user, (SELECT NOT pg_catalog.pg_is_in_recovery() \
         AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND {} \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = 'outbox_router' AND c.relname = 'slots')",
        privileges.join(" AND ")
    );
    let rows = session.query(&sql).await?;
    let value = |index| rows.first().and_then(|row| row.get(index));
    Ok(SlotRecord {
        usable: value(1) == Some("t"),
        role: value(0).unwrap_or_default().to_owned(),
        ..SlotRecord::default()
    })
}

/// A locked table leads to an error with a reason instead of a silent wait.
const LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout = '2s'";

/// The slot's row, and those of other slots that still exist and that no router reads now.
fn select(slot: &str) -> String {
    format!(
        "{LOCK_TIMEOUT}; SELECT r.slot, r.router, r.created_at FROM {TABLE} r WHERE r.slot = {} \
         OR (EXISTS (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = r.slot \
         AND s.plugin = 'pgoutput' AND s.database = pg_catalog.current_database()) AND NOT EXISTS ({}))",
        literal(slot),
        slot_lock_key::holders_of("r.slot")
    )
}

/// The commit does not wait for synchronous standbys: the router may have events to deliver even without them.
fn write(slot: &str, router: &str) -> String {
    let (slot, router) = (literal(slot), literal(router));
    format!(
        "{LOCK_TIMEOUT}; SET LOCAL synchronous_commit = local; \
         INSERT INTO {TABLE} (slot, router) SELECT {slot}, {router} \
         WHERE NOT EXISTS (SELECT FROM {TABLE} s WHERE s.slot = {slot} AND s.router = {router}) \
         ON CONFLICT (slot) DO UPDATE SET router = excluded.router"
    )
}

/// Deletes the record of a dropped slot before one of the same name is created. This cannot be part of the statement that
/// creates it: Postgres may fail to create a slot within another statement ("tupdesc reference is not owned by resource
/// owner", on 15).
pub fn forget(slot: &str) -> String {
    format!("DELETE FROM {TABLE} WHERE slot = {}", literal(slot))
}

/// Records that a slot was created with this first position, an expression, unless a router already reads it.
pub fn created(slot: &str, position: &str) -> String {
    format!(
        "INSERT INTO {TABLE} (slot, created_at) VALUES ({}, {position}) ON CONFLICT DO NOTHING",
        literal(slot)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_as_literals() {
        assert!(write("s'lot", "na'me").contains("SELECT 's''lot', 'na''me' "));
        assert!(select("s'lot").contains("r.slot = 's''lot' OR"));
    }
}
