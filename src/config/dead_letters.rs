//! `[dead_letters]`: what happens to an event that cannot be sent.

use std::fmt::{self, Write};

use super::Config;
use super::quoted::quoted;
use super::raw::RawDeadLetters;
use super::read::Reader;

/// `[dead_letters]`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadLetters {
    /// `policy`
    pub policy: Policy,
    /// `max_aggregates`: how many aggregates may have parked events; one more stops the router. Default 1,000.
    pub max_aggregates: usize,
}

/// What happens to an event that cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The router stops before it. The default.
    Stop,
    /// It is stored in a table, with every later event of its aggregate.
    Park,
}

impl Policy {
    const ALL: [Policy; 2] = [Policy::Stop, Policy::Park];

    /// The word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Stop => "stop",
            Policy::Park => "park",
        }
    }
}

impl Default for DeadLetters {
    fn default() -> Self {
        DeadLetters { policy: Policy::Stop, max_aggregates: 1_000 }
    }
}

impl DeadLetters {
    /// Whether events are parked.
    pub fn park(&self) -> bool {
        self.policy == Policy::Park
    }
}

pub(super) fn dead_letters(reader: &mut Reader<'_>, raw: RawDeadLetters) -> DeadLetters {
    let defaults = DeadLetters::default();
    let policies = Policy::ALL.map(|policy| (policy.name(), policy));
    let policy = reader.choice("dead_letters.policy", raw.policy, &policies);
    let most = reader.integer("dead_letters.max_aggregates", raw.max_aggregates, 1..=1_000_000);
    DeadLetters {
        policy: policy.unwrap_or(defaults.policy),
        max_aggregates: most.and_then(|most| usize::try_from(most).ok()).unwrap_or(defaults.max_aggregates),
    }
}

pub(super) fn write_toml(config: &Config, out: &mut String) -> fmt::Result {
    let DeadLetters { policy, max_aggregates } = config.dead_letters;
    writeln!(out, "\n[dead_letters]")?;
    writeln!(out, "policy = {}", quoted(policy.name()))?;
    writeln!(out, "max_aggregates = {max_aggregates}")
}
