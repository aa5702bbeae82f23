//! The router's role: whether it may replicate, write heartbeats and read the slot in bulk, and whether it has needless privileges.

use pg_logical::bulk_read::FUNCTIONS;
use pg_logical::connect::Startup;
use pg_logical::quoting;
use pg_logical::session::Session;

use super::finding::Findings;
use super::server::is_read;
use crate::commands::connect;
use crate::commands::server::Server;
use crate::config::Config;
use crate::error::{Error, ErrorCode, Remedy, Step};
use crate::postgres::catalog::Catalog;
use crate::postgres::heartbeat::privilege;
use crate::postgres::row_security::Restricted;

pub(super) async fn check(
    session: &mut Session,
    config: &Config,
    server: &Server,
    catalog: &Catalog,
    findings: &mut Findings,
) -> Result<(), Error> {
    let rows = session
        .query(
            "SELECT current_user, r.rolsuper, r.rolreplication, EXISTS (SELECT FROM pg_catalog.pg_roles g \
             WHERE g.rolname = 'rds_replication'), EXISTS (SELECT FROM pg_catalog.pg_roles g \
             WHERE g.rolname = 'rds_replication' AND pg_catalog.pg_has_role(r.oid, g.oid, 'MEMBER')) \
             FROM pg_catalog.pg_roles r WHERE r.rolname = current_user",
        )
        .await?;
    let value = |index| rows.first().and_then(|row| row.get(index)).unwrap_or_default();
    let holds = |index| value(index) == "t";
    let name = quoting::identifier(value(0));
    let (superuser, replication, rds, rds_member) = (holds(1), holds(2), holds(3), holds(4));
    if !(superuser || replication || rds_member) {
        let grant = if rds {
            format!("GRANT rds_replication TO {name}")
        } else {
            format!("ALTER ROLE {name} REPLICATION")
        };
        findings.error(
            "role",
            ErrorCode::PostgresAccess,
            format!("the role {name} does not have the REPLICATION privilege"),
            Remedy::steps([Step::new("As an administrator, grant it").sql(grant)]),
        );
        return Ok(());
    }
    if superuser {
        findings.warning(
            "role",
            format!("the role {name} is a superuser, which is far more than the router needs"),
            "Use a role of its own: `outbox-router init --url ... --role outbox_router` creates one with LOGIN and REPLICATION",
        );
    } else {
        findings.ok("role", format!("{name} may replicate, and is not a superuser"));
    }
    stream(config, server, catalog, findings).await;
    Ok(())
}

/// Opens a replication connection, because `pg_hba.conf`, a pooler or an exhausted max_wal_senders only refuse it then.
async fn stream(config: &Config, server: &Server, catalog: &Catalog, findings: &mut Findings) {
    if is_read(catalog) && server.senders.exhausted() {
        findings
            .skipped("replication_connection", "all max_wal_senders are in use, and a router reads the slot");
        return;
    }
    let identified = async {
        let walsender = Startup { replication: true, ..Startup::default() };
        let mut session = connect(config, "check", walsender).await?;
        let answer = session.query("IDENTIFY_SYSTEM").await;
        session.close().await;
        Ok(answer?)
    };
    match identified.await {
        Ok(_) => findings.ok("replication_connection", "the server accepts it"),
        Err(error) => findings.failure("replication_connection", error, RETRY_REMEDY),
    }
}

/// What to do if the replication connection fails for a reason that may pass.
const RETRY_REMEDY: &str = "Run check again; if it persists, check max_wal_senders and max_connections, and connect to Postgres \
     directly, not to a pooler";

/// Whether a policy hides rows of the tables that the router reads. A router that polls is told of its outbox by the check of that.
pub(super) async fn check_row_security(
    session: &mut Session,
    config: &Config,
    findings: &mut Findings,
) -> Result<(), Error> {
    let restricted = Restricted::query(session, None, &config.outbox.tables).await?;
    if let Err(error) = restricted.refuse_own() {
        findings.failure("row_security", error, RETRY_REMEDY);
    }
    if config.polling.is_none() && !restricted.outboxes.is_empty() {
        let what = restricted.what(
            &restricted.outboxes,
            "so commands that read rows fail; the router reads the log, to which no policy applies",
        );
        findings.warning("row_security", what, restricted.remedy());
    }
    Ok(())
}

/// Whether the role may write the heartbeat.
pub(super) async fn check_heartbeat(
    session: &mut Session,
    config: &Config,
    findings: &mut Findings,
) -> Result<(), Error> {
    if config.heartbeat.is_none() {
        return Ok(());
    }
    if session.query_one("SELECT pg_catalog.pg_is_in_recovery()").await?.as_deref() == Some("t") {
        findings.warning(
            "heartbeat",
            "the server is a standby, and heartbeats can only be written on the primary",
            "Connect the router to the primary, or remove `[heartbeat] interval`",
        );
        return Ok(());
    }
    let rows = session.query(&privilege("current_user")).await?;
    let role = session.query_one("SELECT current_user").await?.unwrap_or_default();
    let refused = rows.iter().find(|row| row.get(1) != Some("t"));
    match refused.and_then(|row| row.get(0)) {
        None => findings.ok("heartbeat", "the role may write it"),
        Some(function) => findings.warning(
            "heartbeat",
            format!("the role {} may not execute {function}, which writes the heartbeat", quoting::identifier(&role)),
            format!(
                "As a superuser run GRANT EXECUTE ON FUNCTION pg_catalog.{function} TO {}, or remove `[heartbeat] interval`",
                quoting::identifier(&role)
            ),
        ),
    }
    Ok(())
}

/// Whether the role may read the slot in bulk.
pub(super) async fn check_bulk_reads(session: &mut Session, findings: &mut Findings) -> Result<(), Error> {
    let functions: Vec<_> = FUNCTIONS.iter().map(|function| quoting::literal(function)).collect();
    let rows = session
        .query(&format!(
            "SELECT current_user, f FROM pg_catalog.unnest(ARRAY[{}]) f \
             WHERE NOT pg_catalog.has_function_privilege(f, 'EXECUTE')",
            functions.join(", ")
        ))
        .await?;
    let refused: Vec<_> = rows.iter().filter_map(|row| row.get(1)).collect();
    let Some(role) = rows.first().and_then(|row| row.get(0)).map(quoting::identifier) else { return Ok(()) };
    findings.warning(
        "catch_up",
        format!("the role {role} may not execute {}: the router would stream a backlog, which is slower", refused.join(", ")),
        format!(
            "As a superuser run GRANT EXECUTE ON FUNCTION {} TO {role}, or set `catch_up = \"stream\"` under [postgres]",
            refused.join(", ")
        ),
    );
    Ok(())
}
