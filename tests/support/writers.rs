//! Applications that write transactions of several rows. Some roll back, in part or as a whole.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_postgres::{Client, Transaction};

use super::outbox::{Outbox, connect};

/// Every event takes the next version of its aggregate, and locks the aggregate's row until the commit. So versions are in commit
/// order, and a rollback leaves no gap.
const AGGREGATES: &str = "CREATE TABLE aggregate (id text PRIMARY KEY, type text NOT NULL, version int NOT NULL DEFAULT 0); \
     INSERT INTO aggregate (id, type) SELECT 'aggregate-' || n, (ARRAY['order', 'customer', 'invoice'])[n % 3 + 1] \
     FROM generate_series(0, 19) n";

/// How often an application pauses after a transaction. Between two pauses it writes as fast as it can, and the pauses are long
/// enough for the router to catch up on a slow machine.
const PAUSE_PROBABILITY: f64 = 1.0 / 20.0;

/// In milliseconds.
const PAUSE: RangeInclusive<u64> = 100..=700;

/// Writers that run until [`Writers::finish`].
pub(crate) struct Writers {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

/// How a transaction ends.
const ROLLED_BACK: &str = "rolled back";
const COMMITTED: &str = "committed";

impl Writers {
    /// Starts this many writers. A writer whose connection ends reconnects.
    pub(crate) async fn start(outbox: &Outbox, count: usize, random: &mut StdRng) -> Self {
        outbox.execute(AGGREGATES).await;
        let stop = Arc::new(AtomicBool::new(false));
        let task = |number: usize| {
            let (url, stop) = (outbox.url(), Arc::clone(&stop));
            let mut random = StdRng::seed_from_u64(random.random());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    if let Ok(mut client) = connect(&url).await {
                        // the tests compare with the table, so the writer need not know what was committed
                        while !stop.load(Ordering::Relaxed)
                            && transaction(&mut client, number, &mut random).await.is_ok()
                        {
                            if random.random_bool(PAUSE_PROBABILITY) {
                                sleep(Duration::from_millis(random.random_range(PAUSE))).await;
                            }
                        }
                    }
                    tokio::task::yield_now().await;
                }
            })
        };
        let tasks = (0..count).map(task).collect();
        Writers { stop, tasks }
    }

    /// Stops the writers after their current transactions.
    pub(crate) async fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

async fn transaction(
    client: &mut Client,
    writer: usize,
    random: &mut StdRng,
) -> Result<(), tokio_postgres::Error> {
    let fate = if random.random_bool(0.2) { ROLLED_BACK } else { COMMITTED };
    let mut transaction = client.transaction().await?;
    // sorted, so that writers do not deadlock
    let mut aggregates: Vec<u32> =
        (0..random.random_range(1..5)).map(|_| random.random_range(0..20)).collect();
    aggregates.sort_unstable();
    for aggregate in aggregates {
        if random.random_bool(0.2) {
            let savepoint = transaction.savepoint("part").await?;
            if random.random_bool(0.5) {
                event(&savepoint, writer, aggregate, fate, random).await?;
                savepoint.commit().await?;
            } else {
                event(&savepoint, writer, aggregate, ROLLED_BACK, random).await?;
                savepoint.rollback().await?;
            }
        } else {
            event(&transaction, writer, aggregate, fate, random).await?;
        }
    }
    if fate == COMMITTED { transaction.commit().await } else { transaction.rollback().await }
}

async fn event(
    transaction: &Transaction<'_>,
    writer: usize,
    aggregate: u32,
    fate: &str,
    random: &mut StdRng,
) -> Result<(), tokio_postgres::Error> {
    let alphabet: Vec<char> = "abc \"\\/{}[],:'\t\n\u{1}äß€😀日本".chars().collect();
    let text: String = (0..random.random_range(0..300)).map(|_| *alphabet.choose(random).unwrap()).collect();
    let payload = serde_json::json!({ "writer": writer, "fate": fate, "text": text }).to_string();
    let headers =
        serde_json::json!({ "traceparent": format!("00-{writer:032x}"), "n": writer, "none": null })
            .to_string();
    // one statement, to take the version and insert the event in one round trip
    let sql = "WITH a AS (UPDATE aggregate SET version = version + 1 WHERE id = 'aggregate-' || $1::text RETURNING *) \
               INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, headers) \
               SELECT type, id, 'changed', $2::text::jsonb || jsonb_build_object('n', version), $3::text::jsonb FROM a";
    transaction.execute(sql, &[&aggregate.to_string(), &payload, &headers]).await?;
    Ok(())
}
