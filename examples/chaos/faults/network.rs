//! The network drops, delays or cuts connections.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::Context;
use rand::Rng;
use rand::rngs::StdRng;
use tokio::time::sleep;

use super::{Ground, WAL_SENDER_TIMEOUT, pause, postgres, survived};
use crate::injected::Injected;
use crate::proxy::{Proxy, Weather};
use crate::stage::process::tcp_ports;
use crate::writers::large;

const CUTS: std::ops::Range<u32> = 1..4;

pub(super) async fn postgres_hole(ground: &mut Ground, random: StdRng) -> anyhow::Result<Injected> {
    hole(&ground.to_postgres, random).await
}

pub(super) async fn kafka_hole(ground: &mut Ground, random: StdRng) -> anyhow::Result<Injected> {
    hole(&ground.to_kafka, random).await
}

/// Sometimes shorter and sometimes longer than the router's timeout. Half of the time the connections are reset afterwards.
async fn hole(proxy: &Proxy, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    let (short, long) = (200, WAL_SENDER_TIMEOUT.as_millis() as u64 + 2_000);
    let dead_afterwards = random.random_bool(0.5);
    proxy.set(Weather::Hole);
    let time = pause(&mut random, short..long).await;
    if dead_afterwards {
        proxy.cut();
    }
    proxy.set(Weather::Clear);
    let then = if dead_afterwards { ", then cut" } else { "" };
    Ok(survived(began, Instant::now(), format!("for {} ms{then}", time.as_millis())))
}

pub(super) async fn postgres_slow(ground: &mut Ground, random: StdRng) -> anyhow::Result<Injected> {
    Ok(slow(&ground.to_postgres, random).await.0)
}

pub(super) async fn kafka_slow(ground: &mut Ground, random: StdRng) -> anyhow::Result<Injected> {
    let (injected, by) = slow(&ground.to_kafka, random).await;
    Ok(Injected { broker_late: Some(by), ..injected })
}

/// Also returns the delay.
async fn slow(proxy: &Proxy, mut random: StdRng) -> (Injected, Duration) {
    let began = Instant::now();
    let by = Duration::from_millis(random.random_range(10..400));
    proxy.set(Weather::Slow(by));
    let time = pause(&mut random, 1_000..4_000).await;
    proxy.set(Weather::Clear);
    let what = format!("by {} ms for {} ms", by.as_millis(), time.as_millis());
    (survived(began, Instant::now(), what), by)
}

pub(super) async fn postgres_cut(ground: &mut Ground, random: StdRng) -> anyhow::Result<Injected> {
    cut(&ground.to_postgres, random).await
}

pub(super) async fn kafka_cut(ground: &mut Ground, random: StdRng) -> anyhow::Result<Injected> {
    cut(&ground.to_kafka, random).await
}

async fn cut(proxy: &Proxy, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    let times = random.random_range(CUTS);
    for _ in 0..times {
        proxy.cut();
        pause(&mut random, 50..600).await;
    }
    Ok(survived(began, Instant::now(), format!("{times} times")))
}

pub(super) async fn postgres_away(ground: &mut Ground, random: StdRng) -> anyhow::Result<Injected> {
    away(&ground.to_postgres, random).await
}

pub(super) async fn kafka_away(ground: &mut Ground, random: StdRng) -> anyhow::Result<Injected> {
    away(&ground.to_kafka, random).await
}

async fn away(proxy: &Proxy, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    proxy.set(Weather::Away);
    let time = pause(&mut random, 200..4_000).await;
    proxy.set(Weather::Clear);
    Ok(survived(began, Instant::now(), format!("for {} ms", time.as_millis())))
}

/// Records queued for the broker must be discarded with their session. Otherwise two producers write when the broker is back.
pub(super) async fn kafka_away_and_session_lost(
    ground: &mut Ground,
    mut random: StdRng,
) -> anyhow::Result<Injected> {
    let began = Instant::now();
    ground.to_kafka.set(Weather::Away);
    let before = pause(&mut random, 500..1_500).await;
    let terminated = postgres::terminate(ground).await;
    let after = pause(&mut random, 500..2_500).await;
    ground.to_kafka.set(Weather::Clear);
    terminated?;
    let what = format!("after {} of {} ms", before.as_millis(), (before + after).as_millis());
    Ok(Injected { on_its_way: false, ..survived(began, Instant::now(), what) })
}

/// With slow answers a record may be acknowledged long before an earlier record of another partition.
pub(super) async fn kafka_slow_and_router_killed(
    ground: &mut Ground,
    mut random: StdRng,
) -> anyhow::Result<Injected> {
    let by = Duration::from_millis(random.random_range(150..400));
    ground.to_kafka.set(Weather::Slow(by));
    let slow = pause(&mut random, 3_000..5_000).await;
    let dead = ground.kill_router().await;
    ground.to_kafka.set(Weather::Clear);
    pause(&mut random, 0..200).await;
    let what = format!("after {} ms that were {} ms slow", slow.as_millis(), by.as_millis());
    Ok(Injected { broker_late: Some(by), ..ground.revive(dead?, None, what)? })
}

/// As behind a proxy that terminates TCP: the router can still write, but no server reads it.
pub(super) async fn postgres_server_cut(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    ground.to_postgres.sever(ports(ground)?);
    let time = pause(&mut random, 0..1_000).await;
    Ok(survived(began, began + time, String::new()))
}

/// The router waits with a full window, and meanwhile the server releases the slot. If a standby takes it, the queued records are
/// stale by the time they could be sent.
pub(super) async fn postgres_server_cut_broker_hole(
    ground: &mut Ground,
    mut random: StdRng,
) -> anyhow::Result<Injected> {
    /// More than fit into the window.
    const ROWS: u64 = 25_000;
    let began = Instant::now();
    let ports = ports(ground)?;
    ground.to_kafka.hold(ports.clone());
    large(&ground.postgres, &ground.ledger, ROWS, random.random()).await?;
    pause(&mut random, 1_000..2_000).await;
    ground.to_postgres.sever(ports);
    // longer than a router may assume without an answer that it still holds the slot or its claims
    let alone = ground.source.without_answer().as_millis() as u64;
    let (least, most) = (alone + 1_000, alone + 4_000);
    let time = pause(&mut random, least..most).await;
    ground.to_kafka.hold(HashSet::new());
    Ok(survived(began, Instant::now(), format!("for {} ms", time.as_millis())))
}

/// As if the router's machine were cut off while it has rows claimed and records queued. Others take the rows over when the lease
/// expires; what is queued must not be sent after that.
pub(super) async fn router_isolated(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    const ROWS: std::ops::Range<u64> = 5_000..15_000;
    let began = Instant::now();
    large(&ground.postgres, &ground.ledger, random.random_range(ROWS), random.random()).await?;
    pause(&mut random, 0..150).await;
    let ports = ports(ground)?;
    ground.to_kafka.hold(ports.clone());
    // so that a question to Postgres may have to wait when the claims run out
    let before = pause(&mut random, 0..6_000).await;
    ground.to_postgres.hold(ports);
    let alone =
        ground.source.without_answer() - before + Duration::from_millis(random.random_range(200..4_000));
    sleep(alone).await;
    ground.to_kafka.hold(HashSet::new());
    pause(&mut random, 0..500).await;
    ground.to_postgres.hold(HashSet::new());
    let what = format!("for {} ms, and Postgres for {} ms", (before + alone).as_millis(), alone.as_millis());
    Ok(survived(began, Instant::now(), what))
}

/// The local ports of the active router.
fn ports(ground: &Ground) -> anyhow::Result<HashSet<u16>> {
    tcp_ports(ground.router.process().context("the router is not running")?)
}

/// The session ends while the threads of its producer wait for the broker's name to be resolved.
pub(super) async fn dns_hangs(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    let nameserver = ground.nameserver.as_ref().context("there is no name server")?;
    nameserver.set_slow(true);
    ground.to_kafka.set(Weather::Away);
    let before = pause(&mut random, 1_500..3_000).await;
    let terminated = postgres::terminate(ground).await;
    let after = pause(&mut random, 12_000..14_000).await;
    ground.to_kafka.set(Weather::Clear);
    nameserver.set_slow(false);
    terminated?;
    nameserver.all_answered().await;
    let what = format!("after {} of {} ms", before.as_millis(), (before + after).as_millis());
    Ok(Injected { on_its_way: false, ..survived(began, Instant::now(), what) })
}
