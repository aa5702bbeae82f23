//! Follows the positions topic, and records when each checkpoint was created and when it was in the topic.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, anyhow};
use outbox_router::topic_name::POSITIONS;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

/// One checkpoint in Kafka.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Written {
    /// When the router had created the record. It holds the position of that moment.
    pub(crate) at: Instant,
    /// When it was read from the topic.
    pub(crate) there: Instant,
}

/// Reads the topic on its own thread.
pub(crate) struct Positions {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Written>>>,
}

impl Positions {
    /// Starts reading. The topic must exist.
    pub(crate) fn follow(brokers: &str) -> anyhow::Result<Self> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .set("client.id", "positions")
            // librdkafka requires a group, even if nothing is committed
            .set("group.id", "positions")
            .set("reconnect.backoff.ms", "20")
            .set("reconnect.backoff.max.ms", "100")
            .set("fetch.error.backoff.ms", "20")
            .set("enable.auto.commit", "false")
            .create()
            .context("create a consumer")?;
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(POSITIONS, 0, Offset::Beginning)?;
        consumer.assign(&list).with_context(|| format!("read {POSITIONS}"))?;
        let end = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&end);
        let run = move || {
            let mut written = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                // librdkafka reconnects by itself
                if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
                    let there = Instant::now();
                    written.push(Written { at: instant(message.timestamp().to_millis(), there), there });
                }
            }
            written
        };
        let thread = thread::Builder::new().name("positions".to_owned()).spawn(run);
        Ok(Positions { end, thread: Some(thread.context("start the thread that reads positions")?) })
    }

    /// Stops, and returns all checkpoints that were read.
    pub(crate) fn finish(mut self) -> anyhow::Result<Vec<Written>> {
        self.end.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return Ok(Vec::new()) };
        thread.join().map_err(|_| anyhow!("the reader of positions panicked"))
    }
}

impl Drop for Positions {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
    }
}

/// Converts a Kafka timestamp, to `latest` at most.
fn instant(timestamp: Option<i64>, latest: Instant) -> Instant {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let created = timestamp.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
    let ago = created.map_or(Duration::ZERO, |created| since_epoch.saturating_sub(created));
    latest.checked_sub(ago).unwrap_or(latest)
}
