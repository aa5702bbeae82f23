//! The migrations of the router's own objects.

use super::migrations::{Migrations, migration};

pub(super) const MIGRATIONS: Migrations = Migrations {
    what: "router's schema",
    title: "schema outbox_router",
    history: "outbox_router.refinery_schema_history",
    tables: &[
        "dead_letters",
        "slots",
        "poll_claims",
        "replays",
        "backfills",
        "retention",
        "prunes",
        "partitioned",
        "rows_not_in_log",
        "partitions_seen",
    ],
    files: &[
        migration!("", 1, "router_schema"),
        migration!("", 2, "dead_letters"),
        migration!("", 3, "slots"),
        migration!("", 4, "event_ids"),
        migration!("", 5, "poll_claims"),
        migration!("", 6, "replays"),
        migration!("", 7, "backfills"),
        migration!("", 8, "retention"),
        migration!("", 9, "prunes"),
        migration!("", 10, "prune_to_file"),
        migration!("", 11, "archived_rows"),
        migration!("", 12, "partitioned"),
        migration!("", 13, "rows_not_in_log"),
    ],
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::init::migrations::Migration;

    /// These are in databases: a released migration must not change.
    #[test]
    fn checksums_are_those_that_refinery_wrote() {
        let checksums: Vec<_> = MIGRATIONS.files.iter().map(Migration::checksum).collect();
        let known = [
            "6704891557033615077",
            "14842814323019430799",
            "6794008413197093658",
            "3344146211584871952",
            "4372394796082884502",
            "4434196090459725650",
            "3380403652707463063",
            "8620533393524591684",
            "3607774203803595503",
            "5691544329805199504",
            "11979374216111203089",
            "15593250652431079973",
            "1876653270344100634",
        ];
        assert_eq!(checksums, known);
    }
}
