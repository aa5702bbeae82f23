//! Makes sure that topics exist before their first record: looks them up, creates missing ones, and reads their limits. Many
//! topics share a request where the protocol lets them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBuilder};
use rdkafka::admin::{AdminOptions, ResourceSpecifier};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::metadata::MetadataTopic;
use rdkafka_topic::Options;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::acls::Grants;
use super::admin::Admin;
use super::context::AdminContext;
use super::durability::{TopicDurability, caps_min_insync};
use super::error_policy::{ErrorPolicy, error_of_kafka, error_of_request, error_policy};
use super::properties;
use super::record_limits::TopicLimits;
use super::topic_cache::TopicCache;
use super::topic_creation::{self, batch, create_command};
use super::topic_lookup::{Found, Lookup, Shape, TopicLookup};
use super::topic_settings::describe;
use crate::config::{Config, Topics};
use crate::error::{Error, ErrorCode, Exit, Peer};

/// How long a request may take before it is repeated.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a check of a topic in use may take.
const METADATA_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a topic may take to be ready before that is logged.
const LOG_AFTER: Duration = Duration::from_secs(5);

/// How long topics that are ready wait for those that are prepared with them: if a record waits for one, and otherwise.
const WAIT_FOR_OTHERS: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(10));

/// An event waits for the topic, so a definite error stops the router.
const DEFINITE_EXIT: Exit = Exit::Unsafe;

/// What the brokers are asked to do with a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    LookUp,
    Create,
    Describe,
}

/// Looks up topics, and creates missing ones if `[topics] create` allows it.
pub(super) struct TopicKeeper {
    admin: Admin,
    lookup: TopicLookup,
    config: Config,
    topics: Topics,
    grants: Grants,
    topic_cache: Arc<TopicCache>,
    /// Topics were missing.
    creating: AtomicBool,
    /// The brokers have refused to create a topic, and may create it with other settings.
    settings_refused: AtomicBool,
}

/// A topic that is ready or cannot be used.
pub(super) type Prepared = (String, Result<TopicLimits, Error>);

impl TopicKeeper {
    pub(super) fn new(
        config: &Config,
        context: AdminContext,
        topics: Topics,
        topic_cache: Arc<TopicCache>,
    ) -> Result<Self, Error> {
        let settings = properties::client(config);
        Ok(TopicKeeper {
            admin: Admin::new(settings.clone(), context)?,
            lookup: TopicLookup::new(settings),
            config: config.clone(),
            topics,
            grants: Grants::of(config),
            topic_cache,
            creating: AtomicBool::new(false),
            settings_refused: AtomicBool::new(false),
        })
    }

    /// How many topics to prepare together.
    pub(super) fn batch(&self) -> usize {
        batch(&self.topics)
    }

    /// Whether the brokers may create with other settings what they have refused to create.
    pub(super) fn settings_were_refused(&self) -> bool {
        self.settings_refused.load(Ordering::Relaxed)
    }

    /// Whether topics were missing since [`TopicKeeper::forget_created`].
    pub(super) fn is_creating(&self) -> bool {
        self.creating.load(Ordering::Relaxed)
    }

    /// From now on, other topics are prepared.
    pub(super) fn forget_created(&self) {
        self.creating.store(false, Ordering::Relaxed);
    }

    /// Makes sure that `topics` exist. If the first one is `needed`, waits for it while the brokers cannot answer, and for the
    /// others a moment; those without a result are not ready yet. An error is definite.
    pub(super) async fn prepare(self: Arc<Self>, topics: Vec<String>, needed: bool) -> Vec<Prepared> {
        let mut backoff = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(50))
            .with_max_delay(Duration::from_secs(1))
            .with_jitter()
            .without_max_times()
            .build();
        let (begun, mut logged) = (Instant::now(), false);
        let wait_for_others = if needed { WAIT_FOR_OTHERS.0 } else { WAIT_FOR_OTHERS.1 };
        let needed = topics.first().filter(|_| needed).cloned();
        let (mut prepared, mut created) = (HashMap::with_capacity(topics.len()), HashSet::new());
        let mut pending = topics;
        loop {
            let mut failed = None;
            for (topic, result) in self.attempt(&pending, &mut created).await {
                match result {
                    Err(Error::Transient(error)) if needed.as_ref() == Some(&topic) => failed = Some(error),
                    Err(Error::Transient(_)) => {}
                    definite => drop(prepared.insert(topic, definite)),
                }
            }
            pending.retain(|topic| !prepared.contains_key(topic));
            if begun.elapsed() > wait_for_others {
                pending.retain(|topic| needed.as_ref() == Some(topic));
            }
            if pending.is_empty() {
                break;
            }
            // the brokers need a moment for a new topic
            if let Some(error) = failed.filter(|_| begun.elapsed() > LOG_AFTER) {
                logged = true;
                self.topic_cache.stall_reason.set(error.to_string());
            }
            tokio::time::sleep(backoff.next().unwrap_or(LOG_AFTER)).await;
        }
        if logged && needed.is_some_and(|topic| matches!(prepared.get(&topic), Some(Ok(_)))) {
            self.topic_cache.stall_reason.clear();
        }
        prepared.into_iter().collect()
    }

    /// Tries once. A topic without a result was not looked up. `created`: topics that an earlier attempt has created.
    async fn attempt(self: &Arc<Self>, topics: &[String], created: &mut HashSet<String>) -> Vec<Prepared> {
        let (mut there, mut missing, mut results) = (Vec::new(), Vec::new(), Vec::new());
        // one that is missing again, although the brokers had a moment, was deleted
        created.retain(|_| topics.len() > 1);
        for (topic, found) in self.look_up(topics.to_vec()).await {
            match found {
                Ok(Lookup::There(shape)) => there.push((topic, shape)),
                Ok(Lookup::Missing) if self.topics.create && !created.contains(&topic) => missing.push(topic),
                found => results.push(self.not_there(topic, found)),
            }
        }
        let new = if missing.is_empty() { Vec::new() } else { self.create(missing, &mut results).await };
        created.extend(new.iter().cloned());
        for (topic, found) in self.look_up(new).await {
            match found {
                Ok(Lookup::There(shape)) => there.push((topic, shape)),
                found => results.push(self.not_there(topic, found)),
            }
        }
        results.extend(self.describe(there).await);
        results
    }

    async fn look_up(self: &Arc<Self>, topics: Vec<String>) -> Vec<Found> {
        if topics.is_empty() {
            return Vec::new();
        }
        let (keeper, stop) = (Arc::clone(self), CancellationToken::new());
        // if nobody waits any more, the brokers are not asked for the rest
        let _stops = stop.clone().drop_guard();
        let looked_up = tokio::task::spawn_blocking(move || {
            keeper.lookup.look_up(&keeper.admin, &topics, REQUEST_TIMEOUT, &stop)
        });
        // fails only while the runtime shuts down
        looked_up.await.unwrap_or_default()
    }

    /// The result for a topic that was looked up and cannot be used, at least not yet.
    fn not_there(&self, topic: String, found: Result<Lookup, KafkaError>) -> Prepared {
        let error = match found {
            Err(error) => error_of_kafka(&format!("look up the topic {topic}"), &error, DEFINITE_EXIT),
            Ok(Lookup::NotServed(error)) => {
                Error::transient(Peer::Kafka, format!("the topic {topic} is not served yet: {error}"))
            }
            Ok(Lookup::Refused(code)) => self.request_error(&topic, Request::LookUp, code),
            Ok(Lookup::Missing) if !self.topics.create => Error::not_safe(
                ErrorCode::EventTopic,
                format!("the topic {topic} does not exist and `[topics] create` is false"),
                format!(
                    "Create it (`{}`), or set `[topics] create = true`",
                    create_command(&self.config, &topic, &self.topics)
                ),
            ),
            Ok(Lookup::Missing | Lookup::There(_)) => {
                Error::transient(Peer::Kafka, format!("the new topic {topic} is not ready yet"))
            }
        };
        (topic, Err(error))
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
        let admin = self.admin.client_for(1);
        let metadata = admin.inner().fetch_metadata(Some(topic), METADATA_TIMEOUT).ok()?;
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
        let described = Handle::try_current()
            .ok()?
            .block_on(self.admin.client().describe_configs([&specifier], &options));
        let settings = described.ok()?.into_iter().next()?.ok()?;
        let version = settings.get("inter.broker.protocol.version").and_then(|entry| entry.value.as_deref());
        Some(caps_min_insync(version))
    }

    /// Returns `None` if the brokers do not answer, or the privilege is missing. Blocks.
    fn min_insync(&self, topic: &str, broker: Option<i32>) -> Option<i64> {
        let specifier = ResourceSpecifier::Topic(topic);
        let options = AdminOptions::new().request_timeout(Some(METADATA_TIMEOUT)).broker_id(broker);
        let described = self.admin.client().describe_configs([&specifier], &options);
        let described = Handle::try_current().ok()?.block_on(described).ok()?;
        described.into_iter().next()?.ok()?.get("min.insync.replicas")?.value.as_ref()?.parse().ok()
    }

    /// What a transaction may wait for forever: a topic that does not exist, or has lost partitions. `None` if the brokers
    /// do not answer. `needed`: topics and their numbers of partitions. Blocks.
    pub(super) fn missing(&self, needed: &[(String, Option<usize>)]) -> Option<String> {
        let metadata = self.admin.client().inner().fetch_metadata(None, METADATA_TIMEOUT).ok()?;
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

    /// The error of a request about a topic. A privilege that was revoked may be granted again, so that is transient.
    fn request_error(&self, topic: &str, request: Request, code: Code) -> Error {
        let (verb, operation) = match request {
            // WRITE and READ imply the operation
            Request::LookUp => ("look up", "DESCRIBE"),
            Request::Create => ("create", "CREATE"),
            Request::Describe => ("describe", "DESCRIBE_CONFIGS"),
        };
        let missing = || self.grants.missing_on_topic(operation, topic);
        if error_policy(code) == ErrorPolicy::Denied && self.topic_cache.has(topic) {
            return Error::transient(Peer::Kafka, format!("{code}: {}", missing().reason()));
        }
        error_of_request(&format!("{verb} the topic {topic}"), code, DEFINITE_EXIT, missing)
    }

    /// Creates topics with one request. Returns those that exist now, and adds the errors of the others to `failed`.
    async fn create(&self, topics: Vec<String>, failed: &mut Vec<Prepared>) -> Vec<String> {
        self.creating.store(true, Ordering::Relaxed);
        for topic in topics.iter().filter(|topic| self.topic_cache.has(topic)) {
            tracing::warn!(
                topic,
                "the topic was deleted; the router creates it again, without its former records"
            );
        }
        let options = Options { operation_timeout: Some(REQUEST_TIMEOUT), ..Options::default() };
        let results =
            topic_creation::create(self.admin.client(), topics.clone(), &self.topics, options).await;
        let results = match results {
            Ok(results) => results,
            Err(error) => {
                failed.extend(topics.into_iter().map(|topic| {
                    let error = error_of_kafka(&format!("create the topic {topic}"), &error, DEFINITE_EXIT);
                    (topic, Err(error))
                }));
                return Vec::new();
            }
        };
        let mut created = Vec::with_capacity(results.len());
        for result in results {
            match result {
                (topic, Ok(())) => created.push(topic),
                (topic, Err(refused)) if refused.code == Code::TopicAlreadyExists => created.push(topic),
                (topic, Err(refused)) => {
                    let error = self.request_error(&topic, Request::Create, refused.code);
                    if topic_creation::is_about_settings(refused.code) {
                        self.settings_refused.store(true, Ordering::Relaxed);
                    }
                    let error = topic_creation::refused(error, &refused, &self.config, &topic, &self.topics);
                    failed.push((topic, Err(error)));
                }
            }
        }
        match created.as_slice() {
            [topic] if topics.len() == 1 => tracing::info!(topic, "topic created"),
            // the progress is logged instead
            created => tracing::debug!(topics = ?created, "topics created"),
        }
        created
    }

    /// Adds the limits of topics that exist.
    async fn describe(&self, topics: Vec<(String, Shape)>) -> Vec<Prepared> {
        let names: Vec<_> = topics.iter().map(|(topic, _)| topic.as_str()).collect();
        let broker = topics.iter().find_map(|(_, shape)| shape.broker);
        let described = describe(&self.admin.client(), &names, broker, REQUEST_TIMEOUT).await;
        let with_limits =
            |((topic, shape), described): ((String, Shape), Result<TopicLimits, KafkaError>)| {
                let replicas = shape.replicas.and_then(|replicas| i64::try_from(replicas).ok());
                let limits = match described {
                    Ok(limits) => Ok(TopicLimits {
                        partitions: Some(shape.partitions),
                        brokers: Some(shape.brokers),
                        durability: TopicDurability { replicas, ..limits.durability },
                        ..limits
                    }),
                    Err(error) => Err(match error.rdkafka_error_code() {
                        Some(code) => self.request_error(&topic, Request::Describe, code),
                        None => error_of_kafka(&format!("describe the topic {topic}"), &error, DEFINITE_EXIT),
                    }),
                };
                (topic, limits)
            };
        topics.into_iter().zip(described).map(with_limits).collect()
    }
}
