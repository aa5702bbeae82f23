//! The rule that a contract declares for its changes.

use serde::Serialize;

/// How a contract may change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rule {
    /// Consumers with the new schema read former events.
    Backward,
    /// Consumers with the former schema read new events.
    Forward,
    /// Both. The default, because events stay in their topic and consumers are upgraded at any time.
    #[default]
    Full,
    /// Any change is allowed.
    None,
}

impl Rule {
    /// All rules.
    pub const ALL: [Rule; 4] = [Rule::Backward, Rule::Forward, Rule::Full, Rule::None];

    /// The word in `x-compatibility`.
    pub fn word(self) -> &'static str {
        match self {
            Rule::Backward => "backward",
            Rule::Forward => "forward",
            Rule::Full => "full",
            Rule::None => "none",
        }
    }
}
