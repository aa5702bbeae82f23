//! The broker ends and comes back, or does not get to run.

use std::time::Instant;

use rand::rngs::StdRng;
use rustix::process::Signal;

use super::{Ground, lived_through, pause};
use crate::injected::Injected;
use crate::services::Server::Kafka;

pub(super) async fn kill(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    ground.services.kill(Kafka).await?;
    let down = pause(&mut random, 0..1_500).await;
    let back = ground.services.start(Kafka).await?;
    Ok(lived_through(began, back, format!("down for {} ms", down.as_millis())))
}

pub(super) async fn restart(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    ground.services.stop(Kafka, "fast").await?;
    let took = began.elapsed().as_millis();
    pause(&mut random, 0..500).await;
    let back = ground.services.start(Kafka).await?;
    Ok(lived_through(began, back, format!("stopped after {took} ms")))
}

pub(super) async fn freeze(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    ground.services.signal_broker(Signal::STOP)?;
    let frozen = pause(&mut random, 200..5_000).await;
    ground.services.signal_broker(Signal::CONT)?;
    Ok(lived_through(began, Instant::now(), format!("for {} ms", frozen.as_millis())))
}
