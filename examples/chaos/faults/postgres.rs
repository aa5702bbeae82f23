//! Postgres ends and comes back, or does what servers do.

use std::time::Instant;

use rand::Rng;
use rand::rngs::StdRng;

use super::{Ground, SLOT, lived_through, pause};
use crate::injected::Injected;
use crate::services::Server::Postgres;
use crate::writers::large;

pub(super) async fn fast(ground: &mut Ground, random: StdRng) -> anyhow::Result<Injected> {
    restart(ground, random, "fast").await
}

pub(super) async fn immediate(ground: &mut Ground, random: StdRng) -> anyhow::Result<Injected> {
    restart(ground, random, "immediate").await
}

async fn restart(ground: &mut Ground, mut random: StdRng, mode: &str) -> anyhow::Result<Injected> {
    let began = Instant::now();
    ground.services.stop(Postgres, mode).await?;
    let took = began.elapsed().as_millis();
    pause(&mut random, 0..1_000).await;
    let back = ground.services.start(Postgres).await?;
    Ok(lived_through(began, back, format!("stopped after {took} ms")))
}

pub(super) async fn kill(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    ground.services.kill(Postgres).await?;
    pause(&mut random, 0..1_000).await;
    let back = ground.services.start(Postgres).await?;
    Ok(lived_through(began, back, String::new()))
}

/// The slot is then as old as the last checkpoint: only Kafka remembers more.
pub(super) async fn kill_with_router(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let dead = ground.kill_router().await?;
    ground.services.kill(Postgres).await?;
    pause(&mut random, 0..500).await;
    let back = ground.services.start(Postgres).await?;
    ground.revive(dead, Some(back), String::new())
}

pub(super) async fn terminate_walsender(ground: &mut Ground, _: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    terminate(ground).await?;
    Ok(lived_through(began, Instant::now(), String::new()))
}

pub(super) async fn terminate(ground: &Ground) -> anyhow::Result<()> {
    let sql = format!(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
    );
    ground.execute(&sql).await
}

pub(super) async fn checkpoint(ground: &mut Ground, _: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    ground.execute("CHECKPOINT").await?;
    Ok(lived_through(began, began, String::new()))
}

pub(super) async fn add_column(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    let name = format!("later_{:08x}", random.random::<u32>());
    let default = ["", " DEFAULT 'always'", " NOT NULL DEFAULT 'it''s'"];
    let default = default.get(random.random_range(0..default.len())).copied().unwrap_or_default();
    let alter = format!("ALTER TABLE outbox ADD COLUMN {name} text{default}");
    ground.execute(&alter).await?;
    Ok(lived_through(began, began, alter))
}

pub(super) async fn large_transaction(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    let rows = random.random_range(1_000..20_000);
    let rows = large(&ground.postgres, &ground.ledger, rows, random.random()).await?;
    Ok(lived_through(began, began, format!("{rows} rows")))
}
