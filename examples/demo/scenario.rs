//! Runs the demo.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;
use indicatif::HumanCount;
use tokio::time::sleep;

use crate::comparison::compare;
use crate::latency::{Pause, latencies};
use crate::progress::Progress;
use crate::report::Report;
use crate::stage::consumer::{Received, TopicReader};
use crate::stage::outbox_table::{committed_rows, topic_of};
use crate::stage::router::Router;
use crate::writers::{self, AGGREGATE_TYPES, Plan, Written};

/// How long the router stays dead while the writers continue.
const DOWN_FOR: Duration = Duration::from_millis(1500);
/// Rows written first, to create the topics before the scheduled load begins.
const OPENING_ROWS: u64 = 100;
/// Waiting for missing events ends when no record has arrived for this long.
const NOTHING_ARRIVES_FOR: Duration = Duration::from_secs(30);
const POLL_EVERY: Duration = Duration::from_millis(50);

/// The program, its folder and the servers.
pub(crate) struct Stage {
    pub(crate) program: PathBuf,
    pub(crate) folder: PathBuf,
    pub(crate) postgres: String,
    pub(crate) brokers: String,
}

/// Runs the demo.
pub(crate) async fn run_demo(stage: &Stage, plan: Plan) -> anyhow::Result<Report> {
    let postgres = writers::connect(&stage.postgres).await?;
    writers::create_tables(&postgres).await?;
    let mut router = Router::new(&stage.program, &stage.folder, &stage.postgres, &stage.brokers, "")?;
    router.init().await?;

    let topics = AGGREGATE_TYPES.map(topic_of).to_vec();
    let mut reading = TopicReader::start(&stage.brokers, topics)?;
    let committed = Arc::new(AtomicU64::new(0));
    let progress = Progress::new(plan.rows, Arc::clone(&committed), reading.counter());
    start(&mut router, &progress, "router started").await?;
    progress.say(&format!(
        "{} writers commit {} rows in about {} s; one transaction in ten rolls back (--seed {})",
        plan.writers,
        HumanCount(plan.rows),
        plan.span.as_secs(),
        plan.seed
    ));

    let mut records = Vec::new();
    let acts = async {
        let from = Instant::now();
        let opening = Plan { writers: 1, rows: plan.rows.min(OPENING_ROWS), span: Duration::ZERO, ..plan };
        let mut written = writers::write(&stage.postgres, opening, &committed).await?;
        everything_arrives(&mut reading, &mut records, &written, &mut router).await?;
        let creation = Pause { from, until: Instant::now() };

        let rest = plan.rows.saturating_sub(committed.load(Ordering::Relaxed));
        let rest = Plan { rows: rest, seed: plan.seed.wrapping_add(1), ..plan };
        let writing = writers::write(&stage.postgres, rest, &committed);
        let crashing = crash(&mut router, &progress, plan.rows, &committed);
        let (more, outage) = tokio::try_join!(writing, crashing)?;
        written.add(more);
        everything_arrives(&mut reading, &mut records, &written, &mut router).await?;
        router.stop().await?;
        anyhow::Ok((written, creation, outage))
    };
    let (written, creation, outage) = tokio::select! {
        end = acts => end?,
        () = progress.show() => bail!("the display ended"),
    };
    drop(progress);
    // read to the end, so that late duplicates are counted too
    tokio::task::block_in_place(|| reading.finish(&mut records))?;

    let rows = committed_rows(&postgres).await?;
    let findings = compare(&rows, &written, &records);
    let (all, steady) = latencies(&written, &records, &[creation, outage]);
    Ok(Report { written, findings, all, steady, outage })
}

async fn start(router: &mut Router, progress: &Progress, what: &str) -> anyhow::Result<()> {
    let begin = Instant::now();
    let number = router.start()?;
    router.wait_until_ready().await?;
    progress.say(&format!("{what}, process {number}, ready after {} ms", begin.elapsed().as_millis()));
    Ok(())
}

/// Kills the router after half of the rows, and restarts it.
async fn crash(
    router: &mut Router,
    progress: &Progress,
    rows: u64,
    committed: &AtomicU64,
) -> anyhow::Result<Pause> {
    while committed.load(Ordering::Relaxed) < rows / 2 {
        sleep(POLL_EVERY).await;
        router.check_running()?;
    }
    let from = Instant::now();
    router.kill().await?;
    progress.say("router killed with SIGKILL; the writers continue");
    sleep(DOWN_FOR).await;
    start(router, progress, "router restarted").await?;
    Ok(Pause { from, until: Instant::now() })
}

/// Waits until every committed event was read, and gives up only when no more records arrive. The comparison then names the
/// missing events.
async fn everything_arrives(
    reading: &mut TopicReader,
    records: &mut Vec<Received>,
    written: &Written,
    router: &mut Router,
) -> anyhow::Result<()> {
    let mut missing: HashSet<&str> = written.committed.keys().map(String::as_str).collect();
    for record in records.iter() {
        record.id().map(|id| missing.remove(id));
    }
    let mut looked_at = records.len();
    let mut last_arrival = Instant::now();
    loop {
        reading.take(records)?;
        for record in records.iter().skip(looked_at) {
            record.id().map(|id| missing.remove(id));
        }
        if records.len() > looked_at {
            looked_at = records.len();
            last_arrival = Instant::now();
        }
        if missing.is_empty() || last_arrival.elapsed() > NOTHING_ARRIVES_FOR {
            return Ok(());
        }
        router.check_running()?;
        sleep(POLL_EVERY).await;
    }
}
