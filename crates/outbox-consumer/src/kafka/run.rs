//! The loop: take a batch, process it, commit its offsets.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::{CommitMode, Consumer, StreamConsumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{Message, Offset, TopicPartitionList};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::assignment::{Assignment, Partition};
use super::error::ConsumeError;
use super::event::Event;
use super::partition::{Outcome, Worker};
use super::{Handler, KafkaConsumer};

type Batch = BTreeMap<Partition, Vec<Event>>;

/// What was taken at once.
struct Taken {
    batch: Batch,
    /// The error that ends the loop once the batch was processed.
    error: Option<ConsumeError>,
}

impl KafkaConsumer {
    /// Consumes until `stop` completes, and then ends the batch that it has begun.
    ///
    /// While Kafka or Postgres is away it waits, and says so in the log.
    ///
    /// # Errors
    /// The configuration or a right is missing; a handler keeps failing, unless such events are parked; a handler has swallowed
    /// the error of a statement; an event has no id; or Postgres refuses a batch.
    pub async fn run<H: Handler>(
        self,
        handler: H,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<(), ConsumeError> {
        let mut config = self.config.clone();
        config.set("isolation.level", "read_committed");
        config.set("enable.auto.commit", "false");
        config.set("enable.auto.offset.store", "false");
        if config.get("auto.offset.reset").is_none() {
            config.set("auto.offset.reset", "earliest");
        }
        let no_consumer = |error| ConsumeError::kafka("the consumer cannot be created", error);
        let consumer: StreamConsumer<Assignment> =
            config.create_with_context(Assignment::default()).map_err(no_consumer)?;
        let topics: Vec<&str> = self.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics).map_err(no_consumer)?;
        let consumer = Arc::new(consumer);

        let (stopping, stopped) = watch::channel(false);
        let worker = Arc::new(Worker::new(handler, &self, stopped));
        let mut parked = JoinSet::new();
        if self.park {
            let worker = Arc::clone(&worker);
            parked.spawn(async move { worker.retry_parked().await });
        }
        let mut stop = pin!(stop);
        let result = loop {
            let taken = tokio::select! {
                biased;
                () = &mut stop => break Ok(()),
                // it ends only by a panic of the handler
                Some(_) = parked.join_next() => break Err(ConsumeError::panicked()),
                taken = self.take(&consumer) => taken,
            };
            let Taken { batch, error } = taken;
            let mut processed = pin!(self.process(&worker, batch));
            let (offsets, result) = tokio::select! {
                biased;
                () = &mut stop => {
                    stopping.send_replace(true);
                    processed.await
                }
                done = &mut processed => done,
            };
            commit(&consumer, offsets).await;
            let result = result.and(error.map_or(Ok(()), Err));
            if result.is_err() || *stopping.borrow() {
                break result;
            }
        };
        stopping.send_replace(true);
        while parked.join_next().await.is_some() {}
        // leaves the group, which may take a moment
        let left = tokio::task::spawn_blocking(move || drop(consumer)).await;
        result.and(left.map_err(|_| ConsumeError::panicked()))
    }

    /// Waits for a record, and takes those that have arrived with it. An error ends the batch; what arrived before it is still
    /// processed.
    async fn take(&self, consumer: &StreamConsumer<Assignment>) -> Taken {
        let mut taken: Vec<(Partition, u64, Event)> = Vec::new();
        let mut stops = None;
        while stops.is_none() && taken.len() < self.max_events {
            let received = if taken.is_empty() {
                consumer.recv().await
            } else {
                match tokio::time::timeout(Duration::ZERO, consumer.recv()).await {
                    Ok(received) => received,
                    Err(_) => break,
                }
            };
            let record = match received {
                Ok(record) => record,
                Err(error) => {
                    stops = self.judge(consumer, error).err();
                    continue;
                }
            };
            let partition = (record.topic().to_owned(), record.partition());
            let Some(number) = consumer.context().number(&partition) else {
                continue;
            };
            let Some(event) = Event::from_record(&record, &self.id_header) else {
                let place =
                    format!("the record at offset {} of {}-{}", record.offset(), partition.0, partition.1);
                stops = Some(ConsumeError::no_id(&place, &self.id_header));
                continue;
            };
            taken.push((partition, number, event));
        }
        let mut batch = Batch::new();
        for (partition, number, event) in taken {
            // a rebalance may have come in between
            if consumer.context().number(&partition) == Some(number) {
                batch.entry(partition).or_default().push(event);
            }
        }
        Taken { batch, error: stops }
    }

    /// Whether the loop goes on after an error of a poll.
    fn judge(&self, consumer: &StreamConsumer<Assignment>, error: KafkaError) -> Result<(), ConsumeError> {
        let definite = matches!(
            error.rdkafka_error_code(),
            Some(
                RDKafkaErrorCode::TopicAuthorizationFailed
                    | RDKafkaErrorCode::GroupAuthorizationFailed
                    | RDKafkaErrorCode::ClusterAuthorizationFailed
                    | RDKafkaErrorCode::SaslAuthenticationFailed
            )
        );
        if definite || consumer.client().fatal_error().is_some() {
            return Err(ConsumeError::kafka("Kafka refuses the consumer", error));
        }
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "Kafka is not available, or a topic is missing"
        );
        Ok(())
    }

    /// Processes the partitions of a batch in parallel, and returns the offsets of those that were committed.
    async fn process<H: Handler>(
        &self,
        worker: &Arc<Worker<H>>,
        batch: Batch,
    ) -> (TopicPartitionList, Result<(), ConsumeError>) {
        let permits = Arc::new(Semaphore::new(self.parallel));
        let mut partitions = JoinSet::new();
        for (partition, events) in batch {
            let (worker, permits) = (Arc::clone(worker), Arc::clone(&permits));
            partitions.spawn(async move {
                // never closed
                let _permit = permits.acquire().await;
                let next = events.last().map_or(0, |event| event.offset + 1);
                (partition, next, worker.process(&events).await)
            });
        }
        let (mut offsets, mut result) = (TopicPartitionList::new(), Ok(()));
        while let Some(done) = partitions.join_next().await {
            match done {
                Ok(((topic, partition), next, Ok(Outcome::Committed))) => {
                    if let Err(error) = offsets.add_partition_offset(&topic, partition, Offset::Offset(next))
                    {
                        result = Err(ConsumeError::kafka("an offset is invalid", error));
                    }
                }
                Ok((_, _, Ok(Outcome::Interrupted))) => {}
                Ok((_, _, Err(error))) => result = Err(error),
                Err(_) => result = Err(ConsumeError::panicked()),
            }
        }
        (offsets, result)
    }
}

/// Commits offsets before the next poll, so that Kafka refuses them if the partitions have been given to another member. What
/// is not committed arrives again and is not fresh.
async fn commit(consumer: &Arc<StreamConsumer<Assignment>>, offsets: TopicPartitionList) {
    if offsets.count() == 0 {
        return;
    }
    let consumer = Arc::clone(consumer);
    let committed = tokio::task::spawn_blocking(move || consumer.commit(&offsets, CommitMode::Sync)).await;
    match committed {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "offsets were not committed");
        }
        Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "offsets were not committed"),
    }
}
