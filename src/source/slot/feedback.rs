//! Feedback to Postgres: status updates, what they may confirm, and the results of the catalogue watch.

use pg_logical::replication::StandbyStatus;
use pg_logical::stream::Transport;
use pg_logical::{Lsn, PgTimestamp};
use tokio::time::Instant;

use super::{SlotSource, moved_by_another};
use crate::error::{Error, Peer};
use crate::postgres::watch::{Report, Walsender};
use crate::source::lease::Clocks;

impl<S: Transport> SlotSource<S> {
    pub(super) fn status_due(&mut self) {
        if self.stream.is_streaming() {
            self.queue_status(true);
        } else {
            self.send_query_if_due();
        }
        if self.lease.is_due(Clocks::now()) {
            self.watch.check_walsender();
        }
        self.heartbeat_due();
    }

    /// Logs once that no heartbeat comes back. While the brokers are down nothing is read, which has been logged.
    fn heartbeat_due(&mut self) {
        let Some(heartbeat) = self.heartbeat.as_mut().filter(|_| !self.delivered.sink_is_down) else {
            return;
        };
        if let Some(silence) = heartbeat.missed(PgTimestamp::now()) {
            let what = format!("no heartbeat has come back in the stream for {} s", silence.as_secs());
            tracing::warn!(
                peer = "postgres",
                reason = what,
                behind = self.monitor.lag_bytes(),
                "events are late: either the stream is far behind, or Postgres does not decode its log to the end"
            );
            self.monitor.last_problem(what);
        }
    }

    pub(super) fn handle_report(&mut self, report: Report) -> Result<(), Error> {
        let (checked, slot, held_by, unconfirmed, written) = match report {
            Report::Walsender { asked, walsender } => return self.walsender_checked(asked, walsender),
            Report::LogEnd { end, sent_all } => {
                self.log_checked(end, sent_all);
                return Ok(());
            }
            Report::Healthy { checked, slot, held_by, unconfirmed, heartbeat } => {
                (checked, slot, held_by, unconfirmed, heartbeat)
            }
            Report::Bookmarks(found) => {
                self.monitor.found_bookmarks(found);
                return Ok(());
            }
            Report::Unhealthy(reason) => {
                self.catalog_check.failed(reason);
                return Ok(());
            }
            Report::Ended(error) => return Err(error),
        };
        self.catalog_check.checked(Instant::now());
        if let (Some(heartbeat), Some(written)) = (&mut self.heartbeat, written) {
            heartbeat.written(written.last);
            self.monitor.heartbeat_failed(written.refused);
        }
        self.bulk_reads.catalog_checked(checked, &slot);
        self.standstill.waits_for_standbys(unconfirmed);
        self.headroom.show(&slot, held_by.as_ref(), &self.monitor);
        // Only this session may move the slot. If it has moved, either this process was suspended and another router took over,
        // or somebody moved the slot; the next start decides what that means.
        if let Some(moved) = slot.confirmed_flush_lsn.filter(|lsn| *lsn > self.confirmation.confirmed()) {
            return Err(moved_by_another(&self.config.postgres.slot, moved));
        }
        if self.resume.is_under_way() {
            return Ok(());
        }
        let before = self.confirmation.confirmed();
        self.confirmation.checked(self.delivered.durable, checked);
        if self.confirmation.confirmed() > before {
            self.queue_status(false);
        }
        Ok(())
    }

    /// The server's log ends at `end`; whether the walsender has sent all of it.
    fn log_checked(&mut self, end: Lsn, sent_all: bool) {
        self.monitor.server_wal_end(end);
        self.server_end = end;
        self.standstill.observed(Instant::now(), self.awaited(end, sent_all));
        self.monitor.unsent(if sent_all { self.received } else { end }, self.received);
    }

    /// Handles the result of a session check that started at `asked`: the walsender of this session, or `None` if it is gone.
    fn walsender_checked(&mut self, asked: Instant, walsender: Option<Walsender>) -> Result<(), Error> {
        let (now, streaming) = (Clocks::now(), self.stream.is_streaming());
        // answers in a stream that is being read prove the lease sooner
        if streaming && !self.lease.was_held_back_since(asked) {
            return Ok(());
        }
        let Some(walsender) = walsender else {
            let what = "the server has ended this session, which no longer holds the slot's lock";
            return Err(Error::transient(Peer::Postgres, what));
        };
        if !streaming || walsender.hidden {
            self.lease.session_seen(asked, now);
        } else if let Some(update) = walsender.reply_time {
            self.lease.received_by_server(update, now);
        }
        Ok(())
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
