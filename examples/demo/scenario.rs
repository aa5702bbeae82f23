//! The demo from its first act to the last.

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

/// How long the router stays dead while the writers go on.
const DOWN_FOR: Duration = Duration::from_millis(1500);
/// The first rows wait until their topics exist; so many are written before the pace begins.
const OPENING_ROWS: u64 = 100;
/// A deadline without any record, not for all of them.
const NOTHING_ARRIVES_FOR: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Where everything is.
pub(crate) struct Stage {
    pub(crate) program: PathBuf,
    pub(crate) folder: PathBuf,
    pub(crate) postgres: String,
    pub(crate) brokers: String,
}

/// Plays it.
pub(crate) async fn play(stage: &Stage, plan: Plan) -> anyhow::Result<Report> {
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
    // the log is final now: what came twice after all the rest is in it too
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

/// Kills the router in the middle, and starts it again.
async fn crash(
    router: &mut Router,
    progress: &Progress,
    rows: u64,
    committed: &AtomicU64,
) -> anyhow::Result<Pause> {
    while committed.load(Ordering::Relaxed) < rows / 2 {
        sleep(LOOK_EVERY).await;
        router.check_running()?;
    }
    let from = Instant::now();
    router.kill().await?;
    progress.say("router killed with SIGKILL; the writers go on");
    sleep(DOWN_FOR).await;
    start(router, progress, "router started again").await?;
    Ok(Pause { from, until: Instant::now() })
}

/// Waits until every committed event was read, and gives up only when nothing more arrives; what is missing then is
/// for the comparison to name.
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
        sleep(LOOK_EVERY).await;
    }
}
