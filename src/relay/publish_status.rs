//! Publishes state and figures in each iteration.

use pg_logical::Lsn;

use super::{Health, Relay, Sink, Source, Stalled};
use crate::monitor::State;

impl<S: Source, K: Sink> Relay<S, K> {
    /// Shows the sink's health, or else the source's, as readiness and state.
    pub(super) fn show_state(&mut self) {
        if self.is_stopping() {
            return;
        }
        let health = match self.sink.health() {
            Health::Flowing => self.source.health().map_or(Health::Flowing, Health::Stalled),
            health => health,
        };
        let still_down = matches!((&self.last_health, &health), (Health::Down(_), Health::Down(_)));
        if health == self.last_health {
            return;
        }
        if let (Health::Down(stalled), false) = (&health, still_down) {
            self.monitor.counts().reconnected(stalled.peer);
        }
        match &health {
            Health::Down(Stalled { peer, reason }) => {
                self.monitor.last_problem(reason.clone());
                self.monitor.state(State::Reconnecting { peer: *peer, code: None, reason: reason.clone() });
            }
            Health::Stalled(Stalled { peer, reason }) => {
                self.monitor.last_problem(reason.clone());
                self.monitor.state(State::Stalled { peer: *peer, reason: reason.clone() });
            }
            Health::Busy(with) => self.monitor.state(State::Busy { with: with.clone() }),
            Health::Flowing => self.monitor.state(State::Active),
        }
        self.last_health = health;
    }

    /// Publishes positions and the records in flight.
    pub(super) fn publish_status(&self, received: Lsn) {
        let durability = self.sink.durability(&self.progress);
        self.monitor.in_flight(self.window.records() + durability.uncommitted, self.window.memory());
        // a transaction that is not completely sent waits too
        let waits = self.progress.inside_transaction().then_some(self.pipeline.commit_time());
        self.monitor.oldest_unacknowledged(durability.oldest.or(self.window.oldest()).or(waits));
        // rows of a table have no positions in the log
        if received != Lsn::INVALID {
            self.monitor.received(received);
            self.monitor.flushed(durability.position.flush);
            self.monitor.checkpointed(durability.durable);
        }
    }
}
