//! The producers of one session, and what is known of their topics.

mod topic_setup;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pg_logical::PgTimestamp;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer};

use super::background_probe::BackgroundProbe;
use super::context::{AdminContext, Connection, ProducerReports};
use super::error_policy::{ErrorPolicy, denied, verdict};
use super::first_in_partition::{self, FirstRecords, Known};
use super::outcomes::Outcomes;
use super::position_report::NotCommitted;
use super::producers::{Commit, Producers};
use super::record_limits::TopicLimits;
use super::stale_metadata::StaleMetadata;
use super::topic_cache::TopicCache;
use super::topic_monitor::TopicMonitor;
use super::topics::TopicKeeper;
use super::unreachable::no_answer;
use super::{PROBE_TIMEOUT, UNUSED, properties, record_limits};
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::Error;
use crate::progress::Sequence;
use crate::relay::{NotSent, Refusal};
use crate::routing::Record;
use crate::unsendable::{Reason, Unsendable};
use topic_setup::TopicSetup;

/// What came of a record that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Accepted {
    /// The topic's number, as [`Admitted`] has it.
    pub(super) topic: usize,
    /// The topic does not take the record's timestamp: it bears the commit time, or if need be the present.
    pub(super) timestamp_replaced: bool,
}

/// A topic whose records are taken from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Admitted {
    /// The topic's number in this session, counted from 0.
    pub(super) topic: usize,
    /// Its name.
    pub(super) name: String,
    /// It has more partitions than it had when this process looked last.
    pub(super) grown: bool,
}

/// The producers of one session, and what is known of their topics.
pub(crate) struct Publisher {
    pub(super) config: Arc<Config>,
    pub(super) reports: ProducerReports,
    pub(super) producers: Producers,
    pub(super) keeper: Arc<TopicKeeper>,
    pub(super) setup: TopicSetup,
    /// The prepared topics, and their places among them by name.
    pub(super) topics: Vec<Topic>,
    pub(super) numbers: HashMap<Box<str>, usize>,
    /// The number of the topic that a record was last sent to.
    pub(super) last: usize,
    pub(super) known: Arc<TopicCache>,
    pub(super) looks: TopicMonitor,
    pub(super) position_looks: TopicMonitor,
    /// Records sent and not yet acknowledged.
    pub(super) under_way: usize,
    pub(super) first: FirstRecords,
    pub(super) batch_bytes: usize,
    pub(super) compressed: bool,
    pub(super) message_max_bytes: usize,
    pub(super) lost_sight: Arc<StaleMetadata>,
    pub(super) aside: BackgroundProbe,
    pub(super) transaction_timeout: Duration,
    /// Since when the transaction takes nothing more.
    pub(super) refuses_since: Option<Instant>,
    /// When the relay's turn began, in milliseconds since the Unix epoch.
    pub(super) now: i64,
}

#[derive(Debug)]
pub(super) struct Topic {
    pub(super) name: Box<str>,
    pub(super) limits: TopicLimits,
    /// The record for whose sake it was looked at again.
    pub(super) looked_at_for: Option<Sequence>,
    /// It may not be as it was at the last look: nothing more is sent before it is looked at again.
    pub(super) stale: bool,
}

impl Publisher {
    /// Makes the clients and waits for the first answer of a broker. `batch_bytes` is the smallest limit of any topic
    /// that an earlier session met.
    pub(crate) async fn open(
        config: Arc<Config>,
        outcomes: Arc<Outcomes>,
        batch_bytes: usize,
        known: Arc<TopicCache>,
    ) -> Result<Self, Error> {
        let connection = Arc::new(Connection::default());
        let reports = ProducerReports {
            outcomes,
            connection: Arc::clone(&connection),
            known: Arc::clone(&known),
            ..ProducerReports::default()
        };
        let producers = Producers::make(&config, batch_bytes, &reports)?;
        // librdkafka's administrative client is a producer that is never given a record
        let context = AdminContext { connection };
        let admin = properties::make(&properties::client(&config), context)?;
        let keeper = Arc::new(TopicKeeper::new(admin, config.topics.clone(), Arc::clone(&known)));
        let sink = Publisher {
            reports,
            producers,
            keeper,
            setup: TopicSetup::default(),
            topics: Vec::new(),
            numbers: HashMap::new(),
            last: 0,
            known,
            looks: TopicMonitor::new(),
            position_looks: TopicMonitor::new(),
            under_way: 0,
            first: FirstRecords::default(),
            batch_bytes,
            compressed: properties::compresses(&config),
            lost_sight: Arc::default(),
            aside: BackgroundProbe::default(),
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

    /// Shuts out whoever delivers exactly once under this name, if this sink does too. Before the first record.
    pub(crate) async fn take_over(&self) -> Result<(), Error> {
        // the transaction that an earlier router has left open ends when each of its partitions can be written
        self.unless_positions_are_stuck(self.producers.take_over()).await
    }

    async fn probe(&self) -> Result<(), Error> {
        let producer = self.producers.current().clone();
        let topic = self.producers.positions_topic().to_owned();
        // this asks for a connection, which a transactional client may otherwise make only a second later
        let asked = move || producer.client().fetch_metadata(Some(&topic), PROBE_TIMEOUT).is_ok();
        let answered = tokio::task::spawn_blocking(asked).await.unwrap_or(false);
        if answered {
            self.reports.connection.reached();
            return Ok(());
        }
        Err(no_answer(&self.config, self.reports.connection.last_error()))
    }

    /// A turn of the relay begins: the records of one turn share a look at the clock.
    pub(super) fn turned(&mut self, now: PgTimestamp) {
        self.now = now.unix_millis();
    }

    /// Hands one record over. Never blocks.
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
            // its limit may have been raised since, or it may have got more partitions
            if topic.looked_at_for == Some(sequence) {
                return Err(impossible);
            }
            (topic.looked_at_for, topic.stale) = (Some(sequence), true);
        }
        if topic.stale {
            // what is under way arrives first: keys may be somewhere else afterwards
            return Err(if self.under_way > 0 { NotSent::Later } else { self.set_up_topic(record.topic) });
        }
        let timestamp = limits.timestamp(record, self.now);
        let place = (number, Self::partition(record, limits));
        // Without a key there is no order to keep, and a transaction that is aborted takes back what came behind a
        // refused one.
        let ordered = record.key.is_some() && !self.producers.are_transactional();
        let known = if ordered { self.first.known(place, self.now) } else { Some(Known::Established) };
        if known == Some(Known::NotYet) {
            return Err(NotSent::Later);
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
        if let Err(error) = self.producers.begin() {
            let reason = format!("no transaction can be begun: {error}");
            self.gave_up(reason);
            return Err(NotSent::Later);
        }
        match self.producers.current().send::<[u8], [u8]>(message) {
            Ok(()) => {
                self.under_way += 1;
                if ordered {
                    self.first.sent(place, sequence, self.now);
                }
                self.last = number;
                Ok(Accepted { topic: number, timestamp_replaced: timestamp != record.timestamp })
            }
            Err((error, _)) => Err(self.not_taken(&error, record, sequence)),
        }
    }

    pub(super) fn number(&self, name: &str) -> Option<usize> {
        // most records follow one of the same topic
        match self.topics.get(self.last) {
            Some(last) if *last.name == *name => Some(self.last),
            _ => self.numbers.get(name).copied(),
        }
    }

    pub(super) fn known_topic(&mut self, name: &str) -> Option<&mut Topic> {
        let number = self.number(name)?;
        self.topics.get_mut(number)
    }

    /// Whether records are under way.
    pub(super) fn has_records(&self) -> bool {
        self.under_way > 0
    }

    /// The record is durable, as its report said.
    pub(super) fn acknowledged(&mut self, sequence: Sequence) {
        self.under_way = self.under_way.saturating_sub(1);
        self.first.acknowledged(sequence);
    }

    /// Where the record goes, as far as that can be told beforehand.
    pub(super) fn partition(record: &Record<'_>, limits: &TopicLimits) -> Option<i32> {
        record.partition.or_else(|| match (record.key, limits.partitions) {
            (Some(key), Some(count)) => first_in_partition::partition_of(key, count),
            _ => None,
        })
    }

    pub(super) fn not_taken(
        &mut self,
        error: &KafkaError,
        record: &Record<'_>,
        sequence: Sequence,
    ) -> NotSent {
        let code = error.rdkafka_error_code();
        if let Some(code) = code
            && let ErrorPolicy::Denied(remedy) = verdict(code)
        {
            let reason = denied(code, record.topic, remedy);
            self.known.obstacle.met(reason.clone());
            let why = Unsendable::new(Reason::Refused, reason, remedy);
            let refusal = Refusal { last: sequence, transient: true, why };
            self.reports.outcomes.refused(refusal);
            return NotSent::Later;
        }
        match code {
            // the topic is not as it was, and librdkafka has heard of it first
            Some(Code::UnknownTopic | Code::UnknownPartition | Code::UnknownTopicOrPartition) => {
                if let Some(topic) = self.known_topic(record.topic) {
                    topic.stale = true;
                }
                if self.under_way > 0 { NotSent::Later } else { self.set_up_topic(record.topic) }
            }
            // with nothing under way there is nothing to wait for: the queue is smaller than the record
            Some(Code::QueueFull) if self.producers.current().in_flight_count() > 0 => NotSent::Later,
            Some(Code::QueueFull) => NotSent::Impossible(Unsendable::new(
                Reason::TooLarge,
                format!("the record of {} bytes does not fit into the producer's queue", record.size()),
                "Raise queue.buffering.max.kbytes under `[kafka]`",
            )),
            // no broker was asked
            Some(Code::MessageSizeTooLarge) => NotSent::Impossible(Unsendable::new(
                Reason::TooLarge,
                format!(
                    "the record of {} bytes, with what the client adds to it, is larger than message.max.bytes of the producer ({} bytes)",
                    record.size(),
                    self.message_max_bytes
                ),
                "Raise message.max.bytes under `[kafka]` and on the broker",
            )),
            // the error callback reports it; nothing can be sent until the producer is rebuilt
            Some(Code::Fatal) => NotSent::Later,
            // so does the record that was refused before in the same transaction
            Some(Code::State) if self.producers.are_transactional() => {
                self.refuses_since.get_or_insert_with(Instant::now);
                NotSent::Later
            }
            _ => NotSent::Impossible(Unsendable::new(
                Reason::Refused,
                format!("librdkafka does not take the record: {error}"),
                "Report this with the output of `outbox-router --version`",
            )),
        }
    }

    /// The largest batch that all topics so far take, for the next session.
    pub(super) fn batch_bytes(&self) -> usize {
        self.batch_bytes
    }

    /// Replaces the producers by ones with smaller batches, which can be used when what this returns has come to an end.
    pub(super) fn rebuild(
        &mut self,
    ) -> Result<impl Future<Output = Result<(), Error>> + Send + 'static, Error> {
        let fresh = Producers::make(&self.config, self.batch_bytes, &self.reports)?;
        let before = std::mem::replace(&mut self.producers, fresh);
        (self.first, self.refuses_since) = (FirstRecords::default(), None);
        let take_over = self.producers.take_over();
        Ok(async move {
            before.close().await;
            take_over.await
        })
    }

    /// Commits what was sent since the last commit, and this position with it; what is sent next belongs to the next
    /// transaction. Everything sent has to be acknowledged, and the commit before has to be over.
    ///
    /// # Errors
    /// The transaction has failed.
    pub(super) fn commit(&mut self, position: &Checkpoint) -> Result<Commit, NotCommitted> {
        self.producers.commit(position.encode())
    }

    /// Throws away what is queued or under way. What is on its way to the broker may still arrive there.
    pub(super) fn purge(&self) {
        self.producers.purge();
    }

    /// Purges, aborts and ends the producers. After it, every report is in [`Outcomes`].
    pub(crate) async fn close(self) {
        let Publisher { setup, producers, .. } = self;
        // what it has begun would go on with these producers meanwhile
        drop(setup);
        producers.close().await;
    }

    /// The same where no event was sent: a thread that waits for a name server holds nothing up then.
    pub(crate) async fn close_unused(self) {
        let _ = tokio::time::timeout(UNUSED, self.close()).await;
    }
}
