//! The state of the router, and its reason.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{ErrorCode, Peer};

/// What the router is doing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum State {
    /// The process has started and has not tried to connect.
    #[default]
    Starting,
    /// It makes the first connection.
    Connecting {
        /// To which server.
        peer: Peer,
    },
    /// Connected to both servers; events are sent as they are committed.
    Active,
    /// The same, but events wait for something that the router itself does now.
    Busy {
        /// What it does, and how far it is.
        with: String,
    },
    /// A standby: another router holds the slot, and this one takes over when it is free.
    Waiting {
        /// Who holds it.
        reason: String,
    },
    /// A connection was lost, and the router tries to restore it.
    Reconnecting {
        /// To which server.
        peer: Peer,
        /// The code of the refusal, if a person has to act.
        code: Option<ErrorCode>,
        /// Why it was lost, or why the last attempt failed.
        reason: String,
    },
    /// Both servers are connected, and events wait for something at one of them: a quota, a lock, replicas, a standby.
    Stalled {
        /// At which server.
        peer: Peer,
        /// For what.
        reason: String,
    },
    /// Asked to stop: the router reads no more events and waits for the records in flight.
    Stopping,
    /// The router has delivered everything that it was started for, while other shards of its process go on.
    Ended,
    /// A person has to act before the router can go on.
    Refused {
        /// The code of the refusal.
        code: ErrorCode,
        /// What was found.
        reason: String,
    },
}

/// [`State`] without its fields: the value of the metric label `state`, and of `state` in the status report. Sorted from states
/// that need a person to healthy ones.
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
    /// [`State::Stalled`]
    Stalled,
    /// [`State::Waiting`]
    Waiting,
    /// [`State::Active`] and [`State::Busy`]
    Active,
    /// [`State::Ended`]
    Ended,
}

impl StateKind {
    /// Every kind, in their order.
    pub const ALL: [StateKind; 9] = [
        StateKind::Refused,
        StateKind::Stopping,
        StateKind::Starting,
        StateKind::Connecting,
        StateKind::Reconnecting,
        StateKind::Stalled,
        StateKind::Waiting,
        StateKind::Active,
        StateKind::Ended,
    ];

    /// The metric label.
    pub fn label(self) -> &'static str {
        match self {
            StateKind::Starting => "starting",
            StateKind::Connecting => "connecting",
            StateKind::Active => "active",
            StateKind::Waiting => "waiting",
            StateKind::Reconnecting => "reconnecting",
            StateKind::Stalled => "stalled",
            StateKind::Stopping => "stopping",
            StateKind::Ended => "ended",
            StateKind::Refused => "refused",
        }
    }

    /// Whether a router in this state is ready: active, a standby that waits for the slot, or done.
    pub fn is_ready(self) -> bool {
        matches!(self, StateKind::Active | StateKind::Waiting | StateKind::Ended)
    }
}

impl State {
    /// The state without its fields.
    pub fn kind(&self) -> StateKind {
        match self {
            State::Starting => StateKind::Starting,
            State::Connecting { .. } => StateKind::Connecting,
            State::Active | State::Busy { .. } => StateKind::Active,
            State::Waiting { .. } => StateKind::Waiting,
            State::Reconnecting { .. } => StateKind::Reconnecting,
            State::Stalled { .. } => StateKind::Stalled,
            State::Stopping => StateKind::Stopping,
            State::Ended => StateKind::Ended,
            State::Refused { .. } => StateKind::Refused,
        }
    }

    /// The server that the state is about.
    pub fn peer(&self) -> Option<Peer> {
        match self {
            State::Connecting { peer } | State::Reconnecting { peer, .. } | State::Stalled { peer, .. } => {
                Some(*peer)
            }
            _ => None,
        }
    }

    /// Why the router is in it.
    pub fn reason(&self) -> Option<&str> {
        match self {
            State::Busy { with: reason }
            | State::Waiting { reason }
            | State::Reconnecting { reason, .. }
            | State::Stalled { reason, .. }
            | State::Refused { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// The code, if a person has to act.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            State::Refused { code, .. } => Some(*code),
            State::Reconnecting { code, .. } => *code,
            _ => None,
        }
    }

    /// Whether `self` differs from `before` only in its reason.
    pub(super) fn continues(&self, before: &State) -> bool {
        self.kind() == before.kind() && self.peer() == before.peer()
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind().label())?;
        if let Some(peer) = self.peer() {
            let word = if self.kind() == StateKind::Stalled { "by" } else { "to" };
            write!(f, " {word} {}", peer.label())?;
        }
        if let Some(code) = self.code() {
            write!(f, ": {code}")?;
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
    fn the_label_is_the_word_in_the_report() {
        for kind in StateKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.label());
        }
    }

    #[test]
    fn display_includes_the_peer_and_the_reason() {
        let state =
            State::Reconnecting { peer: Peer::Kafka, code: None, reason: "all brokers are down".to_owned() };
        assert_eq!(state.to_string(), "reconnecting to kafka: all brokers are down");
        let code = Some(ErrorCode::PostgresLogin);
        let refused = State::Reconnecting { peer: Peer::Postgres, code, reason: "wrong password".to_owned() };
        assert_eq!(refused.to_string(), "reconnecting to postgres: OBR-1002: wrong password");
        assert_eq!(State::Connecting { peer: Peer::Postgres }.to_string(), "connecting to postgres");
        let stalled = State::Stalled { peer: Peer::Kafka, reason: "a quota delays it".to_owned() };
        assert_eq!(stalled.to_string(), "stalled by kafka: a quota delays it");
        assert_eq!(State::Active.to_string(), "active");
        let busy = State::Busy { with: "creating topics: 3 of 5".to_owned() };
        assert_eq!(busy.to_string(), "active: creating topics: 3 of 5");
    }
}
