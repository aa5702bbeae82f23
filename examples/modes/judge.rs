//! Nothing may be lost: each row of the table is looked for among what a reader of committed records finds in the topic.

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
/// Without any record that arrives.
const NOTHING_ARRIVES_FOR: Duration = Duration::from_secs(60);

/// What was in one topic.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Verdict {
    #[serde(serialize_with = "crate::measure::mode_name")]
    pub(crate) mode: DeliveryMode,
    pub(crate) part: &'static str,
    pub(crate) run: String,
    pub(crate) rows: u64,
    /// In the table, and not in the topic.
    pub(crate) lost: u64,
    /// Records beyond the first of each row.
    pub(crate) duplicates: u64,
    /// In the topic, and not in the table.
    pub(crate) strange: u64,
}

impl Verdict {
    /// At least once may repeat; nothing else may be.
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

/// Reads the topic of `run` to its end and compares it with `expected`. Call it when nobody writes to it any more.
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

/// The ids of all committed records. The end is told by librdkafka: the last offset of a partition may be a marker, which
/// is no record.
fn read(brokers: &str, topic: &str) -> anyhow::Result<Vec<Id>> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        // librdkafka wants one, though nothing is committed to it
        .set("group.id", "judge")
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed")
        .set("enable.partition.eof", "true")
        .set("queued.max.messages.kbytes", "32768")
        .create()
        .context("create a consumer")?;
    let metadata = consumer.fetch_metadata(None, ANSWER)?;
    let found =
        metadata.topics().iter().find(|found| found.name() == topic).context("there is no such topic")?;
    let mut open: HashSet<i32> = found.partitions().iter().map(|partition| partition.id()).collect();
    let mut list = TopicPartitionList::new();
    for partition in &open {
        list.add_partition_offset(topic, *partition, Offset::Beginning)?;
    }
    consumer.assign(&list)?;
    let (mut ids, mut last) = (Vec::new(), Instant::now());
    while !open.is_empty() {
        ensure!(last.elapsed() < NOTHING_ARRIVES_FOR, "its end was not reached");
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
                ids.push(id(std::str::from_utf8(header.context("a record without id")?)?)?);
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
    fn what_is_lost_repeated_or_strange_is_counted() {
        let verdict = compared(DeliveryMode::AtLeastOnce, &[1, 2, 3], &[1, 1, 1, 3, 9]);
        assert_eq!((verdict.rows, verdict.lost, verdict.duplicates, verdict.strange), (3, 1, 2, 1));
    }

    #[test]
    fn only_at_least_once_may_repeat() {
        let [at_least, exactly] = DeliveryMode::ALL;
        assert!(!compared(at_least, &[1, 2], &[1, 2, 1]).is_broken());
        assert!(compared(exactly, &[1, 2], &[1, 2, 1]).is_broken());
        assert!(!compared(exactly, &[1, 2], &[2, 1]).is_broken());
        assert!(compared(at_least, &[1, 2], &[1]).is_broken());
        assert!(compared(at_least, &[1], &[1, 2]).is_broken());
    }
}
