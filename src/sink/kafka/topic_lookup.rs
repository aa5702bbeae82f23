//! Looks topics up: whether they exist, their partitions, and whether these are served.
//!
//! A metadata request of librdkafka names one topic or all of the cluster. So several topics are looked up with one request for all,
//! unless the cluster has far more, and their partitions with one request to each leader.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::client::Client;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::metadata::MetadataTopic;
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use tokio_util::sync::CancellationToken;

use super::admin::{Admin, AdminRef};
use super::client::Client as KafkaClient;
use super::context::ReaderContext;
use super::properties;

const CONTEXT: ReaderContext = ReaderContext("connection for a lookup of topics");

/// How many topics of a cluster are requested for each that is looked up.
const WORTH: usize = 50;

/// How often partitions are asked for that are not served yet.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// What the brokers know of a topic.
pub(super) enum Lookup {
    There(Shape),
    Missing,
    /// It exists, but its partitions are not served yet.
    NotServed(KafkaError),
    /// They answered with an error.
    Refused(Code),
}

/// A topic as described by the metadata.
pub(super) struct Shape {
    pub(super) partitions: usize,
    /// The partitions that have a leader. The others get their records later.
    led: Vec<i32>,
    /// The replicas of the partition with the fewest.
    pub(super) replicas: Option<usize>,
    /// The number of brokers.
    pub(super) brokers: usize,
    /// The id of a live broker, for further requests.
    pub(super) broker: Option<i32>,
}

/// A topic and what was found, or that no broker has answered.
pub(super) type Found = (String, Result<Lookup, KafkaError>);

/// Looks up topics.
pub(super) struct TopicLookup {
    settings: ClientConfig,
    /// Only one request for all topics runs at a time, because its answer may be large.
    all: Mutex<()>,
    /// How many topics the cluster had in the last such answer.
    of_cluster: AtomicUsize,
}

impl TopicLookup {
    /// `settings` are those of a client.
    pub(super) fn new(settings: ClientConfig) -> Self {
        TopicLookup { settings, all: Mutex::new(()), of_cluster: AtomicUsize::new(0) }
    }

    /// Looks up topics until `stop` is cancelled or no broker answers; those without a result were not looked up. Blocks.
    pub(super) fn look_up(
        &self,
        admin: &Admin,
        topics: &[String],
        timeout: Duration,
        stop: &CancellationToken,
    ) -> Vec<Found> {
        if topics.len() > 1 && topics.len().saturating_mul(WORTH) >= self.of_cluster.load(Ordering::Relaxed) {
            return self.together(&admin.client(), topics, timeout, stop);
        }
        let admin = admin.client_for(topics.len());
        let mut results = Vec::with_capacity(topics.len());
        for topic in topics {
            let found = look_up_one(admin.inner(), topic, timeout, stop);
            let ends = found.is_err() || stop.is_cancelled();
            results.push((topic.clone(), found));
            if ends {
                break;
            }
        }
        results
    }

    fn together(
        &self,
        admin: &AdminRef,
        topics: &[String],
        timeout: Duration,
        stop: &CancellationToken,
    ) -> Vec<Found> {
        let mut found = match self.describe_all(admin.inner(), topics, timeout) {
            Ok(found) => found,
            Err(error) => {
                return topics.first().map(|topic| (topic.clone(), Err(error))).into_iter().collect();
            }
        };
        let there = found.iter().filter_map(|(topic, found)| match found {
            Lookup::There(shape) => Some((topic.as_str(), shape.led.as_slice())),
            _ => None,
        });
        if let Err(error) = self.all_served(there, timeout, stop) {
            for (_, found) in &mut found {
                if matches!(found, Lookup::There(_)) {
                    *found = Lookup::NotServed(error.clone());
                }
            }
        }
        found.into_iter().map(|(topic, found)| (topic, Ok(found))).collect()
    }

    /// What the metadata of the whole cluster say about these topics.
    fn describe_all<C: ClientContext>(
        &self,
        client: &Client<C>,
        topics: &[String],
        timeout: Duration,
    ) -> Result<Vec<(String, Lookup)>, KafkaError> {
        let _alone = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let metadata = client.fetch_metadata(None, timeout)?;
        self.of_cluster.store(metadata.topics().len(), Ordering::Relaxed);
        let by_name: HashMap<&str, &MetadataTopic> =
            metadata.topics().iter().map(|topic| (topic.name(), topic)).collect();
        let brokers: Vec<i32> = metadata.brokers().iter().map(|broker| broker.id()).collect();
        Ok(topics
            .iter()
            .map(|topic| (topic.clone(), lookup(by_name.get(topic.as_str()), &brokers)))
            .collect())
    }

    /// Waits a moment until all leaders serve these partitions.
    ///
    /// # Errors
    /// Some may not.
    fn all_served<'a>(
        &self,
        topics: impl Iterator<Item = (&'a str, &'a [i32])>,
        timeout: Duration,
        stop: &CancellationToken,
    ) -> Result<(), KafkaError> {
        let mut list = TopicPartitionList::new();
        for (topic, partitions) in topics {
            for partition in partitions {
                list.add_partition_offset(topic, *partition, Offset::End)?;
            }
        }
        if list.count() == 0 {
            return Ok(());
        }
        // librdkafka lets only a consumer ask for many partitions together
        let consumer: BaseConsumer<ReaderContext> = properties::make(&self.settings, CONTEXT)
            .map_err(|error| KafkaError::ClientCreation(error.to_string()))?;
        let consumer = KafkaClient::new(Arc::new(consumer));
        let deadline = Instant::now() + timeout;
        let served = loop {
            match consumer.offsets_for_times(list.clone(), timeout) {
                Err(error) if !is_unanswered(&error) && Instant::now() < deadline && !stop.is_cancelled() => {
                    thread::sleep(ASK_AGAIN);
                }
                served => break served,
            }
        };
        served?.elements().iter().try_for_each(|partition| partition.error())
    }
}

/// Whether a broker has not answered, so that another request would not be answered either.
fn is_unanswered(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    matches!(code, Some(Code::OperationTimedOut | Code::BrokerTransportFailure | Code::AllBrokersDown))
}

/// What the metadata say about a topic.
fn lookup(found: Option<&&MetadataTopic>, brokers: &[i32]) -> Lookup {
    let Some(found) = found else { return Lookup::Missing };
    match found.error().map(Code::from) {
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => Lookup::Missing,
        Some(code) => Lookup::Refused(code),
        None => Lookup::There(Shape {
            partitions: found.partitions().len(),
            led: led(found),
            replicas: found.partitions().iter().map(|partition| partition.replicas().len()).min(),
            brokers: brokers.len(),
            broker: brokers.first().copied(),
        }),
    }
}

fn led(topic: &MetadataTopic) -> Vec<i32> {
    let led = topic.partitions().iter().filter(|partition| partition.leader() >= 0);
    led.map(|partition| partition.id()).collect()
}

/// A topic is ready when the leaders of its partitions serve them, which is later than when the metadata show
/// it. A broker would refuse an earlier batch and accept the next one, because it has no state for this producer yet;
/// librdkafka would count both as delivered (KAFKA-15591).
fn look_up_one<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    timeout: Duration,
    stop: &CancellationToken,
) -> Result<Lookup, KafkaError> {
    let metadata = client.fetch_metadata(Some(topic), timeout)?;
    let brokers: Vec<i32> = metadata.brokers().iter().map(|broker| broker.id()).collect();
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    let shape = match lookup(found.as_ref(), &brokers) {
        Lookup::There(shape) => shape,
        other => return Ok(other),
    };
    let deadline = Instant::now() + timeout;
    for partition in &shape.led {
        while let Err(error) = client.fetch_watermarks(topic, *partition, timeout) {
            if is_unanswered(&error) {
                return Err(error);
            }
            if Instant::now() > deadline || stop.is_cancelled() {
                return Ok(Lookup::NotServed(error));
            }
            thread::sleep(ASK_AGAIN);
        }
    }
    Ok(Lookup::There(shape))
}
