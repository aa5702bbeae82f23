//! What the brokers are asked when nothing is acknowledged, and what is made of their answers.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::producer::Producer;

use super::error_policy::MAY_NOT_WRITE;
use super::publisher::Publisher;
use super::stale_metadata::knows_brokers;
use super::topic_monitor::{self, Found, TopicState};
use super::{LOOK_AFTER, LOOK_TIMEOUT, PARTITION, properties, stall_reason};
use crate::error::{Error, Peer};
use crate::relay::Refusal;

/// How soon it is told which record has spoilt a transaction. If not, another session finds it out.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// What can be said where nothing explains it.
const SILENCE: &str = "the brokers answer, but acknowledge nothing: their logs say why, unless a producer quota or a slow \
     link holds the router back";

impl Publisher {
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
        self.position_looks.begin(&self.keeper, topic, None, Some(PARTITION));
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
        let found =
            tokio::task::spawn_blocking(move || topic_monitor::look(&keeper, &topic, None, Some(PARTITION)))
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
}
