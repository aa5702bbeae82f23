//! The router ends, or does not get to run.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use outbox_router::monitor::StateKind;
use rand::Rng;
use rand::rngs::StdRng;
use rustix::process::Signal;
use tokio::time::sleep;

use super::{Dead, Ground, WAL_SENDER_TIMEOUT, lived_through, pause, pause_for_a_reason, postgres};
use crate::injected::{Injected, Left};
use crate::intake::lock;
use crate::stage::outbox_table::topic_of;
use crate::writers::{LARGE, large};

const LARGE_ROWS: std::ops::Range<u64> = 5_000..20_000;
const ARRIVES_WITHIN: Duration = Duration::from_secs(30);
/// Longer than it takes until what was acknowledged, or taken for it, is remembered and confirmed.
const BLOCKED_FOR: std::ops::Range<u64> = 2_500..4_000;

pub(super) async fn kill(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let dead = ground.kill_router().await?;
    let down = pause(&mut random, 0..1_500).await;
    ground.revive(dead, None, format!("down for {} ms", down.as_millis()))
}

pub(super) async fn kill_in_large_transaction(
    ground: &mut Ground,
    mut random: StdRng,
) -> anyhow::Result<Injected> {
    let (rows, share) = (random.random_range(LARGE_ROWS), random.random_range(1..90));
    let topic = topic_of(LARGE);
    let before = lock(&ground.arrived).count(&topic);
    large(&ground.postgres, &ground.ledger, rows, random.random()).await?;
    let deadline = Instant::now() + ARRIVES_WITHIN;
    while lock(&ground.arrived).count(&topic) < before + rows * share / 100 {
        ensure!(Instant::now() < deadline, "a large transaction does not arrive");
        sleep(Duration::from_millis(1)).await;
    }
    let dead = ground.kill_router().await?;
    pause(&mut random, 0..500).await;
    ground.revive(dead, None, format!("after {share} % of {rows} rows"))
}

pub(super) async fn kill_while_broker_is_frozen(
    ground: &mut Ground,
    mut random: StdRng,
) -> anyhow::Result<Injected> {
    ground.services.signal_broker(Signal::STOP)?;
    let frozen = pause(&mut random, BLOCKED_FOR).await;
    let dead = ground.kill_router().await;
    ground.services.signal_broker(Signal::CONT)?;
    let back = Instant::now();
    pause(&mut random, 0..200).await;
    let injected = ground.revive(dead?, Some(back), format!("after {} ms", frozen.as_millis()))?;
    Ok(Injected { broker_late: Some(Duration::ZERO), ..injected })
}

/// As a deployment that has a second one ready does it.
pub(super) async fn handover(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let mut second = ground.router.beside()?;
    let process = second.start()?;
    second.comes_to(StateKind::Waiting).await?;
    pause(&mut random, 0..500).await;
    let dead = ground.kill_router().await?;
    ground.router = second;
    ground.watch.follow(process, ground.router.admin());
    ground.router.comes_to(StateKind::Active).await?;
    let left = Left::Position { died: dead.died, restarted: Instant::now() };
    Ok(Injected { left, ..lived_through(dead.began, dead.died, String::new()) })
}

pub(super) async fn stop(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    ground.watch.last_words();
    let began = Instant::now();
    ground.router.stop().await.context("SIGTERM")?;
    let dead = Dead { began, died: Instant::now() };
    let took = began.elapsed().as_millis();
    let down = pause(&mut random, 0..1_000).await;
    ground.revive(dead, None, format!("stopped after {took} ms, down for {} ms", down.as_millis()))
}

pub(super) async fn freeze(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    ground.watch.cannot_speak();
    ground.router.freeze()?;
    let frozen = WAL_SENDER_TIMEOUT + Duration::from_millis(random.random_range(200..2_000));
    sleep(frozen).await;
    ground.router.thaw()?;
    ground.watch.can_speak();
    Ok(lived_through(began, Instant::now(), format!("for {} ms", frozen.as_millis())))
}

/// A session that ends gives it something to say.
pub(super) async fn stderr_unread(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let process = ground.router.process().context("the router has no process number")?;
    let began = Instant::now();
    ground.log.block(process).await?;
    let ended = postgres::terminate(ground).await;
    let time = pause_for_a_reason(&mut random).await;
    ground.log.unblock();
    ended?;
    Ok(lived_through(began, Instant::now(), format!("for {} ms", time.as_millis())))
}
