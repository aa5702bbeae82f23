//! The statements on the table.

use std::fmt::Write;

use pg_logical::conninfo::ConnInfo;
use pg_logical::quoting::literal;
use pg_logical::session::Row;
use pg_logical::{Lsn, PgTimestamp};

use crate::dead_letters::{DeadLetter, Decision, Key, OriginalEvent};
use crate::error::{Error, ErrorCode, Remedy, Step};
use crate::postgres::administrator;
use crate::unsendable::Reason;

/// The table.
pub const TABLE: &str = "outbox_router.dead_letters";

/// The privileges that the router needs on it.
pub const REQUIRED_PRIVILEGES: [&str; 4] = ["SELECT", "INSERT", "UPDATE", "DELETE"];

/// Whether the table may be read. Returns no row if it does not exist, or if an unreadable one has never held a row:
/// everybody may see its size.
pub const READABLE: &str = "SELECT readable FROM (SELECT c.oid, pg_catalog.has_schema_privilege(n.oid, 'USAGE') \
     AND pg_catalog.has_table_privilege(c.oid, 'SELECT') AS readable \
     FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
     WHERE n.nspname = 'outbox_router' AND c.relname = 'dead_letters') d \
     WHERE readable OR pg_catalog.pg_relation_size(oid) > 0";

/// What it means for events if it does not exist.
pub const PARKED_ARE_GONE: &str = "those that were parked in it, if there were any: their rows are in the outbox table unless they were \
     deleted; insert them again. All others wait in the log";

/// What to do if it is missing or may not be written.
pub fn table_remedy(router: &ConnInfo) -> Remedy {
    administrator::init_remedy("Create the table and grant the router what it needs", router)
}

/// Why parked events keep a router that does not park from starting, and what to do.
pub fn still_parked(count: &str) -> (String, Remedy) {
    (
        format!(
            "{count} events are parked, and `[dead_letters] policy` is \"stop\": later events of their aggregates would be sent before them"
        ),
        Remedy::steps([
            Step::new("Set `[dead_letters] policy = \"park\"` again, and start the router"),
            Step::new("Look at the parked events").typing("outbox-router dead-letters list"),
            Step::new("Retry them, or discard those that nobody needs, by `--id`, `--aggregate` or `--reason`. Once none is left, change the policy")
                .typing("outbox-router dead-letters retry --all"),
        ]),
    )
}

/// How many rows a fetch returns at most, and how many bytes of events.
const FETCH: (usize, usize) = (100, 4 << 20);

/// How many aggregates a fetch considers.
pub(super) const AGGREGATES: usize = 50;

/// A parked event, and the decision about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The event.
    pub letter: DeadLetter,
    /// `None`: it only waited for an event that is resolved.
    pub decision: Option<Decision>,
    /// How many retries failed.
    pub attempts: u64,
}

const COLUMNS: &str = "d.final_lsn, d.change, d.xid, \
     (extract(epoch FROM d.committed_at - '2000-01-01 00:00:00+00') * 1000000)::bigint, d.source, d.event_id, \
     d.aggregate_type, d.aggregate_id, d.event_type, d.reason, d.detail, d.event, d.decision, d.replay, d.attempts";

/// Inserts rows and leaves existing ones unchanged. Returns the inserted ones.
pub(super) fn insert<'a>(router: &str, letters: impl Iterator<Item = &'a DeadLetter>) -> String {
    let mut sql = format!(
        "INSERT INTO {TABLE} (router, final_lsn, change, xid, committed_at, source, event_id, aggregate_type, aggregate_id, \
         event_type, reason, detail, event, replay) VALUES "
    );
    let text = |value: &Option<String>| value.as_deref().map_or_else(|| "NULL".to_owned(), literal);
    for (n, letter) in letters.enumerate() {
        // writing to a String cannot fail
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
            literal(&letter.original.encode()),
            text(&letter.replay),
        );
    }
    sql + " ON CONFLICT DO NOTHING RETURNING final_lsn, change"
}

/// Deletes rows. Returns the keys and aggregates of those that existed.
pub(super) fn delete(router: &str, keys: &[Key]) -> String {
    format!(
        "DELETE FROM {TABLE} d USING (VALUES {}) k (final_lsn, change) WHERE d.router = {} AND d.final_lsn = k.final_lsn \
         AND d.change = k.change RETURNING d.final_lsn, d.change, d.aggregate_id",
        values(keys),
        literal(router)
    )
}

/// Deletes those of rows that were read from the table, and so have no transaction id.
pub fn forget_of_table(router: &str) -> String {
    format!("DELETE FROM {TABLE} WHERE router = {} AND xid = 0", literal(router))
}

/// Deletes those of them from a position on.
pub fn forget_of_table_from(router: &str, from: Lsn) -> String {
    format!("{} AND final_lsn >= '{from}'", forget_of_table(router))
}

/// Records that a retry failed. A decision to discard that was made meanwhile stays.
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

/// The number of rows of each aggregate, and whether the first one only waits for a resolved one.
pub(super) fn load(router: &str) -> String {
    format!(
        "SELECT aggregate_id, count(*), (array_agg(reason ORDER BY final_lsn, change))[1] = {}, \
         (array_agg(final_lsn ORDER BY final_lsn, change))[1], (array_agg(change ORDER BY final_lsn, change))[1] FROM {TABLE} \
         WHERE router = {} GROUP BY aggregate_id",
        literal(Reason::Behind.name()),
        literal(router)
    )
}

/// The rows without an aggregate whose events may arrive again in a stream that starts here.
pub(super) fn without_aggregate(router: &str, from: Lsn) -> String {
    format!(
        "SELECT final_lsn, change FROM {TABLE} WHERE router = {} AND aggregate_id IS NULL AND final_lsn >= '{from}'",
        literal(router)
    )
}

/// Every statement on a router's rows first waits for this lock: a statement of an earlier session may still be running.
pub(super) fn lock(router: &str) -> String {
    let lock = literal(&format!("outbox-router dead letters {router}"));
    format!("SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended({lock}, 0))")
}

/// The aggregates with a decision that can be carried out now.
pub(super) fn decided(router: &str) -> String {
    let router = literal(router);
    format!(
        "SELECT a.id FROM (SELECT DISTINCT d.aggregate_id FROM {TABLE} d WHERE d.router = {router} AND d.decision IS NOT NULL \
         AND d.aggregate_id IS NOT NULL) a (id) {} \
         WHERE EXISTS (SELECT FROM {TABLE} d WHERE d.router = {router} AND d.aggregate_id = a.id AND d.decision IS NOT NULL \
         AND (d.decision = {} OR {BEFORE_UNDECIDED})) LIMIT {AGGREGATES}",
        first_undecided(&router),
        literal(Decision::Discard.name()),
    )
}

/// A join with the first row `u` of each aggregate `a.id` that needs a decision, if there is one. One search for each aggregate is
/// enough. A search for each row would be quadratic in the rows of an aggregate.
fn first_undecided(router: &str) -> String {
    format!(
        "LEFT JOIN LATERAL (SELECT u.final_lsn, u.change FROM {TABLE} u WHERE u.router = {router} AND u.aggregate_id = a.id \
         AND u.reason <> {} AND u.decision IS NULL ORDER BY u.final_lsn, u.change LIMIT 1) u ON true",
        literal(Reason::Behind.name())
    )
}

/// An SQL condition on `d` and `u`: no earlier row of the aggregate needs a decision, and neither does this one.
const BEFORE_UNDECIDED: &str = "(u.final_lsn IS NULL OR (d.final_lsn, d.change) < (u.final_lsn, u.change))";

/// The next rows of these aggregates, up to the first without a decision, and rows without an aggregate that have one. Events to
/// be discarded wait for nothing.
pub(super) fn next<'a>(router: &str, aggregates: impl Iterator<Item = &'a String>) -> String {
    let aggregates: Vec<String> = aggregates.map(|aggregate| literal(aggregate)).collect();
    let (router, (rows, bytes)) = (literal(router), FETCH);
    let rows_where = |condition: &str| {
        format!(
            "(SELECT d.* FROM {TABLE} d WHERE d.router = {router} AND {condition} ORDER BY d.final_lsn, d.change LIMIT {rows})"
        )
    };
    format!(
        "SELECT * FROM (SELECT {COLUMNS}, sum(octet_length(d.event::text)) OVER w AS bytes, row_number() OVER w AS n FROM (\
         SELECT d.* FROM unnest(ARRAY[{aggregates}]::text[]) a (id) {first_undecided} CROSS JOIN LATERAL ({before} UNION ALL {discarded}) d \
         UNION ALL {without_aggregate}) d WINDOW w AS (ORDER BY d.final_lsn, d.change) ORDER BY d.final_lsn, d.change LIMIT {rows}) r \
         WHERE n = 1 OR bytes < {bytes} ORDER BY n",
        aggregates = aggregates.join(", "),
        first_undecided = first_undecided(&router),
        before = rows_where(&format!("d.aggregate_id = a.id AND {BEFORE_UNDECIDED}")),
        discarded = rows_where(&format!(
            "d.aggregate_id = a.id AND d.decision = {} AND (d.final_lsn, d.change) > (u.final_lsn, u.change)",
            literal(Decision::Discard.name())
        )),
        without_aggregate = rows_where("d.aggregate_id IS NULL AND d.decision IS NOT NULL"),
    )
}

/// The number of a router's rows that satisfy `condition`, an SQL condition on `d`.
pub fn count(router: &str, condition: &str) -> String {
    format!("SELECT count(*) FROM {TABLE} d WHERE d.router = {} AND ({condition})", literal(router))
}

/// The same, and the number of their aggregates.
pub fn count_both(router: &str, condition: &str) -> String {
    format!(
        "SELECT count(*), count(DISTINCT d.aggregate_id) FROM {TABLE} d WHERE d.router = {} AND ({condition})",
        literal(router)
    )
}

/// The other routers with rows in the table, and how many each has.
pub fn count_of_others(router: &str) -> String {
    format!(
        "SELECT router, count(*) FROM {TABLE} WHERE router <> {} GROUP BY router ORDER BY router",
        literal(router)
    )
}

/// The same as [`count_both`], and which rows they are, for [`is_one_of`]: final LSNs and numbers of changes.
pub fn count_with_keys(router: &str, condition: &str) -> String {
    format!(
        "SELECT count(*), count(DISTINCT d.aggregate_id), array_agg(d.final_lsn), array_agg(d.change) FROM {TABLE} d \
         WHERE d.router = {} AND ({condition})",
        literal(router)
    )
}

/// An SQL condition on `d`: it is one of those rows, whatever has been parked or changed since.
pub fn is_one_of(final_lsns: &str, changes: &str) -> String {
    format!(
        "(d.final_lsn, d.change) IN (SELECT * FROM unnest({}::pg_lsn[], {}::bigint[]))",
        literal(final_lsns),
        literal(changes)
    )
}

/// Every row of a router that satisfies `condition`, an SQL condition on `d`.
pub fn select(router: &str, condition: &str, limit: Option<u32>) -> String {
    let limit = limit.map_or_else(String::new, |limit| format!(" LIMIT {limit}"));
    format!(
        "SELECT {COLUMNS} FROM {TABLE} d WHERE d.router = {} AND ({condition}) ORDER BY d.final_lsn, d.change{limit}",
        literal(router)
    )
}

/// Marks every row of a router that satisfies `condition`. Returns the rows (`return_rows`), or how many they are.
pub fn mark(router: &str, condition: &str, decision: Decision, return_rows: bool) -> String {
    let what = if return_rows {
        format!("{COLUMNS} FROM d ORDER BY d.final_lsn, d.change")
    } else {
        "count(*) FROM d".to_owned()
    };
    format!(
        "WITH d AS (UPDATE {TABLE} d SET decision = {}, decided_at = clock_timestamp() WHERE d.router = {} AND ({condition}) \
         RETURNING d.*) SELECT {what}",
        literal(decision.name()),
        literal(router)
    )
}

fn values(keys: &[Key]) -> String {
    let value = |key: &Key| format!("('{}'::pg_lsn, {}::bigint)", key.final_lsn, key.change);
    keys.iter().map(value).collect::<Vec<_>>().join(", ")
}

/// The key, from the first two columns of a row.
pub(super) fn key(row: &Row) -> Option<Key> {
    Some(Key { final_lsn: row.get(0)?.parse::<Lsn>().ok()?, change: row.get(1)?.parse().ok()? })
}

/// Reads one row of [`select`].
///
/// # Errors
/// No router wrote such a row.
pub fn waiting(router: &str, row: &Row) -> Result<Waiting, Error> {
    let foreign = |what: &str| {
        let of_row = format!(
            "FROM {TABLE} WHERE router = {} AND final_lsn = {} AND change = {}",
            literal(router),
            literal(row.get(0).unwrap_or_default()),
            row.get(1).unwrap_or_default()
        );
        Error::not_safe(
            ErrorCode::DeadLetterUnreadable,
            format!("a row of {TABLE} cannot be read: {what}"),
            Remedy::steps([Step::new("Look at the row, and correct it").sql(format!("SELECT * {of_row}"))])
                .or("To lose this event", [Step::new("Delete the row").sql(format!("DELETE {of_row}"))]),
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
            original: OriginalEvent::Message(String::new()),
            replay: text(13),
        })
    };
    let letter = read().ok_or_else(|| foreign("a column is NULL, or no number"))?;
    let original = OriginalEvent::decode(row.get(11).unwrap_or_default());
    let original = original.map_err(|error| foreign(&format!("{} at {}", error, letter.key)))?;
    let attempts = number(14).and_then(|attempts| u64::try_from(attempts).ok()).unwrap_or_default();
    Ok(Waiting {
        letter: DeadLetter { original, ..letter },
        decision: row.get(12).and_then(Decision::of),
        attempts,
    })
}
