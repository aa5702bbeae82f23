//! The key of a slot's advisory lock, and who holds it, in SQL.

use pg_logical::quoting::literal;

/// The lock's key, as an expression. Slots belong to one database, and so do advisory locks.
pub(super) fn key(slot: &str) -> String {
    key_of(&literal(slot))
}

/// The same for an expression that returns the slot's name.
fn key_of(slot: &str) -> String {
    format!("pg_catalog.hashtextextended('outbox-router slot ' || {slot}, 0)")
}

/// A query for the server process that holds the lock of the slot whose name `slot` returns.
pub(super) fn holders_of(slot: &str) -> String {
    // a 64-bit key is shown as two of 32 bits (Postgres manual, "pg_locks")
    format!(
        "SELECT l.pid FROM pg_catalog.pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 \
         AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()) \
         AND (l.classid::bigint << 32 | l.objid::bigint) = {}",
        key_of(slot)
    )
}
