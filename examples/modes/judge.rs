//! Checks that nothing was lost: compares the rows of the table with the committed records of the topic.

use std::collections::HashSet;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use outbox_router::config::DeliveryMode;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde::Serialize;

use crate::measure::ground::{Ground, Id, Run, id};

const ANSWER: Duration = Duration::from_secs(10);
/// Reading fails if no record arrives for this long.
const NOTHING_ARRIVES_FOR: Duration = Duration::from_secs(60);

/// The result of the comparison for one topic.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Verdict {
    #[serde(serialize_with = "crate::measure::mode_name")]
    pub(crate) mode: DeliveryMode,
    pub(crate) part: &'static str,
    pub(crate) run: String,
    pub(crate) rows: u64,
    /// In the table, and not in the topic.
    pub(crate) lost: u64,
    /// Records after the first of each row.
    pub(crate) duplicates: u64,
    /// In the topic, and not in the table.
    pub(crate) strange: u64,
}

impl Verdict {
    /// Whether anything was lost or unexpected, or repeated in exactly-once mode.
    pub(crate) fn is_broken(&self) -> bool {
        let repeated = self.mode == DeliveryMode::ExactlyOnce && self.duplicates > 0;
        self.lost > 0 || self.strange > 0 || repeated
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict { run, rows, lost, duplicates, strange, .. } = self;
        write!(f, "{run}: of {rows} rows {lost} lost, {duplicates} repeated; {strange} records of no row")
    }
}

/// Reads the topic of `run` to its end and compares it with `expected`. Call it after its last record was written.
pub(crate) async fn judge(
    ground: &Ground,
    part: &'static str,
    run: &Run,
    expected: &HashSet<Id>,
) -> anyhow::Result<Verdict> {
    let (brokers, topic) = (ground.brokers.clone(), run.topic.clone());
    let read = tokio::task::spawn_blocking(move || read(&brokers, &topic)).await;
    let found = read.context("the reader panicked")?.with_context(|| format!("read {}", run.topic))?;
    Ok(compare(part, run, expected, found))
}

fn compare(part: &'static str, run: &Run, expected: &HashSet<Id>, found: Vec<Id>) -> Verdict {
    let records = found.len();
    let found: HashSet<Id> = found.into_iter().collect();
    Verdict {
        mode: run.mode,
        part,
        run: run.name.clone(),
        rows: expected.len() as u64,
        lost: expected.difference(&found).count() as u64,
        duplicates: (records - found.len()) as u64,
        strange: found.difference(expected).count() as u64,
    }
}

/// The ids of all committed records. Their end is librdkafka's EOF, because the last offset of a partition may be a transaction
/// marker.
fn read(brokers: &str, topic: &str) -> anyhow::Result<Vec<Id>> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        // librdkafka requires a group, even if nothing is committed
        .set("group.id", "judge")
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed")
        .set("enable.partition.eof", "true")
        .set("queued.max.messages.kbytes", "32768")
        .create()
        .context("create a consumer")?;
    let metadata = consumer.fetch_metadata(None, ANSWER)?;
    let found =
        metadata.topics().iter().find(|found| found.name() == topic).context("the topic does not exist")?;
    let mut open: HashSet<i32> = found.partitions().iter().map(|partition| partition.id()).collect();
    let mut list = TopicPartitionList::new();
    for partition in &open {
        list.add_partition_offset(topic, *partition, Offset::Beginning)?;
    }
    consumer.assign(&list)?;
    let (mut ids, mut last) = (Vec::new(), Instant::now());
    while !open.is_empty() {
        ensure!(last.elapsed() < NOTHING_ARRIVES_FOR, "the end was not reached");
        match consumer.poll(Duration::from_millis(500)) {
            None => continue,
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                open.remove(&partition);
            }
            Some(Err(error)) => return Err(error.into()),
            Some(Ok(message)) => {
                let header = message
                    .headers()
                    .and_then(|headers| headers.iter().find(|header| header.key == "id"))
                    .and_then(|header| header.value);
                ids.push(id(std::str::from_utf8(header.context("a record has no id header")?)?)?);
            }
        }
        last = Instant::now();
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(mode: DeliveryMode, expected: &[Id], found: &[Id]) -> Verdict {
        compare("test", &Run::new("test", mode, 1), &expected.iter().copied().collect(), found.to_vec())
    }

    #[test]
    fn counts_lost_repeated_and_unexpected_records() {
        let verdict = compared(DeliveryMode::AtLeastOnce, &[1, 2, 3], &[1, 1, 1, 3, 9]);
        assert_eq!((verdict.rows, verdict.lost, verdict.duplicates, verdict.strange), (3, 1, 2, 1));
    }

    #[test]
    fn repetitions_are_allowed_only_in_at_least_once() {
        let [at_least, exactly] = DeliveryMode::ALL;
        assert!(!compared(at_least, &[1, 2], &[1, 2, 1]).is_broken());
        assert!(compared(exactly, &[1, 2], &[1, 2, 1]).is_broken());
        assert!(!compared(exactly, &[1, 2], &[2, 1]).is_broken());
        assert!(compared(at_least, &[1, 2], &[1]).is_broken());
        assert!(compared(at_least, &[1], &[1, 2]).is_broken());
    }
}
