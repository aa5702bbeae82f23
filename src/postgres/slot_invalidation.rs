//! Whether and why Postgres has invalidated a slot, in the server's words, and how to prevent that.

use pg_logical::Lsn;

/// Whether Postgres has invalidated a slot, which is permanent, by its `confirmed_flush_lsn`, `wal_status`, `invalidation_reason` and
/// `conflicting`. Not every version has all of them.
pub fn is_lost(
    confirmed: Option<Lsn>,
    wal_status: Option<&str>,
    reason: Option<&str>,
    conflicting: bool,
) -> bool {
    confirmed.is_none() || wal_status == Some("lost") || reason.is_some() || conflicting
}

/// The reason, as far as the server says, and what prevents it. `reason` is `invalidation_reason` (from 17 on), `conflicting` the
/// column of that name (from 16 on), and `limited` whether `max_slot_wal_keep_size` is set.
pub fn cause(reason: Option<&str>, conflicting: bool, limited: bool) -> (&str, &'static str) {
    match reason {
        Some("wal_removed") => (WAL_REMOVED, KEEP_SIZE),
        Some("idle_timeout") => (
            "idle_timeout: nobody read it for longer than idle_replication_slot_timeout",
            "Set idle_replication_slot_timeout = 0: nobody reads a bookmark, or the slot of a router that is stopped",
        ),
        Some("rows_removed") => (
            "rows_removed: it was on a standby, and the primary removed rows of the catalogues that it needed",
            "Set hot_standby_feedback = on, and have the standby stream through a physical slot",
        ),
        Some("wal_level_insufficient") => (
            "wal_level_insufficient: wal_level was below logical",
            "Keep wal_level = logical, on the primary too",
        ),
        Some(other) => (other, "See pg_replication_slots in the manual of this version of Postgres"),
        None if conflicting => (
            "conflicting: it was on a standby, and the primary removed rows that it needed, or lowered wal_level",
            "Set hot_standby_feedback = on, have the standby stream through a physical slot, and keep wal_level = logical",
        ),
        None if limited => (WAL_REMOVED, KEEP_SIZE),
        None => (
            "the server does not say why, and max_slot_wal_keep_size, which is -1 now, limits nothing",
            "Search the server's log for the name of the slot: Postgres logs why it invalidates one",
        ),
    }
}

const WAL_REMOVED: &str = "wal_removed: more log was written than max_slot_wal_keep_size lets it retain";
const KEEP_SIZE: &str =
    "Raise max_slot_wal_keep_size to what the disk has room for: it limits how far a slot may fall behind";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_reason_is_shown_and_no_limit_is_blamed_that_is_not_set() {
        for (reason, conflicting, limited, shown, prevention) in [
            (Some("wal_removed"), false, true, "wal_removed", "max_slot_wal_keep_size"),
            (Some("idle_timeout"), false, true, "idle_timeout", "idle_replication_slot_timeout = 0"),
            (Some("rows_removed"), true, false, "rows_removed", "hot_standby_feedback"),
            (Some("wal_level_insufficient"), true, false, "wal_level_insufficient", "wal_level = logical"),
            (Some("a_later_one"), false, false, "a_later_one", "in the manual"),
            (None, true, true, "conflicting", "hot_standby_feedback"),
            (None, false, true, "wal_removed", "Raise max_slot_wal_keep_size"),
            (None, false, false, "does not say why", "the server's log"),
        ] {
            let (cause, prevent) = cause(reason, conflicting, limited);
            assert!(cause.contains(shown) && prevent.contains(prevention), "{reason:?}: {cause}; {prevent}");
        }
    }
}
