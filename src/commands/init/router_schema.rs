//! The files of `migrations/`: applied one by one, or printed as equivalent statements.

use std::hash::{Hash, Hasher};

use pg_logical::QueryError;
use pg_logical::conninfo::ConnInfo;
use pg_logical::quoting;
use pg_logical::quoting::literal;
use pg_logical::session::Session;
use siphasher::sip::SipHasher13;

use super::{LOCK_TIMEOUT, cannot, general_remedy};
use crate::error::{Error, ErrorCode};

/// The files, in the order of their versions.
const MIGRATIONS: [Migration; 3] = [
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
];

/// The history of applied migrations. Earlier versions of the router used refinery 0.9, so the table, its names and its
/// checksums are refinery's.
const HISTORY: &str = "outbox_router.refinery_schema_history";

/// The migrations that are named after the table they create.
const TABLES: [&str; 2] = ["dead_letters", "slots"];

struct Migration {
    version: i32,
    name: &'static str,
    sql: &'static str,
}

/// A row of the history.
struct Applied {
    version: i32,
    name: String,
    checksum: String,
}

impl Migration {
    fn checksum(&self) -> String {
        let mut hasher = SipHasher13::new();
        self.name.hash(&mut hasher);
        self.version.hash(&mut hasher);
        self.sql.hash(&mut hasher);
        hasher.finish().to_string()
    }

    fn title(&self) -> String {
        format!("schema outbox_router, step {} ({})", self.version, self.name.replace('_', " "))
    }

    /// The statement that adds it to the history.
    fn record(&self) -> String {
        format!(
            "INSERT INTO {HISTORY} VALUES ({}, {},\n      \
             to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), '{}');",
            self.version,
            literal(self.name),
            self.checksum(),
        )
    }
}

/// Deletes the migration of a dropped table from the history so that it is applied again, and all later ones, because a gap
/// in the history is refused.
pub(super) async fn forget_what_was_dropped(session: &mut Session, router: &ConnInfo) -> Result<(), Error> {
    let tables = TABLES.map(|table| format!("pg_catalog.to_regclass('outbox_router.{table}') IS NULL"));
    let dropped = format!(
        "SELECT pg_catalog.to_regclass({}) IS NOT NULL AND ({})",
        literal(HISTORY),
        tables.join(" OR ")
    );
    let forgotten = match session.query_one(&dropped).await?.as_deref() {
        Some("t") => session.query(&forget_dropped()).await.map(drop),
        _ => Ok(()),
    };
    forgotten.map_err(|error| cannot_upgrade(error, router))
}

fn forget_dropped() -> String {
    let tables = TABLES.map(literal);
    format!(
        "DELETE FROM {HISTORY} WHERE version >= (SELECT min(h.version) FROM {HISTORY} h\n  \
         WHERE h.name IN ({}) AND pg_catalog.to_regclass('outbox_router.' || h.name) IS NULL)",
        tables.join(", ")
    )
}

/// Applies the migrations that the database lacks and returns their titles.
pub(super) async fn upgrade(session: &mut Session, router: &ConnInfo) -> Result<Vec<String>, Error> {
    let applied = applied(session, router).await?;
    let missing: Vec<&Migration> = MIGRATIONS
        .iter()
        .filter(|migration| applied.iter().all(|applied| applied.version != migration.version))
        .collect();
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    verify(&applied)?;
    let steps = missing.iter().map(|migration| format!("{}\n{}", migration.sql, migration.record()));
    for statements in std::iter::once(create_history()).chain(steps) {
        // one message is one transaction
        let done = session.query(&format!("SET LOCAL lock_timeout = {LOCK_TIMEOUT}; {statements}")).await;
        done.map_err(|error| cannot_upgrade(error, router))?;
    }
    Ok(missing.iter().map(|migration| migration.title()).collect())
}

fn cannot_upgrade(error: QueryError, router: &ConnInfo) -> Error {
    let remedy = general_remedy(&error, router);
    cannot("upgrade", "router's schema", error, remedy)
}

/// The history, in the order of the versions.
async fn applied(session: &mut Session, router: &ConnInfo) -> Result<Vec<Applied>, Error> {
    let there = format!("SELECT pg_catalog.to_regclass({}) IS NOT NULL", literal(HISTORY));
    if session.query_one(&there).await?.as_deref() != Some("t") {
        return Ok(Vec::new());
    }
    let rows =
        session.query(&format!("SELECT version, name, checksum FROM {HISTORY} ORDER BY version")).await;
    let rows = rows.map_err(|error| cannot_upgrade(error, router))?;
    let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
    let applied = rows.iter().filter_map(|row| {
        Some(Applied {
            version: row.get(0)?.parse().ok()?,
            name: text(row.get(1)),
            checksum: text(row.get(2)),
        })
    });
    Ok(applied.collect())
}

/// Refuses a history that is not the beginning of [`MIGRATIONS`].
fn verify(applied: &[Applied]) -> Result<(), Error> {
    let refused = |why: String| {
        Error::refused(
            ErrorCode::RouterSchema,
            format!("the router's schema does not match this version: {why}"),
            "Use the version of outbox-router that the schema was last upgraded with, or a later one",
        )
    };
    let missing =
        |version, name: &str| refused(format!("migration V{version}__{name} is missing from the filesystem"));
    for Applied { version, name, checksum } in applied {
        let Some(ours) = MIGRATIONS.iter().find(|migration| migration.version == *version) else {
            return Err(missing(*version, name));
        };
        if ours.name != name || ours.checksum() != *checksum {
            return Err(refused(format!(
                "applied migration V{version}__{name} is different than filesystem one V{version}__{}",
                ours.name
            )));
        }
    }
    let gap = MIGRATIONS.iter().zip(applied).find(|(ours, applied)| ours.version != applied.version);
    gap.map_or(Ok(()), |(ours, _)| Err(missing(ours.version, ours.name)))
}

fn create_history() -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {HISTORY} (\n  version int4 PRIMARY KEY, name varchar(255), applied_on varchar(255), \
         checksum varchar(255)\n);"
    )
}

/// Equivalent statements for the script, which can be run again.
pub(super) fn script() -> Vec<(String, String)> {
    let mut parts = vec![
        ("Which files of migrations/ were applied".to_owned(), create_history()),
        ("A table that was dropped is created again".to_owned(), forget_dropped() + ";"),
    ];
    parts.extend(MIGRATIONS.iter().map(|migration| {
        let block = format!(
            "\nBEGIN\n  IF NOT EXISTS (SELECT FROM {HISTORY} WHERE version = {}) THEN\n    \
             EXECUTE {};\n    {}\n  END IF;\nEND\n",
            migration.version,
            quoting::dollar_quoted(migration.sql),
            migration.record(),
        );
        (migration.title(), format!("DO {};", quoting::dollar_quoted(&block)))
    }));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(length: usize) -> Vec<Applied> {
        let applied = |migration: &Migration| Applied {
            version: migration.version,
            name: migration.name.to_owned(),
            checksum: migration.checksum(),
        };
        MIGRATIONS.iter().take(length).map(applied).collect()
    }

    fn refusal(applied: &[Applied]) -> String {
        verify(applied).unwrap_err().to_string()
    }

    /// These are in databases: a released migration must not change.
    #[test]
    fn checksums_are_those_that_refinery_wrote() {
        let checksums = MIGRATIONS.map(|migration| migration.checksum());
        assert_eq!(checksums, ["6704891557033615077", "14842814323019430799", "6794008413197093658"]);
    }

    #[test]
    fn the_beginning_of_the_migrations_is_accepted_as_a_history() {
        for length in 0..=MIGRATIONS.len() {
            verify(&history(length)).unwrap();
        }
    }

    #[test]
    fn a_history_of_another_version_is_refused() {
        let mut changed = history(2);
        changed[1].checksum = "1".to_owned();
        let why = "applied migration V2__dead_letters is different than filesystem one V2__dead_letters";
        assert!(refusal(&changed).contains(why), "{}", refusal(&changed));

        let mut later = history(3);
        later[2].version = 4;
        assert!(refusal(&later).contains("migration V4__slots is missing from the filesystem"));

        let mut gap = history(3);
        gap.remove(1);
        assert!(refusal(&gap).contains("migration V2__dead_letters is missing from the filesystem"));
    }
}
