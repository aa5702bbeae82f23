//! SQL files of `migrations/`: applied one by one, or printed as equivalent statements.

use std::hash::{Hash, Hasher};

use pg_logical::QueryError;
use pg_logical::conninfo::ConnInfo;
use pg_logical::quoting;
use pg_logical::quoting::literal;
use pg_logical::session::Session;
use siphasher::sip::SipHasher13;

use super::maker::{LOCK_TIMEOUT, Maker, cannot, general_remedy};
use crate::error::{Error, ErrorCode};

/// A list of files, and the table that says which of them a database has. Earlier versions of the router used refinery 0.9,
/// so the columns of that table and the checksums are refinery's.
pub(super) struct Migrations {
    /// What they create, as errors call it.
    pub(super) what: &'static str,
    /// What precedes the number of a step.
    pub(super) title: &'static str,
    /// The history of applied migrations.
    pub(super) history: &'static str,
    /// The migrations that are named after the table they create, and are applied again if it was dropped.
    pub(super) tables: &'static [&'static str],
    /// In the order of their versions.
    pub(super) files: &'static [Migration],
}

/// One of the files.
pub(super) struct Migration {
    pub(super) version: i32,
    pub(super) name: &'static str,
    pub(super) sql: &'static str,
}

impl Migration {
    pub(super) fn checksum(&self) -> String {
        let mut hasher = SipHasher13::new();
        self.name.hash(&mut hasher);
        self.version.hash(&mut hasher);
        self.sql.hash(&mut hasher);
        hasher.finish().to_string()
    }
}

/// The file of a folder under `migrations/` with this version and name.
macro_rules! migration {
    ($folder:literal, $version:literal, $name:literal) => {
        $crate::commands::init::migrations::Migration {
            version: $version,
            name: $name,
            sql: include_str!(concat!("../../../migrations/", $folder, "V", $version, "__", $name, ".sql")),
        }
    };
}
pub(super) use migration;

/// A row of the history.
struct Applied {
    version: i32,
    name: String,
    checksum: String,
}

impl Migrations {
    fn title(&self, migration: &Migration) -> String {
        format!("{}, step {} ({})", self.title, migration.version, migration.name.replace('_', " "))
    }

    /// The statement that adds a migration to the history.
    fn record(&self, migration: &Migration) -> String {
        format!(
            "INSERT INTO {} VALUES ({}, {},\n      \
             to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), '{}');",
            self.history,
            migration.version,
            literal(migration.name),
            migration.checksum(),
        )
    }

    /// Applies the migrations that the database lacks.
    pub(super) async fn apply(&self, maker: &mut Maker) -> Result<(), Error> {
        let (session, router) = (&mut maker.session, maker.router.as_ref());
        self.forget_what_was_dropped(session, router).await?;
        let applied = self.upgrade(session, router).await?;
        applied.iter().try_for_each(|migration| maker.say_change(migration, "applied"))
    }

    /// Deletes the migration of a dropped table from the history so that it is applied again, and all later ones, because a
    /// gap in the history is refused.
    async fn forget_what_was_dropped(
        &self,
        session: &mut Session,
        router: Option<&ConnInfo>,
    ) -> Result<(), Error> {
        if self.tables.is_empty() {
            return Ok(());
        }
        let missing = |table| format!("pg_catalog.to_regclass('outbox_router.{table}') IS NULL");
        let tables: Vec<_> = self.tables.iter().map(missing).collect();
        let dropped = format!(
            "SELECT pg_catalog.to_regclass({}) IS NOT NULL AND ({})",
            literal(self.history),
            tables.join(" OR ")
        );
        let forgotten = match session.query_one(&dropped).await?.as_deref() {
            Some("t") => session.query(&self.forget_dropped()).await.map(drop),
            _ => Ok(()),
        };
        forgotten.map_err(|error| self.cannot_upgrade(error, router))
    }

    fn forget_dropped(&self) -> String {
        let history = self.history;
        let tables: Vec<_> = self.tables.iter().map(|table| literal(table)).collect();
        format!(
            "DELETE FROM {history} WHERE version >= (SELECT min(h.version) FROM {history} h\n  \
             WHERE h.name IN ({}) AND pg_catalog.to_regclass('outbox_router.' || h.name) IS NULL)",
            tables.join(", ")
        )
    }

    /// Returns the titles of those that it has applied.
    async fn upgrade(&self, session: &mut Session, router: Option<&ConnInfo>) -> Result<Vec<String>, Error> {
        let applied = self.applied(session, router).await?;
        let missing: Vec<&Migration> = self
            .files
            .iter()
            .filter(|migration| applied.iter().all(|applied| applied.version != migration.version))
            .collect();
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        self.verify(&applied)?;
        let steps = missing.iter().map(|migration| format!("{}\n{}", migration.sql, self.record(migration)));
        for statements in std::iter::once(self.create_history()).chain(steps) {
            // one message is one transaction
            let done = session.query(&format!("SET LOCAL lock_timeout = {LOCK_TIMEOUT}; {statements}")).await;
            done.map_err(|error| self.cannot_upgrade(error, router))?;
        }
        Ok(missing.iter().map(|migration| self.title(migration)).collect())
    }

    fn cannot_upgrade(&self, error: QueryError, router: Option<&ConnInfo>) -> Error {
        let remedy = general_remedy(&error, router);
        cannot("upgrade", self.what, error, remedy)
    }

    /// The history, in the order of the versions.
    async fn applied(&self, session: &mut Session, router: Option<&ConnInfo>) -> Result<Vec<Applied>, Error> {
        let there = format!("SELECT pg_catalog.to_regclass({}) IS NOT NULL", literal(self.history));
        if session.query_one(&there).await?.as_deref() != Some("t") {
            return Ok(Vec::new());
        }
        let rows = session
            .query(&format!("SELECT version, name, checksum FROM {} ORDER BY version", self.history))
            .await;
        let rows = rows.map_err(|error| self.cannot_upgrade(error, router))?;
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

    /// Refuses a history that is not the beginning of the files.
    fn verify(&self, applied: &[Applied]) -> Result<(), Error> {
        let refused = |why: String| {
            Error::refused(
                ErrorCode::RouterSchema,
                format!("the {} does not match this version: {why}", self.what),
                "Use the version of outbox-router that the schema was last upgraded with, or a later one",
            )
        };
        let missing = |version, name: &str| {
            refused(format!("migration V{version}__{name} is missing from the filesystem"))
        };
        for Applied { version, name, checksum } in applied {
            let Some(ours) = self.files.iter().find(|migration| migration.version == *version) else {
                return Err(missing(*version, name));
            };
            if ours.name != name || ours.checksum() != *checksum {
                return Err(refused(format!(
                    "applied migration V{version}__{name} is different than filesystem one V{version}__{}",
                    ours.name
                )));
            }
        }
        let gap = self.files.iter().zip(applied).find(|(ours, applied)| ours.version != applied.version);
        gap.map_or(Ok(()), |(ours, _)| Err(missing(ours.version, ours.name)))
    }

    fn create_history(&self) -> String {
        format!(
            "CREATE TABLE IF NOT EXISTS {} (\n  version int4 PRIMARY KEY, name varchar(255), applied_on varchar(255), \
             checksum varchar(255)\n);",
            self.history
        )
    }

    /// Equivalent statements for the script, which can be run again.
    pub(super) fn script(&self) -> Vec<(String, String)> {
        let mut parts = vec![("Which files of migrations/ were applied".to_owned(), self.create_history())];
        if !self.tables.is_empty() {
            let purpose = "A table that was dropped is created again".to_owned();
            parts.push((purpose, self.forget_dropped() + ";"));
        }
        parts.extend(self.files.iter().map(|migration| {
            let block = format!(
                "\nBEGIN\n  IF NOT EXISTS (SELECT FROM {} WHERE version = {}) THEN\n    \
                 EXECUTE {};\n    {}\n  END IF;\nEND\n",
                self.history,
                migration.version,
                quoting::dollar_quoted(migration.sql),
                self.record(migration),
            );
            (self.title(migration), format!("DO {};", quoting::dollar_quoted(&block)))
        }));
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::super::router_schema::MIGRATIONS;
    use super::*;

    fn history(length: usize) -> Vec<Applied> {
        let applied = |migration: &Migration| Applied {
            version: migration.version,
            name: migration.name.to_owned(),
            checksum: migration.checksum(),
        };
        MIGRATIONS.files.iter().take(length).map(applied).collect()
    }

    fn refusal(applied: &[Applied]) -> String {
        MIGRATIONS.verify(applied).unwrap_err().to_string()
    }

    #[test]
    fn the_beginning_of_the_migrations_is_accepted_as_a_history() {
        for length in 0..=MIGRATIONS.files.len() {
            MIGRATIONS.verify(&history(length)).unwrap();
        }
    }

    #[test]
    fn a_history_of_another_version_is_refused() {
        let mut changed = history(2);
        changed[1].checksum = "1".to_owned();
        let why = "applied migration V2__dead_letters is different than filesystem one V2__dead_letters";
        assert!(refusal(&changed).contains(why), "{}", refusal(&changed));

        let mut later = history(4);
        later[3].version = 99;
        assert!(refusal(&later).contains("migration V99__event_ids is missing from the filesystem"));

        let mut gap = history(3);
        gap.remove(1);
        assert!(refusal(&gap).contains("migration V2__dead_letters is missing from the filesystem"));
    }
}
