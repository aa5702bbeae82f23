//! What a process knows of topics across sessions.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::durability::Weakness;
use super::record_limits::TopicLimits;
use super::stall_reason::StallReason;
use crate::error::with_config_file;

/// How many topics with weak acknowledgements are logged; `check` lists all.
const MAX_LOGGED: usize = 10;

/// All topics that records were sent to.
#[derive(Debug, Default)]
pub struct TopicCache {
    state: Mutex<State>,
    /// Why nothing is acknowledged.
    pub(super) stall_reason: StallReason,
}

#[derive(Debug, Default)]
struct State {
    /// The last known number of partitions of each topic.
    partitions: HashMap<Box<str>, usize>,
    /// How many topics were logged as weak.
    named: usize,
    /// It was logged that there is only one broker.
    single_broker_logged: bool,
    /// It was logged that the positions topic deletes checkpoints.
    policy_logged: bool,
}

/// How a topic's partitions have changed since the last check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TopicChange {
    New,
    Unchanged,
    /// It has more, so keys move to other partitions.
    Grown,
    /// It has fewer. No topic loses partitions, so this is a new one.
    Recreated,
}

impl TopicCache {
    /// Whether records were sent to the topic.
    pub(super) fn has(&self, topic: &str) -> bool {
        self.lock().partitions.contains_key(topic)
    }

    /// Why nothing is acknowledged although brokers answer.
    pub fn stall_reason(&self) -> Option<String> {
        self.stall_reason.reason()
    }

    /// Updates the topic, and logs what a person should know.
    pub(super) fn update(&self, topic: &str, limits: &TopicLimits) -> TopicChange {
        let mut state = self.lock();
        let now = limits.partitions.unwrap_or_default();
        let before = state.partitions.insert(topic.into(), now);
        match before {
            None => {
                if let Some(warning) = state.warning_for(limits) {
                    warning.log(topic);
                }
                TopicChange::New
            }
            Some(before) if before < now => {
                tracing::warn!(
                    topic,
                    before,
                    now,
                    "the topic has more partitions: keys move, so consumers may read later events of an aggregate before \
                     earlier ones; all records in flight were acknowledged first"
                );
                TopicChange::Grown
            }
            Some(before) if before > now => {
                tracing::warn!(
                    topic,
                    before,
                    now,
                    "the topic has fewer partitions, so it was deleted and recreated"
                );
                TopicChange::Recreated
            }
            Some(_) => TopicChange::Unchanged,
        }
    }

    /// Logs once that the positions topic deletes old checkpoints.
    pub(super) fn warn_of_policy(&self, what: &str, remedy: &str) {
        if !std::mem::replace(&mut self.lock().policy_logged, true) {
            tracing::warn!(remedy, "{what}");
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // a panic elsewhere leaves the numbers as they are, which is a valid state
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A warning about a topic's acknowledgements.
#[derive(Debug, PartialEq, Eq)]
enum Warning {
    /// There is only one broker.
    OneBroker,
    Topic(Vec<Weakness>),
    /// More topics are weak, and are not logged.
    More,
}

impl State {
    /// The warning about weak acknowledgements, for the first topics only; for a single broker once. If nothing may be
    /// acknowledged at all, every topic gets a warning.
    fn warning_for(&mut self, limits: &TopicLimits) -> Option<Warning> {
        let weaknesses = limits.durability.weaknesses();
        if weaknesses.iter().any(|weakness| weakness.blocks != Some(false)) {
            return Some(Warning::Topic(weaknesses));
        }
        if weaknesses.is_empty() {
            return None;
        }
        if limits.brokers == Some(1) {
            let first = !std::mem::replace(&mut self.single_broker_logged, true);
            return first.then_some(Warning::OneBroker);
        }
        self.named = self.named.saturating_add(1);
        match self.named.cmp(&(MAX_LOGGED + 1)) {
            Ordering::Less => Some(Warning::Topic(weaknesses)),
            Ordering::Equal => Some(Warning::More),
            Ordering::Greater => None,
        }
    }
}

impl Warning {
    fn log(&self, topic: &str) {
        match self {
            Warning::OneBroker => tracing::info!(
                "Kafka has a single broker, which keeps each acknowledged record on one disk; where events \
                 matter use three brokers, three replicas and min.insync.replicas = 2"
            ),
            Warning::More => {
                let check = with_config_file("outbox-router check");
                tracing::warn!("acknowledgements of more topics are weak; `{check}` lists them");
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
    use super::super::durability::TopicDurability;
    use super::*;

    fn with(partitions: usize) -> TopicLimits {
        TopicLimits { partitions: Some(partitions), ..TopicLimits::default() }
    }

    fn on(brokers: usize, replicas: i64, min_insync: i64) -> TopicLimits {
        let durability = TopicDurability {
            replicas: Some(replicas),
            min_insync: Some(min_insync),
            ..TopicDurability::default()
        };
        TopicLimits { durability, brokers: Some(brokers), ..TopicLimits::default() }
    }

    #[test]
    fn a_thousand_weak_topics_are_logged_in_eleven_lines() {
        let mut state = State::default();
        assert_eq!(state.warning_for(&on(3, 3, 2)), None);
        let logged: Vec<_> = (0..1_000).filter_map(|_| state.warning_for(&on(3, 1, 1))).collect();
        let (named, more): (Vec<_>, Vec<_>) =
            logged.iter().partition(|warning| matches!(warning, Warning::Topic(_)));
        assert_eq!((named.len(), more), (MAX_LOGGED, vec![&Warning::More]));
        // the router stalls at this topic
        assert!(matches!(state.warning_for(&on(3, 1, 2)), Some(Warning::Topic(_))));
    }

    #[test]
    fn a_single_broker_is_logged_once() {
        let mut state = State::default();
        let logged: Vec<_> = (0..1_000).filter_map(|_| state.warning_for(&on(1, 1, 1))).collect();
        assert_eq!(logged, [Warning::OneBroker]);
        assert!(matches!(state.warning_for(&on(1, 1, 2)), Some(Warning::Topic(_))));
    }

    #[test]
    fn partitions_are_compared_with_the_last_check() {
        let state = TopicCache::default();
        assert!(!state.has("order"));
        assert_eq!(state.update("order", &with(3)), TopicChange::New);
        assert_eq!(state.update("order", &with(3)), TopicChange::Unchanged);
        assert_eq!(state.update("order", &with(4)), TopicChange::Grown);
        assert_eq!(state.update("order", &with(1)), TopicChange::Recreated);
        assert_eq!(state.update("customer", &with(1)), TopicChange::New);
        assert!(state.has("order"));
    }
}
