//! Sends records with the producers of one session, and keeps what is known of their topics.

mod topic_progress;
mod topic_setup;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pg_logical::PgTimestamp;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::Producer;

use super::acls::Grants;
use super::background_probe::BackgroundProbe;
use super::checkpoint_failure::NotCommitted;
use super::context::{AdminContext, Connection, EventProducerContext};
use super::delivery_reports::DeliveryReports;
use super::error_policy::{ErrorPolicy, error_policy};
use super::event_sender::Placement;
use super::first_in_partition::{self, FirstRecords, ProducerState};
use super::producers::{Commit, Producers};
use super::record_limits::TopicLimits;
use super::stale_metadata::StaleMetadata;
use super::topic_cache::TopicCache;
use super::topic_monitor::TopicMonitor;
use super::topics::TopicKeeper;
use super::unreachable::no_answer;
use super::{PROBE_TIMEOUT, UNUSED_CLIENT_TIMEOUT, properties, record_limits};
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::Error;
use crate::progress::Sequence;
use crate::relay::{NotSent, Refusal};
use crate::routing::Record;
use crate::unsendable::{Reason, Unsendable};
use topic_setup::TopicSetup;

/// The result of a record that was handed to librdkafka.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Accepted {
    /// The topic's number, see [`Admitted`].
    pub(super) topic: usize,
    /// The topic does not accept the record's timestamp, which was replaced by the commit time or the current time.
    pub(super) timestamp_replaced: bool,
}

/// A topic whose records can be sent from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Admitted {
    /// The topic's number in this session, counted from 0.
    pub(super) topic: usize,
    /// Its name.
    pub(super) name: String,
    /// It has more partitions than at this process's last check.
    pub(super) grown: bool,
}

/// The producers of one session, and what is known of their topics.
pub(crate) struct Publisher {
    pub(super) config: Arc<Config>,
    pub(super) reports: EventProducerContext,
    pub(super) producers: Producers,
    pub(super) keeper: Arc<TopicKeeper>,
    pub(super) setup: TopicSetup,
    /// The topics that are ready, and their indexes by name.
    pub(super) topics: Vec<Topic>,
    pub(super) numbers: HashMap<Box<str>, usize>,
    /// The index of the last record's topic.
    pub(super) last: usize,
    pub(super) topic_cache: Arc<TopicCache>,
    pub(super) topic_monitor: TopicMonitor,
    pub(super) positions_monitor: TopicMonitor,
    /// The number of records in flight.
    pub(super) in_flight: usize,
    pub(super) first: FirstRecords,
    pub(super) batch_bytes: usize,
    pub(super) compressed: bool,
    pub(super) message_max_bytes: usize,
    pub(super) stale_metadata: Arc<StaleMetadata>,
    pub(super) probe: BackgroundProbe,
    pub(super) transaction_timeout: Duration,
    /// When the transaction first refused a record.
    pub(super) refuses_since: Option<Instant>,
    /// The time when the current turn began, in milliseconds since the Unix epoch.
    pub(super) now: i64,
}

#[derive(Debug)]
pub(super) struct Topic {
    pub(super) name: Box<str>,
    pub(super) limits: TopicLimits,
    /// The record because of which it was last checked again.
    pub(super) checked_for: Option<Sequence>,
    /// It may have changed: nothing is sent to it before it is checked again.
    pub(super) stale: bool,
}

impl Publisher {
    /// Creates the clients and waits for a broker's first answer. `batch_bytes` is the smallest batch limit of any topic in
    /// earlier sessions.
    pub(crate) async fn open(
        config: Arc<Config>,
        delivery_reports: Arc<DeliveryReports>,
        batch_bytes: usize,
        topic_cache: Arc<TopicCache>,
    ) -> Result<Self, Error> {
        let connection = Arc::new(Connection::default());
        let reports = EventProducerContext {
            delivery_reports,
            connection: Arc::clone(&connection),
            topic_cache: Arc::clone(&topic_cache),
            grants: Arc::new(Grants::of(&config)),
            ..EventProducerContext::default()
        };
        let producers = Producers::make(&config, batch_bytes, &reports)?;
        let context = AdminContext { connection };
        let keeper = TopicKeeper::new(&config, context, config.topics.clone(), Arc::clone(&topic_cache))?;
        let sink = Publisher {
            reports,
            producers,
            keeper: Arc::new(keeper),
            setup: TopicSetup::default(),
            topics: Vec::new(),
            numbers: HashMap::new(),
            last: 0,
            topic_cache,
            topic_monitor: TopicMonitor::new(),
            positions_monitor: TopicMonitor::new(),
            in_flight: 0,
            first: FirstRecords::default(),
            batch_bytes,
            compressed: properties::compresses(&config),
            stale_metadata: Arc::default(),
            probe: BackgroundProbe::default(),
            transaction_timeout: properties::transaction_timeout(&config),
            refuses_since: None,
            now: PgTimestamp::now().unix_millis(),
            message_max_bytes: properties::message_max_bytes(&config),
            config,
        };
        match sink.probe().await {
            Ok(()) => Ok(sink),
            Err(error) => {
                sink.close_unused().await;
                Err(error)
            }
        }
    }

    /// In exactly-once mode, fences other routers of this name. Call it before the first record.
    pub(crate) async fn init_transactions(&self) -> Result<(), Error> {
        // the open transaction of an earlier router ends only when each of its partitions can be written
        self.unless_positions_are_stuck(self.producers.init_transactions()).await
    }

    async fn probe(&self) -> Result<(), Error> {
        let producer = self.producers.current().clone();
        let topic = self.producers.positions_topic().to_owned();
        // this makes a transactional client connect at once, instead of up to a second later
        let asked = move || producer.client().fetch_metadata(Some(&topic), PROBE_TIMEOUT).is_ok();
        let answered = tokio::task::spawn_blocking(asked).await.unwrap_or(false);
        if answered {
            self.reports.connection.reached();
            return Ok(());
        }
        Err(no_answer(&self.config, self.reports.connection.last_error()))
    }

    /// A turn of the loop begins. All its records use the same time.
    pub(super) fn start_turn(&mut self, now: PgTimestamp) {
        self.now = now.unix_millis();
    }

    /// Hands a record to librdkafka. Never blocks.
    pub(super) fn send(&mut self, record: &Record<'_>, sequence: Sequence) -> Result<Accepted, NotSent> {
        if self.is_setting_up() {
            return Err(NotSent::Later);
        }
        let number = self.number(record.topic).ok_or_else(|| self.set_up_topic(record.topic))?;
        let Some(topic) = self.topics.get_mut(number) else { return Err(NotSent::Later) };
        let limits = &topic.limits;
        record_limits::producer(record, self.message_max_bytes)?;
        if !topic.stale
            && let Err(impossible) = record_limits::topic(record, limits, self.compressed)
        {
            // the limit may have been raised, or partitions added
            if topic.checked_for == Some(sequence) {
                return Err(impossible);
            }
            (topic.checked_for, topic.stale) = (Some(sequence), true);
        }
        if topic.stale {
            // wait for the records in flight: keys may move to other partitions
            return Err(if self.in_flight > 0 { NotSent::Later } else { self.set_up_topic(record.topic) });
        }
        let timestamp = limits.timestamp(record, self.now);
        let place = (number, Self::partition(record, limits));
        // Records without a key need no order, and an aborted transaction takes back what was sent after a refused record.
        let ordered = record.key.is_some() && !self.producers.are_transactional();
        let producer_state = if ordered {
            self.first.producer_state(place, self.now)
        } else {
            Some(ProducerState::Established)
        };
        if producer_state == Some(ProducerState::Pending) {
            return Err(NotSent::Later);
        }

        if let Err(error) = self.producers.begin() {
            let reason = format!("no transaction can be started: {error}");
            self.end_session(reason);
            return Err(NotSent::Later);
        }
        // Uses the partition count of the last check, whatever librdkafka has learnt since: keys move only when nothing is
        // in flight.
        let placement = Placement { topic: number, partition: place.1, timestamp };
        match self.producers.send(record, placement, sequence) {
            Ok(()) => {
                self.in_flight += 1;
                if ordered {
                    self.first.sent(place, sequence, self.now);
                }
                self.last = number;
                Ok(Accepted { topic: number, timestamp_replaced: timestamp != record.timestamp })
            }
            Err(error) => Err(self.refused_by_client(&error, record, sequence)),
        }
    }

    pub(super) fn number(&self, name: &str) -> Option<usize> {
        // most records have the same topic as the one before
        match self.topics.get(self.last) {
            Some(last) if *last.name == *name => Some(self.last),
            _ => self.numbers.get(name).copied(),
        }
    }

    pub(super) fn topic_mut(&mut self, name: &str) -> Option<&mut Topic> {
        let number = self.number(name)?;
        self.topics.get_mut(number)
    }

    /// Whether records are in flight.
    pub(super) fn has_records(&self) -> bool {
        self.in_flight > 0
    }

    /// The topic of the last record, if any is in flight.
    pub(super) fn topic_in_flight(&self) -> Option<usize> {
        self.has_records().then_some(self.last)
    }

    /// Whether this is a topic's number.
    pub(super) fn is_topic(&self, number: usize) -> bool {
        number < self.topics.len()
    }

    /// The record was acknowledged.
    pub(super) fn acknowledged(&mut self, sequence: Sequence) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.first.acknowledged(sequence);
    }

    /// The record's partition, if it is known in advance.
    pub(super) fn partition(record: &Record<'_>, limits: &TopicLimits) -> Option<i32> {
        record.partition.or_else(|| match (record.key, limits.partitions) {
            (Some(key), Some(count)) => first_in_partition::partition_of(key, count),
            _ => None,
        })
    }

    pub(super) fn refused_by_client(
        &mut self,
        error: &KafkaError,
        record: &Record<'_>,
        sequence: Sequence,
    ) -> NotSent {
        let code = error.rdkafka_error_code();
        if let Some(code) = code
            && error_policy(code) == ErrorPolicy::Denied
        {
            let missing = self.reports.grants.missing_for(code, record.topic);
            let reason = format!("{code}: {}", missing.reason());
            self.topic_cache.stall_reason.set(reason.clone());
            let why = Unsendable::new(Reason::Refused, reason, missing.remedy);
            let refusal = Refusal { last: sequence, transient: true, why };
            self.reports.delivery_reports.refused(refusal);
            return NotSent::Later;
        }
        match code {
            // the topic has changed, and librdkafka has learnt of it first
            Some(Code::UnknownTopic | Code::UnknownPartition | Code::UnknownTopicOrPartition) => {
                if let Some(topic) = self.topic_mut(record.topic) {
                    topic.stale = true;
                }
                if self.in_flight > 0 { NotSent::Later } else { self.set_up_topic(record.topic) }
            }
            // with nothing in flight, the queue is smaller than the record
            Some(Code::QueueFull) if self.producers.current().in_flight_count() > 0 => NotSent::Later,
            Some(Code::QueueFull) => NotSent::Impossible(Unsendable::new(
                Reason::TooLarge,
                format!("the record of {} bytes does not fit into the producer's queue", record.size()),
                "Raise queue.buffering.max.kbytes under `[kafka]`",
            )),
            // librdkafka's own check
            Some(Code::MessageSizeTooLarge) => NotSent::Impossible(Unsendable::new(
                Reason::TooLarge,
                format!(
                    "the record of {} bytes, with the overhead that the client adds, is larger than message.max.bytes of the producer ({} bytes)",
                    record.size(),
                    self.message_max_bytes
                ),
                "Raise message.max.bytes under `[kafka]` and on the broker",
            )),
            // the error callback reports it; nothing can be sent until the producer is replaced
            Some(Code::Fatal) => NotSent::Later,
            // reported by the record that was refused earlier in the transaction
            Some(Code::State) if self.producers.are_transactional() => {
                self.refuses_since.get_or_insert_with(Instant::now);
                NotSent::Later
            }
            _ => NotSent::Impossible(Unsendable::new(
                Reason::Refused,
                format!("librdkafka does not accept the record: {error}"),
                "Report this with the output of `outbox-router --version`",
            )),
        }
    }

    /// The largest batch that all topics so far accept, for the next session.
    pub(super) fn batch_bytes(&self) -> usize {
        self.batch_bytes
    }

    /// Replaces the producers by ones with smaller batches. They can be used when the returned future has completed.
    pub(super) fn replace_producers(
        &mut self,
    ) -> Result<impl Future<Output = Result<(), Error>> + Send + 'static, Error> {
        let fresh = Producers::make(&self.config, self.batch_bytes, &self.reports)?;
        let before = std::mem::replace(&mut self.producers, fresh);
        (self.first, self.refuses_since) = (FirstRecords::default(), None);
        let init_transactions = self.producers.init_transactions();
        Ok(async move {
            before.close().await;
            init_transactions.await
        })
    }

    /// Commits all records since the last commit with this checkpoint, and begins the next transaction. All those records
    /// must be acknowledged, and the commit before must be over.
    ///
    /// # Errors
    /// The transaction has failed.
    pub(super) fn commit(&mut self, position: &Checkpoint) -> Result<Commit, NotCommitted> {
        self.producers.commit(position.encode())
    }

    /// Purges what is queued or in flight. A record that is on its way to the broker may still be written.
    pub(super) fn purge(&self) {
        self.producers.purge();
    }

    /// Purges, aborts and ends the producers. After that, every report has been made.
    pub(crate) async fn close(self) {
        let Publisher { setup, producers, .. } = self;
        // otherwise its tasks would go on using these producers
        drop(setup);
        producers.close().await;
    }

    /// The same if no event was sent: then there is no need to wait for a thread that waits for a name server.
    pub(crate) async fn close_unused(self) {
        let _ = tokio::time::timeout(UNUSED_CLIENT_TIMEOUT, self.close()).await;
    }
}
