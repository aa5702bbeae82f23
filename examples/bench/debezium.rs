//! The peer with a slot: Debezium in Kafka Connect, with its default settings and with faster ones.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::json;
use tokio::time::sleep;

use crate::arrivals;
use crate::case::Case;
use crate::connect::{Installation, Setup, Task, Worker};
use crate::contestant::{Measured, PUBLICATION, Place};
use crate::measure::latency::{Observed, Seen, observe};
use crate::measure::progress::Progress;
use crate::measure::writers::Load;
use crate::stage::process::{cpu_time, peak_memory};

/// How long it may take from its start until it reads its slot.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Connect's own default.
const FLUSH: Duration = Duration::from_secs(60);
/// The settings that its authors and users recommend for low latency.
const TUNED: [(&str, &str); 3] =
    [("poll.interval.ms", "1"), ("max.batch.size", "8192"), ("max.queue.size", "32768")];

/// Where Debezium is installed.
#[derive(Debug)]
pub(crate) struct Debezium {
    pub(crate) installation: Installation,
    /// Folder for settings, logs and positions.
    pub(crate) folder: PathBuf,
}

/// A running connector with its own Connect worker.
struct Running {
    worker: Worker,
    name: String,
    process: u32,
}

async fn start(place: &Place, slot: &str, topic: &str, tuned: bool) -> anyhow::Result<Running> {
    let debezium = place.debezium.as_ref().context("Debezium is not installed")?;
    let name = slot.replace('_', "-");
    let (host, port) = place.tcp.rsplit_once(':').context("the address has no port")?;
    let setup = Setup { tracing: false, keep_offsets: false, flush: FLUSH };
    let mut worker =
        Worker::start(&debezium.installation, setup, &debezium.folder.join(&name), &place.ground.brokers)
            .await?;
    let mut config = json!({
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "database.hostname": host,
        "database.port": port,
        "database.user": "postgres",
        "database.password": "postgres",
        "database.dbname": "postgres",
        "topic.prefix": name,
        "plugin.name": "pgoutput",
        "slot.name": slot,
        "publication.name": PUBLICATION,
        "publication.autocreate.mode": "disabled",
        "snapshot.mode": "no_data",
        "table.include.list": "public.outbox",
        "tombstones.on.delete": "false",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "transforms": "outbox",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        "transforms.outbox.table.field.event.key": "aggregate_id",
        "transforms.outbox.table.field.event.payload": "payload",
        "transforms.outbox.table.fields.additional.placement": "event_type:header:type",
        "transforms.outbox.route.by.field": "aggregate_type",
        "transforms.outbox.route.topic.replacement": topic,
    });
    if tuned && let Some(config) = config.as_object_mut() {
        config.extend(TUNED.map(|(name, value)| (name.to_owned(), value.into())));
    }
    worker.create(&name, &json!({ "config": config }).to_string()).await?;
    let process = worker.process().context("Kafka Connect has ended")?;
    Ok(Running { worker, name, process })
}

impl Running {
    async fn check_running(&mut self) -> anyhow::Result<()> {
        match self.worker.task(&self.name).await? {
            Task::Running => Ok(()),
            Task::Failed(why) => bail!("Debezium has failed: {why}"),
        }
    }
}

/// Measures how it reads a backlog from a copy of the slot `base`.
pub(crate) async fn catch_up(
    place: &Place,
    base: &str,
    case: &Case,
    tuned: bool,
    progress: &Progress,
) -> anyhow::Result<Measured> {
    let slot = format!("{base}_debezium");
    let topic = slot.replace('_', "-");
    place.ground.copy_slot(base, &slot).await?;
    place.topics.make(&topic, case.partitions).await?;
    let started = Instant::now();
    let mut running = start(place, &slot, &topic, tuned).await?;
    let counted =
        arrivals::of_backlog(place, &topic, case, progress, async || running.check_running().await).await?;
    let measured = Measured {
        events_per_second: counted.events_per_second(),
        first_after: Some(counted.first.duration_since(started)),
        took: Some(counted.took()),
        cpu: Some(cpu_time(running.process)?),
        memory: Some(peak_memory(running.process)?),
    };
    running.worker.end().await?;
    place.ground.drop_slot(&slot).await?;
    place.topics.delete_like(&topic).await?;
    Ok(measured)
}

/// Measures its latency for `span`.
pub(crate) async fn latency(
    place: &Place,
    name: &str,
    tuned: bool,
    load: Load,
    span: Duration,
    progress: &Progress,
) -> anyhow::Result<Seen> {
    let (slot, topic) = (name.replace('-', "_"), name.to_owned());
    place.ground.create_slot(&slot).await?;
    place.topics.make(&topic, crate::measure::ground::PARTITIONS).await?;
    let mut running = start(place, &slot, &topic, tuned).await?;
    let deadline = Instant::now() + START_TIMEOUT;
    while !place.ground.is_read(&slot).await? {
        running.check_running().await?;
        ensure!(Instant::now() < deadline, "Debezium does not read its slot");
        sleep(Duration::from_millis(50)).await;
    }
    let what = Observed { postgres: &place.ground.url, name, topic: &topic, process: running.process };
    // if the connector fails, no records arrive, and the measurement fails
    let seen = observe(&place.ground, what, load, span, progress, || Ok(())).await?;
    running.worker.end().await?;
    place.ground.drop_slot(&slot).await?;
    Ok(seen)
}
