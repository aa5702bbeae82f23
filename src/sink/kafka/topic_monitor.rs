//! Checks topics while records are sent: whether they still exist, have changed, or cannot acknowledge.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::metadata::MetadataTopic;

use super::background_probe::BackgroundProbe;
use super::topics::TopicKeeper;

/// How often a topic is checked; topics take turns. A late check is no problem: until then keys stay in their partitions.
const EVERY: Duration = Duration::from_secs(5);

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TopicState {
    pub(super) topic: String,
    pub(super) found: TopicHealth,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TopicHealth {
    /// No broker answered.
    NoAnswer,
    /// The topic does not exist.
    Missing,
    There {
        partitions: usize,
        /// Why records may not be acknowledged.
        stall_reason: Option<String>,
    },
}

impl TopicHealth {
    /// Whether records can be acknowledged, or why not; `None` if that is unknown.
    pub(super) fn acknowledges(self) -> Option<Result<(), String>> {
        match self {
            TopicHealth::NoAnswer | TopicHealth::Missing => None,
            TopicHealth::There { stall_reason, .. } => Some(stall_reason.map_or(Ok(()), Err)),
        }
    }
}

/// The checks of one session, one at a time, on a blocking thread.
#[derive(Debug)]
pub(super) struct TopicMonitor {
    last: Instant,
    /// The index of the current topic.
    turn: usize,
    probe: BackgroundProbe,
    state: Arc<Mutex<Option<TopicState>>>,
    /// The last check got no answer.
    unanswered: bool,
}

impl TopicMonitor {
    pub(super) fn new() -> Self {
        TopicMonitor {
            last: Instant::now(),
            turn: 0,
            probe: BackgroundProbe::default(),
            state: Arc::default(),
            unanswered: false,
        }
    }

    /// The index of the next of `count` topics, if it is time to check it.
    pub(super) fn due(&mut self, count: usize) -> Option<usize> {
        if count == 0 || self.last.elapsed() < EVERY {
            return None;
        }
        self.turn = (self.turn + 1) % count;
        Some(self.turn)
    }

    /// Starts to check a topic, unless a check is running. `in_sync` is the topic's `min.insync.replicas`, if known. With
    /// `partition`, only that partition counts.
    pub(super) fn start_check(
        &mut self,
        keeper: &Arc<TopicKeeper>,
        topic: String,
        in_sync: Option<i64>,
        partition: Option<i32>,
    ) {
        let (keeper, state) = (Arc::clone(keeper), Arc::clone(&self.state));
        let begun = self.probe.start(move || {
            if let Some(found) = check_topic(&keeper, &topic, in_sync, partition) {
                *state.lock().unwrap_or_else(PoisonError::into_inner) = Some(TopicState { topic, found });
            }
        });
        if begun {
            self.last = Instant::now();
        }
    }

    /// The result of the last check, once.
    pub(super) fn take(&mut self) -> Option<TopicState> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        self.unanswered = state.found == TopicHealth::NoAnswer;
        Some(state)
    }

    /// Forgets that the last check got no answer.
    pub(super) fn forget(&mut self) {
        self.unanswered = false;
    }

    /// Whether the last check got no answer from a connected broker.
    pub(super) fn is_unanswered(&self) -> bool {
        self.unanswered
    }
}

/// Returns `None` if the brokers cannot tell at the moment. Blocks.
pub(super) fn check_topic(
    keeper: &TopicKeeper,
    topic: &str,
    in_sync: Option<i64>,
    partition: Option<i32>,
) -> Option<TopicHealth> {
    let seen = keeper
        .with_metadata(topic, in_sync, |seen, in_sync, capped| evaluate(seen, in_sync, capped, partition));
    seen.unwrap_or(Some(TopicHealth::NoAnswer))
}

/// Returns `None` if the brokers cannot tell at the moment.
fn evaluate(
    seen: Option<&MetadataTopic>,
    in_sync: Option<i64>,
    capped: Option<bool>,
    only: Option<i32>,
) -> Option<TopicHealth> {
    let Some(topic) = seen else { return Some(TopicHealth::Missing) };
    match topic.error().map(Code::from) {
        None => {}
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => return Some(TopicHealth::Missing),
        Some(_) => return None,
    }
    let partitions = topic.partitions();
    let counted = partitions.iter().filter(|partition| only.is_none_or(|only| only == partition.id()));
    let stall_reason = counted.into_iter().find_map(|partition| {
        let (name, id) = (topic.name(), partition.id());
        let (alive, all) = (partition.isr().len(), partition.replicas().len());
        let needed = in_sync.and_then(|needed| usize::try_from(needed).ok()).unwrap_or_default();
        let why = why_stalled(partition.leader() >= 0, alive, all, needed, capped)?;
        Some(format!("partition {id} of the topic {name} {why}"))
    });
    Some(TopicHealth::There { partitions: partitions.len(), stall_reason })
}

/// Why a partition with `alive` of `all` replicas in sync may acknowledge nothing, as a clause.
fn why_stalled(
    leader: bool,
    alive: usize,
    all: usize,
    needed: usize,
    capped: Option<bool>,
) -> Option<String> {
    if !leader {
        Some("has no leader; bring its brokers back".to_owned())
    } else if alive < needed.min(all) {
        Some(format!(
            "has {alive} of {all} replicas in sync, and min.insync.replicas is {needed}; bring the other brokers back"
        ))
    } else if alive < needed && capped != Some(true) {
        Some(format!(
            "has the replication factor {all}, and min.insync.replicas is {needed}: brokers before Kafka 3.7 acknowledge nothing \
             then; lower min.insync.replicas, or add replicas"
        ))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_blamed_on_replicas_only_if_they_cause_it() {
        let why =
            |alive, all, needed, capped| why_stalled(true, alive, all, needed, capped).unwrap_or_default();
        assert_eq!(why(3, 3, 2, None), "");
        assert!(why(1, 3, 2, None).contains("bring the other brokers back"));
        assert!(why(1, 2, 3, Some(true)).contains("bring the other brokers back"));
        for capped in [None, Some(false)] {
            let text = why(1, 1, 2, capped);
            assert!(text.contains("before Kafka 3.7") && !text.contains("bring"), "{text}");
        }
        assert_eq!(why(1, 1, 2, Some(true)), "", "a broker of 3.7 or later takes the smaller number");
        assert!(why_stalled(false, 1, 1, 1, None).is_some());
    }
}
