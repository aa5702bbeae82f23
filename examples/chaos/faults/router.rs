//! The router is ended, frozen, or blocked by its log.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use outbox_router::monitor::StateKind;
use rand::Rng;
use rand::rngs::StdRng;
use rustix::process::Signal;
use tokio::time::sleep;

use super::{Dead, Ground, pause, pause_for_a_reason, postgres, survived};
use crate::injected::{Injected, Left};
use crate::intake::lock;
use crate::source::Freeze;
use crate::stage::outbox_table::topic_of;
use crate::writers::{LARGE, large};

const LARGE_ROWS: std::ops::Range<u64> = 5_000..20_000;
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(30);
/// In milliseconds: longer than the router takes to write a checkpoint and confirm it. So a router that counts events as
/// acknowledged too early loses them.
const FROZEN_FOR_MS: std::ops::Range<u64> = 2_500..4_000;

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
    let deadline = Instant::now() + ARRIVAL_TIMEOUT;
    while lock(&ground.arrived).count(&topic) < before + rows * share / 100 {
        ensure!(Instant::now() < deadline, "the large transaction does not arrive");
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
    let frozen = pause(&mut random, FROZEN_FOR_MS).await;
    let dead = ground.kill_router().await;
    ground.services.signal_broker(Signal::CONT)?;
    let back = Instant::now();
    pause(&mut random, 0..200).await;
    let injected = ground.revive(dead?, Some(back), format!("after {} ms", frozen.as_millis()))?;
    Ok(Injected { broker_late: Some(Duration::ZERO), ..injected })
}

/// Kills the active router while a standby waits, which then takes over.
pub(super) async fn handover(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let mut second = ground.router.sibling()?;
    let process = second.start()?;
    second.wait_for_state(StateKind::Waiting).await?;
    pause(&mut random, 0..500).await;
    let dead = ground.kill_router().await?;
    ground.router = second;
    ground.watch.follow(process, ground.router.admin());
    ground.router.wait_for_state(StateKind::Active).await?;
    let left = Left::Position { died: dead.died, restarted: Instant::now() };
    Ok(Injected { left, ..survived(dead.began, dead.died, String::new()) })
}

pub(super) async fn stop(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    ground.watch.before_end();
    let began = Instant::now();
    ground.router.stop().await.context("SIGTERM")?;
    let dead = Dead { began, died: Instant::now() };
    let took = began.elapsed().as_millis();
    let down = pause(&mut random, 0..1_000).await;
    ground.revive(dead, None, format!("stopped after {took} ms, down for {} ms", down.as_millis()))
}

pub(super) async fn freeze(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    let Freeze { time, outlasts_lease } = ground.source.freeze(&mut random, !ground.standbys.is_empty());
    if outlasts_lease {
        // so that it has claimed rows
        large(&ground.postgres, &ground.ledger, random.random_range(LARGE_ROWS), random.random()).await?;
        pause(&mut random, 0..100).await;
    }
    ground.watch.begin_downtime();
    ground.router.freeze()?;
    sleep(time).await;
    ground.router.thaw()?;
    ground.watch.end_downtime();
    let what = format!("for {} ms", time.as_millis());
    Ok(Injected { outlasted_lease: outlasts_lease, ..survived(began, Instant::now(), what) })
}

/// Terminates the session as well, so that the router has something to log.
pub(super) async fn stderr_unread(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let process = ground.router.process().context("the router is not running")?;
    let began = Instant::now();
    ground.log.block(process).await?;
    let ended = postgres::terminate(ground).await;
    let time = pause_for_a_reason(&mut random).await;
    ground.log.unblock();
    ended?;
    Ok(survived(began, Instant::now(), format!("for {} ms", time.as_millis())))
}
