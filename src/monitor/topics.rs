//! Counters for each topic.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::TOPICS_REPORTED;
use super::counts::Counter;
use super::report::TopicReport;

/// How many topics are counted by name. A topic template with a column of ids could produce millions.
pub const TOPIC_LIMIT: usize = 1_000;

/// The name under which topics beyond [`TOPIC_LIMIT`] are counted.
pub const OTHER_TOPICS: &str = "other";

/// The counters of one topic. Clones share them; keep one while the topic is in use.
#[derive(Debug, Clone, Default)]
pub struct TopicCounters(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    events: Counter,
    bytes: Counter,
}

impl TopicCounters {
    /// The broker acknowledged `records` records, together `bytes` bytes of keys, values and headers.
    pub fn delivered(&self, records: u64, bytes: u64) {
        self.0.events.add(records);
        self.0.bytes.add(bytes);
    }
}

/// The counters of all topics.
#[derive(Debug, Default)]
pub(super) struct Topics(Mutex<BTreeMap<Box<str>, TopicCounters>>);

impl Topics {
    /// The counters of `topic`: its own, or those of [`OTHER_TOPICS`] once there are too many.
    pub(super) fn counters(&self, topic: &str) -> TopicCounters {
        let mut topics = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(counters) = topics.get(topic) {
            return counters.clone();
        }
        let name = if topics.len() < TOPIC_LIMIT { topic } else { OTHER_TOPICS };
        topics.entry(name.into()).or_default().clone()
    }

    /// All topics by name.
    pub(super) fn report(&self) -> Vec<TopicReport> {
        let topics = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let report = topics.iter().map(|(topic, counters)| TopicReport {
            topic: topic.to_string(),
            events: counters.0.events.get(),
            bytes: counters.0.bytes.get(),
        });
        report.collect()
    }
}

/// Keeps the [`TOPICS_REPORTED`] topics with the most events, most first.
pub(super) fn keep_busiest(topics: &mut Vec<TopicReport>) {
    // stable, so that equal topics stay in the order of their names
    topics.sort_by_key(|topic| Reverse(topic.events));
    topics.truncate(TOPICS_REPORTED);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_keeps_its_counters() {
        let topics = Topics::default();
        let first = topics.counters("orders");
        first.delivered(2, 30);
        topics.counters("orders").delivered(1, 5);
        assert_eq!(topics.report(), [TopicReport { topic: "orders".to_owned(), events: 3, bytes: 35 }]);
    }

    #[test]
    fn topics_beyond_the_limit_share_one_name() {
        let topics = Topics::default();
        for n in 0..TOPIC_LIMIT + 5 {
            topics.counters(&format!("t{n:05}")).delivered(1, 10);
        }
        topics.counters("t00000").delivered(1, 10);
        let report = topics.report();
        assert_eq!(report.len(), TOPIC_LIMIT + 1);
        assert_eq!(report[0], TopicReport { topic: OTHER_TOPICS.to_owned(), events: 5, bytes: 50 });
        assert_eq!(report[1], TopicReport { topic: "t00000".to_owned(), events: 2, bytes: 20 });
    }
}
