//! Counts the records of a program that has no counter of its own.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use indicatif::HumanCount;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use tokio::time::sleep;

use crate::case::Case;
use crate::contestant::Place;
use crate::measure::progress::Progress;

const LOOK_EVERY: Duration = Duration::from_millis(10);
const CHECK_EVERY: Duration = Duration::from_secs(2);
const ANSWER: Duration = Duration::from_secs(5);
const NOTHING_ARRIVES_FOR: Duration = Duration::from_secs(120);

/// When the records of a backlog were in their topic.
pub(crate) struct Counted {
    /// When the first records were seen, and how many there were.
    pub(crate) first: Instant,
    before: u64,
    last: Instant,
    count: u64,
}

impl Counted {
    /// From the first records to the last.
    pub(crate) fn took(&self) -> Duration {
        self.last.duration_since(self.first)
    }

    pub(crate) fn events_per_second(&self) -> f64 {
        (self.count - self.before) as f64 / self.took().as_secs_f64()
    }
}

/// Waits until the topic has a record for each row of the case. Calls `check` every two seconds.
pub(crate) async fn of_backlog(
    place: &Place,
    topic: &str,
    case: &Case,
    progress: &Progress,
    mut check: impl AsyncFnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Counted> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &place.ground.brokers)
        .create()
        .context("create a consumer")?;
    let begun = Instant::now();
    let (mut first, mut count, mut last, mut checked) = (None, 0, begun, begun);
    while count < case.rows {
        sleep(LOOK_EVERY).await;
        let now = records(&consumer, topic, case.partitions)?;
        if now > count {
            (count, last) = (now, Instant::now());
            first.get_or_insert((last, count));
            progress.now(&format!("{topic}: {} of {} events", HumanCount(count), HumanCount(case.rows)));
        }
        if checked.elapsed() > CHECK_EVERY {
            check().await?;
            checked = Instant::now();
        }
        ensure!(last.elapsed() < NOTHING_ARRIVES_FOR, "{topic}: {count} events, and no more arrive");
    }
    let (first, before) = first.context("no events counted")?;
    Ok(Counted { first, before, last, count })
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
