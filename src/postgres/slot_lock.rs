//! The advisory lock of a slot. Its holder may read the slot, or move it.
//!
//! A session takes it before anything else and holds it to its end. So a router and a command that moves the slot, or two
//! routers, never act at once.

use pg_logical::QueryError;
use pg_logical::quoting::literal;
use pg_logical::session::Session;

use super::catalog;
use super::slot_lock_key::{holders_of, key};

/// Takes the lock if it is free.
pub async fn try_take(session: &mut Session, slot: &str) -> Result<bool, QueryError> {
    let taken = session.query_one(&format!("SELECT pg_catalog.pg_try_advisory_lock({})", key(slot))).await?;
    Ok(taken.as_deref() == Some("t"))
}

/// Waits for the lock, in the order of requests.
pub async fn take(session: &mut Session, slot: &str) -> Result<(), QueryError> {
    session.query(&format!("SELECT pg_catalog.pg_advisory_lock({})", key(slot))).await.map(drop)
}

/// A query for the server process that holds it.
pub fn holders(slot: &str) -> String {
    holders_of(&literal(slot))
}

/// The server process that holds it.
pub async fn holder(session: &mut Session, slot: &str) -> Result<Option<i32>, QueryError> {
    Ok(session.query_one(&holders(slot)).await?.and_then(|pid| pid.parse().ok()))
}

/// Its holder, for a message.
pub async fn named_holder(session: &mut Session, slot: &str) -> Result<Option<(i32, String)>, QueryError> {
    match holder(session, slot).await? {
        Some(pid) => Ok(Some((pid, catalog::holder(session, pid).await?))),
        None => Ok(None),
    }
}
