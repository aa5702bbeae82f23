//! The files of `migrations/`: applied by refinery, or printed so that refinery takes them for applied.

use pg_logical::connect::Startup;
use pg_logical::conninfo::ConnInfo;
use pg_logical::lock_wait::Watcher;
use pg_logical::quoting;
use pg_logical::quoting::literal;
use pg_logical::server_error::QueryError;
use pg_logical::session::Session;
use refinery::{Migration, SchemaVersion};
use tokio::time::timeout;

use super::MAKE_TIMEOUT;
use crate::advice;
use crate::commands::say_wait;
use crate::error::{Error, Peer};
use crate::postgres::sql;

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// refinery's own record of what was applied.
const HISTORY: &str = "outbox_router.refinery_schema_history";

/// The steps that make a table of their own name.
const TABLES: [&str; 2] = ["dead_letters", "slots"];

/// Takes the step that makes a table out of the record if somebody has dropped the table: then it is applied again, and so are those
/// behind it, for refinery leaves out none in between.
pub(super) async fn forget_what_was_dropped(session: &mut Session) -> Result<(), Error> {
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
    forgotten.map_err(|error| super::cannot("upgrade", "router's schema", error, super::general_remedy()))
}

fn forget_dropped() -> String {
    let tables = TABLES.map(literal);
    format!(
        "DELETE FROM {HISTORY} WHERE version >= (SELECT min(h.version) FROM {HISTORY} h\n  \
         WHERE h.name IN ({}) AND pg_catalog.to_regclass('outbox_router.' || h.name) IS NULL)",
        tables.join(", ")
    )
}

/// The migrations that the database lacks, named for a person.
pub(super) async fn pending(session: &mut Session) -> Result<Vec<String>, Error> {
    let there = format!("SELECT pg_catalog.to_regclass({}) IS NOT NULL", literal(HISTORY));
    let mut applied: Vec<SchemaVersion> = Vec::new();
    if session.query_one(&there).await?.as_deref() == Some("t") {
        let rows = session.query(&format!("SELECT version FROM {HISTORY}")).await;
        let rows =
            rows.map_err(|error| super::cannot("read", "router's schema", error, super::general_remedy()))?;
        applied.extend(rows.iter().filter_map(|row| row.get(0)?.parse::<SchemaVersion>().ok()));
    }
    let missing = in_order().into_iter().filter(|migration| !applied.contains(&migration.version()));
    Ok(missing.map(|migration| name(&migration)).collect())
}

/// Has refinery apply what is missing, on a connection of its own.
pub(super) async fn apply(conninfo: &ConnInfo) -> Result<(), Error> {
    let settings = [("lock_timeout", super::LOCK_TIMEOUT)];
    let startup =
        Startup { application_name: super::APPLICATION_NAME, settings: &settings, ..Startup::default() };
    let session = Session::connect(conninfo, &startup).await?;
    let mut watcher = Watcher::new(conninfo, session.info(), startup.application_name)
        .in_words(advice::in_words)
        .saying(say_wait);
    let mut client = sql::adopt(session).await?;
    let mut runner = embedded::migrations::runner();
    runner.set_migration_table_name(HISTORY);
    let ran = watcher.during(timeout(MAKE_TIMEOUT, runner.run_async(&mut client))).await.map_err(|_| {
        let seconds = MAKE_TIMEOUT.as_secs();
        Error::transient(
            Peer::Postgres,
            format!("Postgres gave no answer within {seconds} s to an upgrade of the router's schema"),
        )
    })?;
    ran.map_err(|error| failed(&error))?;
    Ok(())
}

fn failed(error: &refinery::Error) -> Error {
    let source = std::error::Error::source(error);
    let by_postgres = source.and_then(|source| source.downcast_ref::<tokio_postgres::Error>());
    let remedy = super::general_remedy();
    match by_postgres.map(|error| sql::query_error(error, "this database")) {
        Some(error @ QueryError::Server { .. }) => super::cannot("upgrade", "router's schema", error, remedy),
        Some(QueryError::Connection(error)) => error.into(),
        None if by_postgres.is_some() => Error::transient(Peer::Postgres, error.to_string()),
        None => Error::refused(
            format!("the router's schema does not go with this version: {error}"),
            "Use the version of outbox-router that the schema was last upgraded with, or a later one",
        ),
    }
}

/// refinery keeps them in none.
fn in_order() -> Vec<Migration> {
    let mut migrations = embedded::migrations::runner().get_migrations().clone();
    migrations.sort_by_key(Migration::version);
    migrations
}

fn name(migration: &Migration) -> String {
    format!("schema outbox_router, step {} ({})", migration.version(), migration.name().replace('_', " "))
}

/// The same as statements that can be run again and leave refinery's record behind.
pub(super) fn script() -> Vec<(String, String)> {
    let history = format!(
        "CREATE TABLE IF NOT EXISTS {HISTORY} (\n  version int4 PRIMARY KEY, name varchar(255), applied_on varchar(255), \
         checksum varchar(255)\n);"
    );
    let mut parts = vec![
        ("Which files of migrations/ were applied".to_owned(), history),
        ("A table is made again if somebody has dropped it".to_owned(), forget_dropped() + ";"),
    ];
    parts.extend(in_order().iter().map(|migration| {
        let block = format!(
            "\nBEGIN\n  IF NOT EXISTS (SELECT FROM {HISTORY} WHERE version = {version}) THEN\n    \
             EXECUTE {sql};\n    \
             INSERT INTO {HISTORY} VALUES ({version}, {name},\n      \
             to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), '{checksum}');\n  \
             END IF;\nEND\n",
            version = migration.version(),
            sql = quoting::dollar_quoted(migration.sql().unwrap_or_default()),
            name = literal(migration.name()),
            checksum = migration.checksum(),
        );
        (name(migration), format!("DO {};", quoting::dollar_quoted(&block)))
    }));
    parts
}
