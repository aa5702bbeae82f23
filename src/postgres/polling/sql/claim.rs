//! Claims rows, and reads them.

use pg_logical::quoting::{dollar_quoted, identifier, literal};

use super::{BUSY, MAX_ROWS_BEHIND, PolledTable, UNPLACED, begin};
use crate::postgres::rows::VALUE_TEXT;
use crate::postgres::rows::page::size_of;

/// How many rows one claim looks at.
const MAX_ROWS_SCANNED: usize = 20_000;

impl PolledTable {
    /// Claims up to `limit` rows, of about `bytes` bytes, and reads them. The first row of the answer has one column: the number of
    /// the claim, [`BUSY`] if another router is just claiming or the next call will find more, [`UNPLACED`], or empty; then the rows
    /// follow, in the order of their positions. Each begins with the position, whether it was refused before or waited behind such a row, and the time
    /// of its insertion in microseconds since 1970; then `columns` follow.
    pub fn claim(&self, token: &str, limit: usize, bytes: usize, columns: &[String]) -> String {
        let outbox = &self.outbox;
        let PolledTable { table, position, next_attempt_at, .. } = self;
        let inserted = self.inserted();
        let selected: Vec<String> =
            columns.iter().map(|column| format!(", q.{}", identifier(column))).collect();
        let begin = begin();
        format!(
            "{begin}; SET LOCAL synchronous_commit = off; DO {}; COMMIT; \
             {begin}; SET LOCAL lock_timeout = 0; {VALUE_TEXT}; SELECT current_setting('outbox_router.claim'); \
             SELECT f.* FROM unnest((SELECT c.positions FROM outbox_router.poll_claims c WHERE c.outbox = {outbox} \
             AND c.id = substring(current_setting('outbox_router.claim') FROM '^[0-9]+$')::bigint)) u (at) \
             CROSS JOIN LATERAL (SELECT q.{position}, q.{next_attempt_at} IS NOT NULL, {inserted}{} FROM {table} q \
             WHERE q.{position} = u.at AND {} ORDER BY q.{position} LIMIT 1) f; COMMIT",
            dollar_quoted(&self.claim_block(token, limit, bytes, columns)),
            selected.concat(),
            self.is_new("q."),
        )
    }

    /// The block that makes a claim, and leaves its number in a setting.
    fn claim_block(&self, token: &str, limit: usize, bytes: usize, columns: &[String]) -> String {
        let PolledTable {
            table, outbox, aggregate, position, status, attempts, next_attempt_at, new, ..
        } = self;
        let (lock, lease, token) = (self.lock_key(), self.lease.as_millis(), literal(token));
        let has_unplaced = self.has_unplaced();
        let numbered = |part: &dyn Fn(usize, &String) -> String| -> Vec<String> {
            columns.iter().enumerate().map(|(number, column)| part(number, column)).collect()
        };
        let values = numbered(&|number, column| format!(", q.{} AS v{number}", identifier(column))).concat();
        let passed = |q: &str| numbered(&|number, _| format!(", {q}.v{number}")).concat();
        let (of_behind, of_row) = (passed("l"), passed("b"));
        // only of rows that may be claimed, because compressed values have to be looked at
        let size = numbered(&|number, _| size_of(&format!("v{number}"))).join(" + ");
        let before = format!(
            "coalesce(sum({size}) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before"
        );
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
  SELECT array_agg(w.at) FILTER (WHERE NOT w.blocked AND w.before < {bytes}), array_agg(w.hash) FILTER (WHERE NOT w.blocked AND w.before < {bytes}),
      array_agg(w.at) FILTER (WHERE w.blocked), count(*), min(w.at) FILTER (WHERE NOT w.blocked AND w.before >= {bytes})
    INTO fresh, hashes, blocked, looked_at, cut FROM (
      SELECT q.at, q.hash, {first_held} < q.at IS TRUE AS blocked, {before} FROM (
        SELECT q.{position} AS at, q.{aggregate} AS aggregate, hashtextextended(q.{aggregate}::text, 0) AS hash{values}
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
      SELECT q.at, q.hash, {before} FROM (
        SELECT b.at, a.hash{of_row} FROM (
          SELECT DISTINCT d.aggregate, hashtextextended(d.aggregate::text, 0) AS hash FROM (
            SELECT q.{aggregate} AS aggregate FROM {table} q WHERE {is_due} AND q.{aggregate} IS NOT NULL
              ORDER BY q.{next_attempt_at}, q.{position} LIMIT {limit}) d) a
          CROSS JOIN LATERAL (
            SELECT l.at{of_behind}, bool_and(l.due) OVER (ORDER BY l.at) AS due FROM (
              SELECT q.{position} AS at{values},
                  q.{status} = {new} AND q.{next_attempt_at} <= claim.moment AND q.{position} < claim.cut AS due FROM {table} q
                WHERE {holds_back} AND q.{aggregate} >= a.aggregate AND q.{aggregate} <= a.aggregate
                ORDER BY q.{aggregate}, q.{position} LIMIT {MAX_ROWS_BEHIND}) l) b
          WHERE b.due AND a.hash NOT IN (SELECT unnest(claim.of_others))
        UNION ALL
        (SELECT q.{position}, NULL{values} FROM {table} q WHERE {is_due} AND q.{aggregate} IS NULL
          ORDER BY q.{next_attempt_at}, q.{position} LIMIT {limit})) q
        WHERE q.at NOT IN (SELECT unnest(claim.claimed))
        LIMIT {limit}) d
      WHERE d.before < {bytes};
  END IF;
  -- after the rows were read: a row that is visible to a statement is visible to the next
  IF {has_unplaced} THEN
    PERFORM set_config('outbox_router.claim', '{UNPLACED}', false);
    RETURN;
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
}
