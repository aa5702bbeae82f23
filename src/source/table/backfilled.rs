//! Rows from before the slot, which are sent before it is streamed.
//!
//! In place of a position in the log stands the number of rows of the whole backfill. Checkpoints have the slot's first position, and
//! besides it the last row that is done.

use pg_logical::{Lsn, Oid};
use tokio::time::{Duration, Instant, Interval, MissedTickBehavior, interval};

use super::paged::PagedRows;
use super::rows::position_after;
use super::sent::Acknowledged;
use crate::checkpoint::{BackfillDone, Checkpoint};
use crate::error::{Error, Peer};
use crate::monitor::{EventSource, Monitor, State};
use crate::postgres::backfills::Backfill;
use crate::postgres::backfills::worker::Worker;
use crate::postgres::rows::pages::Pages;
use crate::postgres::watch::{Report, Watch};
use crate::progress::Position;
use crate::quantity::{counted, time};
use crate::relay::{DeliveryState, Intake, Outcome, Read, Source, SourceState, Stalled};
use crate::source::headroom::Headroom;
use crate::source::lease::{Clocks, Lease, SessionLease};
use crate::source::slot::{HeldLock, SlotEnd, SlotLeft, moved_by_another};

/// How often progress is shown.
const SHOW_EVERY: Duration = Duration::from_secs(1);

/// How often it is logged.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// A page that takes longer is worth mentioning.
const SLOW: Duration = Duration::from_secs(5);

/// How long the end of the session may take to store the last progress.
const LAST_STORE: Duration = Duration::from_secs(2);

/// What a start has prepared.
pub struct BackfillParts {
    /// Which rows, and how far they are done.
    pub backfill: Backfill,
    /// The rows.
    pub pages: Pages,
    /// The table.
    pub table: Oid,
    /// The messages that describe it.
    pub definitions: Vec<Vec<u8>>,
    /// Stores progress in the session that holds the slot's lock.
    pub worker: Worker,
    /// The catalogue watch.
    pub watch: Watch,
    /// The slot.
    pub slot: String,
    /// How long the session with the lock may be silent.
    pub(crate) lease: SessionLease,
    /// The checkpoint at the slot's first position.
    pub checkpoint: Checkpoint,
    /// The end of the log.
    pub head: Lsn,
    /// Shows progress.
    pub monitor: Monitor,
}

/// The source of one session.
pub struct BackfilledRows {
    id: String,
    total: u64,
    slot: String,
    slot_start: Lsn,
    rows: PagedRows,
    worker: Worker,
    watch: Watch,
    lease: Lease,
    headroom: Headroom,
    checkpoint: Checkpoint,
    head: Lsn,
    monitor: Monitor,
    /// When the last page came.
    page_at: Instant,
    /// When the session began, and how many rows were done then.
    begun: (Instant, u64),
    show: Interval,
    logged: Instant,
}

impl BackfilledRows {
    /// Begins after the rows that are done.
    pub fn new(parts: BackfillParts) -> Self {
        let Backfill { selection, done: BackfillDone { id, rows, last }, .. } = parts.backfill;
        parts.monitor.reads_from(EventSource::Backfill);
        let now = Instant::now();
        let mut show = interval(SHOW_EVERY);
        show.set_missed_tick_behavior(MissedTickBehavior::Delay);
        BackfilledRows {
            id,
            total: selection.rows,
            slot_start: selection.slot_start,
            rows: PagedRows::new(parts.pages, parts.table, parts.definitions, Acknowledged { rows, last }),
            worker: parts.worker,
            watch: parts.watch,
            lease: parts.lease.0,
            headroom: Headroom::new(&parts.slot, &parts.monitor),
            slot: parts.slot,
            checkpoint: parts.checkpoint,
            head: parts.head,
            monitor: parts.monitor,
            page_at: now,
            begun: (now, rows),
            show,
            logged: now,
        }
    }

    /// Where the loop begins if so many rows are done.
    pub fn start(done: u64) -> Position {
        position_after(done)
    }

    fn done(&self, acknowledged: Acknowledged) -> BackfillDone {
        BackfillDone { id: self.id.clone(), rows: acknowledged.rows, last: acknowledged.last }
    }

    fn handle_report(&mut self, report: Report) -> Result<(), Error> {
        match report {
            Report::Ended(error) => Err(error),
            Report::Healthy { slot, held_by, .. } => {
                self.headroom.show(&slot, held_by.as_ref(), &self.monitor);
                match slot.confirmed_flush_lsn {
                    // the next start decides what that means
                    Some(moved) if moved != self.slot_start => Err(moved_by_another(&self.slot, moved)),
                    _ => Ok(()),
                }
            }
            Report::Bookmarks(found) => {
                self.monitor.found_bookmarks(found);
                Ok(())
            }
            Report::Walsender { .. } | Report::LogEnd { .. } | Report::Unhealthy(_) => Ok(()),
        }
    }

    /// Shows how far it has come, and logs it from time to time.
    fn show_progress(&mut self) {
        let done = self.rows.sent.acknowledged().rows;
        let (since, before) = self.begun;
        let rate = done.saturating_sub(before) as f64 / since.elapsed().as_secs_f64().max(0.001);
        let left = (rate > 0.0).then(|| self.total.saturating_sub(done) as f64 / rate);
        let left = left.and_then(|left| Duration::try_from_secs_f64(left).ok());
        let left = left.map_or_else(String::new, |left| format!(", {} left", time(left)));
        let room = self.headroom.left().map(|left| format!("; the slot is lost in about {}", time(left)));
        let what = format!(
            "sends rows from before the slot: {done} of {}{left}{}",
            counted(self.total, "row"),
            room.unwrap_or_default()
        );
        if self.logged.elapsed() >= LOG_EVERY {
            self.logged = Instant::now();
            tracing::info!("{what}");
        }
        if matches!(self.monitor.current_state(), State::Active | State::Busy { .. }) {
            self.monitor.state(State::Busy { with: what });
        }
    }
}

impl Source for BackfilledRows {
    type End = SlotLeft;

    fn next(&mut self) -> Result<Read<'_>, Error> {
        match self.rows.next()? {
            Read::Nothing if self.worker.answered().finished => Ok(Read::End(None)),
            read => Ok(read),
        }
    }

    fn consume(&mut self) {
        self.rows.consume();
    }

    fn look_ahead(&self, see: &mut dyn FnMut(Read<'_>) -> bool) {
        self.rows.look_ahead(see);
    }

    fn after_dispatch(&mut self, delivered: &DeliveryState) -> Result<SourceState, Error> {
        let (answered, now) = (self.worker.answered(), Clocks::now());
        if let Some(alive_at) = answered.alive_at {
            self.lease.session_seen(alive_at, now);
        }
        self.lease.check(now)?;
        let durable = Position { flush: delivered.durability.durable, partial: None };
        let moved = self.rows.sent.acknowledge(durable);
        let read = self.rows.is_finished() && self.rows.is_empty();
        let complete = read && self.rows.sent.is_empty();
        if moved || complete {
            self.worker.progressed(self.done(self.rows.sent.acknowledged().clone()), complete);
        }
        Ok(SourceState {
            intake: if delivered.ending || read { Intake::Paused } else { Intake::Behind },
            // there are no positions in a log
            received: Lsn::INVALID,
            confirmed: position_after(answered.stored).flush,
            caught_up: false,
            restarted: false,
            ended: false,
            again: self.rows.is_released(),
            gathered: false,
        })
    }

    fn note(&self, checkpoint: &mut Checkpoint) {
        let done = self.done(self.rows.sent.at(checkpoint.position));
        let Checkpoint { position, fingerprint, replay, .. } = self.checkpoint.clone();
        (checkpoint.position, checkpoint.fingerprint, checkpoint.replay) = (position, fingerprint, replay);
        checkpoint.backfill = Some(done);
    }

    async fn wait(&mut self) -> Result<(), Error> {
        tokio::select! {
            biased;
            changed = self.worker.changed() => changed?,
            report = self.watch.report() => self.handle_report(report)?,
            _ = self.show.tick() => self.show_progress(),
            () = self.rows.read() => self.page_at = Instant::now(),
        }
        Ok(())
    }

    fn health(&self) -> Option<Stalled> {
        let waits = self.rows.is_empty() && !self.rows.is_finished() && self.page_at.elapsed() >= SLOW;
        waits.then(|| Stalled {
            peer: Peer::Postgres,
            reason: "waiting for the next rows from before the slot".to_owned(),
        })
    }

    fn is_log_verified(&self) -> bool {
        true
    }

    async fn confirm_last(&mut self, durable: Lsn) -> Result<(), Error> {
        self.rows.sent.acknowledge(Position { flush: durable, partial: None });
        self.worker.progressed(self.done(self.rows.sent.acknowledged().clone()), false);
        Ok(())
    }

    async fn close(self, outcome: &Outcome, _orderly: bool) -> SlotLeft {
        let finished = self.worker.answered().finished && matches!(outcome, Outcome::SourceEnded);
        let rows = self.rows.sent.acknowledged().rows;
        let session = self.worker.end(LAST_STORE).await;
        if finished {
            let gone = self.total.saturating_sub(rows);
            let gone =
                if gone > 0 { format!("; {gone} were deleted or updated since") } else { String::new() };
            tracing::info!(
                "{} from before the slot are sent{gone}; what was committed since follows",
                counted(rows, "row")
            );
        }
        SlotLeft {
            end: finished.then_some(SlotEnd::BackfillDone),
            log_verified: false,
            terminated: false,
            lock: session.filter(|_| finished).map(|session| HeldLock::of(Box::new(session))),
            log_end: self.head,
        }
    }
}
