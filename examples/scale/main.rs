//! Measures the router's memory while many rows wait: in one large transaction, during a long outage of the broker, and in a
//! backlog from before its start. At the end reads every record, counts them, and checks the order of each key.
//!
//! `scripts/scale` starts the servers and runs this program; see its `--help`.

#[allow(dead_code, reason = "each program uses only some of it")]
#[path = "../stage/mod.rs"]
mod stage;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Parser;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde::Deserialize;
use tokio::process::Command;
use tokio::time::sleep;
use tokio_postgres::{Client, NoTls};

use crate::stage::outbox_table::topic_of;
use crate::stage::process::peak_memory;
use crate::stage::program;
use crate::stage::router::{Router, status};

/// The number of keys. Each number of rows is a multiple of it, so that all keys have equally many.
const KEYS: u64 = 1_000;
const ANSWER: Duration = Duration::from_secs(10);
/// The program fails if no record arrives for this long.
const NOTHING_ARRIVES_FOR: Duration = Duration::from_secs(60);
/// Rows per second during the outage, and rows per transaction.
const RATE: u64 = 1_000;
/// Rows of the backlog per statement.
const CHUNK: u64 = 500_000;

/// Measures the router's memory in situations in which many rows wait.
#[derive(Debug, Parser)]
struct Cli {
    #[arg(long, env = "TEST_POSTGRES_URL", hide_env_values = true)]
    postgres: String,
    #[arg(long, env = "TEST_KAFKA")]
    kafka: String,
    #[arg(long, default_value = "scripts/services")]
    services: PathBuf,
    /// Instance of that script
    #[arg(long, default_value = "scale")]
    instance: String,
    #[arg(long)]
    router: PathBuf,
    /// Folder for configuration and logs
    #[arg(long)]
    folder: PathBuf,
    /// Rows of one transaction
    #[arg(long, default_value_t = 1_000_000)]
    transaction: u64,
    /// Seconds of the broker's outage
    #[arg(long, default_value_t = 600)]
    outage: u64,
    /// Rows committed before the router starts
    #[arg(long, default_value_t = 10_000_000)]
    backlog: u64,
    /// Commits the large transaction before the router starts, and reads it and the backlog in bulk
    #[arg(long)]
    bulk_reads: bool,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    program::run("scale", run(Cli::parse())).await
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let (postgres, connection) =
        tokio_postgres::connect(&cli.postgres, NoTls).await.context("connect to Postgres")?;
    // the client's next query reports its error
    tokio::spawn(connection);
    let settings = if cli.bulk_reads { "" } else { "postgres.catch_up = \"stream\"" };
    let mut router = Router::new(&cli.router, &cli.folder, &cli.postgres, &cli.kafka, settings)?;
    router.init().await?;

    let count = in_keys(cli.transaction);
    if count > 0 {
        // a running router would have begun to stream it before switching to bulk reads
        if !cli.bulk_reads {
            router.start()?;
            router.wait_until_ready().await?;
        }
        let began = Instant::now();
        insert(&postgres, "transaction", 0, count).await?;
        let committed = began.elapsed();
        if cli.bulk_reads {
            router.start()?;
        }
        arrive(&cli.kafka, "transaction", count, &mut router).await?;
        say(
            &format!("{count} rows in one transaction, inserted in {:.1} s", committed.as_secs_f64()),
            began,
            &router,
        )?;
        finish(&mut router, &postgres).await?;
    }
    if cli.outage > 0 {
        router.start()?;
        router.wait_until_ready().await?;
        insert(&postgres, "outage", 0, KEYS).await?;
        arrive(&cli.kafka, "outage", KEYS, &mut router).await?;
        let began = Instant::now();
        service(&cli, "kill").await?;
        let mut count = KEYS;
        while began.elapsed() < Duration::from_secs(cli.outage) {
            insert(&postgres, "outage", count, KEYS).await?;
            count += KEYS;
            sleep(Duration::from_secs_f64(KEYS as f64 / RATE as f64)).await;
        }
        service(&cli, "start").await?;
        let back = Instant::now();
        arrive(&cli.kafka, "outage", count, &mut router).await?;
        say(&format!("{count} rows through {} s without a broker", cli.outage), back, &router)?;
        finish(&mut router, &postgres).await?;
        compared(&cli.kafka, "outage", count).await?;
    }
    let count = in_keys(cli.backlog);
    if count > 0 {
        let mut from = 0;
        while from < count {
            let rows = CHUNK.min(count - from);
            insert(&postgres, "backlog", from, rows).await?;
            from += rows;
        }
        let began = Instant::now();
        router.start()?;
        arrive(&cli.kafka, "backlog", count, &mut router).await?;
        say(&format!("a backlog of {count} rows"), began, &router)?;
        finish(&mut router, &postgres).await?;
        compared(&cli.kafka, "backlog", count).await?;
    }
    if cli.transaction > 0 {
        compared(&cli.kafka, "transaction", in_keys(cli.transaction)).await?;
    }
    Ok(ExitCode::SUCCESS)
}

fn in_keys(rows: u64) -> u64 {
    rows.div_ceil(KEYS) * KEYS
}

/// Inserts `count` rows in one transaction; row `n` is of key `n % KEYS`. A function in FROM would take a temporary file.
async fn insert(postgres: &Client, kind: &str, from: u64, count: u64) -> anyhow::Result<()> {
    let sql = format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
         SELECT '{kind}', '{kind}-' || n % {KEYS}, 'Imported', jsonb_build_object('n', n, 'text', md5(n::text)) \
         FROM (SELECT generate_series({from}, {}) AS n) numbers",
        from + count - 1
    );
    postgres.batch_execute(&sql).await.context("insert")
}

async fn service(cli: &Cli, what: &str) -> anyhow::Result<()> {
    let mut command = Command::new(&cli.services);
    let status = command.args([what, "kafka", "--instance", &cli.instance]).status().await?;
    ensure!(status.success(), "{} {what} kafka: {status}", cli.services.display());
    Ok(())
}

/// Waits until a topic has this many records.
async fn arrive(brokers: &str, kind: &str, count: u64, router: &mut Router) -> anyhow::Result<()> {
    let consumer = consumer(brokers)?;
    let (mut before, mut last) = (0, Instant::now());
    loop {
        router.check_running()?;
        let ends = tokio::task::block_in_place(|| ends(&consumer, &topic_of(kind)));
        // the topic may not exist yet, or the broker may be down
        let there = ends.map_or(before, |ends| ends.iter().map(|(_, end)| *end as u64).sum());
        if there >= count {
            return Ok(());
        }
        if there > before {
            (before, last) = (there, Instant::now());
        } else if last.elapsed() > NOTHING_ARRIVES_FOR {
            bail!(
                "{there} of {count} records of {kind} arrived, and no more for {} s",
                last.elapsed().as_secs()
            );
        }
        sleep(Duration::from_millis(200)).await;
    }
}

fn consumer(brokers: &str) -> anyhow::Result<BaseConsumer> {
    ClientConfig::new()
        .set("bootstrap.servers", brokers)
        // librdkafka requires a group, even if nothing is committed
        .set("group.id", "scale")
        .set("enable.auto.commit", "false")
        .set("reconnect.backoff.max.ms", "200")
        .set("queued.max.messages.kbytes", "32768")
        .create()
        .context("create a consumer")
}

/// The partitions of a topic and their end offsets.
fn ends(consumer: &BaseConsumer, topic: &str) -> anyhow::Result<Vec<(i32, i64)>> {
    let metadata = consumer.fetch_metadata(None, ANSWER)?;
    let found = metadata
        .topics()
        .iter()
        .find(|found| found.name() == topic)
        .context("the topic does not exist yet")?;
    let end = |partition: i32| Ok((partition, consumer.fetch_watermarks(topic, partition, ANSWER)?.1));
    found.partitions().iter().map(|partition| end(partition.id())).collect()
}

/// Prints the time since `began` and the router's peak memory.
fn say(what: &str, since: Instant, router: &Router) -> anyhow::Result<()> {
    let seconds = since.elapsed().as_secs_f64();
    let memory = peak_memory(router.process().context("the router is not running")?)?;
    println!("{what}: all there after {seconds:.1} s; memory {:.1} MB", memory as f64 / 1e6);
    Ok(())
}

/// Stops the router. With bulk reads, prints their number and the temporary files that the server has written so far.
async fn finish(router: &mut Router, postgres: &Client) -> anyhow::Result<()> {
    let bulk_reads = status(router.admin()).await?.totals.bulk_reads;
    router.stop().await?;
    if bulk_reads > 0 {
        // the server process may report its files only when it ends
        let ended = "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'walsender'";
        while !postgres.query_one(ended, &[]).await.context("query pg_stat_activity")?.get::<_, bool>(0) {
            sleep(Duration::from_millis(100)).await;
        }
        let sql = "SELECT temp_files, temp_bytes FROM pg_stat_database WHERE datname = current_database()";
        let row = postgres.query_one(sql, &[]).await.context("query pg_stat_database")?;
        let (files, bytes): (i64, i64) = (row.get(0), row.get(1));
        println!(
            "read in bulk, of which there were {bulk_reads}; temporary files so far: {files}, {:.1} MB",
            bytes as f64 / 1e6
        );
    }
    Ok(())
}

#[derive(Deserialize)]
struct Payload {
    n: u64,
}

/// Runs the comparison on its own thread, so that signals are handled meanwhile.
async fn compared(brokers: &str, kind: &'static str, count: u64) -> anyhow::Result<()> {
    let brokers = brokers.to_owned();
    tokio::task::spawn_blocking(move || compare(&brokers, kind, count)).await?
}

/// Reads a topic from the beginning, and checks that each key has its rows in order and without a gap.
fn compare(brokers: &str, kind: &str, count: u64) -> anyhow::Result<()> {
    let consumer = consumer(brokers)?;
    let topic = topic_of(kind);
    let ends = ends(&consumer, &topic)?;
    let mut list = TopicPartitionList::new();
    for (partition, _) in &ends {
        list.add_partition_offset(&topic, *partition, Offset::Beginning)?;
    }
    consumer.assign(&list)?;
    let mut open: Vec<(i32, i64)> = ends.into_iter().filter(|(_, end)| *end > 0).collect();
    // the next row of each key; a key's first row has the key's number
    let mut next: Vec<u64> = (0..KEYS).collect();
    let (mut records, mut again, mut last) = (0_u64, 0_u64, Instant::now());
    while !open.is_empty() {
        ensure!(last.elapsed() < NOTHING_ARRIVES_FOR, "{topic} cannot be read to its end");
        let Some(message) = consumer.poll(ANSWER) else { continue };
        let message = message.with_context(|| format!("read {topic}"))?;
        last = Instant::now();
        records += 1;
        let (partition, offset) = (message.partition(), message.offset());
        let Payload { n } = serde_json::from_slice(message.payload().unwrap_or_default())
            .with_context(|| format!("the record at {partition}/{offset} of {topic}"))?;
        ensure!(
            message.key() == Some(format!("{kind}-{}", n % KEYS).as_bytes()),
            "the key of row {n} at {partition}/{offset} of {topic}"
        );
        let next = next.get_mut((n % KEYS) as usize).context("no such key")?;
        ensure!(
            n <= *next,
            "row {next} of {kind} is lost or late: row {n} is at {partition}/{offset} of {topic}"
        );
        if n == *next {
            *next += KEYS;
        } else {
            again += 1;
        }
        open.retain(|(open, end)| *open != partition || offset + 1 < *end);
    }
    let missing = next.iter().filter(|next| **next < count).count();
    ensure!(missing == 0, "the last rows of {missing} keys of {kind} are lost");
    println!("{kind}: {records} records of {count} rows, {again} twice, none lost, each key in order");
    Ok(())
}
