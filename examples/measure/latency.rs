//! Latency: from the return of the writer's COMMIT until a consumer of committed records received the record, both by this
//! machine's clock. A record that arrives before the COMMIT has returned counts as 0.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::bail;
use indicatif::HumanCount;
use outbox_router::config::DeliveryMode;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::ground::{Ground, Id, Run};
use super::progress::Progress;
use super::writers::{Load, Writers, arrivals};
use crate::stage::consumer::TopicReader;
use crate::stage::figures::{Latency, time};
use crate::stage::process::{cpu_time, peak_memory};

/// Not measured, because the topic is created during this time.
const WARM_UP: Duration = Duration::from_secs(2);
const POLL_EVERY: Duration = Duration::from_millis(50);
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(30);

/// A broker answers a fetch at once if there are records, otherwise after `fetch.wait.max.ms`.
const CONSUMER: [(&str, &str); 2] = [("isolation.level", "read_committed"), ("fetch.wait.max.ms", "5")];

/// The result of one run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct LatencyRun {
    #[serde(serialize_with = "super::mode_name")]
    pub(crate) mode: DeliveryMode,
    #[serde(flatten)]
    pub(crate) seen: Seen,
}

/// The latencies that a consumer observed, and the resources of the router.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) events: usize,
    /// The actual rate of the writers.
    pub(crate) transactions_per_second: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) longest_ms: f64,
    /// User and system time of the process during the measurement.
    pub(crate) cpu_seconds: f64,
    pub(crate) peak_memory_bytes: u64,
}

impl Seen {
    /// The latencies of the events that were sent within `span` after `from`, `rows` in each transaction.
    pub(crate) fn of(
        sent: &HashMap<Id, Instant>,
        arrived: &HashMap<Id, Instant>,
        from: Instant,
        span: Duration,
        rows: u32,
    ) -> Self {
        let until = from + span;
        let times = sent
            .iter()
            .filter(|(_, at)| (from..until).contains(*at))
            .filter_map(|(id, at)| Some(arrived.get(id)?.saturating_duration_since(*at)))
            .collect();
        let Latency { events, p50, p99, longest } = Latency::of(times);
        let [p50_ms, p99_ms, longest_ms] = [p50, p99, longest].map(|time| time.as_secs_f64() * 1000.0);
        let transactions_per_second = events as f64 / f64::from(rows) / span.as_secs_f64();
        let (cpu_seconds, peak_memory_bytes) = (0.0, 0);
        Seen { events, transactions_per_second, p50_ms, p99_ms, longest_ms, cpu_seconds, peak_memory_bytes }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, longest] =
            [self.p50_ms, self.p99_ms, self.longest_ms].map(|ms| time(Duration::from_secs_f64(ms / 1000.0)));
        let (rate, cpu) = (self.transactions_per_second, self.cpu_seconds);
        write!(
            f,
            "p50 {p50}, p99 {p99}, longest {longest}, {cpu:.2} s of CPU, at {rate:.0} transactions per second"
        )
    }
}

/// Starts a consumer that reads only committed records of a topic.
pub(crate) fn reading(ground: &Ground, topic: &str) -> anyhow::Result<TopicReader> {
    TopicReader::start_with(&ground.brokers, vec![topic.to_owned()], &CONSUMER)
}

/// Starts a router, and measures it for `span`.
pub(crate) async fn measure(
    ground: &Ground,
    run: &Run,
    load: Load,
    span: Duration,
    progress: &Progress,
) -> anyhow::Result<LatencyRun> {
    ground.create_slot(&run.slot()).await?;
    let mut router = ground.router(run, "only")?;
    let process = router.start()?;
    router.wait_until_ready().await?;
    let what = Observed { postgres: &ground.url, name: &run.name, topic: &run.topic, process };
    let seen = observe(ground, what, load, span, progress, || router.check_running()).await?;
    router.stop().await?;
    ground.drop_slot(&run.slot()).await?;
    Ok(LatencyRun { mode: run.mode, seen })
}

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Observed<'a> {
    /// URL for the writers.
    pub(crate) postgres: &'a str,
    /// The aggregate type of the events that are written for it.
    pub(crate) name: &'a str,
    /// The topic of these events.
    pub(crate) topic: &'a str,
    pub(crate) process: u32,
}

/// Writes and measures for `span`, after the warm-up.
pub(crate) async fn observe(
    ground: &Ground,
    what: Observed<'_>,
    load: Load,
    span: Duration,
    progress: &Progress,
    mut check_running: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Seen> {
    let mut reading = reading(ground, what.topic)?;
    let (mut records, mut arrived) = (Vec::new(), HashMap::new());
    let mut writers = Writers::start(what.postgres, what.name, load).await?;
    let from = Instant::now() + WARM_UP;
    let (mut cpu_before, mut begun) = (Duration::ZERO, false);
    while from.elapsed() < span {
        sleep(POLL_EVERY).await;
        if !begun && Instant::now() >= from {
            (cpu_before, begun) = (cpu_time(what.process)?, true);
        }
        check_running()?;
        writers.check()?;
        reading.take(&mut records)?;
        arrivals(&mut records, &mut arrived);
        progress.now(&format!("{}: {} records", what.name, HumanCount(arrived.len() as u64)));
    }
    let cpu = cpu_time(what.process)?.saturating_sub(cpu_before);
    let ledger = writers.stop().await?;
    let committed = ledger.lock().clone();
    all_arrive(&mut reading, &mut arrived, &committed).await?;
    let peak_memory_bytes = peak_memory(what.process)?;

    let seen = Seen::of(&committed, &arrived, from, span, load.rows);
    Ok(Seen { cpu_seconds: cpu.as_secs_f64(), peak_memory_bytes, ..seen })
}

/// Waits until every committed event has arrived.
pub(crate) async fn all_arrive(
    reading: &mut TopicReader,
    arrived: &mut HashMap<Id, Instant>,
    committed: &HashMap<Id, Instant>,
) -> anyhow::Result<()> {
    let (deadline, mut records) = (Instant::now() + ARRIVAL_TIMEOUT, Vec::new());
    loop {
        reading.take(&mut records)?;
        arrivals(&mut records, arrived);
        let missing = committed.keys().filter(|id| !arrived.contains_key(id)).count();
        if missing == 0 {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("{missing} of {} events did not arrive", committed.len());
        }
        sleep(POLL_EVERY).await;
    }
}
