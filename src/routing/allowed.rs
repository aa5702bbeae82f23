//! Which topics may be written to: those of `[topics] allow`, and never the one of the positions.

use std::collections::HashSet;

use super::unroutable::Unroutable;
use crate::config::pattern::Pattern;
use crate::topic_name::TopicNameError;

/// How many topics are remembered that were found to be allowed.
const REMEMBERED: usize = 1_000;

/// The patterns, and what they have allowed.
pub(super) struct Allowed {
    positions: Option<String>,
    patterns: Vec<Pattern>,
    known: HashSet<Box<str>>,
}

impl Allowed {
    pub(super) fn new(patterns: &[Pattern], positions: Option<&str>) -> Self {
        Allowed {
            positions: positions.map(str::to_owned),
            patterns: patterns.to_vec(),
            known: HashSet::new(),
        }
    }

    /// Any topic is allowed where no pattern is given.
    pub(super) fn check(&mut self, topic: &str) -> Result<(), Unroutable> {
        if self.positions.as_deref() == Some(topic) {
            return Err(Unroutable::Topic { name: topic.to_owned(), error: TopicNameError::Positions });
        }
        if self.patterns.is_empty() || self.known.contains(topic) {
            return Ok(());
        }
        // what takes too many steps to be found allowed is not
        if !self.patterns.iter().any(|pattern| pattern.fits(topic) == Ok(true)) {
            return Err(Unroutable::NotAllowed { name: topic.to_owned() });
        }
        if self.known.len() < REMEMBERED {
            self.known.insert(topic.into());
        }
        Ok(())
    }
}
