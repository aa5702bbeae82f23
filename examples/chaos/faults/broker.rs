//! The broker is restarted or frozen, revokes rights, or enforces a quota.

use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;
use rustix::process::Signal;

use super::{Ground, pause, pause_for_a_reason, survived};
use crate::injected::Injected;
use crate::services::Server::Kafka;
use crate::services::Services;
use crate::stage::outbox_table::topic_of;
use crate::writers::ALL_TYPES;

/// The router learns of restored rights only by trying every second or two; the rest is for a busy machine.
const RECOVERS_WITHIN: Duration = Duration::from_secs(10);
/// The operations on topics that the router needs.
const RIGHTS: [&str; 5] = ["Read", "Write", "Describe", "DescribeConfigs", "Create"];
const POSITIONS: &str = "outbox-router.positions";
const ACLS: &str = "org.apache.kafka.tools.AclCommand";
const CONFIGS: &str = "kafka.admin.ConfigCommand";
/// The router's user name on a broker with an authorizer.
pub(crate) const PRINCIPAL: &str = "outbox-router";

pub(super) async fn kill(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    ground.services.kill(Kafka).await?;
    let down = pause(&mut random, 0..1_500).await;
    let back = ground.services.start(Kafka).await?;
    Ok(survived(began, back, format!("down for {} ms", down.as_millis())))
}

pub(super) async fn restart(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    ground.services.stop(Kafka, "fast").await?;
    let took = began.elapsed().as_millis();
    pause(&mut random, 0..500).await;
    let back = ground.services.start(Kafka).await?;
    Ok(survived(began, back, format!("stopped after {took} ms")))
}

pub(super) async fn freeze(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let began = Instant::now();
    ground.services.signal_broker(Signal::STOP)?;
    let frozen = pause(&mut random, 200..5_000).await;
    ground.services.signal_broker(Signal::CONT)?;
    Ok(survived(began, Instant::now(), format!("for {} ms", frozen.as_millis())))
}

/// Grants all rights that the router needs.
pub(crate) async fn grant(services: &Services) -> anyhow::Result<()> {
    let topics: Vec<String> = ALL_TYPES.map(topic_of).into_iter().chain([POSITIONS.to_owned()]).collect();
    change_rights(services, "--add", &RIGHTS, &topics).await?;
    let principal = format!("User:{PRINCIPAL}");
    let ids = ["--operation", "Write", "--operation", "Describe", "--transactional-id", "*"];
    services.kafka_tool(ACLS, &[&["--add", "--allow-principal", &principal][..], &ids].concat()).await
}

async fn change_rights(
    services: &Services,
    how: &str,
    rights: &[&str],
    topics: &[String],
) -> anyhow::Result<()> {
    let principal = format!("User:{PRINCIPAL}");
    let mut arguments = vec![how, "--allow-principal", &principal];
    arguments.extend(rights.iter().flat_map(|right| ["--operation", right]));
    arguments.extend(topics.iter().flat_map(|topic| ["--topic", topic]));
    if how == "--remove" {
        arguments.push("--force");
    }
    services.kafka_tool(ACLS, &arguments).await
}

pub(super) async fn acls_removed(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let all = random.random_bool(0.5);
    let topics: Vec<String> =
        ALL_TYPES.iter().take(if all { 3 } else { 1 }).map(|kind| topic_of(kind)).collect();
    let began = Instant::now();
    change_rights(&ground.services, "--remove", &["Write"], &topics).await?;
    let time = pause_for_a_reason(&mut random).await;
    change_rights(&ground.services, "--add", &["Write"], &topics).await?;
    let what = format!("WRITE on {} for {} ms", topics.join(", "), time.as_millis());
    let recovers_within = Some(RECOVERS_WITHIN);
    let names = &["WRITE", "outbox.event."];
    Ok(Injected { names, recovers_within, ..survived(began, Instant::now(), what) })
}

/// The broker enforces a quota by delaying its answers. Rows are committed faster than the quota allows.
pub(super) async fn producer_quota(ground: &mut Ground, mut random: StdRng) -> anyhow::Result<Injected> {
    let rate = random.random_range(10..=40) * 1_000;
    let everybody = ["--entity-type", "clients", "--entity-default", "--alter"];
    let quota = format!("producer_byte_rate={rate}");
    let began = Instant::now();
    ground.services.kafka_tool(CONFIGS, &[&everybody[..], &["--add-config", &quota]].concat()).await?;
    let time = pause(&mut random, 15_000..25_000).await;
    let lifted = [&everybody[..], &["--delete-config", "producer_byte_rate"]].concat();
    ground.services.kafka_tool(CONFIGS, &lifted).await?;
    let what = format!("{} kB/s for {} ms", rate / 1_000, time.as_millis());
    // requests sent before the quota are answered late too, and a broker that has delayed a connection does not shorten the delay
    // when the quota is lifted (KIP-219)
    let broker_late = Some(time + Duration::from_secs(1));
    Ok(Injected { broker_late, ..survived(began, Instant::now(), what) })
}
