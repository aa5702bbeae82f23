//! Stores what has become of rows, and makes rows due that have waited for others.

use pg_logical::quoting::literal;

use super::{MAX_REFUSALS, MAX_ROWS_BEHIND, OwnClaim, PolledTable, array, begin};

/// The delays between refusals; the last one is repeated.
const DELAYS: &str = "ARRAY[interval '5 s', '30 s', '5 min', '30 min', '4 h']";

/// What to do about rows that another transaction has locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowLocks {
    /// Wait for each row, which may be changed meanwhile, and is then left out.
    None,
    /// Lock all rows first.
    Wait,
    /// Leave them out.
    Skip,
}

impl PolledTable {
    /// Marks rows of a claim as published, and ends the claim if `last` says that it has no others and all of them were marked. With
    /// `retried`, some were refused before: then rows behind them become due. Returns whether the claim is still this router's, the
    /// positions that were marked, and whether the claim has ended. With [`RowLocks::Wait`] a row follows with how many are not marked
    /// although nobody else can have changed them: the table does not allow it.
    pub fn publish(
        &self,
        claim: &OwnClaim<'_>,
        positions: &[i64],
        (last, retried): (bool, bool),
        locks: RowLocks,
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
        let lock = if locks == RowLocks::Skip { " FOR UPDATE SKIP LOCKED" } else { "" };
        let is_new = self.is_new_at(&array(positions), "");
        let (lock_rows, count_rest) = match locks {
            RowLocks::Wait => (
                format!("SELECT FROM {table} o WHERE {is_new} FOR NO KEY UPDATE; "),
                format!("SELECT count(*) FROM {table} o WHERE {is_new}; "),
            ),
            RowLocks::None | RowLocks::Skip => (String::new(), String::new()),
        };
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
        let begin = begin();
        format!(
            "{begin}; {first}{lock_rows}WITH {}, p AS (UPDATE {table} o SET {status} = {published}, {attempts} = coalesce(o.{attempts}, 0) + 1, \
             {published_at} = clock_timestamp(), {next_attempt_at} = NULL, {last_error} = NULL \
             WHERE (SELECT count(*) FROM c) > 0 AND {} RETURNING o.ctid AS row, o.{position} AS at, o.{status} = {published} AS done), \
             e AS (UPDATE outbox_router.poll_claims x SET ended = true WHERE {last} AND x.outbox = {outbox} \
             AND x.id = (SELECT c.id FROM c) AND (SELECT count(*) FROM p WHERE p.done) = {} RETURNING 1) \
             SELECT (SELECT count(*) FROM c), coalesce((SELECT array_agg(p.at) FROM p WHERE p.done), '{{}}'), (SELECT count(*) FROM e), \
             set_config('outbox_router.rows', coalesce((SELECT array_agg(p.row) FROM p), '{{}}')::text, true); {then}{count_rest}COMMIT",
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
        let begin = begin();
        format!(
            "{begin}; WITH {}, p AS (UPDATE {table} o SET {attempts} = coalesce(o.{attempts}, 0) + 1, {refusals} = {counted}, \
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
        let begin = begin();
        format!(
            "{begin}; WITH c AS MATERIALIZED (UPDATE outbox_router.poll_claims c SET ended = true WHERE c.outbox = {outbox} AND c.id >= \
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
        let begin = begin();
        format!("{begin}; {}; {}; COMMIT", self.lock(), self.release_all())
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
            let begin = begin();
            format!(
                "{begin}; UPDATE {table} o SET {next_attempt_at} = now() WHERE o.ctid = ANY (ARRAY(SELECT q.ctid FROM {table} q \
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
