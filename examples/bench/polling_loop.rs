//! The peer without a slot: a polling loop as applications have it, in a process of its own.
//!
//! It takes the oldest rows that are not marked, sends them, waits for all acknowledgements, marks the rows and commits. With fewer
//! rows than it takes at a time, it pauses. Its table has two columns more than the router's: a number that tells which rows are the
//! oldest, and the mark.

use std::env;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext};
use tokio::process::{Child, Command};
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::arrivals;
use crate::case::Case;
use crate::contestant::{Measured, Place};
use crate::measure::ground::{PARTITIONS, connect};
use crate::measure::latency::{Observed, Seen, observe};
use crate::measure::progress::Progress;
use crate::measure::writers::Load;
use crate::stage::process::{cpu_time, peak_memory};

/// The most rows that it takes at a time.
const ROWS: i64 = 1_000;
const PAUSE: Duration = Duration::from_millis(100);
const REPORTS_TIMEOUT: Duration = Duration::from_secs(60);

/// The schema of its table `outbox`.
const SCHEMA: &str = "polled";

const CREATE: &str = "
    CREATE SCHEMA IF NOT EXISTS polled;
    DROP TABLE IF EXISTS polled.outbox;
    CREATE TABLE polled.outbox (
        LIKE public.outbox INCLUDING DEFAULTS,
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        sent_at timestamptz
    );
    CREATE INDEX ON polled.outbox (number) WHERE sent_at IS NULL";
const FIND: &str = "
    SELECT number, id::text, aggregate_id, event_type, payload::text FROM outbox
    WHERE sent_at IS NULL ORDER BY number LIMIT $1 FOR UPDATE";
const MARK: &str = "UPDATE outbox SET sent_at = now() WHERE number = ANY ($1)";

#[derive(Debug, Args)]
pub(crate) struct Poll {
    #[arg(long, env = "TEST_POSTGRES_URL", hide_env_values = true)]
    postgres: String,
    #[arg(long, env = "TEST_KAFKA")]
    kafka: String,
    #[arg(long)]
    topic: String,
}

/// Counts refused records.
#[derive(Default)]
struct Refused(AtomicU64);

impl ClientContext for Refused {}

impl ProducerContext for Refused {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if result.is_err() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The loop itself. It runs until its process is killed.
pub(crate) async fn run(poll: &Poll) -> anyhow::Result<()> {
    let mut client = connect(&poll.postgres).await?;
    let config = [("bootstrap.servers", poll.kafka.as_str()), ("enable.idempotence", "true")];
    let config = ClientConfig::from_iter(config.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let producer = BaseProducer::from_config_and_context(&config, Refused::default());
    let producer = producer.context("create the producer of the polling loop")?;
    let (find, mark) = (client.prepare(FIND).await?, client.prepare(MARK).await?);
    loop {
        let transaction = client.transaction().await?;
        let mut sent: Vec<i64> = Vec::new();
        for row in transaction.query(&find, &[&ROWS]).await? {
            let (id, key, kind): (String, String, String) =
                (row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
            let payload: Option<String> = row.try_get(4)?;
            let headers = OwnedHeaders::new()
                .insert(Header { key: "id", value: Some(&id) })
                .insert(Header { key: "type", value: Some(&kind) });
            let record = BaseRecord::to(&poll.topic).key(&key).headers(headers);
            let record = match &payload {
                Some(payload) => record.payload(payload),
                None => record,
            };
            producer.send(record).map_err(|(error, _)| error).context("send")?;
            sent.push(row.try_get(0)?);
        }
        if !sent.is_empty() {
            block_in_place(|| wait_for_reports(&producer))?;
            let refused = producer.context().0.load(Ordering::Relaxed);
            ensure!(refused == 0, "{refused} records were refused");
            transaction.execute(&mark, &[&sent]).await?;
        }
        transaction.commit().await?;
        if (sent.len() as i64) < ROWS {
            sleep(PAUSE).await;
        }
    }
}

/// rdkafka's own `flush` looks every 100 ms.
fn wait_for_reports(producer: &BaseProducer<Refused>) -> anyhow::Result<()> {
    let deadline = Instant::now() + REPORTS_TIMEOUT;
    while producer.in_flight_count() > 0 {
        ensure!(Instant::now() < deadline, "Kafka does not acknowledge the records");
        producer.poll(Duration::from_millis(1));
    }
    Ok(())
}

/// The server's URL for programs that use its table.
fn url(place: &Place) -> String {
    format!("{}?options=-csearch_path%3D{SCHEMA}", place.ground.url)
}

fn start(place: &Place, topic: &str) -> anyhow::Result<(Child, u32)> {
    let program = env::current_exe().context("find the path of this program")?;
    let mut command = Command::new(program);
    command.args(["poll", "--kafka", &place.ground.brokers, "--topic", topic]);
    command.env("TEST_POSTGRES_URL", url(place)).stdin(Stdio::null()).kill_on_drop(true);
    let child = command.spawn().context("start the polling loop")?;
    let process = child.id().context("the polling loop has ended")?;
    Ok((child, process))
}

fn check_running(child: &mut Child) -> anyhow::Result<()> {
    ensure!(child.try_wait()?.is_none(), "the polling loop has failed");
    Ok(())
}

/// Measures how it reads the rows of a backlog from a table that has just been filled.
pub(crate) async fn catch_up(
    place: &Place,
    base: &str,
    case: &Case,
    progress: &Progress,
) -> anyhow::Result<Measured> {
    let topic = format!("{base}-polling-loop").replace('_', "-");
    place.topics.make(&topic, case.partitions).await?;
    let client = &place.ground.client;
    client.batch_execute(CREATE).await.context("create the table of the polling loop")?;
    let fill = "INSERT INTO polled.outbox SELECT * FROM public.outbox; ANALYZE polled.outbox";
    client.batch_execute(fill).await.context("fill the table of the polling loop")?;
    let started = Instant::now();
    let (mut child, process) = start(place, &topic)?;
    let counted =
        arrivals::of_backlog(place, &topic, case, progress, async || check_running(&mut child)).await?;
    let measured = Measured {
        events_per_second: counted.events_per_second(),
        first_after: Some(counted.first.duration_since(started)),
        took: Some(counted.took()),
        cpu: Some(cpu_time(process)?),
        memory: Some(peak_memory(process)?),
    };
    child.kill().await?;
    client.batch_execute("TRUNCATE polled.outbox").await?;
    place.topics.delete_like(&topic).await?;
    Ok(measured)
}

/// Measures its latency for `span`.
pub(crate) async fn latency(
    place: &Place,
    name: &str,
    load: Load,
    span: Duration,
    progress: &Progress,
) -> anyhow::Result<Seen> {
    place.topics.make(name, PARTITIONS).await?;
    place.ground.client.batch_execute(CREATE).await.context("create the table of the polling loop")?;
    let (mut child, process) = start(place, name)?;
    let postgres = url(place);
    let what = Observed { postgres: &postgres, name, topic: name, process };
    let seen = observe(&place.ground, what, load, span, progress, || check_running(&mut child)).await?;
    child.kill().await?;
    place.ground.client.batch_execute("TRUNCATE polled.outbox").await?;
    Ok(seen)
}
