//! What the monitor is shown at each turn.

use pg_logical::stream::Transport;
use tokio::time::Duration;

use super::Relay;
use super::parking::Parking;
use crate::error::Peer;
use crate::monitor::State;

/// A backlog that takes longer is worth a line.
const LONG: Duration = Duration::from_secs(10);

impl<S: Transport> Relay<S> {
    /// Readiness and state follow the brokers: nothing flows while none can be reached.
    pub(super) fn broker_state(&mut self) {
        let down = self.sending.sink.brokers_down();
        // a broker that is away explains everything else
        let unwritable = self.sending.parking.as_ref().and_then(Parking::unwritable);
        let broker = self.sending.sink.obstacle().or_else(|| self.checkpointer.obstacle());
        let durable = self.checkpointer.durable(&self.sending.progress);
        let unchecked = self.unchecked.reason(self.confirmation.confirmed(), durable);
        let withheld = self.withheld.reason();
        let obstacles = [
            (Peer::Postgres, unwritable.map(str::to_owned)),
            (Peer::Kafka, broker),
            (Peer::Postgres, unchecked),
            (Peer::Postgres, withheld.map(str::to_owned)),
        ];
        let first = obstacles.into_iter().find_map(|(peer, reason)| Some((peer, reason?)));
        let (peer, obstacle) = match first.filter(|_| down.is_none()) {
            Some((peer, reason)) => (peer, Some(reason)),
            None => (Peer::Kafka, None),
        };
        let was_down = self.stalls.brokers_are_down();
        if down.is_some() == was_down && obstacle == self.obstacle || self.is_stopping() {
            return;
        }
        if down.is_some() && !was_down {
            self.monitor.reconnected(Peer::Kafka);
        }
        self.stalls.reached(down.is_none());
        self.obstacle.clone_from(&obstacle);
        match down.or(obstacle) {
            Some(reason) => {
                self.monitor.last_problem(reason.clone());
                self.monitor.state(State::Reconnecting { peer, reason });
            }
            None => self.monitor.state(State::Active),
        }
    }

    /// Notes that the position has moved, or need not: `idle` is whether everything that was received is dealt with.
    pub(super) fn progressed(&mut self, idle: bool) {
        if self.only_parks() {
            // nothing waits for a broker
            self.stalls.acknowledged();
        }
        if !self.sending.window.is_empty() {
            self.unchecked.delivers(self.sending.origin.final_lsn);
        }
        // what is acknowledged and not committed is shown to nobody
        let position = self.checkpointer.certain(&self.sending.progress);
        let nothing_waits = idle && self.sending.window.is_empty() && self.checkpointer.is_settled();
        self.withheld.turned(nothing_waits, self.received);
        let moved = self.stalls.turned(position, nothing_waits);
        if moved || nothing_waits && self.behind_since.is_none() {
            self.sending.sink.flowing();
        }
    }

    /// Whether all that is under way is on its way into the table of parked events.
    pub(super) fn only_parks(&self) -> bool {
        let parking = self.sending.parking.as_ref().map_or(0, Parking::on_their_way);
        parking > 0 && parking == self.sending.window.records()
    }

    /// Says once per session that the backlog of its start is gone, if that has taken long.
    pub(super) fn caught_up(&mut self) {
        let flush = self.checkpointer.certain(&self.sending.progress).flush;
        if self.head <= flush
            && let Some(since) = self.behind_since.take()
            && since.elapsed() > LONG
        {
            tracing::info!(position = %flush, seconds = since.elapsed().as_secs(), "caught up");
        }
    }

    pub(super) fn show(&self) {
        let (uncommitted, oldest) = self.checkpointer.uncommitted();
        self.monitor.in_flight(self.sending.window.records() + uncommitted, self.sending.window.bytes());
        // a commit that was read and not yet wholly sent waits too
        let waits = self.sending.progress.inside_transaction().then_some(self.sending.origin.commit_time);
        self.monitor.oldest_unacknowledged(oldest.or(self.sending.window.oldest()).or(waits));
        self.monitor.received(self.received);
        self.monitor.flushed(self.checkpointer.certain(&self.sending.progress).flush);
        self.monitor.remembered(self.checkpointer.durable(&self.sending.progress));
    }
}
