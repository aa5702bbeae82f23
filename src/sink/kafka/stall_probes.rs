//! What the brokers are asked when nothing is acknowledged, and how their answers are interpreted.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::producer::Producer;

use super::error_policy::{ErrorPolicy, error_policy};
use super::publisher::Publisher;
use super::stale_metadata::knows_brokers;
use super::topic_monitor::{self, TopicHealth, TopicState};
use super::{METADATA_TIMEOUT, PARTITION, PROBE_AFTER, properties, stall_reason};
use crate::error::{Error, Peer};
use crate::relay::Refusal;

/// How long to wait for the report of the record that made a transaction fail. After that, another session finds it.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// The reason if nothing explains the silence.
const SILENCE: &str = "the brokers answer, but acknowledge nothing: their logs say why, unless a producer quota or a slow \
     link holds the router back";

impl Publisher {
    /// Handles the result of the previous check, and starts checking a topic: `stalled`, or else the next in turn. `report_silence`
    /// is set if no topic's records are acknowledged, and holds the arguments of [`Publisher::report_silence`]. Never blocks;
    /// called once a second.
    pub(super) fn check_topics(&mut self, stalled: Option<usize>, silence: Option<(Option<&str>, bool)>) {
        if let Some(TopicState { topic, found }) = self.topic_monitor.take() {
            self.handle_topic_state(&topic, found, stalled.is_some(), silence);
        }
        let Some(number) = stalled.or_else(|| self.topic_monitor.due(self.topics.len())) else { return };
        let Some(topic) = self.topics.get(number) else { return };
        self.topic_monitor.start_check(
            &self.keeper,
            topic.name.to_string(),
            topic.limits.durability.min_insync,
            None,
        );
    }

    pub(super) fn handle_topic_state(
        &mut self,
        name: &str,
        found: TopicHealth,
        stalled: bool,
        silence: Option<(Option<&str>, bool)>,
    ) {
        let Some(topic) = self.topic_mut(name) else { return };
        match found {
            TopicHealth::NoAnswer => {
                if let Some((why, for_long)) = silence.filter(|_| stalled) {
                    self.report_silence(why, for_long);
                }
            }
            TopicHealth::Missing => topic.stale = true,
            TopicHealth::There { partitions, stall_reason } => {
                topic.stale |= topic.limits.partitions != Some(partitions);
                match (stall_reason.filter(|_| stalled), silence.filter(|_| stalled)) {
                    (Some(reason), _) => self.topic_cache.stall_reason.set(reason),
                    (None, Some((why, for_long))) => self.report_silence(why, for_long),
                    (None, None) => {}
                }
            }
        }
    }

    /// Connected brokers acknowledge nothing, for the reason `why` if it is known. `for_long`: long enough to report also
    /// that they do not answer.
    pub(super) fn report_silence(&self, why: Option<&str>, for_long: bool) {
        match why {
            None if self.topic_monitor.is_unanswered() || self.positions_monitor.is_unanswered() => {
                if for_long {
                    self.topic_cache.stall_reason.set_no_answer();
                }
            }
            why => self.topic_cache.stall_reason.set_silence(why.unwrap_or(SILENCE).to_owned()),
        }
    }

    /// A transaction was too large for the brokers' rate.
    pub(super) fn transaction_timed_out(&self, reason: String) {
        self.topic_cache.stall_reason.set_timed_out(reason);
    }

    /// Whether the brokers gave the reason why nothing is acknowledged.
    pub(super) fn stall_is_explained(&self) -> bool {
        self.topic_cache.stall_reason.is_explained()
    }

    /// Starts checking the positions topic. Returns the result of the previous check once: whether the topic can
    /// acknowledge, or why not. Never blocks; called once a second.
    pub(super) fn check_positions_topic(&mut self) -> Option<Result<(), String>> {
        let found = self.positions_monitor.take().and_then(|TopicState { found, .. }| found.acknowledges());
        let topic = self.producers.positions_topic().to_owned();
        self.positions_monitor.start_check(&self.keeper, topic, None, Some(PARTITION));
        found
    }

    /// No checkpoint waits for its acknowledgement, so a failed check no longer matters.
    pub(super) fn positions_acknowledged(&mut self) {
        self.positions_monitor.forget();
    }

    /// Why the last check of the positions topic had no result, if no broker answered.
    pub(super) fn positions_topic_unanswered(&self) -> Option<&'static str> {
        self.positions_monitor.is_unanswered().then_some(stall_reason::NO_ANSWER)
    }

    /// For the start of a session: runs `work`, which needs the positions topic. If that is slow or fails because the topic
    /// cannot be written, that is the error.
    pub(crate) async fn unless_positions_are_stuck<T>(
        &self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let stuck = async {
            loop {
                tokio::time::sleep(PROBE_AFTER).await;
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
            topic_monitor::check_topic(&keeper, &topic, None, Some(PARTITION))
        })
        .await;
        found.ok().flatten().and_then(TopicHealth::acknowledges).and_then(Result::err)
    }

    /// Nothing was acknowledged for `silence` although brokers answer. A transaction may be waiting forever, and has ended
    /// when the brokers consider it timed out.
    pub(super) fn check_open_transaction(&self, silence: Duration) {
        if !self.producers.are_transactional() || silence < PROBE_AFTER {
            return;
        }
        if silence > self.transaction_timeout && !self.stall_is_explained() {
            return self
                .end_session("the transaction timed out, and the brokers reported no error".to_owned());
        }
        let (keeper, delivery_reports) =
            (Arc::clone(&self.keeper), Arc::clone(&self.reports.delivery_reports));
        let positions = self.producers.positions_topic().to_owned();
        let topics = self.topics.iter().map(|topic| (topic.name.to_string(), topic.limits.partitions));
        let needed: Vec<_> = topics.chain([(positions, None)]).collect();
        // librdkafka tries forever to add a missing partition to a transaction
        self.probe.start(move || {
            if let Some(missing) = keeper.missing(&needed) {
                let reason = format!("{missing}, and the transaction waits for it");
                delivery_reports.refused(Refusal::of_session(reason, ""));
            }
        });
    }

    /// Ends the session if a producer has failed for good: it sends nothing more, and there may be no record whose report
    /// says so.
    pub(super) fn check_fatal_error(&self) {
        if self.refuses_since.is_some_and(|since| since.elapsed() > TOLD_WITHIN) {
            let refused = self.producers.checkpoint_error().map(|refused| refused.reason);
            return self.end_session(
                refused.unwrap_or_else(|| "the transaction accepts no more records".to_owned()),
            );
        }
        let failed = self.producers.all().find_map(|producer| producer.client().fatal_error());
        let Some((code, reason)) = failed else { return };
        let (reason, remedy) = match error_policy(code) {
            // an idempotent producer requests its id before the first record
            ErrorPolicy::Denied => {
                let topic = self.topics.first().map_or(self.producers.positions_topic(), |topic| &topic.name);
                let missing = self.reports.grants.missing_for(code, topic);
                let reason = format!("{reason}: {}", missing.reason());
                self.topic_cache.stall_reason.set(reason.clone());
                (reason, missing.remedy)
            }
            _ => (format!("the producer failed for good: {reason}"), String::new()),
        };
        self.reports.delivery_reports.refused(Refusal::of_session(reason, &remedy));
    }

    pub(super) fn end_session(&self, reason: String) {
        self.reports.delivery_reports.refused(Refusal::of_session(reason, ""));
    }

    /// Why nothing is acknowledged although brokers answer.
    pub(super) fn stall_reason(&self) -> Option<String> {
        self.topic_cache.stall_reason.reason()
    }

    /// Nothing is committed, for this reason.
    pub(super) fn set_stall_reason(&self, reason: String) {
        self.topic_cache.stall_reason.set(reason);
    }

    /// Replaces a transient error by the reason that the brokers gave, which says more than its consequences.
    pub(super) fn explained(&self, error: Error) -> Error {
        match (error, self.stall_reason().filter(|_| self.stall_is_explained())) {
            (Error::Transient(_), Some(reason)) => Error::transient(Peer::Kafka, reason),
            (error, _) => error,
        }
    }

    /// Events are acknowledged, or there are none.
    pub(super) fn clear_stall_reason(&self) {
        self.topic_cache.stall_reason.clear();
    }

    /// A commit is overdue; `for_long` as in [`Publisher::report_silence`].
    pub(super) fn report_late_commit(&self, for_long: bool) {
        if self.positions_monitor.is_unanswered() {
            if for_long {
                self.topic_cache.stall_reason.set_no_answer();
            }
            return;
        }
        self.topic_cache.stall_reason.set(
            "the brokers do not end a transaction; their logs say why (its coordinator is the leader \
             of a partition of __transaction_state)"
                .to_owned(),
        );
    }

    /// Why no broker can be reached; `None`: one can.
    pub(super) fn brokers_down(&self) -> Option<String> {
        self.reports.connection.down()
    }

    /// Asks the brokers for metadata in the background, because an idle producer sends nothing that they could answer.
    pub(super) fn probe_brokers(&self) {
        let (producer, connection) = (self.producers.current().clone(), Arc::clone(&self.reports.connection));
        let topic = self.topics.first().map(|topic| topic.name.to_string());
        drop(tokio::task::spawn_blocking(move || {
            if producer.client().fetch_metadata(topic.as_deref(), METADATA_TIMEOUT).is_ok() {
                connection.set_down(false);
            }
        }));
    }

    /// Checks in the background whether the producer has stale metadata. If so, the session ends and the next one has a new
    /// producer.
    pub(super) fn check_stale_metadata(&self) {
        let (producer, delivery_reports) =
            (self.producers.current().clone(), Arc::clone(&self.reports.delivery_reports));
        let lost = move || {
            let reason = "the producer no longer finds the brokers, although a new one does".to_owned();
            delivery_reports.refused(Refusal::of_session(reason, ""));
        };
        let knows_brokers = move |timeout| knows_brokers(producer.client(), timeout);
        self.stale_metadata.check(properties::client(&self.config), knows_brokers, lost);
    }
}
