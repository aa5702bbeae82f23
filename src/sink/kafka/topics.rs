//! Looks up topics before their first record, creates missing ones, and reads their limits.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backon::{ExponentialBuilder, Retryable};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::metadata::MetadataTopic;
use tokio::runtime::Handle;

use super::client::Client;
use super::context::AdminContext;
use super::durability::{TopicDurability, caps_min_insync};
use super::error_policy::{ErrorPolicy, denied, error_of_code, error_of_kafka, error_policy};
use super::record_limits::TopicLimits;
use super::topic_cache::TopicCache;
use crate::config::Topics;
use crate::error::{Error, ErrorCode, Exit, Peer};

/// How long a request may take before it is repeated.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a check of a topic in use may take.
const METADATA_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a topic may take to be ready before that is logged.
const LOG_AFTER: Duration = Duration::from_secs(5);

/// An event waits for the topic, so a definite error stops the router.
const DEFINITE_EXIT: Exit = Exit::Unsafe;

/// Looks up topics, and creates missing ones if `[topics] create` allows it.
pub(super) struct TopicKeeper {
    admin: Client<Arc<AdminClient<AdminContext>>>,
    topics: Topics,
    topic_cache: Arc<TopicCache>,
}

enum Lookup {
    There(Shape),
    Missing,
}

/// A topic as described by the metadata.
struct Shape {
    partitions: usize,
    /// The replicas of the partition with the fewest.
    replicas: Option<usize>,
    /// The number of brokers.
    brokers: usize,
    /// The id of a live broker, for further requests.
    broker: Option<i32>,
}

impl TopicKeeper {
    pub(super) fn new(
        admin: AdminClient<AdminContext>,
        topics: Topics,
        topic_cache: Arc<TopicCache>,
    ) -> Self {
        TopicKeeper { admin: Client::new(Arc::new(admin)), topics, topic_cache }
    }

    /// Makes sure that `topic` exists. Waits while the brokers cannot answer; an error is definite.
    pub(super) async fn prepare(self: Arc<Self>, topic: String) -> Result<TopicLimits, Error> {
        let attempt = || Arc::clone(&self).attempt(topic.clone());
        let backoff = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(50))
            .with_max_delay(Duration::from_secs(1))
            .with_jitter()
            .without_max_times();
        let (begun, mut logged) = (Instant::now(), false);
        let prepared = attempt
            .retry(backoff)
            .when(|error| matches!(error, Error::Transient(_)))
            .notify(|error, _| {
                // the brokers need a moment for a new topic
                if begun.elapsed() > LOG_AFTER {
                    logged = true;
                    self.topic_cache.stall_reason.set(error.to_string());
                }
            })
            .await;
        if logged && prepared.is_ok() {
            self.topic_cache.stall_reason.clear();
        }
        prepared
    }

    async fn attempt(self: Arc<Self>, topic: String) -> Result<TopicLimits, Error> {
        let mut found = Arc::clone(&self).look_up(topic.clone()).await?;
        if let Lookup::Missing = found {
            if !self.topics.create {
                return Err(Error::not_safe(
                    ErrorCode::EventTopic,
                    format!("the topic {topic} does not exist and `[topics] create` is false"),
                    "Create it, or set `[topics] create = true`",
                ));
            }
            if self.topic_cache.has(&topic) {
                tracing::warn!(
                    topic,
                    "the topic was deleted; the router creates it again, without its former records"
                );
            }
            self.create(&topic).await?;
            found = Arc::clone(&self).look_up(topic.clone()).await?;
        }
        match found {
            Lookup::There(shape) => {
                let limits = self.limits(&topic, shape.broker).await?;
                let replicas = shape.replicas.and_then(|replicas| i64::try_from(replicas).ok());
                Ok(TopicLimits {
                    partitions: Some(shape.partitions),
                    brokers: Some(shape.brokers),
                    durability: TopicDurability { replicas, ..limits.durability },
                    ..limits
                })
            }
            Lookup::Missing => {
                Err(Error::transient(Peer::Kafka, format!("the new topic {topic} is not ready yet")))
            }
        }
    }

    async fn look_up(self: Arc<Self>, topic: String) -> Result<Lookup, Error> {
        let name = topic.clone();
        tokio::task::spawn_blocking(move || self.look_up_blocking(&name))
            .await
            .map_err(|error| Error::transient(Peer::Kafka, format!("looking up topic {topic}: {error}")))?
    }

    /// Blocks. A topic is ready when the leaders of its partitions serve them, which is later than when the metadata show
    /// it. A broker would refuse an earlier batch and accept the next one, because it has no state for this producer yet;
    /// librdkafka would count both as delivered (KAFKA-15591).
    fn look_up_blocking(&self, topic: &str) -> Result<Lookup, Error> {
        let client = self.admin.inner();
        let metadata = client.fetch_metadata(Some(topic), REQUEST_TIMEOUT);
        let metadata = metadata
            .map_err(|error| error_of_kafka(&format!("look up the topic {topic}"), &error, DEFINITE_EXIT))?;
        let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
            return Ok(Lookup::Missing);
        };
        match found.error().map(Code::from) {
            Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => return Ok(Lookup::Missing),
            Some(code) => return Err(self.request_error(topic, &format!("look up the topic {topic}"), code)),
            None => {}
        }
        // partitions without a leader get their records later
        for partition in found.partitions().iter().filter(|partition| partition.leader() >= 0) {
            let served = client.fetch_watermarks(topic, partition.id(), REQUEST_TIMEOUT);
            served.map_err(|error| {
                let what =
                    format!("partition {} of the topic {topic} is not served yet: {error}", partition.id());
                Error::transient(Peer::Kafka, what)
            })?;
        }
        Ok(Lookup::There(Shape {
            partitions: found.partitions().len(),
            replicas: found.partitions().iter().map(|partition| partition.replicas().len()).min(),
            brokers: metadata.brokers().len(),
            broker: metadata.brokers().first().map(|broker| broker.id()),
        }))
    }

    /// Asks once for the metadata of a topic in use and passes it to `evaluate`; `None` if the brokers do not answer.
    /// `in_sync` is the topic's `min.insync.replicas`; if it is not known, the brokers are asked. Where it is larger than the
    /// number of replicas, `evaluate` also gets the durability's `capped`. Blocks.
    pub(super) fn with_metadata<T>(
        &self,
        topic: &str,
        in_sync: Option<i64>,
        evaluate: impl FnOnce(Option<&MetadataTopic>, Option<i64>, Option<bool>) -> T,
    ) -> Option<T> {
        let metadata = self.admin.inner().fetch_metadata(Some(topic), METADATA_TIMEOUT).ok()?;
        let broker = metadata.brokers().first().map(|broker| broker.id());
        let in_sync = in_sync.or_else(|| self.min_insync(topic, broker));
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let needed = in_sync.and_then(|needed| usize::try_from(needed).ok()).unwrap_or_default();
        let fewer = found.is_some_and(|topic| {
            topic.partitions().iter().any(|partition| partition.replicas().len() < needed)
        });
        let capped = if fewer { self.caps_min_insync(broker) } else { None };
        Some(evaluate(found, in_sync, capped))
    }

    /// Whether the brokers are of a version that takes the smaller of `min.insync.replicas` and the replication factor. Blocks.
    fn caps_min_insync(&self, broker: Option<i32>) -> Option<bool> {
        let specifier = ResourceSpecifier::Broker(broker?);
        let options = AdminOptions::new().request_timeout(Some(METADATA_TIMEOUT));
        let described =
            Handle::try_current().ok()?.block_on(self.admin.describe_configs([&specifier], &options));
        let settings = described.ok()?.into_iter().next()?.ok()?;
        let version = settings.get("inter.broker.protocol.version").and_then(|entry| entry.value.as_deref());
        Some(caps_min_insync(version))
    }

    /// Returns `None` if the brokers do not answer, or the privilege is missing. Blocks.
    fn min_insync(&self, topic: &str, broker: Option<i32>) -> Option<i64> {
        let specifier = ResourceSpecifier::Topic(topic);
        let options = AdminOptions::new().request_timeout(Some(METADATA_TIMEOUT)).broker_id(broker);
        let described = self.admin.describe_configs([&specifier], &options);
        let described = Handle::try_current().ok()?.block_on(described).ok()?;
        described.into_iter().next()?.ok()?.get("min.insync.replicas")?.value.as_ref()?.parse().ok()
    }

    /// What a transaction may wait for forever: a topic that does not exist, or has lost partitions. `None` if the brokers
    /// do not answer. `needed`: topics and their numbers of partitions. Blocks.
    pub(super) fn missing(&self, needed: &[(String, Option<usize>)]) -> Option<String> {
        let metadata = self.admin.inner().fetch_metadata(None, METADATA_TIMEOUT).ok()?;
        let there: HashMap<&str, usize> =
            metadata.topics().iter().map(|topic| (topic.name(), topic.partitions().len())).collect();
        needed.iter().find_map(|(topic, had)| match (there.get(topic.as_str()), had) {
            (None, _) => Some(format!("the topic {topic} no longer exists")),
            (Some(now), Some(had)) if now < had => {
                Some(format!("the topic {topic} has {now} partitions and had {had}"))
            }
            _ => None,
        })
    }

    /// The error of a request. A privilege that was revoked may be granted again, so that is transient.
    fn request_error(&self, topic: &str, what: &str, code: Code) -> Error {
        match error_policy(code) {
            ErrorPolicy::Denied(remedy) if self.topic_cache.has(topic) => {
                Error::transient(Peer::Kafka, denied(code, topic, remedy))
            }
            _ => error_of_code(what, code, DEFINITE_EXIT),
        }
    }

    async fn create(&self, topic: &str) -> Result<(), Error> {
        let new = new_topic(topic, &self.topics);
        let options = AdminOptions::new().operation_timeout(Some(REQUEST_TIMEOUT));
        let results = self.admin.create_topics([&new], &options).await;
        let results = results
            .map_err(|error| error_of_kafka(&format!("create the topic {topic}"), &error, DEFINITE_EXIT))?;
        for result in results {
            match result {
                Ok(_) => tracing::info!(topic, "topic created"),
                Err((_, Code::TopicAlreadyExists)) => {}
                Err((_, code)) => {
                    return Err(self.request_error(topic, &format!("create the topic {topic}"), code));
                }
            }
        }
        Ok(())
    }

    /// Any broker knows the limits. librdkafka would ask the controller, which is not reachable in every cluster.
    async fn limits(&self, topic: &str, broker: Option<i32>) -> Result<TopicLimits, Error> {
        let specifier = ResourceSpecifier::Topic(topic);
        let options = AdminOptions::new().request_timeout(Some(REQUEST_TIMEOUT)).broker_id(broker);
        let described = self.admin.describe_configs([&specifier], &options).await;
        let described = match described {
            Err(KafkaError::AdminOp(Code::UnsupportedFeature)) => {
                tracing::warn!(
                    topic,
                    "the broker does not support DescribeConfigs, so the topic's limits are unknown"
                );
                return Ok(TopicLimits::default());
            }
            described => described.map_err(|error| {
                error_of_kafka(&format!("describe the topic {topic}"), &error, DEFINITE_EXIT)
            })?,
        };
        let resource = match described.into_iter().next() {
            Some(Ok(resource)) => resource,
            Some(Err(Code::TopicAuthorizationFailed)) | None => {
                tracing::warn!(
                    topic,
                    "the router may not DESCRIBE_CONFIGS, so the topic's limits are unknown"
                );
                return Ok(TopicLimits::default());
            }
            Some(Err(code)) => {
                return Err(self.request_error(topic, &format!("describe the topic {topic}"), code));
            }
        };
        let number = |name: &str| -> Option<i64> { resource.get(name)?.value.as_ref()?.parse().ok() };
        // Long.MAX_VALUE means no bound; before Kafka 3.6 one property stood for both directions
        let bound = |name: &str| {
            number(name)
                .or_else(|| number("message.timestamp.difference.max.ms"))
                .filter(|bound| *bound != i64::MAX)
        };
        let unclean = resource.get("unclean.leader.election.enable").and_then(|entry| entry.value.as_deref());
        Ok(TopicLimits {
            durability: TopicDurability {
                replicas: None,
                min_insync: number("min.insync.replicas"),
                capped: None,
                unclean: unclean == Some("true"),
            },
            cleanup_policy: resource.get("cleanup.policy").and_then(|entry| entry.value.clone()),
            max_message_bytes: number("max.message.bytes").and_then(|bytes| usize::try_from(bytes).ok()),
            timestamp_before_ms: bound("message.timestamp.before.max.ms"),
            timestamp_after_ms: bound("message.timestamp.after.max.ms"),
            ..TopicLimits::default()
        })
    }
}

/// A topic with the settings of `[topics]`.
pub(super) fn new_topic<'a>(topic: &'a str, wanted: &'a Topics) -> NewTopic<'a> {
    // -1: the broker's default
    let partitions = wanted.partitions.unwrap_or(-1);
    let replication = TopicReplication::Fixed(wanted.replication_factor.unwrap_or(-1));
    let mut new = NewTopic::new(topic, partitions, replication);
    for (name, value) in &wanted.config {
        new = new.set(name, value);
    }
    new
}
