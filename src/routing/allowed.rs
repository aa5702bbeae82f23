//! Which topics may be written to: those with a valid name that `[topics] allow` lists, and never the positions topic.

use std::collections::HashSet;

use super::unroutable::Unroutable;
use crate::config::Config;
use crate::config::pattern::Pattern;
use crate::outbox::printable;
use crate::topic_name::{self, TopicNameError};

/// How many allowed topics are cached.
const CACHE_SIZE: usize = 1_000;

/// The patterns, and a cache of topics that they allow.
pub(super) struct Allowed {
    positions: Option<String>,
    patterns: Vec<Pattern>,
    known: HashSet<Box<str>>,
    /// The topic that was allowed last; empty if there was none.
    last: String,
}

impl Allowed {
    pub(super) fn new(patterns: &[Pattern], positions: Option<&str>) -> Self {
        Allowed {
            positions: positions.map(str::to_owned),
            patterns: patterns.to_vec(),
            known: HashSet::new(),
            last: String::new(),
        }
    }

    /// Checks a topic. Without patterns, any valid name is allowed.
    pub(super) fn check(&mut self, topic: &str) -> Result<(), Unroutable> {
        // most events go to the same topic as the previous one; no topic has an empty name
        if topic == self.last && !topic.is_empty() {
            return Ok(());
        }
        topic_name::check(topic)
            .map_err(|error| Unroutable::Topic { name: printable(topic.as_bytes()), error })?;
        self.check_lists(topic)?;
        self.last.clear();
        self.last.push_str(topic);
        Ok(())
    }

    fn check_lists(&mut self, topic: &str) -> Result<(), Unroutable> {
        if self.positions.as_deref() == Some(topic) {
            return Err(Unroutable::Topic { name: topic.to_owned(), error: TopicNameError::PositionsTopic });
        }
        if self.patterns.is_empty() || self.known.contains(topic) {
            return Ok(());
        }
        // a pattern that takes too many steps allows nothing
        if !self.patterns.iter().any(|pattern| pattern.matches(topic) == Ok(true)) {
            return Err(Unroutable::NotAllowed { name: topic.to_owned() });
        }
        if self.known.len() < CACHE_SIZE {
            self.known.insert(topic.into());
        }
        Ok(())
    }
}

/// Whether events may be sent to this topic.
///
/// # Errors
/// Why not.
pub fn check_topic(config: &Config, topic: &str) -> Result<(), Unroutable> {
    Allowed::new(&config.topics.allow, config.delivery.positions_topic.as_deref()).check(topic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_allowed_before_allows_no_other() {
        let mut allowed = Allowed::new(&[], Some("positions"));
        for (topic, takes) in
            [("", false), ("a", true), ("a", true), ("", false), ("a b", false), ("a b", false), ("a", true)]
        {
            assert_eq!(allowed.check(topic).is_ok(), takes, "{topic:?}");
        }
        assert!(allowed.check("positions").is_err());
    }
}
