//! Whether the heartbeat can be written.

use pg_logical::quoting;
use pg_logical::session::Session;

use super::finding::Findings;
use crate::config::Config;
use crate::error::Error;
use crate::postgres::heartbeat::privilege;

pub(super) async fn judge(
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
            "the server is a standby, where no heartbeat can be written",
            "Connect the router to the primary, or leave `[heartbeat] interval` out",
        );
        return Ok(());
    }
    let rows = session.query(&privilege("current_user")).await?;
    let role = session.query_one("SELECT current_user").await?.unwrap_or_default();
    let refused = rows.iter().find(|row| row.get(1) != Some("t"));
    match refused.and_then(|row| row.get(0)) {
        None => findings.ok("heartbeat", "can be written"),
        Some(function) => findings.warning(
            "heartbeat",
            format!("the role {} may not execute {function}, which writes the heartbeat", quoting::name(&role)),
            format!(
                "As a superuser run GRANT EXECUTE ON FUNCTION pg_catalog.{function} TO {}, or leave `[heartbeat] interval` out",
                quoting::name(&role)
            ),
        ),
    }
    Ok(())
}
