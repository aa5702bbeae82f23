//! What one process remembers of topics from session to session.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::durability::Weakness;
use super::record_limits::TopicLimits;
use super::stall_reason::Obstacle;

/// So many topics are named whose acknowledgements are weak; `check` lists all.
const NAMED_AT_MOST: usize = 10;

/// All topics that records were sent to.
#[derive(Debug, Default)]
pub struct TopicCache {
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

impl TopicCache {
    /// Whether records were sent there.
    pub(super) fn has(&self, topic: &str) -> bool {
        self.lock().partitions.contains_key(topic)
    }

    /// Why nothing is acknowledged although brokers answer, which was told.
    pub fn obstacle(&self) -> Option<String> {
        self.obstacle.reason()
    }

    /// The topic was looked at; says what a person should know of it.
    pub(super) fn met(&self, topic: &str, limits: &TopicLimits) -> Met {
        let mut known = self.lock();
        let now = limits.partitions.unwrap_or_default();
        let before = known.partitions.insert(topic.into(), now);
        match before {
            None => {
                if let Some(warning) = known.weak(limits) {
                    warning.tell(topic);
                }
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

/// What there is to say of a topic's acknowledgements.
#[derive(Debug, PartialEq, Eq)]
enum Warning {
    /// All topics are on the only broker.
    OneBroker,
    Topic(Vec<Weakness>),
    /// This topic, and others like it, are not named.
    More,
}

impl Known {
    /// Where acknowledgements are weak: of the first topics one by one, and of a single broker once. That nothing is
    /// acknowledged at all is said of each.
    fn weak(&mut self, limits: &TopicLimits) -> Option<Warning> {
        let weaknesses = limits.copies.weaknesses();
        if weaknesses.iter().any(|weakness| weakness.blocks) {
            return Some(Warning::Topic(weaknesses));
        }
        if weaknesses.is_empty() {
            return None;
        }
        if limits.brokers == Some(1) {
            let first = !std::mem::replace(&mut self.alone_told, true);
            return first.then_some(Warning::OneBroker);
        }
        self.named = self.named.saturating_add(1);
        match self.named.cmp(&(NAMED_AT_MOST + 1)) {
            Ordering::Less => Some(Warning::Topic(weaknesses)),
            Ordering::Equal => Some(Warning::More),
            Ordering::Greater => None,
        }
    }
}

impl Warning {
    fn tell(&self, topic: &str) {
        match self {
            Warning::OneBroker => tracing::info!(
                "Kafka has one broker: what it acknowledges is on one disk, which is for development; where events \
                 matter use three brokers, three replicas and min.insync.replicas = 2"
            ),
            Warning::More => {
                tracing::warn!("acknowledgements of more topics are weak; `outbox-router check` lists them");
            }
            Warning::Topic(weaknesses) => {
                for Weakness { what, remedy, .. } in weaknesses {
                    tracing::warn!(remedy, "the topic {topic}: {what}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::durability::Durability;
    use super::*;

    fn with(partitions: usize) -> TopicLimits {
        TopicLimits { partitions: Some(partitions), ..TopicLimits::default() }
    }

    fn on(brokers: usize, replicas: i64, min_insync: i64) -> TopicLimits {
        let copies = Durability { replicas: Some(replicas), min_insync: Some(min_insync), unclean: false };
        TopicLimits { copies, brokers: Some(brokers), ..TopicLimits::default() }
    }

    #[test]
    fn a_thousand_weak_topics_are_worth_eleven_lines() {
        let mut known = Known::default();
        assert_eq!(known.weak(&on(3, 3, 2)), None);
        let told: Vec<_> = (0..1_000).filter_map(|_| known.weak(&on(3, 1, 1))).collect();
        let (named, more): (Vec<_>, Vec<_>) =
            told.iter().partition(|warning| matches!(warning, Warning::Topic(_)));
        assert_eq!((named.len(), more), (NAMED_AT_MOST, vec![&Warning::More]));
        // where nothing is acknowledged the router stands still at that very topic
        assert!(matches!(known.weak(&on(3, 1, 2)), Some(Warning::Topic(_))));
    }

    #[test]
    fn a_single_broker_is_worth_one_line() {
        let mut known = Known::default();
        let told: Vec<_> = (0..1_000).filter_map(|_| known.weak(&on(1, 1, 1))).collect();
        assert_eq!(told, [Warning::OneBroker]);
        assert!(matches!(known.weak(&on(1, 1, 2)), Some(Warning::Topic(_))));
    }

    #[test]
    fn partitions_are_compared_with_those_of_the_last_look() {
        let known = TopicCache::default();
        assert!(!known.has("order"));
        assert_eq!(known.met("order", &with(3)), Met::ForTheFirstTime);
        assert_eq!(known.met("order", &with(3)), Met::AsBefore);
        assert_eq!(known.met("order", &with(4)), Met::Grown);
        assert_eq!(known.met("order", &with(1)), Met::MadeAnew);
        assert_eq!(known.met("customer", &with(1)), Met::ForTheFirstTime);
        assert!(known.has("order"));
    }
}
