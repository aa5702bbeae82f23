//! The producers of one session, and what is known of their topics.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pg_logical::PgTimestamp;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer};

use super::background_probe::BackgroundProbe;
use super::context::{AdminContext, Connection, ProducerReports};
use super::error_policy::{ErrorPolicy, MAY_NOT_WRITE, denied, verdict};
use super::first_in_partition::{self, FirstRecords, Known};
use super::outcomes::Outcomes;
use super::producers::{Commit, NotCommitted, Producers};
use super::stale_metadata::{StaleMetadata, knows_brokers};
use super::topic_cache::TopicCache;
use super::topic_monitor::{self, Found, TopicMonitor, TopicState};
use super::topic_setup::TopicSetup;
use super::topics::{TopicKeeper, TopicLimits};
use super::unreachable::no_answer;
use super::{
    LOOK_AFTER, LOOK_TIMEOUT, PROBE_TIMEOUT, UNUSED, checkpoint_topic, properties, record_limits,
    stall_reason,
};
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::{Error, Peer};
use crate::progress::Sequence;
use crate::relay::{NotSent, Refusal};
use crate::routing::Record;
use crate::unsendable::{Reason, Unsendable};

/// How soon it is told which record has spoilt a transaction. If not, another session finds it out.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// What came of a record that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Accepted {
    /// The topic's number, as [`Admitted`] has it.
    pub(super) topic: usize,
    /// The topic does not take the record's timestamp: it bears the commit time, or if need be the present.
    pub(super) timestamp_replaced: bool,
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

/// What can be said where nothing explains it.
const SILENCE: &str = "the brokers answer, but acknowledge nothing: their logs say why, unless a producer quota or a slow \
     link holds the router back";

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

    /// Begins to look at one topic, the one with this number or else the next in turn, and takes in what the look before
    /// it has found. `silent`: no topic's records are acknowledged, with what [`Publisher::silent`] takes. Never blocks; meant
    /// for once a second.
    pub(super) fn look_at_topics(&mut self, stalled: Option<usize>, silent: Option<(Option<&str>, bool)>) {
        if let Some(TopicState { topic, found }) = self.looks.take() {
            self.saw(&topic, found, stalled.is_some(), silent);
        }
        let Some(number) = stalled.or_else(|| self.looks.due(self.topics.len())) else { return };
        let Some(topic) = self.topics.get(number) else { return };
        self.looks.begin(&self.keeper, topic.name.to_string(), topic.limits.copies.min_insync, None);
    }

    pub(super) fn saw(
        &mut self,
        name: &str,
        found: Found,
        stalled: bool,
        silent: Option<(Option<&str>, bool)>,
    ) {
        let Some(topic) = self.known_topic(name) else { return };
        match found {
            Found::NoAnswer => {
                if let Some((why, for_long)) = silent.filter(|_| stalled) {
                    self.silent(why, for_long);
                }
            }
            Found::Missing => topic.stale = true,
            Found::There { partitions, obstacle } => {
                topic.stale |= topic.limits.partitions != Some(partitions);
                match (obstacle.filter(|_| stalled), silent.filter(|_| stalled)) {
                    (Some(reason), _) => self.known.obstacle.met(reason),
                    (None, Some((why, for_long))) => self.silent(why, for_long),
                    (None, None) => {}
                }
            }
        }
    }

    /// Nothing is acknowledged by brokers that are connected, for this reason, if it is known. `for_long`: if they do not answer
    /// either, it is time to say so.
    pub(super) fn silent(&self, why: Option<&str>, for_long: bool) {
        match why {
            None if self.looks.are_unanswered() || self.position_looks.are_unanswered() => {
                if for_long {
                    self.known.obstacle.no_answer();
                }
            }
            why => self.known.obstacle.silence(why.unwrap_or(SILENCE).to_owned()),
        }
    }

    /// A transaction was too large for what the brokers take.
    pub(super) fn transaction_timed_out(&self, reason: String) {
        self.known.obstacle.timed_out(reason);
    }

    /// Whether the brokers have said why nothing is acknowledged.
    pub(super) fn obstacle_is_told(&self) -> bool {
        self.known.obstacle.is_told()
    }

    /// Begins to look at the positions topic. Returns what the look before it has found, once: whether it can acknowledge, or why
    /// not. Never blocks; meant for once a second.
    pub(super) fn look_at_positions(&mut self) -> Option<Result<(), String>> {
        let found = self.position_looks.take().and_then(|TopicState { found, .. }| found.acknowledges());
        let topic = self.producers.positions_topic().to_owned();
        self.position_looks.begin(&self.keeper, topic, None, Some(checkpoint_topic::PARTITION));
        found
    }

    /// No position waits for its acknowledgement: what an earlier look has missed says nothing any more.
    pub(super) fn positions_flow(&mut self) {
        self.position_looks.forget();
    }

    /// Why the last look at the positions topic has found nothing, if no broker answered.
    pub(super) fn positions_not_seen(&self) -> Option<&'static str> {
        self.position_looks.are_unanswered().then_some(stall_reason::NO_ANSWER)
    }

    /// For a start: does what needs the positions topic. If that takes long, or fails, because the topic cannot be written, that
    /// is the error.
    pub(crate) async fn unless_positions_are_stuck<T>(
        &self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let stuck = async {
            loop {
                tokio::time::sleep(LOOK_AFTER).await;
                if let Some(reason) = self.positions_are_stuck().await {
                    return reason;
                }
            }
        };
        let failed = tokio::select! {
            done = work => match done {
                Err(Error::Transient(failed)) => failed,
                done => return done,
            },
            reason = stuck => return Err(Error::transient(Peer::Kafka, reason)),
        };
        let reason = self.positions_are_stuck().await;
        Err(reason.map_or(failed.into(), |reason| Error::transient(Peer::Kafka, reason)))
    }

    async fn positions_are_stuck(&self) -> Option<String> {
        let (keeper, topic) = (Arc::clone(&self.keeper), self.producers.positions_topic().to_owned());
        let found = tokio::task::spawn_blocking(move || {
            topic_monitor::look(&keeper, &topic, None, Some(checkpoint_topic::PARTITION))
        })
        .await;
        found.ok().flatten().and_then(Found::acknowledges).and_then(Result::err)
    }

    /// Nothing was acknowledged for so long, by brokers that answer. A transaction may then wait for what never comes, and is
    /// over when the brokers take it for timed out.
    pub(super) fn look_into_silence(&self, silence: Duration) {
        if !self.producers.are_transactional() || silence < LOOK_AFTER {
            return;
        }
        if silence > self.transaction_timeout && !self.obstacle_is_told() {
            return self
                .gave_up("its transaction has timed out, and the brokers say nothing of it".to_owned());
        }
        let (keeper, outcomes) = (Arc::clone(&self.keeper), Arc::clone(&self.reports.outcomes));
        let positions = self.producers.positions_topic().to_owned();
        let topics = self.topics.iter().map(|topic| (topic.name.to_string(), topic.limits.partitions));
        let needed: Vec<_> = topics.chain([(positions, None)]).collect();
        // librdkafka tries to add a partition that does not exist to a transaction for ever
        self.aside.look(move || {
            if let Some(missing) = keeper.missing(&needed) {
                let reason = format!("{missing}, and everything in its transaction waits for that");
                outcomes.refused(Refusal::of_session(reason, ""));
            }
        });
    }

    /// A producer that has failed for good sends nothing more, and no record need be under way whose report says so.
    pub(super) fn look_for_failure(&self) {
        if self.refuses_since.is_some_and(|since| since.elapsed() > TOLD_WITHIN) {
            let refused = self.producers.position_refused().map(|refused| refused.reason);
            return self.gave_up(refused.unwrap_or_else(|| "its transaction takes nothing more".to_owned()));
        }
        let failed = self.producers.all().find_map(|producer| producer.client().fatal_error());
        let Some((code, reason)) = failed else { return };
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
        self.reports.outcomes.refused(Refusal::of_session(reason, remedy));
    }

    pub(super) fn gave_up(&self, reason: String) {
        self.reports.outcomes.refused(Refusal::of_session(reason, ""));
    }

    /// Why nothing is acknowledged although brokers answer.
    pub(super) fn obstacle(&self) -> Option<String> {
        self.known.obstacle.reason()
    }

    /// Nothing is committed, for this reason.
    pub(super) fn held_back(&self, reason: String) {
        self.known.obstacle.met(reason);
    }

    /// An error with what the brokers have said stands in the way, which says more than what came of that.
    pub(super) fn explained(&self, error: Error) -> Error {
        match (error, self.obstacle().filter(|_| self.obstacle_is_told())) {
            (Error::Transient(_), Some(reason)) => Error::transient(Peer::Kafka, reason),
            (error, _) => error,
        }
    }

    /// Events flow, or there are none.
    pub(super) fn flowing(&self) {
        self.known.obstacle.gone();
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

    /// A commit takes long; `for_long` as in [`Publisher::silent`].
    pub(super) fn commit_is_late(&self, for_long: bool) {
        if self.position_looks.are_unanswered() {
            if for_long {
                self.known.obstacle.no_answer();
            }
            return;
        }
        self.known.obstacle.met(
            "the brokers do not end a transaction; their logs say why (its coordinator is the leader \
             of a partition of __transaction_state)"
                .to_owned(),
        );
    }

    /// Why no broker can be reached, if that is so.
    pub(super) fn brokers_down(&self) -> Option<String> {
        self.reports.connection.down()
    }

    /// Asks for a sign of life, without waiting for it: a quiet producer sends nothing that could be answered.
    pub(super) fn look_for_brokers(&self) {
        let (producer, connection) = (self.producers.current().clone(), Arc::clone(&self.reports.connection));
        let topic = self.topics.first().map(|topic| topic.name.to_string());
        drop(tokio::task::spawn_blocking(move || {
            if producer.client().fetch_metadata(topic.as_deref(), LOOK_TIMEOUT).is_ok() {
                connection.set_down(false);
            }
        }));
    }

    /// Finds out whether the producer has lost sight of the brokers, without waiting for it. Then it is made anew.
    pub(super) fn look_for_lost_sight(&self) {
        let (producer, outcomes) = (self.producers.current().clone(), Arc::clone(&self.reports.outcomes));
        let lost = move || {
            let reason = "it has lost sight of the brokers, which answer a new one".to_owned();
            outcomes.refused(Refusal::of_session(reason, ""));
        };
        let known = move |timeout| knows_brokers(producer.client(), timeout);
        self.lost_sight.look(properties::client(&self.config), known, lost);
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
