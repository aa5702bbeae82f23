//! Writers that commit events continuously, and record what they committed.

use std::time::Duration;

use anyhow::Context;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_postgres::Client;

use crate::database::Server;

const WRITERS: u64 = 4;
const AGGREGATES: i32 = 50;
/// Slow enough for one machine that also runs Connect, the router and the servers.
const PAUSE: Duration = Duration::from_millis(15);

/// The lock on the aggregate is held until the end of the transaction, so that its numbers are in commit order.
const INSERT: &str = "\
    WITH next AS (UPDATE aggregate SET number = number + 1 WHERE id = $1 RETURNING id, number) \
    INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
    SELECT gen_random_uuid(), 'order', id::text, 'Counted', jsonb_build_object('aggregate', id, 'number', number, \
      'text', repeat('ü€\"', (number % 20)::integer)) FROM next \
    RETURNING id::text, (payload->>'number')::bigint";

/// A committed row of the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) aggregate: i32,
    /// Its number within its aggregate, from 1.
    pub(crate) number: i64,
}

/// The running writers; dropping it ends them.
pub(crate) struct Writers {
    tasks: JoinSet<anyhow::Result<Vec<Row>>>,
    end: watch::Sender<bool>,
}

impl Writers {
    /// Starts the writers.
    pub(crate) async fn start(server: &Server, database: &str) -> anyhow::Result<Self> {
        let (end, ended) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for seed in 0..WRITERS {
            let client = server.connect_to(database).await?;
            tasks.spawn(write(client, StdRng::seed_from_u64(seed), ended.clone()));
        }
        Ok(Writers { tasks, end })
    }

    /// Fails if a writer has ended.
    pub(crate) fn are_well(&mut self) -> anyhow::Result<()> {
        match self.tasks.try_join_next() {
            None => Ok(()),
            Some(writer) => writer
                .context("wait for a writer")?
                .and_then(|_| anyhow::bail!("it ended before its time"))
                .context("a writer"),
        }
    }

    /// Ends the writers, and returns what they committed.
    pub(crate) async fn end(mut self) -> anyhow::Result<Vec<Row>> {
        self.end.send_replace(true);
        let mut rows = Vec::new();
        while let Some(writer) = self.tasks.join_next().await {
            rows.extend(writer.context("wait for a writer")?.context("a writer")?);
        }
        Ok(rows)
    }
}

/// Writes transactions of one to three rows; one in ten is rolled back.
async fn write(
    mut client: Client,
    mut random: StdRng,
    ended: watch::Receiver<bool>,
) -> anyhow::Result<Vec<Row>> {
    let insert = client.prepare(INSERT).await.context("prepare")?;
    let mut committed = Vec::new();
    while !*ended.borrow() {
        let transaction = client.transaction().await.context("begin")?;
        let mut aggregates: Vec<i32> =
            (0..random.random_range(1..=3)).map(|_| random.random_range(1..=AGGREGATES)).collect();
        // the same order in every transaction avoids deadlocks
        aggregates.sort_unstable();
        let mut rows = Vec::new();
        for aggregate in aggregates {
            let row = transaction.query_one(&insert, &[&aggregate]).await.context("insert")?;
            rows.push(Row { id: row.try_get(0)?, aggregate, number: row.try_get(1)? });
        }
        if random.random_ratio(1, 10) {
            transaction.rollback().await.context("roll back")?;
        } else {
            transaction.commit().await.context("commit")?;
            committed.extend(rows);
        }
        sleep(PAUSE).await;
    }
    Ok(committed)
}
