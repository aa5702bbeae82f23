//! The events of an inbox, one by one, as an administrator sees them.

use pg_logical::QueryError;
use pg_logical::quoting::literal;
use pg_logical::session::{Row, Session};
use serde::Serialize;
use tokio_postgres::error::SqlState;

use super::PRIVILEGE_REMEDY;
use crate::advice::OrRemedy;
use crate::error::{Error, ErrorCode};

/// An event of a consumer. The members are keys of the JSON that commands print.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InboxEvent {
    /// The consumer.
    pub consumer: String,
    /// The event's id.
    pub id: String,
    /// `waiting`, `failed`, `leased`, `expired` (its lease), `processed`, or `forgotten`, of which only decisions are known.
    pub state: String,
    /// When it was put, claimed, started, processed or forgotten, in UTC.
    pub since: Option<String>,
    /// When its lease ends or its next attempt is due, in UTC.
    pub until: Option<String>,
    /// In the queue: how many attempts have begun or failed.
    pub attempts: Option<u64>,
    /// In the queue: its aggregate.
    pub aggregate: Option<String>,
    /// In the queue: the last error.
    pub error: Option<String>,
}

/// The rest of what is known about an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Details {
    /// In the queue: its sequence.
    pub sequence: Option<String>,
    /// In the queue: its payload in Base64.
    pub payload: Option<String>,
    /// The JSON that duplicates get.
    pub result: Option<String>,
    /// The earliest first.
    pub decisions: Vec<Decision>,
}

/// What an operator did with an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// When, in UTC.
    pub at: String,
    /// The role.
    pub by: String,
    /// `retry`, `discard` or `clear`.
    pub action: String,
    /// Why.
    pub reason: Option<String>,
}

/// A moment in UTC as text; NULL if it is infinity.
fn utc(column: &str) -> String {
    format!(
        "CASE WHEN pg_catalog.isfinite({column}) THEN \
         pg_catalog.to_char({column} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"') END"
    )
}

const QUEUE_STATE: &str = "CASE WHEN q.due_at = 'infinity' THEN 'failed' \
     WHEN q.token IS NOT NULL AND q.due_at > pg_catalog.clock_timestamp() THEN 'leased' ELSE 'waiting' END";

const LEASE_STATE: &str = "CASE WHEN i.lease_until > pg_catalog.clock_timestamp() THEN 'leased' \
     WHEN i.lease_until IS NOT NULL THEN 'expired' ELSE 'processed' END";

/// The columns of a row `q` of the queue.
fn queued() -> String {
    format!(
        "q.consumer, q.event_id, {QUEUE_STATE} AS state, {} AS since, {} AS until, q.attempts, q.aggregate, q.error",
        utc("q.put_at"),
        utc("q.due_at")
    )
}

/// The columns of a row `i` of the inbox that has none in the queue.
fn marked() -> String {
    format!(
        "i.consumer, i.event_id, {LEASE_STATE}, {}, {}, NULL::integer, NULL::text, NULL::text",
        utc("i.seen_at"),
        utc("i.lease_until")
    )
}

/// Up to `limit` events that are not processed, the oldest first, of one consumer or of all, in one state or in any.
///
/// # Errors
/// Postgres refuses, or the connection fails.
pub async fn unprocessed(
    session: &mut Session,
    consumer: Option<&str>,
    state: Option<&str>,
    limit: u32,
) -> Result<Vec<InboxEvent>, Error> {
    let is = |expression: &str| {
        state.map_or_else(String::new, |state| format!(" AND ({expression}) = {}", literal(state)))
    };
    let (of_queue, of_inbox) = (is(QUEUE_STATE), is(LEASE_STATE));
    let whose = consumer.map_or_else(|| "true".to_owned(), |name| format!("c.consumer = {}", literal(name)));
    let (queued, marked) = (queued(), marked());
    // each part reads an index in its order
    let part = |due: &str, order: &str| {
        format!(
            "(SELECT {queued} FROM outbox_router.inbox_queue q WHERE q.consumer = c.consumer AND q.due_at {due}{of_queue} \
             ORDER BY {order} LIMIT {limit})"
        )
    };
    let sql = format!(
        "SELECT e.* FROM outbox_router.inbox_consumers c CROSS JOIN LATERAL ({} UNION ALL {} UNION ALL {} UNION ALL \
         (SELECT {marked} FROM outbox_router.inbox i WHERE i.consumer = c.consumer AND i.lease_until IS NOT NULL{of_inbox} \
         ORDER BY i.lease_until LIMIT {limit})) e WHERE {whose} ORDER BY e.since, e.consumer, e.event_id LIMIT {limit}",
        part("= 'infinity'", "q.due_at"),
        part("< 'infinity'", "q.due_at"),
        part("IS NULL", "q.position"),
    );
    events(session, &sql).await
}

/// The events with this id, of one consumer or of all.
///
/// # Errors
/// Postgres refuses, or the connection fails.
pub async fn with_id(
    session: &mut Session,
    id: &str,
    consumer: Option<&str>,
) -> Result<Vec<InboxEvent>, Error> {
    let whose = |table: &str| {
        let consumers = match consumer {
            Some(consumer) => literal(consumer),
            None => "ANY (ARRAY(SELECT c.consumer FROM outbox_router.inbox_consumers c))".to_owned(),
        };
        format!("{table}.event_id = {} AND {table}.consumer = {consumers}", literal(id))
    };
    let (of_inbox, of_audit) = (whose("i"), whose("a"));
    let (queued, marked, forgotten) = (queued(), marked(), utc("max(a.done_at)"));
    let sql = format!(
        "SELECT e.* FROM (\
         (SELECT {queued} FROM outbox_router.inbox i JOIN outbox_router.inbox_queue q \
         ON q.consumer = i.consumer AND q.position = i.position WHERE {of_inbox}) UNION ALL \
         (SELECT {marked} FROM outbox_router.inbox i WHERE {of_inbox} AND NOT EXISTS (SELECT FROM outbox_router.inbox_queue q \
         WHERE q.consumer = i.consumer AND q.position = i.position)) UNION ALL \
         (SELECT a.consumer, a.event_id, 'forgotten', {forgotten}, NULL, NULL::integer, NULL::text, NULL::text \
         FROM outbox_router.inbox_audit a WHERE {of_audit} AND NOT EXISTS (SELECT FROM outbox_router.inbox i \
         WHERE i.consumer = a.consumer AND i.event_id = a.event_id) GROUP BY a.consumer, a.event_id)) e ORDER BY e.consumer"
    );
    events(session, &sql).await
}

async fn events(session: &mut Session, sql: &str) -> Result<Vec<InboxEvent>, Error> {
    let rows = session.query(sql).await.map_err(|error| error.or_remedy(PRIVILEGE_REMEDY))?;
    Ok(rows.iter().map(event).collect())
}

fn event(row: &Row) -> InboxEvent {
    let text = |column| row.get(column).map(str::to_owned);
    let name = |column| text(column).unwrap_or_default();
    InboxEvent {
        consumer: name(0),
        id: name(1),
        state: name(2),
        since: text(3),
        until: text(4),
        attempts: row.get(5).and_then(|text| text.parse().ok()),
        aggregate: text(6),
        error: text(7),
    }
}

/// The rest of what is known about an event.
///
/// # Errors
/// Postgres refuses, or the connection fails.
pub async fn details(session: &mut Session, event: &InboxEvent) -> Result<Details, Error> {
    let (consumer, id) = (literal(&event.consumer), literal(&event.id));
    let refused = |error: QueryError| error.or_remedy(PRIVILEGE_REMEDY);
    let rows = session
        .query(&format!(
            "SELECT q.sequence, pg_catalog.translate(pg_catalog.encode(q.payload, 'base64'), E'\\n', ''), i.result \
             FROM outbox_router.inbox i LEFT JOIN outbox_router.inbox_queue q \
             ON q.consumer = i.consumer AND q.position = i.position WHERE i.consumer = {consumer} AND i.event_id = {id}"
        ))
        .await
        .map_err(refused)?;
    let text = |column| rows.first().and_then(|row| row.get(column)).map(str::to_owned);
    let (sequence, payload, result) = (text(0), text(1), text(2));
    let rows = session
        .query(&format!(
            "SELECT {}, a.done_by, a.action, a.reason FROM outbox_router.inbox_audit a \
             WHERE a.consumer = {consumer} AND a.event_id = {id} ORDER BY a.id",
            utc("a.done_at")
        ))
        .await
        .map_err(refused)?;
    let decisions = rows.iter().map(|row| {
        let name = |column| row.get(column).unwrap_or_default().to_owned();
        Decision { at: name(0), by: name(1), action: name(2), reason: row.get(3).map(str::to_owned) }
    });
    let decisions = decisions.collect();
    Ok(Details { sequence, payload, result, decisions })
}

/// Does `action` with all of these events or, if a worker has one of them, with none. Returns how many were still there.
///
/// # Errors
/// A worker has one of them, Postgres refuses, or the connection fails.
pub async fn decide(
    session: &mut Session,
    events: &[InboxEvent],
    action: &str,
    reason: Option<&str>,
) -> Result<u64, Error> {
    let names = events.iter().map(|event| format!("({}, {})", literal(&event.consumer), literal(&event.id)));
    let reason = reason.map_or_else(|| "NULL".to_owned(), literal);
    let sql = format!(
        "SELECT count(*) FILTER (WHERE outbox_router.inbox_decide(e.consumer, e.event_id, {}, {reason})) \
         FROM (VALUES {}) e (consumer, event_id)",
        literal(action),
        names.collect::<Vec<_>>().join(", ")
    );
    let answer = session.query_one(&sql).await.map_err(|error| {
        let hint = error.server_error().and_then(|error| error.hint.clone()).unwrap_or_default();
        let hint = hint.trim_end_matches('.').to_owned();
        match error {
            QueryError::Server { error, .. } if error.code == SqlState::LOCK_NOT_AVAILABLE => {
                Error::refused(ErrorCode::InboxEventTaken, error.message, hint)
            }
            error if error.code() == Some(&SqlState::INVALID_PARAMETER_VALUE) => error.or_remedy(hint),
            error => error.or_remedy(PRIVILEGE_REMEDY),
        }
    })?;
    Ok(answer.and_then(|text| text.parse().ok()).unwrap_or(0))
}
