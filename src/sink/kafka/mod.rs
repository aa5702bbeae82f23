//! Kafka: one idempotent producer per session, on librdkafka's own threads.
//!
//! `properties` what the producer is made with, `context` what comes back from it, `topics` what happens before a
//! topic's first record, `first` before a partition's second, `look` while records flow, `obstacle` when none does, `lost_sight` when the client is at fault,
//! `known` what is remembered of topics, `copies` what an acknowledgement is worth, `positions` where the router
//! remembers what it has delivered, `verdict` what an error means,
//! `survey` what `check` asks.

mod context;
pub mod copies;
mod first;
mod known;
mod look;
mod lost_sight;
mod obstacle;
pub mod positions;
pub mod properties;
pub mod survey;
mod topics;
mod verdict;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, PurgeConfig, ThreadedProducer};

use crate::config::Config;
use crate::error::{Error, Peer};
use crate::postgres::pgoutput::PgTimestamp;
use crate::progress::Sequence;
use crate::routing::Record;
use crate::sink::{Outcomes, Refusal};
use context::{AdminContext, Connection, ProducerReports};
use first::FirstRecords;
pub use known::KnownTopics;
use known::Met;
use look::{Found, Looks, Sight};
use lost_sight::{LostSight, knows_brokers};
use topics::TopicKeeper;
pub use topics::TopicLimits;
use verdict::{MAY_NOT_WRITE, Verdict, denied, verdict};

/// How long the first answer of a broker may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a sign of life from the brokers may take; it is asked for about once a second.
const LOOK_TIMEOUT: Duration = Duration::from_millis(800);

/// What a record batch takes besides its records' own bytes, at least (`DefaultRecordBatch.RECORD_BATCH_OVERHEAD`).
const BATCH_OVERHEAD: usize = 61;

/// Why a record was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotSent {
    /// The topic has to be prepared first.
    TopicUnknown,
    /// The queue is full, or the first record of the partition is not acknowledged yet: wait for reports.
    Full,
    /// It can never be sent. What is wrong, and what to do.
    Impossible {
        /// What is wrong with it.
        reason: String,
        /// What to do.
        remedy: String,
    },
}

/// What came of a record that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// The topic's number, as [`KafkaSink::admit`] gave it.
    pub topic: usize,
    /// The topic does not take the record's timestamp: it bears the commit time, or if need be the present.
    pub timestamp_replaced: bool,
}

/// The producer of one session, and what is known of its topics.
pub struct KafkaSink {
    config: Arc<Config>,
    outcomes: Arc<Outcomes>,
    connection: Arc<Connection>,
    producer: ThreadedProducer<ProducerReports>,
    keeper: Arc<TopicKeeper>,
    topics: HashMap<Box<str>, Topic>,
    /// The names of the topics by their numbers.
    names: Vec<Box<str>>,
    known: Arc<KnownTopics>,
    looks: Looks,
    /// Records sent and not yet acknowledged.
    under_way: usize,
    first: FirstRecords,
    batch_bytes: usize,
    compressed: bool,
    message_max_bytes: usize,
    lost_sight: Arc<LostSight>,
}

#[derive(Debug)]
struct Topic {
    number: usize,
    limits: TopicLimits,
    /// When the last record was sent, in milliseconds since the Unix epoch.
    last_sent: i64,
    /// The record for whose sake it was looked at again.
    looked_at_for: Option<Sequence>,
    /// It is gone, or has other partitions: nothing more is sent before it was looked at again.
    stale: bool,
}

/// A broker forgets a producer that has not written to a partition for a day (`producer.id.expiration.ms`), or sooner,
/// when retention has deleted what it wrote.
const FORGOTTEN_AFTER_MS: i64 = 60_000;

/// Whether records of a prepared topic can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admitted {
    /// The topic's number in this session, counted from 0.
    pub topic: usize,
    /// The topic takes smaller batches than the producer makes: [`KafkaSink::rebuild`] first, while nothing is under
    /// way.
    pub rebuild_first: bool,
    /// It has more partitions than it had when this process looked last.
    pub grown: bool,
}

impl KafkaSink {
    /// Makes the clients and waits for the first answer of a broker. `batch_bytes` is the smallest limit of any topic
    /// that an earlier session met.
    pub async fn open(
        config: Arc<Config>,
        outcomes: Arc<Outcomes>,
        batch_bytes: usize,
        known: Arc<KnownTopics>,
    ) -> Result<Self, Error> {
        let connection = Arc::new(Connection::default());
        let reports = ProducerReports {
            outcomes: Arc::clone(&outcomes),
            connection: Arc::clone(&connection),
            known: Arc::clone(&known),
        };
        let settings = properties::producer(&config, batch_bytes);
        let producer = properties::make(&settings, reports)?;
        // librdkafka's administrative client is a producer that is never given a record
        let context = AdminContext { connection: Arc::clone(&connection) };
        let admin = properties::make(&properties::client(&config), context)?;
        let keeper = Arc::new(TopicKeeper::new(admin, config.topics.clone(), Arc::clone(&known)));
        let sink = KafkaSink {
            outcomes,
            connection,
            producer,
            keeper,
            topics: HashMap::new(),
            names: Vec::new(),
            known,
            looks: Looks::new(),
            under_way: 0,
            first: FirstRecords::default(),
            batch_bytes,
            compressed: properties::compresses(&config),
            lost_sight: Arc::default(),
            message_max_bytes: number(&settings, "message.max.bytes")
                .unwrap_or(properties::DEFAULT_MESSAGE_MAX_BYTES),
            config,
        };
        match sink.probe().await {
            Ok(()) => Ok(sink),
            Err(error) => {
                sink.close().await;
                Err(error)
            }
        }
    }

    async fn probe(&self) -> Result<(), Error> {
        let producer = self.producer.clone();
        let answered =
            tokio::task::spawn_blocking(move || producer.client().fetch_cluster_id(PROBE_TIMEOUT).is_some())
                .await
                .unwrap_or(false);
        if answered {
            self.connection.reached();
            return Ok(());
        }
        Err(no_answer(servers(&self.config), self.connection.last_error()))
    }

    /// Hands one record over. Never blocks.
    pub fn send(&mut self, record: &Record<'_>, sequence: Sequence) -> Result<Sent, NotSent> {
        let Topic { number, limits, last_sent, looked_at_for, stale } =
            self.topics.get(record.topic).ok_or(NotSent::TopicUnknown)?;
        if *stale {
            // what is under way arrives first: keys may be somewhere else afterwards
            return Err(if self.under_way > 0 { NotSent::Full } else { NotSent::TopicUnknown });
        }
        self.check_size(record, limits)?;
        if let Err(impossible) = check_partition(record, limits) {
            // the topic may have got more partitions since
            if *looked_at_for == Some(sequence) {
                return Err(impossible);
            }
            if let Some(topic) = self.topics.get_mut(record.topic) {
                topic.looked_at_for = Some(sequence);
            }
            return Err(NotSent::TopicUnknown);
        }
        let (number, now) = (*number, PgTimestamp::now().unix_millis());
        let timestamp = limits.timestamp(record, now);
        let place = (number, Self::partition(record, limits));
        if last_sent.saturating_add(FORGOTTEN_AFTER_MS) < now {
            self.first.forget(number);
        }
        // without a key there is no order to keep
        let ordered = record.key.is_some();
        if ordered && !self.first.may_follow(place) {
            return Err(NotSent::Full);
        }

        let mut headers = OwnedHeaders::new_with_capacity(record.headers.len());
        for (key, value) in record.headers.iter() {
            headers = headers.insert(Header { key, value });
        }
        let mut message = BaseRecord::with_opaque_to(record.topic, sequence.0 as usize)
            .timestamp(timestamp)
            .headers(headers);
        // The partitions of the last look, whatever librdkafka has heard since: keys move when nothing is under way.
        message.partition = place.1;
        message.key = record.key;
        message.payload = record.value;
        match self.producer.send::<[u8], [u8]>(message) {
            Ok(()) => {
                self.under_way += 1;
                if ordered {
                    self.first.sent(place, sequence);
                }
                if let Some(topic) = self.topics.get_mut(record.topic) {
                    topic.last_sent = now;
                }
                Ok(Sent { topic: number, timestamp_replaced: timestamp != record.timestamp })
            }
            Err((error, _)) => Err(self.not_taken(&error, record, sequence)),
        }
    }

    /// The record is durable, as its report said.
    pub fn acknowledged(&mut self, sequence: Sequence) {
        self.under_way = self.under_way.saturating_sub(1);
        self.first.acknowledged(sequence);
    }

    /// Where the record goes, as far as that can be told beforehand.
    fn partition(record: &Record<'_>, limits: &TopicLimits) -> Option<i32> {
        record.partition.or_else(|| match (record.key, limits.partitions) {
            (Some(key), Some(count)) => first::partition_of(key, count),
            _ => None,
        })
    }

    /// What can be known of a record's size is decided before it is sent. A compressed record may yet fit.
    fn check_size(&self, record: &Record<'_>, limits: &TopicLimits) -> Result<(), NotSent> {
        let size = record.size();
        let impossible = |limit: usize, setting: &str, remedy: &str| NotSent::Impossible {
            reason: format!("the record of {size} bytes is larger than {setting} ({limit} bytes)"),
            remedy: remedy.to_owned(),
        };
        if size > self.message_max_bytes {
            let remedy = "Raise message.max.bytes under `[kafka]` and on the broker";
            return Err(impossible(self.message_max_bytes, "message.max.bytes of the producer", remedy));
        }
        match limits.max_message_bytes {
            Some(limit) if !self.compressed && size + BATCH_OVERHEAD > limit => {
                let limit = limit.saturating_sub(BATCH_OVERHEAD);
                let remedy = "Raise the topic's max.message.bytes or set a compression.type under `[kafka]`";
                Err(impossible(
                    limit,
                    &format!(
                        "max.message.bytes of the topic {} less {BATCH_OVERHEAD} for the batch",
                        record.topic
                    ),
                    remedy,
                ))
            }
            _ => Ok(()),
        }
    }

    fn not_taken(&mut self, error: &KafkaError, record: &Record<'_>, sequence: Sequence) -> NotSent {
        match error.rdkafka_error_code() {
            // the topic is not as it was, and librdkafka has heard of it first
            Some(Code::UnknownTopic | Code::UnknownPartition | Code::UnknownTopicOrPartition) => {
                if let Some(topic) = self.topics.get_mut(record.topic) {
                    topic.stale = true;
                }
                if self.under_way > 0 { NotSent::Full } else { NotSent::TopicUnknown }
            }
            Some(code) if let Verdict::Denied(remedy) = verdict(code) => {
                let reason = denied(code, record.topic, remedy);
                self.known.obstacle.met(reason.clone());
                let remedy = remedy.to_owned();
                self.outcomes.refused(Refusal { last: sequence, transient: true, reason, remedy });
                NotSent::Full
            }
            // with nothing under way there is nothing to wait for: the queue is smaller than the record
            Some(Code::QueueFull) if self.producer.in_flight_count() > 0 => NotSent::Full,
            Some(Code::QueueFull) => NotSent::Impossible {
                reason: format!(
                    "the record of {} bytes does not fit into the producer's queue",
                    record.size()
                ),
                remedy: "Raise queue.buffering.max.kbytes under `[kafka]`".to_owned(),
            },
            // the error callback reports it; nothing can be sent until the producer is rebuilt
            Some(Code::Fatal) => NotSent::Full,
            _ => NotSent::Impossible {
                reason: format!("librdkafka does not take the record: {error}"),
                remedy: "Report this with the output of `outbox-router --version`".to_owned(),
            },
        }
    }

    /// Makes sure that a topic is there; for a task of its own. Waits while no broker answers; an error is definite.
    pub fn prepare(
        &self,
        topic: String,
    ) -> impl Future<Output = Result<TopicLimits, Error>> + Send + 'static {
        let looked_up = Arc::clone(&self.keeper).prepare(topic.clone());
        let producer = self.topics.contains_key(topic.as_str()).then(|| self.producer.clone());
        async move {
            let limits = looked_up.await?;
            if let Some(producer) = producer {
                // by itself it learns of new partitions minutes later; if this fails it is the record that says so
                let refreshed = move || producer.client().fetch_metadata(Some(&topic), PROBE_TIMEOUT).is_ok();
                let _ = tokio::task::spawn_blocking(refreshed).await;
            }
            Ok(limits)
        }
    }

    /// From now on records of `topic` are taken.
    pub fn admit(&mut self, topic: &str, limits: TopicLimits) -> Admitted {
        // librdkafka does not split a batch that the broker finds too large
        let rebuild_first = limits.max_message_bytes.is_some_and(|limit| self.batch_bytes > limit);
        self.batch_bytes =
            limits.max_message_bytes.map_or(self.batch_bytes, |limit| limit.min(self.batch_bytes));
        let (number, looked_at_for) = match self.topics.get(topic) {
            Some(known) => (known.number, known.looked_at_for),
            None => {
                self.names.push(topic.into());
                (self.topics.len(), None)
            }
        };
        let grown = self.known.met(topic, &limits) == Met::Grown;
        // the brokers may know nothing of the producer there, and a key's partition may be another
        self.first.forget(number);
        let fresh = Topic { number, limits, last_sent: i64::MAX, looked_at_for, stale: false };
        self.topics.insert(topic.into(), fresh);
        Admitted { topic: number, rebuild_first, grown }
    }

    /// Begins to look at one topic, the one with this number or else the next in turn, and takes in what the look before
    /// it has found. `silent`: no topic's records are acknowledged. Never blocks; meant for once a second.
    pub fn look_at_topics(&mut self, stalled: Option<usize>, silent: bool) {
        if let Some(Sight { topic, found }) = self.looks.take() {
            self.saw(&topic, found, stalled.is_some(), silent);
        }
        let Some(number) = stalled.or_else(|| self.looks.due(self.names.len())) else { return };
        let Some(name) = self.names.get(number) else { return };
        let in_sync = self.topics.get(name).and_then(|topic| topic.limits.copies.min_insync);
        self.looks.begin(&self.keeper, name.to_string(), in_sync);
    }

    fn saw(&mut self, name: &str, found: Found, stalled: bool, silent: bool) {
        let Some(topic) = self.topics.get_mut(name) else { return };
        match found {
            Found::Missing => topic.stale = true,
            Found::There { partitions, obstacle } => {
                topic.stale |= topic.limits.partitions != Some(partitions);
                let silence = || "the brokers answer, but acknowledge nothing; their logs say why".to_owned();
                if let Some(reason) = obstacle.or_else(|| silent.then(silence)).filter(|_| stalled) {
                    self.known.obstacle.met(reason);
                }
            }
        }
    }

    /// A producer that has failed for good sends nothing more, and no record need be under way whose report says so.
    pub fn look_for_failure(&self) {
        let Some((code, reason)) = self.producer.client().fatal_error() else { return };
        let (reason, remedy) = match code {
            // an idempotent producer asks for a number before its first record
            Code::ClusterAuthorizationFailed => {
                let reason =
                    format!("the brokers let the router write to no topic ({reason}). {MAY_NOT_WRITE}");
                self.known.obstacle.met(reason.clone());
                (reason, MAY_NOT_WRITE)
            }
            _ => (format!("the producer failed for good: {reason}"), ""),
        };
        self.outcomes.refused(Refusal {
            last: Sequence(0),
            transient: true,
            reason,
            remedy: remedy.to_owned(),
        });
    }

    /// Why nothing is acknowledged although brokers answer.
    pub fn obstacle(&self) -> Option<String> {
        self.known.obstacle.reason()
    }

    /// Events flow, or there are none.
    pub fn flowing(&self) {
        self.known.obstacle.gone();
    }

    /// The largest batch that all topics so far take, for the next session.
    pub fn batch_bytes(&self) -> usize {
        self.batch_bytes
    }

    /// Replaces the producer by one with smaller batches. Nothing may be under way.
    pub async fn rebuild(&mut self) -> Result<(), Error> {
        let connection = Arc::clone(&self.connection);
        let (outcomes, known) = (Arc::clone(&self.outcomes), Arc::clone(&self.known));
        let reports = ProducerReports { outcomes, connection, known };
        let settings = properties::producer(&self.config, self.batch_bytes);
        let fresh = properties::make(&settings, reports)?;
        discard(std::mem::replace(&mut self.producer, fresh)).await;
        self.first = FirstRecords::default();
        Ok(())
    }

    /// Why no broker can be reached, if that is so.
    pub fn brokers_down(&self) -> Option<String> {
        self.connection.down()
    }

    /// Asks for a sign of life, without waiting for it: a quiet producer sends nothing that could be answered.
    pub fn look_for_brokers(&self) {
        let (producer, connection) = (self.producer.clone(), Arc::clone(&self.connection));
        let topic = self.topics.keys().next().map(ToString::to_string);
        drop(tokio::task::spawn_blocking(move || {
            if producer.client().fetch_metadata(topic.as_deref(), LOOK_TIMEOUT).is_ok() {
                connection.set_down(false);
            }
        }));
    }

    /// Finds out whether the producer has lost sight of the brokers, without waiting for it. Then it is made anew.
    pub fn look_for_lost_sight(&self) {
        let (producer, outcomes) = (self.producer.clone(), Arc::clone(&self.outcomes));
        let lost = move || {
            outcomes.refused(Refusal {
                last: Sequence(0),
                transient: true,
                reason: "it has lost sight of the brokers, which answer a new one".to_owned(),
                remedy: String::new(),
            });
        };
        let known = move |timeout| knows_brokers(producer.client(), timeout);
        self.lost_sight.look(properties::client(&self.config), known, lost);
    }

    /// Throws away what is queued or under way. What is on its way to the broker may still arrive there.
    pub fn purge(&self) {
        self.producer.purge(PurgeConfig::default().queue().inflight());
    }

    /// Purges and ends the producer. After it, every report is in [`Outcomes`].
    pub async fn close(self) {
        self.purge();
        discard(self.producer).await;
        let keeper = self.keeper;
        // joining librdkafka's threads blocks
        drop(tokio::task::spawn_blocking(move || drop(keeper)));
    }
}

impl TopicLimits {
    /// The record's timestamp if the topic takes it, else the commit time, else the present.
    fn timestamp(&self, record: &Record<'_>, now: i64) -> i64 {
        // librdkafka takes 0 for "now", Kafka -1 for "none"
        let earliest = self.timestamp_before_ms.map_or(1, |before| now.saturating_sub(before).max(1));
        let latest = self.timestamp_after_ms.map_or(i64::MAX, |after| now.saturating_add(after));
        let taken = |timestamp: &i64| (earliest..=latest).contains(timestamp);
        [record.timestamp, record.commit_timestamp].into_iter().find(taken).unwrap_or(now)
    }
}

fn check_partition(record: &Record<'_>, limits: &TopicLimits) -> Result<(), NotSent> {
    match (record.partition, limits.partitions) {
        (Some(partition), Some(count)) if usize::try_from(partition).is_ok_and(|number| number >= count) => {
            Err(NotSent::Impossible {
                reason: format!(
                    "it is for the partition {partition} of the topic {}, which had {count} when the router looked, \
                     counted from 0",
                    record.topic
                ),
                remedy:
                    "Add partitions to the topic, or correct `[route] partition` or the rule that sets it"
                        .to_owned(),
            })
        }
        _ => Ok(()),
    }
}

/// The smallest limit of any topic, before any is known.
pub const DEFAULT_BATCH_BYTES: usize = properties::DEFAULT_BATCH_BYTES;

/// Ends a producer on a thread that may block: it joins librdkafka's own.
async fn discard<C: ProducerContext + 'static>(producer: ThreadedProducer<C>) {
    // an error would mean that the runtime is shutting down, and the producer with it
    let _ = tokio::task::spawn_blocking(move || drop(producer)).await;
}

fn number(settings: &ClientConfig, name: &str) -> Option<usize> {
    settings.get(name)?.parse().ok()
}

fn servers(config: &Config) -> &str {
    config.kafka.properties.get("bootstrap.servers").map_or("", |servers| servers.reveal())
}

/// Why no broker answered, by the last error of the connection.
fn no_answer(servers: &str, last_error: Option<(Code, String)>) -> Error {
    match last_error {
        Some((Code::Authentication | Code::SaslAuthenticationFailed, reason)) => Error::refused(
            format!("the Kafka brokers at {servers} refused the credentials: {reason}"),
            "Correct sasl.mechanism, sasl.username and sasl.password under `[kafka]`",
        ),
        Some((_, reason)) => {
            Error::transient(Peer::Kafka, format!("no Kafka broker answers at {servers}: {reason}"))
        }
        None => Error::transient(Peer::Kafka, format!("no Kafka broker answers at {servers}")),
    }
}
