//! What applications and operators do to the rows of the table.

use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rustix::process::Signal;
use tokio::time::sleep;

use super::{Ground, pause, survived, topic};
use crate::injected::Injected;
use crate::writers::{connect, large, large_of_age};

/// `max.message.bytes` of a topic that takes only the smallest events.
const TINY: u32 = 450;
const RETRY_EVERY: Duration = Duration::from_millis(300);
/// How many rows a person deletes at a time.
const DELETED_AT_ONCE: i64 = 5_000;

/// Writes which transactions are running, so that a slot no longer needs older ones once it is past this.
const TELL_DELIVERED: &str = "CHECKPOINT";

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

/// An operator deletes rows as soon as they are delivered, again and again.
pub(super) async fn pruned(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let times = random.random_range(2..6);
    // some rows stay for replays
    let age = ["1s", "10s", "30s"].choose(&mut random).copied().unwrap_or("1s");
    let batch = random.random_range(1..2_000_u32).to_string();
    let commands = ground.router.admin_commands();
    let began = Instant::now();
    let mut pruned = 0;
    for _ in 0..times {
        ground.execute(TELL_DELIVERED).await?;
        // refused while a replay runs
        pruned +=
            u32::from(commands.run(&["prune", "--older-than", age, "--force", "--batch", &batch]).await);
        pause(&mut random, 0..500).await;
    }
    Ok(survived(began, Instant::now(), format!("older than {age}, {pruned} of {times} times")))
}

/// The same while no row can be delivered, and then the router is killed: it has to find its rows again.
pub(super) async fn pruned_while_broker_is_frozen(
    ground: &mut Ground,
    mut random: StdRng,
) -> anyhow::Result<Injected> {
    let commands = ground.router.admin_commands();
    ground.services.signal_broker(Signal::STOP)?;
    pause(&mut random, 1_500..3_000).await;
    let pruned = commands.run(&["prune", "--older-than", "1s", "--force"]).await;
    let dead = ground.kill_router().await;
    ground.services.signal_broker(Signal::CONT)?;
    let what = if pruned { "pruned" } else { "refused" };
    let injected = ground.revive(dead?, Some(Instant::now()), what.to_owned())?;
    Ok(Injected { broker_late: Some(Duration::ZERO), ..injected })
}

/// An operator sends rows again, perhaps so slowly that the next faults interrupt it.
pub(super) async fn replayed(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let since = format!("{}s", random.random_range(5..60));
    let rate = format!("{}/s", random.random_range(50..3_000));
    let commands = ground.router.admin_commands();
    let began = Instant::now();
    ground.execute(TELL_DELIVERED).await?;
    pause(&mut random, 100..1_000).await;
    let client = connect(&ground.postgres).await?;
    let unfinished = "SELECT max(id)::text FROM outbox_router.replays WHERE finished_at IS NULL";
    let unfinished: Option<String> = client.query_one(unfinished, &[]).await?.get(0);
    let mut arguments = vec!["replay", "--rate", &rate, "--yes"];
    match &unfinished {
        Some(id) => arguments.extend(["--resume", id]),
        None => arguments.extend(["--since", &since, "--max", "1000000"]),
    }
    let started = ground.replays.start(&commands, &arguments)?;
    pause(&mut random, 500..3_000).await;
    let what = match (started, unfinished) {
        (true, Some(_)) => format!("an interrupted one, {rate}"),
        (true, None) => format!("those of the last {since}, {rate}"),
        (false, _) => "another one is running".to_owned(),
    };
    Ok(survived(began, Instant::now(), what))
}

/// Rows of an old day are written, and their partition is pruned again and again, so that it is dropped once they are delivered.
pub(super) async fn partition_dropped(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let (days, rows) = (random.random_range(30..60_i32), random.random_range(100..5_000));
    let began = Instant::now();
    ground
        .execute(&format!(
            "SET timezone = 'UTC'; CREATE TABLE IF NOT EXISTS outbox_old_{days} PARTITION OF outbox \
             FOR VALUES FROM (current_date - {days}) TO (current_date - {days} + 1)"
        ))
        .await?;
    large_of_age(&ground.postgres, &ground.ledger, rows, random.random(), days).await?;
    let commands = ground.router.admin_commands();
    let mut pruned = 0;
    for _ in 0..random.random_range(2..6) {
        ground.execute(TELL_DELIVERED).await?;
        pruned += u32::from(commands.run(&["prune", "--older-than", "20d"]).await);
        pause(&mut random, 0..700).await;
    }
    let client = connect(&ground.postgres).await?;
    let there = format!("SELECT to_regclass('outbox_old_{days}') IS NOT NULL");
    let there: bool = client.query_one(&there, &[]).await?.get(0);
    let then = if there { "still there" } else { "dropped" };
    let what = format!("{rows} rows of {days} days ago, pruned {pruned} times, {then}");
    Ok(survived(began, Instant::now(), what))
}
