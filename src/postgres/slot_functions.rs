//! Statements with Postgres's functions to copy, advance and drop slots (Postgres manual, "Replication Management
//! Functions").

use pg_logical::Lsn;
use pg_logical::quoting::literal;

/// The prefix of the names of slots for bulk reads.
pub const BULK_READ_COPIES: &str = "outbox_router_bulk_reads_";

/// The slot for bulk reads: this session's copy of the router's own, named after the server process.
pub fn bulk_read_copy(backend_pid: i32) -> String {
    format!("{BULK_READ_COPIES}{backend_pid}")
}

/// Makes `to` a copy of `from` with the log that it retains, and returns where it starts. A temporary one ends with its session, and with any error in it.
pub fn copy(from: &str, to: &str, temporary: bool) -> String {
    format!(
        "SELECT lsn FROM pg_catalog.pg_copy_logical_replication_slot({}, {}, {temporary})",
        literal(from),
        literal(to)
    )
}

/// Drops a slot.
pub fn drop(slot: &str) -> String {
    format!("SELECT pg_catalog.pg_drop_replication_slot({})", literal(slot))
}

/// Advances a slot to `to`. The server decodes everything in between.
pub fn advance(slot: &str, to: Lsn) -> String {
    format!("SELECT pg_catalog.pg_replication_slot_advance({}, '{to}')", literal(slot))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_as_literals() {
        assert_eq!(
            copy("s'lot", "co'py", true),
            "SELECT lsn FROM pg_catalog.pg_copy_logical_replication_slot('s''lot', 'co''py', true)"
        );
        assert_eq!(drop("s'lot"), "SELECT pg_catalog.pg_drop_replication_slot('s''lot')");
        assert_eq!(
            advance("s'lot", Lsn(1)),
            "SELECT pg_catalog.pg_replication_slot_advance('s''lot', '0/1')"
        );
    }
}
