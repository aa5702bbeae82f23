//! Latency under load, the idle router, and the limit of sustained throughput.

use std::time::{Duration, Instant};

use anyhow::ensure;
use outbox_router::config::DeliveryMode;
use tokio::time::sleep;

use crate::bare_producer;
use crate::contestant::Place;
use crate::measure::ground::Run;
use crate::measure::latency;
use crate::measure::progress::Progress;
use crate::measure::writers::{Load, Writers};
use crate::report::{Idle, Lateness, Measured, Settings};
use crate::stage::process::{cpu_time, peak_memory};
use crate::stage::router::status;

/// Loads of one-row transactions.
const RATES: [u32; 3] = [100, 1_000, 5_000];
/// The load for the bare producer, and of the quick measurement.
const RATE_IN_THE_MIDDLE: u32 = 1_000;
/// Rows per transaction when the limit is measured.
const MANY: u32 = 10;
/// A rate above what any machine writes.
const WITHOUT_PAUSE: u32 = 1_000_000;
/// The time until writers and router run steadily.
const EVENLY: Duration = Duration::from_secs(2);
/// The duration of the idle measurement.
const IDLE: Duration = Duration::from_secs(5);
/// The share of the highest delivered rate.
const PART_OF_MAXIMUM: f64 = 0.8;

pub(crate) async fn measure(
    place: &Place,
    settings: &Settings,
    quick: bool,
    progress: &Progress,
    measured: &mut Measured,
) -> anyhow::Result<()> {
    let span = Duration::from_secs(settings.seconds.into());
    let mut loads: Vec<(String, Load)> = RATES
        .into_iter()
        .filter(|rate| !quick || *rate == RATE_IN_THE_MIDDLE)
        .map(|rate| (format!("{rate} transactions/s"), Load { rate, rows: 1 }))
        .collect();
    if !quick {
        let maximum = maximum(place, span, progress).await?;
        progress.say(&format!("{maximum:.0} events/s are delivered while writers do all that they can"));
        measured.maximum = Some(maximum);
        let rate = (maximum * PART_OF_MAXIMUM / f64::from(MANY)) as u32;
        loads.push(("80 % of the maximum".to_owned(), Load { rate: rate.max(1), rows: MANY }));
    }
    for mode in DeliveryMode::ALL {
        measured.idle.push(idle(place, mode, progress).await?);
    }
    // warm-up: the broker's JVM compiles its code for small batches
    for mode in DeliveryMode::ALL {
        let run = Run::new("bench-warm-up", mode, 0);
        let load = Load { rate: RATE_IN_THE_MIDDLE, rows: 1 };
        latency::measure(&place.ground, &run, load, span, progress).await?;
    }
    for round in 1..=settings.latency_rounds {
        for (number, (called, load)) in loads.iter().enumerate() {
            for mode in DeliveryMode::ALL {
                let run = Run::new(&format!("bench-latency-{number}"), mode, round);
                let found = latency::measure(&place.ground, &run, *load, span, progress).await?;
                let contestant = format!("router, {}", mode.name());
                measured.latency.push(said(progress, contestant, called, *load, round, found.seen));
            }
            if load.rows == 1 && load.rate == RATE_IN_THE_MIDDLE {
                let topic = format!("bench-bare-producer-{round}");
                let seen = bare_producer::latency(place, &topic, load.rate, span).await?;
                let contestant = bare_producer::NAME.to_owned();
                measured.latency.push(said(progress, contestant, called, *load, round, seen));
            }
        }
        place.ground.client.batch_execute("TRUNCATE outbox").await?;
    }
    place.topics.delete_like("bench-").await
}

fn said(
    progress: &Progress,
    contestant: String,
    called: &str,
    load: Load,
    round: u32,
    seen: latency::Seen,
) -> Lateness {
    progress.say(&format!("{called}, {contestant}: {seen}"));
    progress.step();
    Lateness { contestant, load, called: called.to_owned(), round, seen }
}

/// Measures an idle router.
async fn idle(place: &Place, mode: DeliveryMode, progress: &Progress) -> anyhow::Result<Idle> {
    let run = Run::new("bench-idle", mode, 0);
    place.ground.create_slot(&run.slot()).await?;
    let mut router = place.ground.router(&run, "only")?;
    let process = router.start()?;
    router.wait_until_ready().await?;
    progress.now("a router with nothing to do");
    sleep(EVENLY).await;
    let before = cpu_time(process)?;
    sleep(IDLE).await;
    let cpu = cpu_time(process)?.saturating_sub(before);
    let peak_memory_bytes = peak_memory(process)?;
    router.stop().await?;
    place.ground.drop_slot(&run.slot()).await?;
    let cpu_percent = cpu.as_secs_f64() / IDLE.as_secs_f64() * 100.0;
    Ok(Idle { mode: mode.name().to_owned(), peak_memory_bytes, cpu_percent })
}

/// The events per second that a router delivers while four writers commit transactions without pause.
async fn maximum(place: &Place, span: Duration, progress: &Progress) -> anyhow::Result<f64> {
    let run = Run::new("bench-maximum", DeliveryMode::AtLeastOnce, 0);
    place.ground.create_slot(&run.slot()).await?;
    let mut router = place.ground.router(&run, "only")?;
    router.start()?;
    router.wait_until_ready().await?;
    let load = Load { rate: WITHOUT_PAUSE, rows: MANY };
    let mut writers = Writers::start(&place.ground.url, &run.name, load).await?;
    progress.now("looking for the most that is delivered while writers write");
    sleep(EVENLY).await;
    let (begun, before) = (Instant::now(), status(router.admin()).await?.totals.events);
    sleep(span).await;
    let (took, after) = (begun.elapsed(), status(router.admin()).await?.totals.events);
    writers.check()?;
    drop(writers.stop().await?);
    // the rest of the backlog is nobody's
    router.kill().await?;
    place.ground.drop_slot(&run.slot()).await?;
    place.ground.client.batch_execute("TRUNCATE outbox; CHECKPOINT").await?;
    ensure!(after > before, "the router delivers nothing");
    Ok((after - before) as f64 / took.as_secs_f64())
}
