//! What the router is doing, in one word and a reason.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::Peer;

/// What the router is doing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum State {
    /// The process has begun and has not tried to reach anybody.
    #[default]
    Starting,
    /// The first connection is being made.
    Connecting {
        /// With whom.
        peer: Peer,
    },
    /// Connected on both sides; events flow as they are committed.
    Active,
    /// All is well, but another router holds the slot; this one takes over when it is free.
    Waiting {
        /// Who holds it.
        reason: String,
    },
    /// A connection was lost and is being made again.
    Reconnecting {
        /// With whom.
        peer: Peer,
        /// What was lost, or why the last attempt failed.
        reason: String,
    },
    /// Asked to stop: intake has ended, the records in flight are waited for.
    Stopping,
    /// A person has to act before the router can go on.
    Refused {
        /// What was found.
        reason: String,
    },
}

/// [`State`] without its particulars: the value of the metric label `state`, and of `state` in the status report. What asks
/// for a person comes first, what is well last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateKind {
    /// [`State::Refused`]
    Refused,
    /// [`State::Stopping`]
    Stopping,
    /// [`State::Starting`]
    #[default]
    Starting,
    /// [`State::Connecting`]
    Connecting,
    /// [`State::Reconnecting`]
    Reconnecting,
    /// [`State::Waiting`]
    Waiting,
    /// [`State::Active`]
    Active,
}

impl StateKind {
    /// Every kind, from what asks for a person to what is well.
    pub const ALL: [StateKind; 7] = [
        StateKind::Refused,
        StateKind::Stopping,
        StateKind::Starting,
        StateKind::Connecting,
        StateKind::Reconnecting,
        StateKind::Waiting,
        StateKind::Active,
    ];

    /// The metric label.
    pub fn label(self) -> &'static str {
        match self {
            StateKind::Starting => "starting",
            StateKind::Connecting => "connecting",
            StateKind::Active => "active",
            StateKind::Waiting => "waiting",
            StateKind::Reconnecting => "reconnecting",
            StateKind::Stopping => "stopping",
            StateKind::Refused => "refused",
        }
    }

    /// Whether a router in this state is where it should be: active, or a standby that waits its turn.
    pub fn is_ready(self) -> bool {
        matches!(self, StateKind::Active | StateKind::Waiting)
    }
}

impl State {
    /// The state without its particulars.
    pub fn kind(&self) -> StateKind {
        match self {
            State::Starting => StateKind::Starting,
            State::Connecting { .. } => StateKind::Connecting,
            State::Active => StateKind::Active,
            State::Waiting { .. } => StateKind::Waiting,
            State::Reconnecting { .. } => StateKind::Reconnecting,
            State::Stopping => StateKind::Stopping,
            State::Refused { .. } => StateKind::Refused,
        }
    }

    /// The server that the state is about.
    pub fn peer(&self) -> Option<Peer> {
        match self {
            State::Connecting { peer } | State::Reconnecting { peer, .. } => Some(*peer),
            _ => None,
        }
    }

    /// Why the router is in it.
    pub fn reason(&self) -> Option<&str> {
        match self {
            State::Waiting { reason } | State::Reconnecting { reason, .. } | State::Refused { reason } => {
                Some(reason)
            }
            _ => None,
        }
    }

    /// Whether `self` only gives a new reason for what `before` was already.
    pub(super) fn continues(&self, before: &State) -> bool {
        self.kind() == before.kind() && self.peer() == before.peer()
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind().label())?;
        if let Some(peer) = self.peer() {
            write!(f, " to {}", peer.label())?;
        }
        if let Some(reason) = self.reason() {
            write!(f, ": {reason}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_is_what_the_report_says() {
        for kind in StateKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.label());
        }
    }

    #[test]
    fn says_with_whom_and_why() {
        let state = State::Reconnecting { peer: Peer::Kafka, reason: "all brokers are down".to_owned() };
        assert_eq!(state.to_string(), "reconnecting to kafka: all brokers are down");
        assert_eq!(State::Connecting { peer: Peer::Postgres }.to_string(), "connecting to postgres");
        assert_eq!(State::Active.to_string(), "active");
    }
}
