//! The migrations of the router's own objects.

use super::migrations::{Migration, Migrations};

pub(super) const MIGRATIONS: Migrations = Migrations {
    what: "router's schema",
    title: "schema outbox_router",
    history: "outbox_router.refinery_schema_history",
    tables: &["dead_letters", "slots", "poll_claims", "replays", "backfills", "retention", "prunes"],
    files: &[
        Migration {
            version: 1,
            name: "router_schema",
            sql: include_str!("../../../migrations/V1__router_schema.sql"),
        },
        Migration {
            version: 2,
            name: "dead_letters",
            sql: include_str!("../../../migrations/V2__dead_letters.sql"),
        },
        Migration { version: 3, name: "slots", sql: include_str!("../../../migrations/V3__slots.sql") },
        Migration {
            version: 4,
            name: "event_ids",
            sql: include_str!("../../../migrations/V4__event_ids.sql"),
        },
        Migration {
            version: 5,
            name: "poll_claims",
            sql: include_str!("../../../migrations/V5__poll_claims.sql"),
        },
        Migration { version: 6, name: "replays", sql: include_str!("../../../migrations/V6__replays.sql") },
        Migration {
            version: 7,
            name: "backfills",
            sql: include_str!("../../../migrations/V7__backfills.sql"),
        },
        Migration {
            version: 8,
            name: "retention",
            sql: include_str!("../../../migrations/V8__retention.sql"),
        },
        Migration { version: 9, name: "prunes", sql: include_str!("../../../migrations/V9__prunes.sql") },
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

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
            "4771060622281694860",
        ];
        assert_eq!(checksums, known);
    }
}
