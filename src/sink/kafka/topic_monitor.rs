//! Topics while records are sent to them: whether they are still there, as they were, and able to acknowledge.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::metadata::MetadataTopic;

use super::background_probe::BackgroundProbe;
use super::topics::TopicKeeper;

/// How often one topic is looked at, each in its turn. Late is not wrong: until then keys stay where they are.
const EVERY: Duration = Duration::from_secs(5);

/// What a look has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TopicState {
    pub(super) topic: String,
    pub(super) found: Found,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// No broker has answered.
    NoAnswer,
    /// It is gone.
    Missing,
    There {
        partitions: usize,
        /// Why records may not be acknowledged.
        obstacle: Option<String>,
    },
}

impl Found {
    /// Whether records may be acknowledged, or why not; nothing of a topic that is gone or was not seen.
    pub(super) fn acknowledges(self) -> Option<Result<(), String>> {
        match self {
            Found::NoAnswer | Found::Missing => None,
            Found::There { obstacle, .. } => Some(obstacle.map_or(Ok(()), Err)),
        }
    }
}

/// The looks of one session: one at a time, on a thread that may block.
#[derive(Debug)]
pub(super) struct TopicMonitor {
    last: Instant,
    /// Which topic is next.
    turn: usize,
    aside: BackgroundProbe,
    sight: Arc<Mutex<Option<TopicState>>>,
    /// The last look had no answer.
    unanswered: bool,
}

impl TopicMonitor {
    pub(super) fn new() -> Self {
        TopicMonitor {
            last: Instant::now(),
            turn: 0,
            aside: BackgroundProbe::default(),
            sight: Arc::default(),
            unanswered: false,
        }
    }

    /// Whether it is time for the next topic in turn, of `count`; which one.
    pub(super) fn due(&mut self, count: usize) -> Option<usize> {
        if count == 0 || self.last.elapsed() < EVERY {
            return None;
        }
        self.turn = (self.turn + 1) % count;
        Some(self.turn)
    }

    /// Begins to look at a topic, unless a look is under way. `in_sync` is how many replicas an acknowledgement takes, if that
    /// is known. `partition`: the only one that counts.
    pub(super) fn begin(
        &mut self,
        keeper: &Arc<TopicKeeper>,
        topic: String,
        in_sync: Option<i64>,
        partition: Option<i32>,
    ) {
        let (keeper, sight) = (Arc::clone(keeper), Arc::clone(&self.sight));
        let begun = self.aside.look(move || {
            if let Some(found) = look(&keeper, &topic, in_sync, partition) {
                *sight.lock().unwrap_or_else(PoisonError::into_inner) = Some(TopicState { topic, found });
            }
        });
        if begun {
            self.last = Instant::now();
        }
    }

    /// What the last look has found, once.
    pub(super) fn take(&mut self) -> Option<TopicState> {
        let sight = self.sight.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        self.unanswered = sight.found == Found::NoAnswer;
        Some(sight)
    }

    /// Forgets that the last look had no answer.
    pub(super) fn forget(&mut self) {
        self.unanswered = false;
    }

    /// Whether the last look had no answer, from a broker that is connected.
    pub(super) fn are_unanswered(&self) -> bool {
        self.unanswered
    }
}

/// Nothing if the brokers do not know just now. Blocks.
pub(super) fn look(
    keeper: &TopicKeeper,
    topic: &str,
    in_sync: Option<i64>,
    partition: Option<i32>,
) -> Option<Found> {
    let seen = keeper.seen(topic, in_sync, |seen, in_sync| judge(seen, in_sync, partition));
    seen.unwrap_or(Some(Found::NoAnswer))
}

/// Nothing if the brokers do not know just now.
fn judge(seen: Option<&MetadataTopic>, in_sync: Option<i64>, only: Option<i32>) -> Option<Found> {
    let Some(topic) = seen else { return Some(Found::Missing) };
    match topic.error().map(Code::from) {
        None => {}
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => return Some(Found::Missing),
        Some(_) => return None,
    }
    let partitions = topic.partitions();
    let counted = partitions.iter().filter(|partition| only.is_none_or(|only| only == partition.id()));
    let obstacle = counted.into_iter().find_map(|partition| {
        let (name, id) = (topic.name(), partition.id());
        let (alive, all) = (partition.isr().len(), partition.replicas().len());
        let needed = in_sync.and_then(|needed| usize::try_from(needed).ok()).unwrap_or_default();
        if partition.leader() < 0 {
            Some(format!("partition {id} of the topic {name} has no leader; bring its brokers back"))
        } else if alive < needed {
            Some(format!(
                "partition {id} of the topic {name} has {alive} of {all} replicas in sync, and min.insync.replicas is \
                 {needed}; bring the other brokers back"
            ))
        } else {
            None
        }
    });
    Some(Found::There { partitions: partitions.len(), obstacle })
}
