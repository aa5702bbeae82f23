//! What applications and operators do to the rows of a table that is polled.

use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;
use tokio::time::sleep;

use super::{Ground, pause, survived, topic};
use crate::injected::Injected;
use crate::writers::{connect, large};

/// `max.message.bytes` of a topic that takes only the smallest events.
const TINY: u32 = 450;
const RETRY_EVERY: Duration = Duration::from_millis(300);
/// How many rows a person deletes at a time.
const DELETED_AT_ONCE: i64 = 5_000;

/// Locks rows that are due, of a transaction so large that some still are.
pub(super) async fn locked(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let (rows, most) = (random.random_range(500..5_000), random.random_range(1..500_i64));
    let began = Instant::now();
    let mut client = connect(&ground.postgres).await?;
    large(&ground.postgres, &ground.ledger, rows, random.random()).await?;
    let transaction = client.transaction().await?;
    let sql = "SELECT position FROM outbox WHERE status = 'NEW' ORDER BY position DESC LIMIT $1 FOR UPDATE SKIP LOCKED";
    let locked = transaction.query(sql, &[&most]).await?.len() as u64;
    let time = pause(&mut random, 2_000..5_000).await;
    transaction.rollback().await?;
    let what = format!("{locked} rows for {} ms", time.as_millis());
    Ok(Injected { kept_locked: locked, ..survived(began, Instant::now(), what) })
}

/// Retries bring refusals again until the topic takes the rows.
pub(super) async fn refused(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let name = topic::choose(&mut random);
    let time = Duration::from_millis(random.random_range(1_000..3_000));
    let retries = ground.router.admin_commands();
    let began = Instant::now();
    topic::limit(ground, &name, Some(TINY)).await?;
    let mut times = 0;
    while began.elapsed() < time {
        times += u32::from(retries.run(&["dead-letters", "retry", "--all"]).await);
        sleep(RETRY_EVERY).await;
    }
    topic::limit(ground, &name, None).await?;
    let what = format!("{name} for {} ms, retried {times} times", began.elapsed().as_millis());
    Ok(survived(began, Instant::now(), what))
}

/// New rows get the places in the table of those that were deleted.
pub(super) async fn deleted(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let times = random.random_range(2..8);
    let began = Instant::now();
    let client = connect(&ground.postgres).await?;
    let sql = "DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE status = 'PUBLISHED' ORDER BY created_at LIMIT $1)";
    let mut rows = 0;
    for _ in 0..times {
        rows += client.execute(sql, &[&DELETED_AT_ONCE]).await?;
        client.batch_execute("VACUUM outbox").await?;
        pause(&mut random, 0..300).await;
    }
    Ok(survived(began, Instant::now(), format!("{rows} rows, in {times} times")))
}
