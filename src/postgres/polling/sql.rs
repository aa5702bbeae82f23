//! The statements of polling.
//!
//! They need no session state, so they work behind a pooler that gives a connection to one transaction after another. Each message
//! is one or more transactions.
//!
//! Statistics may say that the table is empty, and then another index looks as good as the right one. So each subquery asks for an
//! order that only the right one has, and plans must not sort.

use std::time::Duration;

use pg_logical::quoting::{dollar_quoted, identifier, literal};

use crate::config::polling::StatusValues;
use crate::config::{Outbox, Polling};

/// How many rows one claim looks at.
const MAX_ROWS_SCANNED: usize = 20_000;

/// How many rows of one aggregate are claimed or made due at a time once an earlier row of it was refused.
const MAX_ROWS_BEHIND: usize = 1_000;

/// After how many refusals a person has to decide.
pub const MAX_REFUSALS: u32 = 8;

/// The delays between refusals; the last one is repeated.
const DELAYS: &str = "ARRAY[interval '5 s', '30 s', '5 min', '30 min', '4 h']";

/// Begins a transaction in which the planner has only the intended plan.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL jit = off; SET LOCAL enable_seqscan = off; \
     SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; \
     SET LOCAL lock_timeout = '1s'; SET LOCAL statement_timeout = 0; SET LOCAL search_path = pg_catalog, pg_temp";

/// The settings with which values are read, as [`pg_logical::connect::VALUE_TEXT`].
const VALUE_TEXT: &str = "SET LOCAL DateStyle = 'ISO'; SET LOCAL TimeZone = 'UTC'; SET LOCAL IntervalStyle = 'postgres'; \
     SET LOCAL extra_float_digits = 1; SET LOCAL bytea_output = 'hex'";

/// The first column of the answer to [`PolledTable::claim`].
pub const BUSY: &str = "busy";

/// The names of an outbox table that is polled, quoted.
#[derive(Debug, Clone)]
pub struct PolledTable {
    table: String,
    /// The table as a text in `poll_claims`.
    outbox: String,
    aggregate: String,
    payload: String,
    created_at: Option<String>,
    position: String,
    status: String,
    attempts: String,
    refusals: String,
    next_attempt_at: String,
    published_at: String,
    last_error: String,
    new: String,
    published: String,
    failed: String,
    unquoted: Unquoted,
    lease: Duration,
    /// Whether positions are drawn by `next_position`, so that the bounds of claims are valid.
    bounded: bool,
}

/// Names without quotes.
#[derive(Debug, Clone)]
struct Unquoted {
    aggregate: String,
    position: String,
    status: String,
    next_attempt_at: String,
}

/// A claim of this router.
#[derive(Debug, Clone, Copy)]
pub struct OwnClaim<'a> {
    /// Its number.
    pub id: i64,
    /// The router's token.
    pub token: &'a str,
}

impl PolledTable {
    /// The table of an outbox that is polled; `None` if it has none.
    pub fn of(outbox: &Outbox, polling: &Polling) -> Option<Self> {
        let Polling { lease, columns, status } = polling;
        let table = outbox.tables.first()?.in_sql();
        let StatusValues { new, published, failed } = status;
        Some(PolledTable {
            outbox: literal(&table),
            table,
            aggregate: identifier(&outbox.columns.aggregate_id),
            payload: identifier(&outbox.columns.payload),
            created_at: outbox.columns.created_at.as_deref().map(identifier),
            position: identifier(&columns.position),
            status: identifier(&columns.status),
            attempts: identifier(&columns.attempts),
            refusals: identifier(&columns.refusals),
            next_attempt_at: identifier(&columns.next_attempt_at),
            published_at: identifier(&columns.published_at),
            last_error: identifier(&columns.last_error),
            new: literal(new),
            published: literal(published),
            failed: literal(failed),
            unquoted: Unquoted {
                aggregate: outbox.columns.aggregate_id.clone(),
                position: columns.position.clone(),
                status: columns.status.clone(),
                next_attempt_at: columns.next_attempt_at.clone(),
            },
            lease: *lease,
            bounded: false,
        })
    }

    /// The same for a table whose positions are drawn by `next_position` or not, and with or without a time in `created_at`.
    pub fn with(self, bounded: bool, has_created_at: bool) -> Self {
        PolledTable { bounded, created_at: self.created_at.filter(|_| has_created_at), ..self }
    }

    /// The row of the alias `q` waits to be published. `q` may be empty.
    fn is_new(&self, q: &str) -> String {
        format!("{q}{} = {}", self.status, self.new)
    }

    /// It was refused and is tried again, or waits behind such a row.
    fn is_retry(&self, q: &str) -> String {
        format!("{} AND {q}{} IS NOT NULL", self.is_new(q), self.next_attempt_at)
    }

    /// It keeps later rows of its aggregate from being sent.
    pub fn holds_back(&self, q: &str) -> String {
        let PolledTable { status, new, failed, next_attempt_at, .. } = self;
        format!("{q}{status} IN ({new}, {failed}) AND {q}{next_attempt_at} IS NOT NULL")
    }

    /// The statements that create the indexes. `concurrently` for a table that is in use.
    pub fn indexes(&self, concurrently: bool) -> [String; 3] {
        let PolledTable { table, position, aggregate, next_attempt_at, .. } = self;
        let create = if concurrently { "INDEX CONCURRENTLY" } else { "INDEX" };
        [
            // unique, because rows are marked by their position
            format!("CREATE UNIQUE {create} ON {table} ({position}) WHERE {};", self.is_new("")),
            format!("CREATE {create} ON {table} ({aggregate}, {position}) WHERE {};", self.holds_back("")),
            format!(
                "CREATE {create} ON {table} ({next_attempt_at}, {position}) WHERE {};",
                self.is_retry("")
            ),
        ]
    }

    /// Whether the table has the indexes, each in a column.
    pub fn has_indexes(&self) -> String {
        // the condition is stored in the server's words
        let has = |column: &str, condition: &str| {
            format!(
                "EXISTS (SELECT FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] \
                 WHERE i.indrelid = {}::pg_catalog.regclass AND i.indisvalid AND a.attname = {} \
                 AND pg_catalog.strpos(pg_catalog.pg_get_expr(i.indpred, i.indrelid), {condition}) > 0)",
                self.outbox,
                literal(column)
            )
        };
        let Unquoted { aggregate, position, status, next_attempt_at } = &self.unquoted;
        let retried = format!("pg_catalog.quote_ident({}) || ' IS NOT NULL'", literal(next_attempt_at));
        format!(
            "SELECT {}, {}, {}",
            has(position, &format!("pg_catalog.quote_ident({})", literal(status))),
            has(aggregate, &retried),
            has(next_attempt_at, &retried)
        )
    }

    /// How many rows were refused too often; 10,000 means that or more.
    pub fn count_failed(&self) -> String {
        let PolledTable { table, status, failed, .. } = self;
        format!(
            "SELECT count(*) FROM (SELECT FROM {table} q WHERE {} AND q.{status} = {failed} LIMIT 10000) f",
            self.holds_back("q.")
        )
    }

    /// How many rows are due, when the oldest of them was inserted, in microseconds since 1970, and how many were refused too often;
    /// 10,000 means that or more.
    pub fn count(&self) -> String {
        let PolledTable { table, outbox, position, next_attempt_at, .. } = self;
        let inserted = self.inserted();
        let from = match self.bounded {
            false => "-9223372036854775808".to_owned(),
            true => format!(
                "coalesce((SELECT l.from_position FROM outbox_router.poll_claims l WHERE l.outbox = {outbox} \
                 ORDER BY l.id DESC LIMIT 1), -9223372036854775808)"
            ),
        };
        format!(
            "{BEGIN}; SELECT count(*), min(d.inserted), ({}) FROM ((SELECT {inserted} AS inserted FROM {table} q WHERE {} \
             AND q.{next_attempt_at} IS NULL AND q.{position} >= {from} ORDER BY q.{position} LIMIT 10000) UNION ALL \
             (SELECT {inserted} FROM {table} q WHERE {} AND q.{next_attempt_at} <= clock_timestamp() \
             ORDER BY q.{next_attempt_at}, q.{position} LIMIT 10000)) d; COMMIT",
            self.count_failed(),
            self.is_new("q."),
            self.is_retry("q."),
        )
    }

    /// When the row of the alias `q` was inserted, in microseconds since 1970.
    fn inserted(&self) -> String {
        let micros = |column: &String| {
            format!(
                "CASE WHEN isfinite(q.{column}) THEN (extract(epoch FROM q.{column}) * 1000000)::bigint END"
            )
        };
        self.created_at.as_ref().map_or_else(|| "NULL::bigint".to_owned(), micros)
    }

    /// The statement that takes the lock under which rows are claimed.
    pub fn lock(&self) -> String {
        format!("SELECT pg_catalog.pg_advisory_xact_lock({})", self.lock_key())
    }

    fn lock_key(&self) -> String {
        format!("hashtextextended({}, 7013)", self.outbox)
    }

    /// A condition on `o`: it is new, and has one of these positions, an expression of type `bigint[]`. Found row by row; the condition
    /// on the position is for rows that are changed meanwhile.
    fn is_new_at(&self, positions: &str, lock: &str) -> String {
        let PolledTable { table, position, .. } = self;
        format!(
            "o.ctid = ANY (ARRAY(SELECT f.ctid FROM unnest({positions}) u (at) CROSS JOIN LATERAL (SELECT q.ctid FROM {table} q \
             WHERE q.{position} = u.at AND {} ORDER BY q.{position} LIMIT 1{lock}) f)) AND o.{position} = ANY ({positions}) AND {}",
            self.is_new("q."),
            self.is_new("o.")
        )
    }

    /// Claims up to `limit` rows, of about `bytes` bytes, and reads them. The first row of the answer has one column: the number of
    /// the claim, [`BUSY`] if another router is just claiming or the next call will find more, or empty; then the rows follow, in the
    /// order of their positions. Each begins with the position, whether it was refused before or waited behind such a row, and the time
    /// of its insertion in microseconds since 1970; then `columns` follow.
    pub fn claim(&self, token: &str, limit: usize, bytes: usize, columns: &[String]) -> String {
        let outbox = &self.outbox;
        let PolledTable { table, position, next_attempt_at, .. } = self;
        let inserted = self.inserted();
        let selected: Vec<String> =
            columns.iter().map(|column| format!(", q.{}", identifier(column))).collect();
        format!(
            "{BEGIN}; SET LOCAL synchronous_commit = off; DO {}; COMMIT; \
             {BEGIN}; SET LOCAL lock_timeout = 0; {VALUE_TEXT}; SELECT current_setting('outbox_router.claim'); \
             SELECT f.* FROM unnest((SELECT c.positions FROM outbox_router.poll_claims c WHERE c.outbox = {outbox} \
             AND c.id = nullif(replace(current_setting('outbox_router.claim'), '{BUSY}', ''), '')::bigint)) u (at) \
             CROSS JOIN LATERAL (SELECT q.{position}, q.{next_attempt_at} IS NOT NULL, {inserted}{} FROM {table} q \
             WHERE q.{position} = u.at AND {} ORDER BY q.{position} LIMIT 1) f; COMMIT",
            dollar_quoted(&self.claim_block(token, limit, bytes)),
            selected.concat(),
            self.is_new("q."),
        )
    }

    /// The block that makes a claim, and leaves its number in a setting.
    fn claim_block(&self, token: &str, limit: usize, bytes: usize) -> String {
        let PolledTable {
            table,
            outbox,
            aggregate,
            payload,
            position,
            status,
            attempts,
            next_attempt_at,
            new,
            ..
        } = self;
        let (lock, lease, token) = (self.lock_key(), self.lease.as_millis(), literal(token));
        let (is_new, is_retry, holds_back) = (self.is_new("q."), self.is_retry("q."), self.holds_back("q."));
        let expired = self.is_new_at("live.positions", " FOR UPDATE SKIP LOCKED");
        let behind = self.is_new_at("claim.blocked", " FOR UPDATE SKIP LOCKED");
        let is_due = format!("{is_retry} AND q.{next_attempt_at} <= claim.moment");
        let first_held = format!(
            "(SELECT e.{position} FROM {table} e WHERE {} AND e.{aggregate} >= q.aggregate AND e.{aggregate} <= q.aggregate
          ORDER BY e.{aggregate}, e.{position} LIMIT 1)",
            self.holds_back("e.")
        );
        // The order matters. What had ended at the first snapshot is visible in the second, and this transaction gets its id after
        // that, so any row below `lowest` that is not visible belongs to a transaction with a lower id.
        let (read_bound, store_bound) = match self.bounded {
            false => ("last.from_position := -9223372036854775808;".to_owned(), ""),
            true => (
                format!(
                    "settled := last.candidate_xid <= pg_snapshot_xmin(pg_current_snapshot())
    -- it was not given yet, so it is that of the cluster from which the database was restored
    OR last.candidate_xid > pg_snapshot_xmax(pg_current_snapshot());
  SELECT q.{position} INTO lowest FROM {table} q
    WHERE {is_new} AND q.{next_attempt_at} IS NULL AND q.{position} >= last.from_position ORDER BY q.{position} LIMIT 1;
  IF NOT FOUND THEN
    SELECT s.last_value + s.is_called::integer INTO lowest FROM outbox_router.outbox_position s;
  END IF;
  IF settled THEN
    last.from_position := least(last.candidate_position, lowest);
    last.candidate_xid := NULL;
  END IF;"
                ),
                "IF last.candidate_xid IS NULL THEN
    last.candidate_position := lowest;
    last.candidate_xid := pg_current_xact_id();
  END IF;",
            ),
        };
        format!(
            "
#variable_conflict use_column
<<claim>>
DECLARE
  me CONSTANT uuid := {token};
  moment CONSTANT timestamptz := clock_timestamp();
  last outbox_router.poll_claims;
  live outbox_router.poll_claims;
  first_live bigint;
  claimed bigint[] := '{{}}';
  of_others bigint[] := '{{}}';
  fresh bigint[];
  due bigint[];
  hashes bigint[];
  due_hashes bigint[];
  blocked bigint[];
  looked_at bigint;
  cut bigint;
  lowest bigint;
  settled boolean;
BEGIN
  IF NOT pg_try_advisory_xact_lock({lock}) THEN
    PERFORM set_config('outbox_router.claim', '{BUSY}', false);
    RETURN;
  END IF;
  PERFORM set_config('outbox_router.claim', '', false);
  SELECT * INTO last FROM outbox_router.poll_claims c WHERE c.outbox = {outbox} ORDER BY c.id DESC LIMIT 1;
  last.from_position := coalesce(last.from_position, -9223372036854775808);
  {read_bound}
  FOR live IN SELECT * FROM outbox_router.poll_claims c WHERE c.outbox = {outbox} AND c.id >= last.oldest AND NOT c.ended ORDER BY c.id LOOP
    IF live.lease_until > claim.moment THEN
      first_live := coalesce(first_live, live.id);
      claimed := claimed || live.positions;
      IF live.token <> claim.me THEN
        of_others := of_others || live.aggregate_hashes;
      END IF;
      CONTINUE;
    END IF;
    -- its router may be about to end it
    UPDATE outbox_router.poll_claims c SET ended = true WHERE c.outbox = {outbox} AND c.id = live.id AND NOT c.ended;
    IF FOUND THEN
      UPDATE {table} o SET {attempts} = coalesce(o.{attempts}, 0) + 1 WHERE {expired};
    END IF;
  END LOOP;

  -- rows that were never refused
  SELECT array_agg(w.at) FILTER (WHERE NOT w.blocked AND w.before < {bytes}), array_agg(w.hash) FILTER (WHERE NOT w.blocked),
      array_agg(w.at) FILTER (WHERE w.blocked), count(*), min(w.at) FILTER (WHERE NOT w.blocked AND w.before >= {bytes})
    INTO fresh, hashes, blocked, looked_at, cut FROM (
      SELECT q.at, q.hash, {first_held} < q.at IS TRUE AS blocked, sum(q.bytes) OVER (ROWS UNBOUNDED PRECEDING) - q.bytes AS before FROM (
        SELECT q.{position} AS at, q.{aggregate} AS aggregate, hashtextextended(q.{aggregate}::text, 0) AS hash,
            coalesce(pg_column_size(q.{payload}), 0) AS bytes
          FROM {table} q WHERE {is_new} AND q.{next_attempt_at} IS NULL AND q.{position} >= last.from_position
          ORDER BY q.{position} LIMIT {MAX_ROWS_SCANNED}) q
        WHERE q.at NOT IN (SELECT unnest(claim.claimed)) AND (q.hash IS NULL OR q.hash NOT IN (SELECT unnest(claim.of_others)))
        LIMIT {limit}) w;
  -- they wait until the row before them is published, and are not looked at again until then
  UPDATE {table} o SET {next_attempt_at} = 'infinity' WHERE {behind} AND o.{next_attempt_at} IS NULL;

  -- rows that were refused, and those behind them, once the first of their aggregate is due
  IF EXISTS (SELECT FROM {table} q WHERE {is_due} ORDER BY q.{next_attempt_at}, q.{position} LIMIT 1) THEN
    -- an earlier row of the aggregate may be among the rows that were not looked at
    IF looked_at >= {limit} THEN
      cut := least(cut, (SELECT max(u) FROM unnest(fresh || blocked) u) + 1);
    END IF;
    cut := coalesce(least(cut, (SELECT q.{position} FROM {table} q
      WHERE {is_new} AND q.{next_attempt_at} IS NULL AND q.{position} >= last.from_position
      ORDER BY q.{position} OFFSET {MAX_ROWS_SCANNED} LIMIT 1)), 9223372036854775807);
    SELECT array_agg(d.at), array_agg(d.hash) INTO due, due_hashes FROM (
      SELECT r.at, r.hash, sum(r.bytes) OVER (ROWS UNBOUNDED PRECEDING) - r.bytes AS before FROM (
        SELECT b.at, a.hash, b.bytes FROM (
          SELECT DISTINCT d.aggregate, hashtextextended(d.aggregate::text, 0) AS hash FROM (
            SELECT q.{aggregate} AS aggregate FROM {table} q WHERE {is_due} AND q.{aggregate} IS NOT NULL
              ORDER BY q.{next_attempt_at}, q.{position} LIMIT {limit}) d) a
          CROSS JOIN LATERAL (
            SELECT l.at, l.bytes, bool_and(l.due) OVER (ORDER BY l.at) AS due FROM (
              SELECT q.{position} AS at, coalesce(pg_column_size(q.{payload}), 0) AS bytes,
                  q.{status} = {new} AND q.{next_attempt_at} <= claim.moment AND q.{position} < claim.cut AS due FROM {table} q
                WHERE {holds_back} AND q.{aggregate} >= a.aggregate AND q.{aggregate} <= a.aggregate
                ORDER BY q.{aggregate}, q.{position} LIMIT {MAX_ROWS_BEHIND}) l) b
          WHERE b.due AND a.hash NOT IN (SELECT unnest(claim.of_others))
        UNION ALL
        SELECT q.at, NULL, q.bytes FROM (SELECT q.{position} AS at, coalesce(pg_column_size(q.{payload}), 0) AS bytes FROM {table} q
          WHERE {is_due} AND q.{aggregate} IS NULL
          ORDER BY q.{next_attempt_at}, q.{position} LIMIT {limit}) q) r
        WHERE r.at NOT IN (SELECT unnest(claim.claimed))
        LIMIT {limit}) d
      WHERE d.before < {bytes};
  END IF;
  due := due || fresh;
  hashes := hashes || due_hashes;
  IF due IS NULL THEN
    IF blocked IS NOT NULL THEN
      PERFORM set_config('outbox_router.claim', '{BUSY}', false);
    END IF;
    RETURN;
  END IF;
  {store_bound}
  last.id := coalesce(last.id, 0) + 1;
  INSERT INTO outbox_router.poll_claims
      (outbox, id, token, lease_until, ended, oldest, positions, aggregate_hashes, from_position, candidate_position, candidate_xid)
    VALUES ({outbox}, last.id, claim.me, clock_timestamp() + interval '{lease} ms', false, coalesce(first_live, last.id),
      ARRAY(SELECT u FROM unnest(claim.due) u ORDER BY u), ARRAY(SELECT DISTINCT h FROM unnest(claim.hashes) h WHERE h IS NOT NULL),
      last.from_position, last.candidate_position, last.candidate_xid);
  DELETE FROM outbox_router.poll_claims c WHERE c.outbox = {outbox} AND c.id >= last.oldest - 100 AND c.id < last.oldest AND c.ended;
  PERFORM set_config('outbox_router.claim', last.id::text, false);
END "
        )
    }

    /// Marks rows of a claim as published, and ends the claim if `last` says that it has no others and all of them were marked. With
    /// `retried`, some were refused before: then rows behind them become due. With `skip_locked`, rows that another transaction has
    /// locked are left out. Returns whether the claim is still this router's, the positions that were marked, and whether the claim has
    /// ended.
    pub fn publish(
        &self,
        claim: &OwnClaim<'_>,
        positions: &[i64],
        last: bool,
        retried: bool,
        skip_locked: bool,
    ) -> String {
        let PolledTable {
            table,
            aggregate,
            position,
            status,
            published,
            attempts,
            next_attempt_at,
            published_at,
            last_error,
            outbox,
            ..
        } = self;
        let lock = if skip_locked { " FOR UPDATE SKIP LOCKED" } else { "" };
        let (first, then) = match retried {
            false => (String::new(), String::new()),
            // otherwise another router could add a row behind the last one just now
            true => (
                format!("{}; ", self.lock()),
                format!(
                    "{}; ",
                    self.release_behind(&format!(
                        "SELECT DISTINCT x.{aggregate} FROM unnest(current_setting('outbox_router.rows')::tid[]) r (at) \
                         JOIN {table} x ON x.ctid = r.at WHERE x.{aggregate} IS NOT NULL"
                    ))
                ),
            ),
        };
        format!(
            "{BEGIN}; {first}WITH {}, p AS (UPDATE {table} o SET {status} = {published}, {attempts} = coalesce(o.{attempts}, 0) + 1, \
             {published_at} = clock_timestamp(), {next_attempt_at} = NULL, {last_error} = NULL \
             WHERE (SELECT count(*) FROM c) > 0 AND {} RETURNING o.ctid AS row, o.{position} AS at), \
             e AS (UPDATE outbox_router.poll_claims x SET ended = true WHERE {last} AND x.outbox = {outbox} \
             AND x.id = (SELECT c.id FROM c) AND (SELECT count(*) FROM p) = {} RETURNING 1) \
             SELECT (SELECT count(*) FROM c), coalesce((SELECT array_agg(p.at) FROM p), '{{}}'), (SELECT count(*) FROM e), \
             set_config('outbox_router.rows', coalesce((SELECT array_agg(p.row) FROM p), '{{}}')::text, true); {then}COMMIT",
            self.still_own(claim),
            self.is_new_at(&array(positions), lock),
            positions.len(),
        )
    }

    /// Records that a row was refused. Rows behind it that are due wait for it again. Returns whether the claim is still this router's,
    /// and the number of refusals, which is NULL if somebody has changed or deleted the row.
    pub fn refuse(&self, claim: &OwnClaim<'_>, position: i64, reason: &str) -> String {
        let PolledTable {
            table,
            aggregate,
            position: at,
            status,
            failed,
            attempts,
            refusals,
            next_attempt_at,
            last_error,
            ..
        } = self;
        let counted = format!("coalesce(o.{refusals}, 0) + 1");
        format!(
            "{BEGIN}; WITH {}, p AS (UPDATE {table} o SET {attempts} = coalesce(o.{attempts}, 0) + 1, {refusals} = {counted}, \
             {last_error} = {}, {status} = CASE WHEN {counted} >= {MAX_REFUSALS} THEN {failed} ELSE o.{status} END, \
             {next_attempt_at} = CASE WHEN {counted} >= {MAX_REFUSALS} THEN 'infinity' \
             ELSE clock_timestamp() + ({DELAYS})[least({counted}, 5)] END \
             WHERE (SELECT count(*) FROM c) > 0 AND {} RETURNING o.ctid AS row, o.{refusals} AS refusals) \
             SELECT (SELECT count(*) FROM c), (SELECT p.refusals FROM p), \
             set_config('outbox_router.rows', coalesce((SELECT array_agg(p.row) FROM p), '{{}}')::text, true); \
             UPDATE {table} o SET {next_attempt_at} = 'infinity' WHERE o.ctid = ANY (ARRAY(SELECT f.row \
             FROM unnest(current_setting('outbox_router.rows')::tid[]) r (row) JOIN {table} x ON x.ctid = r.row \
             CROSS JOIN LATERAL (SELECT q.ctid AS row FROM {table} q WHERE {} AND q.{aggregate} >= x.{aggregate} \
             AND q.{aggregate} <= x.{aggregate} AND q.{at} > x.{at} ORDER BY q.{aggregate}, q.{at} LIMIT {MAX_ROWS_BEHIND} \
             FOR UPDATE SKIP LOCKED) f)) AND {} AND o.{next_attempt_at} < 'infinity'; COMMIT",
            self.still_own(claim),
            literal(&reason.replace('\0', "")),
            self.is_new_at(&array(&[position]), ""),
            self.holds_back("q."),
            self.is_retry("o."),
        )
    }

    /// The claim, locked until the end of the transaction, so that nobody takes it over meanwhile.
    fn still_own(&self, claim: &OwnClaim<'_>) -> String {
        format!(
            "c AS MATERIALIZED (SELECT c.id FROM outbox_router.poll_claims c WHERE c.outbox = {} AND c.id = {} AND c.token = {} \
             AND NOT c.ended FOR NO KEY UPDATE)",
            self.outbox,
            claim.id,
            literal(claim.token)
        )
    }

    /// Ends all claims with this token. The rows at `tried` may have been sent, and nobody knows whether they have arrived.
    pub fn release(&self, token: &str, tried: &[i64]) -> String {
        let PolledTable { table, outbox, attempts, .. } = self;
        format!(
            "{BEGIN}; WITH c AS MATERIALIZED (UPDATE outbox_router.poll_claims c SET ended = true WHERE c.outbox = {outbox} AND c.id >= \
             (SELECT l.oldest FROM outbox_router.poll_claims l WHERE l.outbox = {outbox} ORDER BY l.id DESC LIMIT 1) \
             AND c.token = {} AND NOT c.ended RETURNING 1) UPDATE {table} o SET {attempts} = coalesce(o.{attempts}, 0) + 1 \
             WHERE (SELECT count(*) FROM c) > 0 AND {}; \
             DELETE FROM outbox_router.poll_claims c WHERE c.outbox = {outbox} AND c.ended AND c.id < (SELECT l.oldest - 100 \
             FROM outbox_router.poll_claims l WHERE l.outbox = {outbox} ORDER BY l.id DESC LIMIT 1); COMMIT",
            literal(token),
            self.is_new_at(&array(tried), " FOR UPDATE SKIP LOCKED"),
        )
    }

    /// Makes rows due whose predecessors are gone, whoever has removed them.
    pub fn release_orphans(&self) -> String {
        format!("{BEGIN}; {}; {}; COMMIT", self.lock(), self.release_all())
    }

    /// The same as one statement, for a transaction that has the lock.
    pub fn release_all(&self) -> String {
        let PolledTable { table, aggregate, position, .. } = self;
        let holds_back = self.holds_back("q.");
        self.release_behind(&format!(
            "WITH RECURSIVE a AS ((SELECT q.{aggregate} AS id FROM {table} q WHERE {holds_back} AND q.{aggregate} IS NOT NULL \
             ORDER BY q.{aggregate}, q.{position} LIMIT 1) UNION ALL SELECT (SELECT q.{aggregate} FROM {table} q \
             WHERE {holds_back} AND q.{aggregate} > a.id ORDER BY q.{aggregate}, q.{position} LIMIT 1) FROM a WHERE a.id IS NOT NULL) \
             SELECT a.id FROM a WHERE a.id IS NOT NULL"
        ))
    }

    /// Makes rows due that somebody has set back to new below the bound, where no claim looks for them. Reads the whole index, also
    /// what cannot be vacuumed. `None`: claims have no bound.
    pub fn release_set_back(&self) -> Option<String> {
        let PolledTable { table, outbox, position, next_attempt_at, .. } = self;
        self.bounded.then(|| {
            format!(
                "{BEGIN}; UPDATE {table} o SET {next_attempt_at} = now() WHERE o.ctid = ANY (ARRAY(SELECT q.ctid FROM {table} q \
                 WHERE {} AND q.{next_attempt_at} IS NULL AND q.{position} < (SELECT l.from_position FROM outbox_router.poll_claims l \
                 WHERE l.outbox = {outbox} ORDER BY l.id DESC LIMIT 1) ORDER BY q.{position} LIMIT {MAX_ROWS_BEHIND} \
                 FOR UPDATE SKIP LOCKED)) AND {} AND o.{next_attempt_at} IS NULL; COMMIT",
                self.is_new("q."),
                self.is_new("o.")
            )
        })
    }

    /// A statement that makes the first rows of these aggregates due, unless one before them was refused.
    fn release_behind(&self, aggregates: &str) -> String {
        let PolledTable { table, aggregate, position, status, new, next_attempt_at, .. } = self;
        format!(
            "UPDATE {table} o SET {next_attempt_at} = now() WHERE o.ctid = ANY (ARRAY(SELECT y.ctid FROM {table} y WHERE y.ctid = ANY \
             (ARRAY(SELECT f.row FROM ({aggregates}) a (id) \
             CROSS JOIN LATERAL (SELECT l.row, bool_and(l.behind) OVER (ORDER BY l.at) AS behind FROM (SELECT q.ctid AS row, \
             q.{position} AS at, q.{status} = {new} AND q.{next_attempt_at} = 'infinity' AS behind FROM {table} q \
             WHERE {} AND q.{aggregate} >= a.id AND q.{aggregate} <= a.id \
             ORDER BY q.{aggregate}, q.{position} LIMIT {MAX_ROWS_BEHIND}) l) f WHERE f.behind)) FOR UPDATE SKIP LOCKED)) \
             AND {} AND o.{next_attempt_at} = 'infinity'",
            self.holds_back("q."),
            self.is_new("o.")
        )
    }
}

/// An array of numbers as a literal.
fn array(numbers: &[i64]) -> String {
    let numbers: Vec<String> = numbers.iter().map(i64::to_string).collect();
    format!("'{{{}}}'::bigint[]", numbers.join(","))
}
