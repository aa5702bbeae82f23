//! Postgres ends and comes back, or does what servers do.

use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;

use tokio::time::sleep;

use super::{Ground, SLOT, lived_through, pause, pause_for_a_reason};
use crate::injected::Injected;
use crate::services::Server::Postgres;
use crate::writers::{connect, large};

/// How long after its commit a writer may hear of it: what was committed before the standby was gone is not withheld.
const HEARD_WITHIN: Duration = Duration::from_secs(1);

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

/// Has a router that cannot send every event meet the lock.
pub(super) async fn dead_letters_locked(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    if ground.lenient && ground.standbys.is_empty() {
        ground.watch.last_words();
        ground.router.stop().await?;
        ground.start_router()?;
        ground.router.ready().await?;
    }
    let began = Instant::now();
    let client = connect(&ground.postgres).await?;
    client.batch_execute("BEGIN; LOCK TABLE outbox_router.dead_letters IN ACCESS EXCLUSIVE MODE").await?;
    // until an event comes that has to be parked
    let time = pause(&mut random, 17_000..20_000).await;
    client.batch_execute("COMMIT").await?;
    let injected = lived_through(began, Instant::now(), format!("for {} ms", time.as_millis()));
    Ok(Injected { names: &["dead_letters"], ..injected })
}

/// Nothing may be sent then: after a promotion Postgres would lack it.
pub(super) async fn standby_away(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    ground.services.standby(&["stop", "postgres", "--mode", "immediate"]).await?;
    let gone = Instant::now() + HEARD_WITHIN;
    sleep(HEARD_WITHIN).await;
    let time = pause_for_a_reason(&mut random).await;
    let withheld = Some((gone, Instant::now()));
    ground.services.standby(&["start", "postgres"]).await?;
    let what = format!("for {} ms", time.as_millis());
    Ok(Injected { withheld, names: &["standby"], ..lived_through(began, Instant::now(), what) })
}
