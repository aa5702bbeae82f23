//! Rows that are there before a router starts, behind a slot that begins before them.

use anyhow::Context;
use indicatif::HumanCount;
use serde::Serialize;

use super::ground::Ground;
use super::progress::Progress;

/// What one statement writes, or more if a transaction has more.
const CHUNK: u64 = 50_000;
/// What a payload has besides its text.
const AROUND: u64 = 30;
/// Of one md5 as text.
const PIECE: u64 = 32;
/// Larger payloads are one piece again and again, which Postgres is told not to compress: making them of different ones
/// takes longer than all that is measured.
const REPEATED_FROM: u64 = 4_000;

/// The rows of a backlog.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Backlog {
    /// The slot that begins before it; also the aggregate type of its rows, or what those begin with.
    pub(crate) name: String,
    pub(crate) rows: u64,
    /// About so many bytes of JSON each.
    pub(crate) payload: u64,
    pub(crate) rows_of_a_transaction: u64,
    /// Rows take turns at their keys, `key-0` and so on.
    pub(crate) aggregates: u64,
    /// Of this many types, if more than one.
    pub(crate) types: u64,
}

impl Backlog {
    /// Makes the slot, and writes the rows.
    pub(crate) async fn write(&self, ground: &Ground, progress: &Progress) -> anyhow::Result<()> {
        ground.make_slot(&self.name).await?;
        let storage = if self.is_repeated() { "EXTERNAL" } else { "EXTENDED" };
        // nobody waits for these, and what is measured begins afterwards
        let before = format!(
            "SET synchronous_commit = off; ALTER TABLE outbox ALTER COLUMN payload SET STORAGE {storage}"
        );
        ground.client.batch_execute(&before).await?;
        let (mut from, chunk) = (0, self.chunk());
        while from < self.rows {
            progress.now(&format!(
                "{}: {} of {} rows written",
                self.name,
                HumanCount(from),
                HumanCount(self.rows)
            ));
            let end = self.rows.min(from + chunk);
            ground.client.batch_execute(&self.insert(from, end)).await.context("write the backlog")?;
            from = end;
        }
        Ok(ground.client.batch_execute("RESET synchronous_commit; CHECKPOINT").await?)
    }

    fn is_repeated(&self) -> bool {
        self.payload >= REPEATED_FROM
    }

    /// Whole transactions.
    fn chunk(&self) -> u64 {
        CHUNK.div_ceil(self.rows_of_a_transaction) * self.rows_of_a_transaction
    }

    /// Rows `from` to before `end`.
    fn insert(&self, from: u64, end: u64) -> String {
        let Backlog { name, aggregates, types, rows_of_a_transaction, .. } = self;
        let pieces = self.payload.saturating_sub(AROUND).div_ceil(PIECE).max(1);
        let text = if self.is_repeated() {
            format!("repeat(md5(n::text), {pieces})")
        } else {
            format!("(SELECT string_agg(md5(n || '-' || part), '') FROM generate_series(1, {pieces}) part)")
        };
        let kind = if *types > 1 { format!("'{name}-' || n % {types}") } else { format!("'{name}'") };
        format!(
            "DO $$ BEGIN
               FOR start_row IN {from}..{last} BY {rows_of_a_transaction} LOOP
                 INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
                 SELECT {kind}, 'key-' || n % {aggregates}, 'Measured', jsonb_build_object('n', n, 'text', {text})
                 FROM generate_series(start_row, least(start_row + {rows_of_a_transaction} - 1, {last})) n;
                 COMMIT;
               END LOOP;
             END $$",
            last = end - 1
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_has_whole_transactions() {
        let backlog = |rows_of_a_transaction| Backlog {
            name: "b".to_owned(),
            rows: 1_000_000,
            payload: 300,
            rows_of_a_transaction,
            aggregates: 10,
            types: 1,
        };
        assert_eq!([1, 7, 60_000].map(|rows| backlog(rows).chunk()), [50_000, 50_001, 60_000]);
    }
}
