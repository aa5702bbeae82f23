//! Keeps two processes from sending rows of one outbox again at once: each has a lease, which it renews whenever it stores progress. A
//! session's lock would not do, because a pooler gives a session's connection to others.

use pg_logical::QueryError;
use pg_logical::quoting::literal;
use pg_logical::session::{Row, Session};

use super::{Done, REMEDY, Request};
use crate::advice::OrRemedy;
use crate::error::Error;
use crate::postgres::rows::{moment, read_only, read_write, stored_cursor};

/// How long a process that is gone keeps others waiting, in seconds.
pub const SECONDS: u64 = 10;

/// A replay that this process sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The number of the replay.
    pub id: u64,
    /// Tells this process from others that had it before.
    token: String,
}

/// What becomes of a replay with the last progress that is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It goes on.
    Runs,
    /// Somebody may continue it.
    Interrupted,
    /// Nothing is left.
    Finished,
}

/// A condition: no process sends or deletes rows of this outbox, an expression. It holds until the end of a transaction with the [`LOCK`].
fn nobody_else(outbox: &str) -> String {
    format!(
        "NOT EXISTS (SELECT FROM outbox_router.replays o WHERE o.outbox = {outbox} AND o.finished_at IS NULL \
         AND o.lease_until > clock_timestamp()) AND NOT EXISTS (SELECT FROM outbox_router.prunes p WHERE p.outbox = {outbox} \
         AND p.lease_until > clock_timestamp())"
    )
}

const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtextextended('outbox-router replay', 0))";

fn lease(row: Option<&Row>) -> Option<Lease> {
    let row = row.filter(|row| row.len() == 2)?;
    Some(Lease { id: row.get(0)?.parse().ok()?, token: row.get(1)?.to_owned() })
}

/// Stores a request, unless another process sends rows of this outbox, or more than `per_day` events were requested within a day. `user`
/// is the user of this machine.
///
/// # Errors
/// The table is missing, or the role may not write it.
pub async fn begin(
    session: &mut Session,
    router: &str,
    user: &str,
    request: &Request,
    per_day: Option<u64>,
) -> Result<Option<Lease>, Error> {
    let Request {
        outbox,
        since,
        until,
        selection,
        topic,
        rate,
        mark,
        horizon,
        order_by,
        rows,
        events,
        bytes,
    } = request;
    let selection = serde_json::to_string(selection).unwrap_or_default();
    let optional = |text: Option<String>| text.map_or_else(|| "NULL".to_owned(), |text| literal(&text));
    let per_day = per_day.map_or_else(String::new, |most| {
        format!(" AND ({}) + {events} <= {most}", requested_within_a_day(router))
    });
    let sql = read_write(&format!(
        "{LOCK}; INSERT INTO outbox_router.replays (router, requested_by, outbox, since, until, selection, topic, rate, mark, horizon, \
         order_by, rows, events, bytes, token, lease_until) SELECT {}, concat({}::text, ' as ', session_user), {}, {}, {}, {}::jsonb, {}, \
         {}::double precision, {}, {}, {}, {rows}, {events}, {bytes}, gen_random_uuid(), clock_timestamp() + interval '{SECONDS} s' \
         WHERE {}{per_day} RETURNING id, token",
        literal(router),
        literal(user),
        literal(outbox),
        since.map_or_else(|| "NULL".to_owned(), moment),
        moment(*until),
        literal(&selection),
        optional(topic.clone()),
        optional(rate.map(|rate| rate.to_string())),
        literal(mark),
        literal(horizon),
        literal(order_by),
        nobody_else(&literal(outbox)),
    ));
    let found = session.query(&sql).await.map_err(|error| error.or_remedy(REMEDY))?;
    Ok(lease(found.last()))
}

/// Takes over a replay that is not finished, unless another process sends rows of its outbox.
///
/// # Errors
/// The role may not write the table.
pub async fn take_over(session: &mut Session, id: u64) -> Result<Option<Lease>, Error> {
    let sql = read_write(&format!(
        "{LOCK}; UPDATE outbox_router.replays r SET token = gen_random_uuid(), lease_until = clock_timestamp() + interval '{SECONDS} s' \
         WHERE id = {id} AND finished_at IS NULL AND {} RETURNING id, token",
        nobody_else("r.outbox")
    ));
    let found = session.query(&sql).await.map_err(|error| error.or_remedy(REMEDY))?;
    Ok(lease(found.last()))
}

/// How many events were requested within the last day.
///
/// # Errors
/// The table is missing, or the role may not read it.
pub async fn of_last_day(session: &mut Session, router: &str) -> Result<u64, Error> {
    let sql = read_only(&requested_within_a_day(router));
    let events = session.query_one(&sql).await.map_err(|error| error.or_remedy(REMEDY))?;
    Ok(events.and_then(|events| events.parse().ok()).unwrap_or_default())
}

fn requested_within_a_day(router: &str) -> String {
    format!(
        "SELECT coalesce(sum(d.events), 0) FROM outbox_router.replays d WHERE d.router = {} AND d.requested_at > now() - interval '1 day'",
        literal(router)
    )
}

impl Lease {
    /// Stores how far the replay has come, and renews the lease. Returns whether it is still this process's.
    ///
    /// # Errors
    /// Those of the query.
    pub async fn store(&self, session: &mut Session, done: &Done, state: State) -> Result<bool, QueryError> {
        let Done { rows, left_out, last } = done;
        let last = stored_cursor::assignments(last.as_ref());
        let state = match state {
            State::Runs => format!("lease_until = clock_timestamp() + interval '{SECONDS} s'"),
            State::Interrupted => "lease_until = clock_timestamp()".to_owned(),
            State::Finished => "lease_until = clock_timestamp(), finished_at = clock_timestamp()".to_owned(),
        };
        let sql = read_write(&format!(
            "UPDATE outbox_router.replays SET done = {rows}, left_out = {left_out}{last}, {state} \
             WHERE id = {} AND token = {} AND finished_at IS NULL RETURNING id",
            self.id,
            literal(&self.token)
        ));
        Ok(!session.query(&sql).await?.is_empty())
    }
}
