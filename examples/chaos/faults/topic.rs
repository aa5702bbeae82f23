//! The limits of a topic are lowered.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use rand::Rng;
use rand::rngs::StdRng;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;

use super::{Ground, pause, survived};
use crate::injected::Injected;
use crate::stage::outbox_table::topic_of;
use crate::writers::ALL_TYPES;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The broker refuses large batches. Every single record still fits.
pub(super) async fn small(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    let name = choose(&mut random);
    limit(ground, &name, Some(2_000)).await?;
    let time = pause(&mut random, 500..2_000).await;
    limit(ground, &name, None).await?;
    Ok(survived(began, Instant::now(), format!("{name} for {} ms", time.as_millis())))
}

/// One of the topics of the small transactions.
pub(super) fn choose(random: &mut StdRng) -> String {
    topic_of(ALL_TYPES.get(random.random_range(0..2)).copied().unwrap_or_default())
}

/// Sets the largest batch that the topic accepts; `None`: the broker's default.
pub(super) async fn limit(ground: &Ground, topic: &str, bytes: Option<u32>) -> anyhow::Result<()> {
    let bytes = bytes.map(|bytes| bytes.to_string());
    let settings: Vec<_> = bytes.iter().map(|bytes| ("max.message.bytes", bytes.as_str())).collect();
    alter(ground, topic, &settings).await
}

/// Replaces all settings of a topic.
async fn alter(ground: &Ground, topic: &str, settings: &[(&str, &str)]) -> anyhow::Result<()> {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", &ground.brokers).create()?;
    let mut config = AlterConfig::new(ResourceSpecifier::Topic(topic));
    for (name, value) in settings {
        config = config.set(name, value);
    }
    let options = AdminOptions::new().request_timeout(Some(REQUEST_TIMEOUT));
    let answers = admin.alter_configs([&config], &options).await;
    let what = || format!("alter the settings of {topic}");
    for answer in answers.with_context(what)? {
        answer.map_err(|(_, code)| anyhow!("{code}")).with_context(what)?;
    }
    // dropping the client waits for its threads
    tokio::task::spawn_blocking(move || drop(admin));
    Ok(())
}
