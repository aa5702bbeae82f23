//! One topic takes nothing, or less than it did, while the others go on.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use rand::Rng;
use rand::rngs::StdRng;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;

use super::{Ground, lived_through, pause, postgres};
use crate::injected::Injected;
use crate::stage::outbox_table::topic_of;
use crate::writers::ALL_TYPES;

const ANSWER: Duration = Duration::from_secs(30);

pub(super) async fn blocked(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    let name = block(ground, &mut random).await?;
    let time = pause(&mut random, 500..3_000).await;
    unblock(ground, &name).await?;
    Ok(lived_through(began, Instant::now(), format!("{name} for {} ms", time.as_millis())))
}

/// What was queued for it must end with the session, or two producers would write one log when it takes records again.
pub(super) async fn blocked_and_session_lost(
    ground: &mut Ground,
    mut random: StdRng,
) -> anyhow::Result<Injected> {
    let began = Instant::now();
    let name = block(ground, &mut random).await?;
    pause(&mut random, 500..1_500).await;
    postgres::terminate(ground).await?;
    pause(&mut random, 500..2_000).await;
    unblock(ground, &name).await?;
    Ok(lived_through(began, Instant::now(), name))
}

/// Batches are refused as a whole; every single record still fits.
pub(super) async fn small(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    let name = choose(&mut random);
    alter(ground, &name, &[("max.message.bytes", "2000")]).await?;
    let time = pause(&mut random, 500..2_000).await;
    unblock(ground, &name).await?;
    Ok(lived_through(began, Instant::now(), format!("{name} for {} ms", time.as_millis())))
}

/// With one replica, two that have to be in sync never are: the broker refuses, and the producer tries again.
pub(super) async fn block(ground: &Ground, random: &mut StdRng) -> anyhow::Result<String> {
    let name = choose(random);
    alter(ground, &name, &[("min.insync.replicas", "2")]).await?;
    Ok(name)
}

/// With the broker's own settings again.
pub(super) async fn unblock(ground: &Ground, name: &str) -> anyhow::Result<()> {
    alter(ground, name, &[]).await
}

fn choose(random: &mut StdRng) -> String {
    topic_of(ALL_TYPES.get(random.random_range(0..2)).copied().unwrap_or_default())
}

/// Replaces all settings of a topic.
async fn alter(ground: &Ground, topic: &str, settings: &[(&str, &str)]) -> anyhow::Result<()> {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", &ground.brokers).create()?;
    let mut config = AlterConfig::new(ResourceSpecifier::Topic(topic));
    for (name, value) in settings {
        config = config.set(name, value);
    }
    let options = AdminOptions::new().request_timeout(Some(ANSWER));
    let answers = admin.alter_configs([&config], &options).await;
    let what = || format!("alter the settings of {topic}");
    for answer in answers.with_context(what)? {
        answer.map_err(|(_, code)| anyhow!("{code}")).with_context(what)?;
    }
    // the administrative client's threads end without the runtime waiting for them
    tokio::task::spawn_blocking(move || drop(admin));
    Ok(())
}
