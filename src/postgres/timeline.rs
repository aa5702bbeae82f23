//! The identity of the cluster, and the history of its timeline.

use pg_logical::QueryError;
use pg_logical::session::Session;

use crate::checkpoint::System;

/// Runs `IDENTIFY_SYSTEM` in a replication session (Postgres manual, "Streaming Replication Protocol").
///
/// # Errors
/// The server refuses, or the session is lost.
pub async fn identify(session: &mut Session) -> Result<System, QueryError> {
    let rows = session.query("IDENTIFY_SYSTEM").await?;
    let system = rows.first().and_then(|row| {
        Some(System {
            identifier: row.get(0)?.to_owned(),
            timeline: row.get(1)?.parse().ok()?,
            flush: row.get(2)?.parse().ok()?,
        })
    });
    system.ok_or_else(|| pg_logical::Error::transient("IDENTIFY_SYSTEM gave no answer").into())
}

/// The history of the server's timeline, to look for a position on the timeline `since`; `None` if that is the server's own.
///
/// # Errors
/// The server refuses, or the session is lost.
pub async fn history(
    session: &mut Session,
    system: &System,
    since: u32,
) -> Result<Option<String>, QueryError> {
    if since == system.timeline {
        return Ok(None);
    }
    if since > system.timeline {
        // the history of an older timeline cannot contain the position
        return Ok(Some(String::new()));
    }
    let rows = session.query(&format!("TIMELINE_HISTORY {}", system.timeline)).await?;
    Ok(Some(rows.first().and_then(|row| row.get(1)).unwrap_or_default().to_owned()))
}
