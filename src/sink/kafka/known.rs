//! What one process remembers of topics from session to session.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::obstacle::Obstacle;
use super::topics::TopicLimits;

/// So many topics are named whose acknowledgements are weak; `check` lists all.
const NAMED_AT_MOST: usize = 10;

/// All topics that records were sent to.
#[derive(Debug, Default)]
pub struct KnownTopics {
    known: Mutex<Known>,
    /// Why they acknowledge nothing.
    pub(super) obstacle: Obstacle,
}

#[derive(Debug, Default)]
struct Known {
    /// How many partitions each had.
    partitions: HashMap<Box<str>, usize>,
    /// How many topics were named as weak.
    named: usize,
    /// That there is one broker only was told.
    alone_told: bool,
}

/// How the partitions of a topic have changed since it was looked at last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Met {
    ForTheFirstTime,
    AsBefore,
    /// Keys are in other partitions now.
    Grown,
    /// No topic loses partitions: this is another one.
    MadeAnew,
}

impl KnownTopics {
    /// Whether records were sent there.
    pub(super) fn has(&self, topic: &str) -> bool {
        self.lock().partitions.contains_key(topic)
    }

    /// The topic was looked at; says what a person should know of it.
    pub(super) fn met(&self, topic: &str, limits: &TopicLimits) -> Met {
        let mut known = self.lock();
        let now = limits.partitions.unwrap_or_default();
        let before = known.partitions.insert(topic.into(), now);
        match before {
            None => {
                known.warn(topic, limits);
                Met::ForTheFirstTime
            }
            Some(before) if before < now => {
                tracing::warn!(
                    topic,
                    before,
                    now,
                    "the topic has more partitions: keys move, so consumers may meet later events of an aggregate before \
                     earlier ones; what the router had under way was acknowledged first"
                );
                Met::Grown
            }
            Some(before) if before > now => {
                tracing::warn!(
                    topic,
                    before,
                    now,
                    "the topic has fewer partitions, so it was deleted and made anew"
                );
                Met::MadeAnew
            }
            Some(_) => Met::AsBefore,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // a panic elsewhere leaves the numbers as they are, which is a valid state
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Says where an acknowledgement is weak: of the first topics one by one, and of a single broker once.
    fn warn(&mut self, topic: &str, limits: &TopicLimits) {
        let weaknesses = limits.copies.weaknesses();
        let blocks = weaknesses.iter().any(|weakness| weakness.blocks);
        if limits.brokers == Some(1) && !blocks {
            if !weaknesses.is_empty() && !std::mem::replace(&mut self.alone_told, true) {
                tracing::info!(
                    "Kafka has one broker: what it acknowledges is on one disk, which is for development; where events \
                     matter use three brokers, three replicas and min.insync.replicas = 2"
                );
            }
            return;
        }
        if weaknesses.is_empty() || self.named > NAMED_AT_MOST && !blocks {
            return;
        }
        self.named += 1;
        if self.named > NAMED_AT_MOST && !blocks {
            tracing::warn!("acknowledgements of more topics are weak; `outbox-router check` lists them");
            return;
        }
        for weakness in weaknesses {
            tracing::warn!(topic, remedy = weakness.remedy, "the topic {topic}: {}", weakness.what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(partitions: usize) -> TopicLimits {
        TopicLimits { partitions: Some(partitions), ..TopicLimits::default() }
    }

    #[test]
    fn partitions_are_compared_with_those_of_the_last_look() {
        let known = KnownTopics::default();
        assert!(!known.has("order"));
        assert_eq!(known.met("order", &with(3)), Met::ForTheFirstTime);
        assert_eq!(known.met("order", &with(3)), Met::AsBefore);
        assert_eq!(known.met("order", &with(4)), Met::Grown);
        assert_eq!(known.met("order", &with(1)), Met::MadeAnew);
        assert_eq!(known.met("customer", &with(1)), Met::ForTheFirstTime);
        assert!(known.has("order"));
    }
}
