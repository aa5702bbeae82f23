//! Catch-up: each router reads the same backlog from a copy of the same slot.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use indicatif::HumanCount;
use outbox_router::config::DeliveryMode;
use serde::Serialize;
use tokio::time::{sleep, timeout};

use super::ground::{Ground, Run};
use super::progress::Progress;
use crate::stage::process::{cpu_time, peak_memory};
use crate::stage::router::status;

const POLL_EVERY: Duration = Duration::from_millis(10);
/// The measurement fails if the router counts no event for this long.
const NOTHING_IS_COUNTED_FOR: Duration = Duration::from_secs(60);

/// How one router caught up.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct CatchUp {
    #[serde(serialize_with = "super::mode_name")]
    pub(crate) mode: DeliveryMode,
    /// From the start of the process until it had counted an event.
    pub(crate) first_after_seconds: f64,
    /// From then until it had counted the last one.
    pub(crate) seconds: f64,
    /// During `seconds`.
    pub(crate) events_per_second: f64,
    /// User and system time of the process until the last event.
    pub(crate) cpu_seconds: f64,
    pub(crate) peak_memory_bytes: u64,
}

impl fmt::Display for CatchUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CatchUp { seconds, events_per_second, cpu_seconds, peak_memory_bytes, .. } = self;
        let (rate, memory) = (HumanCount(*events_per_second as u64), *peak_memory_bytes as f64 / 1e6);
        write!(f, "{rate} events/s in {seconds:.2} s, {cpu_seconds:.2} s of CPU, {memory:.1} MB")
    }
}

/// Measures how long a new router takes to read a backlog from a copy of the slot `from`, and to send the `rows` events of it.
/// `live`: others write more events behind them in the meantime.
pub(crate) async fn measure(
    ground: &Ground,
    from: &str,
    run: &Run,
    rows: u64,
    live: bool,
    progress: &Progress,
) -> anyhow::Result<CatchUp> {
    for slot in run.slots() {
        ground.copy_slot(from, &slot).await?;
    }
    let mut router = ground.router(run, "only")?;
    let start = Instant::now();
    let process = router.start()?;
    let mut first: Option<(Instant, u64)> = None;
    let (mut counted, mut last) = (0, start);
    while counted < rows {
        sleep(POLL_EVERY).await;
        router.check_running()?;
        // it does not answer immediately after its start
        let Ok(Ok(report)) = timeout(Duration::from_secs(1), status(router.admin())).await else { continue };
        let now = Instant::now();
        if report.totals.events > counted {
            (counted, last) = (report.totals.events, now);
            first.get_or_insert((now, counted));
            progress.now(&format!("{}: {} of {} events", run.name, HumanCount(counted), HumanCount(rows)));
        }
        ensure!(
            last.elapsed() < NOTHING_IS_COUNTED_FOR,
            "{}: {counted} of {rows} events, and no more",
            run.name
        );
    }
    let (since, before) = first.context("no events counted")?;
    let (cpu, memory) = (cpu_time(process)?, peak_memory(process)?);
    ensure!(counted == rows || live, "{}: {counted} of {rows} events", run.name);
    // parked events may be the last
    while !live && status(router.admin()).await?.in_flight.records > 0 {
        ensure!(last.elapsed() < NOTHING_IS_COUNTED_FOR, "{}: records stay in flight", run.name);
        sleep(POLL_EVERY).await;
    }
    router.stop().await?;
    for slot in run.slots() {
        ground.drop_slot(&slot).await?;
    }
    // if all events were counted at one poll, it took less than two intervals
    let seconds = last.duration_since(since).max(POLL_EVERY).as_secs_f64();
    Ok(CatchUp {
        mode: run.mode,
        first_after_seconds: since.duration_since(start).as_secs_f64(),
        seconds,
        events_per_second: (counted - before) as f64 / seconds,
        cpu_seconds: cpu.as_secs_f64(),
        peak_memory_bytes: memory,
    })
}
