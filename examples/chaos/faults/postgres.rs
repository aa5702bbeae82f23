//! Postgres is restarted, loses a session, or does something that servers do in normal operation.

use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;

use tokio::time::sleep;

use super::{Ground, pause, pause_for_a_reason, survived};
use crate::injected::Injected;
use crate::services::Server::Postgres;
use crate::writers::{connect, large};

/// How long the answer to a COMMIT may take. Events committed before the standby stopped may be sent.
const COMMIT_ANSWER: Duration = Duration::from_secs(1);

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
    Ok(survived(began, back, format!("stopped after {took} ms")))
}

pub(super) async fn kill(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    ground.services.kill(Postgres).await?;
    pause(&mut random, 0..1_000).await;
    let back = ground.services.start(Postgres).await?;
    Ok(survived(began, back, String::new()))
}

/// The slot is then as old as Postgres's last checkpoint. Only the router's checkpoint in Kafka is newer.
pub(super) async fn kill_with_router(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let dead = ground.kill_router().await?;
    ground.services.kill(Postgres).await?;
    pause(&mut random, 0..500).await;
    let back = ground.services.start(Postgres).await?;
    ground.revive(dead, Some(back), String::new())
}

pub(super) async fn terminate_sessions(ground: &mut Ground, _: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    terminate(ground).await?;
    Ok(survived(began, Instant::now(), String::new()))
}

pub(super) async fn terminate(ground: &Ground) -> anyhow::Result<()> {
    ground.execute(&ground.source.terminate_sessions()).await
}

pub(super) async fn checkpoint(ground: &mut Ground, _: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    ground.execute("CHECKPOINT").await?;
    Ok(survived(began, began, String::new()))
}

pub(super) async fn add_column(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    let name = format!("later_{:08x}", random.random::<u32>());
    let default = ["", " DEFAULT 'always'", " NOT NULL DEFAULT 'it''s'"];
    let default = default.get(random.random_range(0..default.len())).copied().unwrap_or_default();
    let alter = format!("ALTER TABLE outbox ADD COLUMN {name} text{default}");
    ground.execute(&alter).await?;
    Ok(survived(began, began, alter))
}

pub(super) async fn large_transaction(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    let rows = random.random_range(1_000..20_000);
    let rows = large(&ground.postgres, &ground.ledger, rows, random.random()).await?;
    Ok(survived(began, began, format!("{rows} rows")))
}

/// Locks the dead-letter table while the router is one that has to park events.
pub(super) async fn dead_letters_locked(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    if ground.lenient && ground.standbys.is_empty() {
        ground.watch.before_end();
        ground.router.stop().await?;
        ground.start_router()?;
        ground.router.wait_until_ready().await?;
    }
    let began = Instant::now();
    let client = connect(&ground.postgres).await?;
    client.batch_execute("BEGIN; LOCK TABLE outbox_router.dead_letters IN ACCESS EXCLUSIVE MODE").await?;
    // long enough for an event that has to be parked
    let time = pause(&mut random, 17_000..20_000).await;
    client.batch_execute("COMMIT").await?;
    let injected = survived(began, Instant::now(), format!("for {} ms", time.as_millis()));
    Ok(Injected { names: &["dead_letters"], ..injected })
}

/// Nothing may be sent meanwhile, because the standby would lack it after a promotion.
pub(super) async fn standby_away(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    ground.services.standby(&["stop", "postgres", "--mode", "immediate"]).await?;
    let gone = Instant::now() + COMMIT_ANSWER;
    sleep(COMMIT_ANSWER).await;
    let time = pause_for_a_reason(&mut random).await;
    let withheld = Some((gone, Instant::now()));
    ground.services.standby(&["start", "postgres"]).await?;
    let what = format!("for {} ms", time.as_millis());
    Ok(Injected { withheld, names: &["standby"], ..survived(began, Instant::now(), what) })
}
