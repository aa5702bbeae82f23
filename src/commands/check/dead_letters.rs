//! Whether the router can park events, and whether events are parked.

use pg_logical::quoting;
use pg_logical::session::{Row, Session};

use super::finding::Findings;
use crate::config::Config;
use crate::error::{Effect, Error, ErrorCode};
use crate::outbox::printable;
use crate::postgres::dead_letters::sql::{
    PARKED_ARE_GONE, READABLE, REQUIRED_PRIVILEGES, TABLE, count, count_both, count_of_others, still_parked,
    table_remedy,
};
use crate::quantity::counted;

/// How many other routers are listed by name.
const NAMED: usize = 5;

pub(super) async fn check(
    session: &mut Session,
    config: &Config,
    findings: &mut Findings,
) -> Result<(), Error> {
    if !config.dead_letters.park() {
        return check_none_parked(session, config, findings).await;
    }
    // the role may have no USAGE on the schema
    let there = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
                 WHERE n.nspname = 'outbox_router' AND c.relname = 'dead_letters')";
    if session.query_one(there).await?.as_deref() != Some("t") {
        let missing = Error::refused(
            ErrorCode::DeadLetterTable,
            format!("there is no table {TABLE} to park events in"),
            table_remedy(&config.postgres.conninfo),
        );
        findings.failure("dead_letters", missing.meaning(Effect::Lost, PARKED_ARE_GONE), "");
        return Ok(());
    }
    let lacks = REQUIRED_PRIVILEGES.map(|privilege| {
        format!(
            "CASE WHEN NOT pg_catalog.has_table_privilege('{TABLE}', '{privilege}') THEN '{privilege}' END"
        )
    });
    let usable = "pg_catalog.has_schema_privilege('outbox_router', 'USAGE')";
    let sql = format!(
        "SELECT CASE WHEN {usable} THEN pg_catalog.concat_ws(', ', {}) ELSE 'USAGE on its schema' END, current_user",
        lacks.join(", ")
    );
    let rows = session.query(&sql).await?;
    let row = rows.first();
    if let Some(missing) = row.and_then(|row| row.get(0)).filter(|missing| !missing.is_empty()) {
        let role = quoting::identifier(row.and_then(|row| row.get(1)).unwrap_or_default());
        findings.error(
            "dead_letters",
            ErrorCode::DeadLetterTable,
            format!("the role {role} lacks {missing} for {TABLE}"),
            table_remedy(&config.postgres.conninfo),
        );
        return Ok(());
    }
    let rows = session.query(&count_both(&config.name, "true")).await?;
    let count = |n: usize| rows.first().and_then(|row| row.get(n)?.parse::<u64>().ok()).unwrap_or_default();
    if count(0) == 0 {
        findings.ok("dead_letters", "the router can park events, and none are parked");
    } else {
        findings.warning(
            "dead_letters",
            format!("{} of {}", counted(count(0), "parked event"), counted(count(1), "aggregate")),
            "List them with `outbox-router dead-letters list`, then `retry` or `discard` them",
        );
    }
    others(session, config, findings).await
}

/// A router that does not park refuses to start while there are parked events.
async fn check_none_parked(
    session: &mut Session,
    config: &Config,
    findings: &mut Findings,
) -> Result<(), Error> {
    if session.query_one(READABLE).await?.as_deref() != Some("t") {
        return Ok(());
    }
    let count = session.query_one(&count(&config.name, "true")).await?.unwrap_or_default();
    if count != "0" {
        let (what, remedy) = still_parked(&count);
        findings.error("dead_letters", ErrorCode::EventsParked, what, remedy);
    }
    Ok(())
}

/// Warns about rows that this router does not read: those of another router, or its own under an earlier name.
async fn others(session: &mut Session, config: &Config, findings: &mut Findings) -> Result<(), Error> {
    let rows = session.query(&count_of_others(&config.name)).await?;
    let name = |row: &Row| {
        let text = |n| row.get(n).unwrap_or_default();
        format!("{} ({})", printable(text(0).as_bytes()), text(1))
    };
    let mut names: Vec<String> = rows.iter().take(NAMED).map(name).collect();
    if rows.len() > NAMED {
        names.push("others".to_owned());
    }
    if !names.is_empty() {
        findings.warning(
            "dead_letters",
            format!("{TABLE} has events that other routers have parked, by `name`: {}", names.join(", ")),
            "This is in order if routers of these names run. If this router had one of these names before, set `name` to it until its \
             events are sent or discarded",
        );
    }
    Ok(())
}
