//! What is asked of the table.

use std::fmt::Write;

use pg_logical::quoting::literal;
use pg_logical::session::Row;
use pg_logical::{Lsn, PgTimestamp};

use crate::dead_letters::{DeadLetter, Decision, Key, OriginalEvent};
use crate::error::Error;
use crate::unsendable::Reason;

/// The table.
pub const TABLE: &str = "outbox_router.dead_letters";

/// The privileges that the router needs of it.
pub const NEEDED: [&str; 4] = ["SELECT", "INSERT", "UPDATE", "DELETE"];

/// Whether the table may be read; no row where there is none, or where what may not be read has never held a row, which its
/// size tells everybody.
pub const READABLE: &str = "SELECT readable FROM (SELECT c.oid, pg_catalog.has_schema_privilege(n.oid, 'USAGE') \
     AND pg_catalog.has_table_privilege(c.oid, 'SELECT') AS readable \
     FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
     WHERE n.nspname = 'outbox_router' AND c.relname = 'dead_letters') d \
     WHERE readable OR pg_catalog.pg_relation_size(oid) > 0";

/// What to do where it is missing, or may not be written.
pub const REMEDY: &str = "Run `outbox-router init --role ROLE` with `policy = \"park\"` under [dead_letters], which makes the table and grants what \
     the router needs of it";

/// Why events that are parked keep a router from starting that does not park, and what to do.
pub fn left(count: &str) -> (String, &'static str) {
    (
        format!(
            "{count} events are parked, and `[dead_letters] policy` is \"stop\": later events of theirs would be sent past them"
        ),
        "Set `policy = \"park\"` again, and decide what becomes of them (outbox-router dead-letters list); then change it",
    )
}

/// How many rows one fetch brings at most, and how many bytes of events.
const FETCH: (usize, usize) = (100, 4 << 20);

/// How many aggregates it looks at.
pub(super) const AGGREGATES: usize = 50;

/// A parked event, and what was decided of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The event.
    pub letter: DeadLetter,
    /// `None`: it follows on one that is gone.
    pub decision: Option<Decision>,
    /// How often it was tried again in vain.
    pub attempts: u64,
}

const COLUMNS: &str = "d.final_lsn, d.change, d.xid, \
     (extract(epoch FROM d.committed_at - '2000-01-01 00:00:00+00') * 1000000)::bigint, d.source, d.event_id, \
     d.aggregate_type, d.aggregate_id, d.event_type, d.reason, d.detail, d.event, d.decision, d.replay, d.attempts";

/// Puts rows there; those that are there already stay as they are. Returns what was put.
pub(super) fn insert<'a>(router: &str, letters: impl Iterator<Item = &'a DeadLetter>) -> String {
    let mut sql = format!(
        "INSERT INTO {TABLE} (router, final_lsn, change, xid, committed_at, source, event_id, aggregate_type, aggregate_id, \
         event_type, reason, detail, event, replay) VALUES "
    );
    let text = |value: &Option<String>| value.as_deref().map_or_else(|| "NULL".to_owned(), literal);
    for (n, letter) in letters.enumerate() {
        // a text cannot fail to be written to
        let _ = write!(
            sql,
            "{}({}, '{}', {}, {}, '2000-01-01 00:00:00+00'::timestamptz + {} * interval '1 microsecond', {}, {}, {}, {}, {}, {}, \
             {}, {}, {})",
            if n > 0 { ", " } else { "" },
            literal(router),
            letter.key.final_lsn,
            letter.key.change,
            letter.xid,
            letter.commit_time.0,
            literal(&letter.source),
            text(&letter.event_id),
            text(&letter.aggregate_type),
            text(&letter.aggregate_id),
            text(&letter.event_type),
            literal(letter.reason.name()),
            literal(&letter.detail),
            literal(&letter.whole.encode()),
            text(&letter.replay),
        );
    }
    sql + " ON CONFLICT DO NOTHING RETURNING final_lsn, change"
}

/// Takes rows away. Returns the keys and aggregates of those that were there.
pub(super) fn delete(router: &str, keys: &[Key]) -> String {
    format!(
        "DELETE FROM {TABLE} d USING (VALUES {}) k (final_lsn, change) WHERE d.router = {} AND d.final_lsn = k.final_lsn \
         AND d.change = k.change RETURNING d.final_lsn, d.change, d.aggregate_id",
        values(keys),
        literal(router)
    )
}

/// A row was tried again, and cannot be sent. That it is to be thrown away may have been decided meanwhile.
pub(super) fn failed(router: &str, key: Key, reason: Reason, detail: &str) -> String {
    format!(
        "UPDATE {TABLE} SET decision = NULLIF(decision, {retry}), decided_at = CASE WHEN decision <> {retry} THEN decided_at END, \
         attempts = attempts + 1, reason = {}, detail = {} WHERE router = {} AND final_lsn = '{}' AND change = {}",
        literal(reason.name()),
        literal(detail),
        literal(router),
        key.final_lsn,
        key.change,
        retry = literal(Decision::Retry.name()),
    )
}

/// How many rows each aggregate has, and whether its first one only waits for one that is gone.
pub(super) fn load(router: &str) -> String {
    format!(
        "SELECT aggregate_id, count(*), (array_agg(reason ORDER BY final_lsn, change))[1] = {}, \
         (array_agg(final_lsn ORDER BY final_lsn, change))[1], (array_agg(change ORDER BY final_lsn, change))[1] FROM {TABLE} \
         WHERE router = {} GROUP BY aggregate_id",
        literal(Reason::Behind.name()),
        literal(router)
    )
}

/// The rows without an aggregate whose events may come again in a stream that begins here.
pub(super) fn without(router: &str, from: Lsn) -> String {
    format!(
        "SELECT final_lsn, change FROM {TABLE} WHERE router = {} AND aggregate_id IS NULL AND final_lsn >= '{from}'",
        literal(router)
    )
}

/// What every statement on a router's rows waits for first: one of an earlier session may still be under way.
pub(super) fn turn(router: &str) -> String {
    let lock = literal(&format!("outbox-router dead letters {router}"));
    format!("SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended({lock}, 0))")
}

/// The aggregates of which somebody has decided something.
pub(super) fn decided(router: &str) -> String {
    format!(
        "SELECT DISTINCT d.aggregate_id FROM {TABLE} d WHERE d.router = {} AND d.decision IS NOT NULL \
         AND d.aggregate_id IS NOT NULL AND {} LIMIT {AGGREGATES}",
        literal(router),
        is_next()
    )
}

/// An SQL condition on `d`: nothing before it has to be decided first. What is thrown away waits for nothing.
fn is_next() -> String {
    format!(
        "(d.decision = {} OR NOT EXISTS (SELECT FROM {TABLE} b WHERE b.router = d.router AND b.aggregate_id = d.aggregate_id \
         AND b.reason <> {} AND b.decision IS NULL AND (b.final_lsn, b.change) <= (d.final_lsn, d.change)))",
        literal(Decision::Discard.name()),
        literal(Reason::Behind.name())
    )
}

/// The rows of these aggregates that are next: up to the first of which something has to be decided. And rows without an
/// aggregate of which it is.
pub(super) fn next<'a>(router: &str, aggregates: impl Iterator<Item = &'a String>) -> String {
    let aggregates: Vec<String> = aggregates.map(|aggregate| literal(aggregate)).collect();
    let (rows, bytes) = FETCH;
    format!(
        "SELECT * FROM (SELECT {COLUMNS}, sum(octet_length(d.event::text)) OVER w AS bytes, row_number() OVER w AS n \
         FROM {TABLE} d WHERE d.router = {router} \
         AND (d.aggregate_id = ANY (ARRAY[{aggregates}]::text[]) OR d.aggregate_id IS NULL AND d.decision IS NOT NULL) \
         AND {} WINDOW w AS (ORDER BY d.final_lsn, d.change) ORDER BY d.final_lsn, d.change LIMIT {rows}) r \
         WHERE n = 1 OR bytes < {bytes} ORDER BY n",
        is_next(),
        router = literal(router),
        aggregates = aggregates.join(", "),
    )
}

/// How many rows of a router there are that `chosen`, an SQL condition on `d`, is true for.
pub fn count(router: &str, chosen: &str) -> String {
    format!("SELECT count(*) FROM {TABLE} d WHERE d.router = {} AND ({chosen})", literal(router))
}

/// The same, and of how many aggregates.
pub fn count_both(router: &str, chosen: &str) -> String {
    format!(
        "SELECT count(*), count(DISTINCT d.aggregate_id) FROM {TABLE} d WHERE d.router = {} AND ({chosen})",
        literal(router)
    )
}

/// The other routers that have rows there, and how many.
pub fn count_of_others(router: &str) -> String {
    format!(
        "SELECT router, count(*) FROM {TABLE} WHERE router <> {} GROUP BY router ORDER BY router",
        literal(router)
    )
}

/// The same as [`count_both`], and which they are, as [`those`] takes it: final LSNs and numbers of changes.
pub fn count_which(router: &str, chosen: &str) -> String {
    format!(
        "SELECT count(*), count(DISTINCT d.aggregate_id), array_agg(d.final_lsn), array_agg(d.change) FROM {TABLE} d \
         WHERE d.router = {} AND ({chosen})",
        literal(router)
    )
}

/// An SQL condition on `d`: it is one of those rows, whatever else is parked or changed by now.
pub fn those(final_lsns: &str, changes: &str) -> String {
    format!(
        "(d.final_lsn, d.change) IN (SELECT * FROM unnest({}::pg_lsn[], {}::bigint[]))",
        literal(final_lsns),
        literal(changes)
    )
}

/// Every row of a router that `chosen`, an SQL condition on `d`, is true for.
pub fn chosen(router: &str, chosen: &str, limit: Option<u32>) -> String {
    let limit = limit.map_or_else(String::new, |limit| format!(" LIMIT {limit}"));
    format!(
        "SELECT {COLUMNS} FROM {TABLE} d WHERE d.router = {} AND ({chosen}) ORDER BY d.final_lsn, d.change{limit}",
        literal(router)
    )
}

/// Marks every row of a router that `chosen` is true for. Returns them (`whole`), or how many they are.
pub fn mark(router: &str, chosen: &str, decision: Decision, whole: bool) -> String {
    let what = if whole {
        format!("{COLUMNS} FROM d ORDER BY d.final_lsn, d.change")
    } else {
        "count(*) FROM d".to_owned()
    };
    format!(
        "WITH d AS (UPDATE {TABLE} d SET decision = {}, decided_at = clock_timestamp() WHERE d.router = {} AND ({chosen}) \
         RETURNING d.*) SELECT {what}",
        literal(decision.name()),
        literal(router)
    )
}

fn values(keys: &[Key]) -> String {
    let value = |key: &Key| format!("('{}'::pg_lsn, {}::bigint)", key.final_lsn, key.change);
    keys.iter().map(value).collect::<Vec<_>>().join(", ")
}

/// The first two columns of a row.
pub(super) fn key(row: &Row) -> Option<Key> {
    Some(Key { final_lsn: row.get(0)?.parse::<Lsn>().ok()?, change: row.get(1)?.parse().ok()? })
}

/// Reads a row of a router that [`chosen`] has asked for.
///
/// # Errors
/// It is none that a router wrote.
pub fn waiting(router: &str, row: &Row) -> Result<Waiting, Error> {
    let foreign = |what: &str| {
        Error::not_safe(
            format!("a row of {TABLE} cannot be read: {what}"),
            format!(
                "Put the row right, or take it away: DELETE FROM {TABLE} WHERE router = {} AND final_lsn = {} AND change = {}",
                literal(router),
                literal(row.get(0).unwrap_or_default()),
                row.get(1).unwrap_or_default()
            ),
        )
    };
    let text = |n: usize| row.get(n).map(str::to_owned);
    let number = |n: usize| row.get(n).and_then(|text| text.parse::<i64>().ok());
    let read = || {
        Some(DeadLetter {
            key: key(row)?,
            xid: u32::try_from(number(2)?).ok()?,
            commit_time: PgTimestamp(number(3)?),
            source: text(4)?,
            event_id: text(5),
            aggregate_type: text(6),
            aggregate_id: text(7),
            event_type: text(8),
            reason: Reason::of(row.get(9)?),
            detail: text(10)?,
            whole: OriginalEvent::Message(String::new()),
            replay: text(13),
        })
    };
    let letter = read().ok_or_else(|| foreign("a column is NULL, or no number"))?;
    let whole = OriginalEvent::decode(row.get(11).unwrap_or_default());
    let whole = whole.map_err(|error| foreign(&format!("{} at {}", error, letter.key)))?;
    let attempts = number(14).and_then(|attempts| u64::try_from(attempts).ok()).unwrap_or_default();
    Ok(Waiting {
        letter: DeadLetter { whole, ..letter },
        decision: row.get(12).and_then(Decision::of),
        attempts,
    })
}
