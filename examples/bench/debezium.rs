//! The peer: Debezium in Kafka Connect, with its default settings and with faster ones.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use indicatif::HumanCount;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use serde_json::json;
use tokio::time::sleep;

use crate::case::Case;
use crate::connect::{Installation, Setup, Task, Worker};
use crate::contestant::{Measured, PUBLICATION, Place};
use crate::measure::latency::{Observed, Seen, observe};
use crate::measure::progress::Progress;
use crate::measure::writers::Load;
use crate::stage::process::{cpu_time, peak_memory};

const LOOK_EVERY: Duration = Duration::from_millis(10);
const ANSWER: Duration = Duration::from_secs(5);
const NOTHING_ARRIVES_FOR: Duration = Duration::from_secs(120);
/// Connect's own default.
const FLUSH: Duration = Duration::from_secs(60);
/// The settings that its authors and users recommend for low latency.
const TUNED: [(&str, &str); 3] =
    [("poll.interval.ms", "1"), ("max.batch.size", "8192"), ("max.queue.size", "32768")];

/// The installation of the peers.
#[derive(Debug)]
pub(crate) struct Peers {
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
    let peers = place.peers.as_ref().context("the peers are not installed")?;
    let name = slot.replace('_', "-");
    let (host, port) = place.tcp.rsplit_once(':').context("the address has no port")?;
    let setup = Setup { tracing: false, keep_offsets: false, flush: FLUSH };
    let mut worker =
        Worker::start(&peers.installation, setup, &peers.folder.join(&name), &place.ground.brokers).await?;
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
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &place.ground.brokers)
        .create()
        .context("create a consumer")?;
    let (mut first, mut counted, mut last, mut looked): (Option<(Instant, u64)>, _, _, _) =
        (None, 0, started, started);
    while counted < case.rows {
        sleep(LOOK_EVERY).await;
        let now = records(&consumer, &topic, case.partitions)?;
        if now > counted {
            (counted, last) = (now, Instant::now());
            first.get_or_insert((last, counted));
            progress.now(&format!("{topic}: {} of {} events", HumanCount(counted), HumanCount(case.rows)));
        }
        if looked.elapsed() > Duration::from_secs(2) {
            running.check_running().await?;
            looked = Instant::now();
        }
        ensure!(last.elapsed() < NOTHING_ARRIVES_FOR, "{topic}: {counted} events, and no more arrive");
    }
    let (since, before) = first.context("no events counted")?;
    let measured = Measured {
        events_per_second: (counted - before) as f64 / last.duration_since(since).as_secs_f64(),
        first_after: Some(since.duration_since(started)),
        took: Some(last.duration_since(since)),
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
    let deadline = Instant::now() + NOTHING_ARRIVES_FOR;
    while !place.ground.is_read(&slot).await? {
        running.check_running().await?;
        ensure!(Instant::now() < deadline, "Debezium does not read its slot");
        sleep(Duration::from_millis(50)).await;
    }
    let what = Observed { name, topic: &topic, process: running.process };
    // if the connector fails, no records arrive, and the measurement fails
    let seen = observe(&place.ground, what, load, span, progress, || Ok(())).await?;
    running.worker.end().await?;
    place.ground.drop_slot(&slot).await?;
    Ok(seen)
}

/// The number of records in the topic.
fn records(consumer: &BaseConsumer, topic: &str, partitions: u32) -> anyhow::Result<u64> {
    let mut count = 0;
    for partition in 0..i32::try_from(partitions)? {
        let (_, end) = consumer.fetch_watermarks(topic, partition, ANSWER)?;
        count += u64::try_from(end)?;
    }
    Ok(count)
}
