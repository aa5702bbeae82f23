//! A backlog: rows that are committed before a router starts, after the position of its slot.

use anyhow::Context;
use indicatif::HumanCount;
use serde::Serialize;

use super::ground::Ground;
use super::progress::Progress;

/// The rows that one statement writes; more if one transaction has more.
const CHUNK: u64 = 50_000;
/// The bytes of a payload besides its text.
const AROUND: u64 = 30;
/// The length of an md5 as text.
const PIECE: u64 = 32;
/// Payloads from this size repeat one md5, and Postgres is told not to compress them. Generating different ones would take longer
/// than the measurement.
const REPEATED_FROM: u64 = 4_000;

/// The rows of a backlog.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Backlog {
    /// The name of the slot that begins before the backlog. Also the aggregate type of its rows, or its prefix if there are
    /// several.
    pub(crate) name: String,
    pub(crate) rows: u64,
    /// The approximate size of each payload in bytes.
    pub(crate) payload: u64,
    pub(crate) rows_of_a_transaction: u64,
    /// The number of keys, `key-0` and so on, which the rows use in turn.
    pub(crate) aggregates: u64,
    /// The number of aggregate types.
    pub(crate) types: u64,
}

impl Backlog {
    /// Creates the slot, and writes the rows.
    pub(crate) async fn write(&self, ground: &Ground, progress: &Progress) -> anyhow::Result<()> {
        ground.create_slot(&self.name).await?;
        let storage = if self.is_repeated() { "EXTERNAL" } else { "EXTENDED" };
        // the measurement begins after the checkpoint below
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

    /// The rows per statement: a multiple of a transaction's rows.
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
    fn statement_writes_whole_transactions() {
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
