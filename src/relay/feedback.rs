//! What goes back to Postgres: status updates, what they may confirm, and what is seen on the way.

use pg_logical::PgTimestamp;
use pg_logical::replication::StandbyStatus;
use pg_logical::stream::Transport;
use tokio::time::{Duration, Instant};

use super::catching_up::moved_by_another;
use super::lease::Clocks;
use super::tally::Tally;
use super::{Relay, STALLED, UNANSWERED};
use crate::config::{Config, DeliveryMode};
use crate::error::{Error, Peer};
use crate::monitor;
use crate::postgres::catalog::Slot;
use crate::postgres::room::{Level, safe_bytes};
use crate::postgres::watch::{Report, Walsender};
use crate::sink::kafka::LOOK_AFTER;

/// What is said where a position is not acknowledged, and the metadata of its topic does not explain it.
const UNEXPLAINED: &str = "the brokers answer, but do not acknowledge it; their logs say why";

/// The server frees the slot when it has heard nothing for all of `wal_sender_timeout`. By then nothing more may go to Kafka
/// from here. One that is busy answers after half of it.
pub(super) fn silence(config: &Config) -> Duration {
    config.postgres.wal_sender_timeout * 3 / 4
}

impl<S: Transport> Relay<S> {
    pub(super) fn status_due(&mut self) -> Result<(), Error> {
        if self.stream.is_streaming() {
            self.queue_status(true);
        } else {
            self.remind();
        }
        if self.lease.is_due(Clocks::now()) {
            self.watch.see_now();
        }
        self.heartbeat_due();
        self.sending.sink.look_for_failure();
        let stalled = self.moved.1.elapsed() > STALLED;
        let silent = self.acknowledged.elapsed() > STALLED;
        if self.brokers_down || silent {
            self.sending.sink.look_for_lost_sight();
        }
        self.remembering.look_for_lost_sight();
        if self.brokers_down {
            self.sending.sink.look_for_brokers();
        } else {
            let silence = self.acknowledged.elapsed().max(self.remembering.waits_for());
            let unanswered = silence > UNANSWERED;
            self.sending.sink.look_into_silence(silence);
            let blocked = self.sending.window.oldest_topic().filter(|_| stalled);
            // One reason at a time, or they would be logged in turns. What holds a position back holds back everything.
            if self.look_at_positions() {
                self.positions_in_the_way = Some(Instant::now());
            }
            // when it is out of the way, what waited for it still takes a moment
            let explained = self.positions_in_the_way.is_some_and(|last| last.elapsed() < STALLED);
            let ends_late = !explained && self.remembering.ends_late();
            let slow = self.remembering.slow();
            if ends_late {
                self.sending.sink.commit_is_late();
            } else if !explained
                && self.remembering.is_late(!self.only_parks())
                && !self.sending.sink.obstacle_is_told()
            {
                self.sending.sink.silent(slow.as_deref(), unanswered);
            }
            let told = explained || ends_late;
            let silent = (silent && !told).then_some((slow.as_deref(), unanswered));
            self.sending.sink.look_at_topics(blocked.filter(|_| !told), silent);
        }
        Ok(())
    }

    /// Looks at the positions topic while a position waits for its acknowledgement. In exactly-once records wait too: the
    /// transaction before theirs ends only when all of its partitions can be written. Whether that topic is in the way.
    fn look_at_positions(&mut self) -> bool {
        let exactly_once = self.config.delivery.mode == DeliveryMode::ExactlyOnce;
        let records = if exactly_once { self.acknowledged.elapsed() } else { Duration::ZERO };
        let position = self.remembering.position_waits_for();
        if position.max(records) < LOOK_AFTER {
            return false;
        }
        let sink = &mut self.sending.sink;
        let (reason, in_the_way) = match (sink.look_at_positions(), sink.positions_not_seen()) {
            (Some(Err(reason)), _) => (reason, exactly_once),
            // in exactly-once the brokers may merely be slow, which is told where the transactions are
            _ if position <= STALLED || exactly_once => return false,
            // of a broker for which events wait too, they tell
            (_, Some(_)) if position <= UNANSWERED || self.acknowledged.elapsed() > STALLED => return false,
            (_, Some(why)) => (why.to_owned(), false),
            (Some(Ok(())), None) => (UNEXPLAINED.to_owned(), false),
            (None, None) => return false,
        };
        if position.max(records) > STALLED {
            self.remembering.not_acknowledged(reason, &self.sending.sink);
            self.remembering.show(&self.monitor);
        }
        in_the_way
    }

    /// Says once that the heartbeat does not come back. While no broker is there nothing is read, and that was said.
    fn heartbeat_due(&mut self) {
        let Some(heartbeat) = self.heartbeat.as_mut().filter(|_| !self.brokers_down) else { return };
        if let Some(silence) = heartbeat.missed(PgTimestamp::now()) {
            let what = format!("no heartbeat has come back in the stream for {} s", silence.as_secs());
            tracing::warn!(
                peer = "postgres",
                reason = what,
                behind = self.monitor.lag_bytes(),
                "events come late: either the stream has far to catch up, or Postgres does not get to the end of its log"
            );
            self.monitor.last_problem(what);
        }
    }

    pub(super) fn looked(&mut self, report: Report) -> Result<(), Error> {
        let (checked, slot, unconfirmed, written) = match report {
            Report::Seen { asked, walsender } => return self.still_ours(asked, walsender),
            Report::Well { checked, slot, unconfirmed, heartbeat } => (checked, slot, unconfirmed, heartbeat),
            Report::Unwell(reason) => {
                self.unchecked.failed(reason);
                return Ok(());
            }
            Report::Over(error) => return Err(error),
        };
        self.unchecked.checked(Instant::now());
        if let (Some(heartbeat), Some(written)) = (&mut self.heartbeat, written) {
            heartbeat.written(written.last);
            self.monitor.heartbeat_refused(written.refused);
        }
        self.monitor.server_wal_end(checked);
        self.server_end = checked;
        self.catching_up.looked(checked, &slot.waits_for);
        let expects = self.received < checked || self.catching_up.moves_the_slot();
        self.withheld.looked(Instant::now(), unconfirmed, expects);
        self.room(&slot);
        // Nobody but this session moves the slot. Either it is over, for this process stood still and another router has taken
        // over; or somebody has moved the slot, and the next start says what that means.
        if let Some(moved) = slot.confirmed_flush_lsn.filter(|lsn| *lsn > self.confirmation.confirmed()) {
            return Err(moved_by_another(&self.config.postgres.slot, moved));
        }
        if self.recognizing.is_under_way() {
            return Ok(());
        }
        let before = self.confirmation.confirmed();
        self.confirmation.checked(self.remembering.durable(&self.sending.progress), checked);
        if self.confirmation.confirmed() > before {
            self.queue_status(false);
        }
        Ok(())
    }

    /// A look that was asked for at `asked` has found the server process of this session, or that it is gone.
    fn still_ours(&mut self, asked: Instant, walsender: Option<Walsender>) -> Result<(), Error> {
        let (now, streaming) = (Clocks::now(), self.stream.is_streaming());
        // a stream that is read tells by itself, and sooner
        if streaming && !self.lease.was_held_back_since(asked) {
            return Ok(());
        }
        let Some(walsender) = walsender else {
            let what = "the server has ended this session: it does not hold the lock of the slot any more";
            return Err(Error::transient(Peer::Postgres, what));
        };
        if !streaming || walsender.hidden {
            self.lease.seen(asked, now);
        } else if let Some(update) = walsender.taken_in {
            self.lease.taken_in(update, now);
        }
        Ok(())
    }

    /// Something is known of the position that was under way, and this is delivered by it.
    pub(super) fn remembered(&mut self, mut delivered: Tally) {
        self.remembering.show(&self.monitor);
        if let Some(parking) = &mut self.sending.parking {
            parking.is_committed();
        }
        if delivered.records() > 0 {
            self.acknowledged = Instant::now();
            delivered.count(&self.counters, &self.monitor, PgTimestamp::now());
        }
    }

    /// Shows how near the slot is to being lost, and says so when that changes.
    fn room(&mut self, slot: &Slot) {
        let changed = self.room.looked(std::time::Instant::now(), slot);
        let (before, room) = (self.monitor.slot_room(), self.room.level());
        self.monitor.slot(monitor::Slot {
            retained_bytes: slot.retained_bytes,
            wal_status: slot.wal_status.clone(),
            safe_wal_bytes: safe_bytes(slot),
            safe_wal_seconds: self.room.left().map(|left| left.as_secs_f64()),
            room,
        });
        if changed.is_none() {
            return;
        }
        let (what, remedy) = self.room.describe(&self.config.postgres.slot, slot);
        match room {
            Level::Ample => tracing::info!("the slot has room again: {what}"),
            _ if room < before => tracing::info!("the slot has more room: {what}"),
            Level::Unreserved => tracing::error!(remedy, "{what}"),
            Level::Extended | Level::Short => tracing::warn!(remedy, "{what}"),
        }
        if room > before {
            self.monitor.last_problem(what);
        }
    }

    pub(super) fn queue_status(&mut self, reply_requested: bool) {
        let flushed = self.confirmation.confirmed();
        if self.stream.is_streaming() {
            let status = StandbyStatus { written: self.received.max(flushed), flushed };
            let update = self.stream.queue_status(status, reply_requested);
            self.lease.queued(update, Clocks::now());
            self.monitor.confirmed(flushed);
        }
    }
}
