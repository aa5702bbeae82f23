//! The loop: receives events, processes the partitions in parallel, and stores the offsets of batches that were committed.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::{Message, TopicPartitionList};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::assignment::{Assignment, Partition};
use super::buffers::{Batch, Buffers};
use super::error::ConsumeError;
use super::event::Event;
use super::partition::{Outcome, Worker};
use super::{Handler, KafkaConsumer};

/// How long nothing is received because a partition has a full buffer. Then it is paused, so that the others go on: that discards
/// what librdkafka has prefetched of it.
const PATIENCE: Duration = Duration::from_millis(500);

impl KafkaConsumer {
    /// Consumes until `stop` completes, and then ends the batches that it has begun.
    ///
    /// While Kafka or Postgres is away it waits, and says so in the log.
    ///
    /// # Errors
    /// A setting or a permission is missing; a handler keeps failing, unless such events are parked; a handler has swallowed
    /// the error of a statement; an event has no id; or Postgres refuses the session or a batch.
    pub async fn run<H: Handler>(
        self,
        handler: H,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<(), ConsumeError> {
        let consumer = self.subscribe()?;
        let (stopping, stopped) = watch::channel(false);
        let worker = Arc::new(Worker::new(handler, &self, stopped));
        let mut parked = JoinSet::new();
        if self.park {
            let worker = Arc::clone(&worker);
            parked.spawn(async move { worker.retry_parked().await });
        }
        let mut consuming = Consuming {
            consumer,
            worker,
            buffers: Buffers::new(self.max_events),
            batches: JoinSet::new(),
            full_since: None,
            invalid: None,
            settings: self,
        };
        let result = tokio::select! {
            biased;
            () = stop => Ok(()),
            Some(ended) = parked.join_next() => ended.unwrap_or_else(|_| Err(ConsumeError::panicked())),
            error = consuming.run() => Err(error),
        };
        stopping.send_replace(true);
        let ended = consuming.end_batches().await;
        while parked.join_next().await.is_some() {}
        // commits and leaves the group, which may take a moment
        let left = tokio::task::spawn_blocking(move || drop(consuming.consumer)).await;
        if left.is_err() {
            tracing::warn!("the consumer did not leave its group");
        }
        result.and(ended)
    }

    fn subscribe(&self) -> Result<StreamConsumer<Assignment>, ConsumeError> {
        let mut config = self.config.clone();
        config.set("isolation.level", "read_committed");
        // librdkafka commits the offsets that are stored here: again if that failed, before a rebalance, and at the end
        config.set("enable.auto.commit", "true");
        config.set("enable.auto.offset.store", "false");
        for (name, value) in [("auto.offset.reset", "earliest"), ("auto.commit.interval.ms", "1000")] {
            if config.get(name).is_none() {
                config.set(name, value);
            }
        }
        let no_consumer = |error| ConsumeError::kafka("the consumer cannot be created", error);
        let consumer: StreamConsumer<Assignment> =
            config.create_with_context(Assignment::default()).map_err(no_consumer)?;
        let topics: Vec<&str> = self.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics).map_err(no_consumer)?;
        Ok(consumer)
    }
}

/// What a poll returned.
enum Received {
    Event(Partition, Event),
    /// It has no id.
    Invalid(ConsumeError),
    Failed(KafkaError),
}

/// A batch that has ended, its last offset, and how.
struct Ended {
    partition: Partition,
    assignment: u64,
    last: i64,
    outcome: Result<Outcome, ConsumeError>,
}

struct Consuming<H> {
    settings: KafkaConsumer,
    consumer: StreamConsumer<Assignment>,
    worker: Arc<Worker<H>>,
    buffers: Buffers,
    batches: JoinSet<Ended>,
    /// Nothing is received since then, because a buffer is full.
    full_since: Option<Instant>,
    /// Ends the loop when what has arrived before is processed. Nothing is received meanwhile.
    invalid: Option<ConsumeError>,
}

impl<H: Handler> Consuming<H> {
    /// Runs until an error.
    async fn run(&mut self) -> ConsumeError {
        loop {
            self.start_batches();
            if self.buffers.is_empty()
                && self.batches.is_empty()
                && let Some(error) = self.invalid.take()
            {
                return error;
            }
            let patience = self.full_since.map(|since| since + PATIENCE);
            let continued = tokio::select! {
                biased;
                Some(ended) = self.batches.join_next() => self.end(ended),
                () = tokio::time::sleep_until(patience.unwrap_or_else(Instant::now)), if patience.is_some() => {
                    for_all(self.buffers.pause(true), |list| self.consumer.pause(list));
                    Ok(())
                }
                received = receive(&self.consumer, &self.settings.id_header), if self.receives() => {
                    self.accept_all(received).await
                }
            };
            if let Err(error) = continued {
                return error;
            }
        }
    }

    fn receives(&self) -> bool {
        self.invalid.is_none() && !self.buffers.is_full()
    }

    fn start_batches(&mut self) {
        let assignment = self.consumer.context();
        self.buffers.forget_lost(|partition| assignment.of(partition));
        while self.batches.len() < self.settings.parallel {
            let Some(Batch { partition, assignment, events }) = self.buffers.take() else {
                break;
            };
            let worker = Arc::clone(&self.worker);
            self.batches.spawn(async move {
                let last = events.last().map_or(0, |event| event.offset);
                Ended { partition, assignment, last, outcome: worker.process(&events).await }
            });
        }
        for_all(self.buffers.resume(), |list| self.consumer.resume(list));
        for_all(self.buffers.pause(false), |list| self.consumer.pause(list));
        let full = self.buffers.is_full();
        self.full_since = full.then(|| self.full_since.unwrap_or_else(Instant::now));
    }

    /// Stores the offset of a batch that was committed. What is not stored arrives again, and is not fresh.
    fn end(&mut self, ended: Result<Ended, JoinError>) -> Result<(), ConsumeError> {
        let Ended { partition, assignment, last, outcome } = ended.map_err(|_| ConsumeError::panicked())?;
        self.buffers.end(&partition);
        if self.consumer.context().of(&partition) != Some(assignment) {
            // the member that has the partition now does the same
            if let Err(error) = outcome {
                tracing::warn!(
                    error = &error as &dyn StdError,
                    "a batch of a partition that was revoked failed"
                );
            }
            return Ok(());
        }
        if outcome? == Outcome::Committed
            && let Err(error) = self.consumer.store_offset(&partition.0, partition.1, last)
        {
            tracing::warn!(error = &error as &dyn StdError, "an offset was not stored");
        }
        Ok(())
    }

    async fn end_batches(&mut self) -> Result<(), ConsumeError> {
        let mut result = Ok(());
        while let Some(ended) = self.batches.join_next().await {
            match (self.end(ended), &result) {
                (Err(error), Ok(())) => result = Err(error),
                (Err(error), Err(_)) => {
                    tracing::error!(error = &error as &dyn StdError, "another batch failed")
                }
                (Ok(()), _) => {}
            }
        }
        result
    }

    /// Accepts what a poll returned, and what has arrived with it.
    async fn accept_all(&mut self, received: Received) -> Result<(), ConsumeError> {
        let mut more = self.accept(received)?;
        for _ in 1..self.settings.max_events {
            if !more {
                break;
            }
            let next = tokio::select! {
                biased;
                received = receive(&self.consumer, &self.settings.id_header) => received,
                () = std::future::ready(()) => break,
            };
            more = self.accept(next)?;
        }
        Ok(())
    }

    /// Whether more may be received.
    fn accept(&mut self, received: Received) -> Result<bool, ConsumeError> {
        match received {
            Received::Event(partition, event) => {
                if let Some(assignment) = self.consumer.context().of(&partition) {
                    return Ok(!self.buffers.add(partition, assignment, event));
                }
            }
            Received::Invalid(error) => self.invalid = Some(error),
            Received::Failed(error) => judge(&self.consumer, error)?,
        }
        Ok(self.invalid.is_none())
    }
}

/// Waits for a record. May be cancelled.
async fn receive(consumer: &StreamConsumer<Assignment>, id_header: &str) -> Received {
    let record = match consumer.recv().await {
        Ok(record) => record,
        Err(error) => return Received::Failed(error),
    };
    let (topic, number, offset) = (record.topic(), record.partition(), record.offset());
    match Event::from_record(&record, id_header) {
        Some(event) => Received::Event((topic.to_owned(), number), event),
        None => {
            let place = format!("the record at offset {offset} of {topic}-{number}");
            Received::Invalid(ConsumeError::no_id(&place, id_header))
        }
    }
}

/// Whether the loop goes on after an error of a poll.
fn judge(consumer: &StreamConsumer<Assignment>, error: KafkaError) -> Result<(), ConsumeError> {
    let definite = matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::TopicAuthorizationFailed
                | RDKafkaErrorCode::GroupAuthorizationFailed
                | RDKafkaErrorCode::ClusterAuthorizationFailed
                | RDKafkaErrorCode::SaslAuthenticationFailed
                | RDKafkaErrorCode::Authentication
                | RDKafkaErrorCode::AutoOffsetReset
        )
    );
    if definite || consumer.client().fatal_error().is_some() {
        return Err(ConsumeError::kafka("Kafka refuses the consumer", error));
    }
    let what = if error.rdkafka_error_code() == Some(RDKafkaErrorCode::PollExceeded) {
        "nothing polled for max.poll.interval.ms, so another member got the partitions: a handler must not block its thread"
    } else {
        "Kafka is not available, or a topic is missing"
    };
    tracing::warn!(error = &error as &dyn StdError, "{what}");
    Ok(())
}

/// Pauses or resumes partitions, if there are any.
fn for_all(partitions: Vec<Partition>, change: impl FnOnce(&TopicPartitionList) -> KafkaResult<()>) {
    if partitions.is_empty() {
        return;
    }
    let mut list = TopicPartitionList::new();
    for (topic, partition) in &partitions {
        list.add_partition(topic, *partition);
    }
    if let Err(error) = change(&list) {
        tracing::warn!(error = &error as &dyn StdError, "partitions were not paused or resumed");
    }
}
