//! A replication slot as a source: streamed, or read in bulk if it lags far behind.
//!
//! - `messages` turns the server's messages into items for the loop; `look_ahead` shows later ones
//! - `read_policy` and `read_throttle` decide when to read
//! - `bulk_reads` switches between the stream and bulk reads; `bulk_read_size` sizes them
//! - `resume_check` compares the start of the stream with the log that was read before
//! - `feedback` answers the server and handles the results of the catalogue watch; `confirmation` bounds the confirmed position
//! - `heartbeat`, `standstill` and `catalog_check` explain why no events arrive or none are confirmed

mod bulk_read_refusal;
mod bulk_read_size;
mod bulk_reads;
mod catalog_check;
mod confirmation;
mod feedback;
mod heartbeat;
mod look_ahead;
mod messages;
mod read_policy;
mod read_throttle;
mod resume_check;
mod standstill;

use std::sync::Arc;

use pg_logical::Lsn;
use pg_logical::replication::{Receiving, ReplicationStream};
use pg_logical::stream::Transport;
use tokio::time::{Duration, Instant, Interval, MissedTickBehavior, interval, timeout_at};

use crate::checkpoint::{LogMismatch, ResumeCheck};
use crate::config::Config;
use crate::error::{Error, Peer};
use crate::monitor::{EventSource, Monitor};
use crate::postgres::watch::Watch;
use crate::progress::Position;
use crate::relay::{DeliveryState, Intake, Outcome, Read, Source, SourceState, Stalled, until};
use crate::source::headroom::Headroom;
use crate::source::lease::{self, Clocks, Lease};
use bulk_reads::BulkReads;
pub(crate) use bulk_reads::begins_with_bulk_reads;
use catalog_check::CatalogCheck;
use confirmation::Confirmation;
pub(super) use confirmation::moved_by_another;
use heartbeat::Heartbeat;
use messages::LastRead;
use read_throttle::ReadThrottle;
use resume_check::ResumeState;
pub use resume_check::no_gap_to_accept;
use standstill::{Awaited, Standstill};

/// How often a status update is sent, and how late at most after an acknowledgement.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// The end of a backlog is logged only if catching up took longer.
const LONG: Duration = Duration::from_secs(10);

/// How long the end of a session waits for a last catalogue check, so that the last confirmation covers everything.
const FINAL_CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// The parts of a source, created by the start of a session.
pub struct SlotParts<S> {
    /// The configuration.
    pub config: Arc<Config>,
    /// A stream that has started, or a session prepared for bulk reads.
    pub stream: ReplicationStream<S>,
    /// The catalogue watch.
    pub watch: Watch,
    /// The slot's `confirmed_flush_lsn`.
    pub confirmed: Lsn,
    /// The resume check, if the stream was started before the position for it.
    pub resume_check: Option<ResumeCheck>,
    /// Whether `--accept-gap` names a gap that has not been found so far.
    pub gap_accepted: bool,
    /// The end of the server's log when the session started; the router has caught up when it gets there.
    pub head: Lsn,
    /// Where this router's part of the log ends: later commits belong to other shards. `None` for no end.
    pub until: Option<Lsn>,
    /// Stream up to this position because bulk reads failed.
    pub stream_until: Lsn,
    /// The backend process of the stream's session.
    pub backend_pid: i32,
    /// Shows the router's state.
    pub monitor: Monitor,
}

/// The source of one session.
pub struct SlotSource<S> {
    config: Arc<Config>,
    stream: ReplicationStream<S>,
    watch: Watch,
    lease: Lease,
    confirmation: Confirmation,
    resume: ResumeState,
    bulk_reads: BulkReads,
    heartbeat: Option<Heartbeat>,
    headroom: Headroom,
    standstill: Standstill,
    catalog_check: CatalogCheck,
    throttle: ReadThrottle,
    monitor: Monitor,
    status_timer: Interval,
    /// The end of its part of the log.
    until: Option<Lsn>,
    received: Lsn,
    /// The end of the server's log, by the last catalogue check and at the start of the session.
    server_end: Lsn,
    head: Lsn,
    /// When the session started to read up to `head`; `None` once that is delivered.
    behind_since: Option<Instant>,
    /// The position that the sink waits for and for which the server was asked.
    asked_for: Option<Lsn>,
    last_read: LastRead,
    /// The delivery state of the last iteration.
    delivered: LastDelivery,
    /// When the stream is read next.
    read: ReadWhen,
    end: Option<SlotEnd>,
    /// Whether a message that is not transactional was logged in this session.
    non_transactional_logged: bool,
}

/// The delivery state that is needed between two iterations.
#[derive(Debug, Clone, Copy)]
struct LastDelivery {
    position: Position,
    durable: Lsn,
    /// The loop reads nothing more.
    ending: bool,
    sink_is_down: bool,
}

/// When the stream is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadWhen {
    /// Not before the next iteration of the loop.
    Never,
    /// As soon as bytes arrive.
    OnArrival,
    /// At this time.
    At(Instant),
    /// Bytes were read just now.
    Now,
}

/// Why the source ends on its own.
#[derive(Debug)]
pub enum SlotEnd {
    /// The slot lags so far that the next session reads it in bulk.
    FarBehind,
    /// Kafka is so slow that the server would abort a bulk read; the next session streams.
    SinkTooSlow,
    /// Everything in its part of the log is read. The session drains before it ends.
    EndOfPart,
    /// Every row from before the slot is sent; the next session streams.
    BackfillDone,
    /// The server's log is not the one that was read before. Nothing of it was sent.
    LogMismatch(LogMismatch),
}

impl SlotEnd {
    /// Whether the next session switches between stream and bulk reads.
    fn switches_mode(&self) -> bool {
        matches!(self, SlotEnd::FarBehind | SlotEnd::SinkTooSlow)
    }
}

/// The result of a source.
#[derive(Debug)]
pub struct SlotLeft {
    /// Why it ended, if it ended on its own.
    pub end: Option<SlotEnd>,
    /// Whether the resume check has passed.
    pub log_verified: bool,
    /// Whether an administrator terminated the server process.
    pub terminated: bool,
    /// The session that still holds the slot's lock, if the next session switches the way of reading.
    pub lock: Option<HeldLock>,
    /// The last known end of the server's log.
    pub log_end: Lsn,
}

/// An idle session that holds the slot's lock until it is dropped.
pub struct HeldLock(#[expect(dead_code, reason = "it is held")] Box<dyn Send>);

impl HeldLock {
    /// This session holds it.
    pub fn of(session: Box<dyn Send>) -> Self {
        HeldLock(session)
    }
}

impl std::fmt::Debug for HeldLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HeldLock")
    }
}

impl<S: Transport> SlotSource<S> {
    /// Resumes at `start`.
    pub fn new(parts: SlotParts<S>, start: Position) -> Self {
        let now = Instant::now();
        let every = STATUS_INTERVAL.min(parts.config.postgres.wal_sender_timeout / 8);
        let mut status_timer = interval(every);
        status_timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        parts.monitor.set_bulk_reading(false);
        parts.monitor.reads_from(EventSource::Log);
        SlotSource {
            bulk_reads: BulkReads::new(&parts),
            lease: Lease::new(lease::silence(&parts.config), Clocks::now()),
            confirmation: Confirmation::new(parts.confirmed),
            resume: ResumeState::new(parts.resume_check, parts.gap_accepted),
            heartbeat: Heartbeat::of(&parts.config, pg_logical::PgTimestamp::now()),
            headroom: Headroom::new(&parts.config.postgres.slot, &parts.monitor),
            standstill: Standstill::new(now, parts.backend_pid),
            catalog_check: CatalogCheck::new(now),
            throttle: ReadThrottle::new(now),
            status_timer,
            until: parts.until,
            received: parts.confirmed,
            server_end: parts.head,
            head: parts.head,
            behind_since: Some(now),
            asked_for: None,
            last_read: LastRead::default(),
            delivered: LastDelivery {
                position: start,
                durable: start.flush,
                ending: false,
                sink_is_down: false,
            },
            read: ReadWhen::Never,
            end: None,
            non_transactional_logged: false,
            config: parts.config,
            stream: parts.stream,
            watch: parts.watch,
            monitor: parts.monitor,
        }
    }

    /// Stores the delivery state and updates the lease, the catch-up log and the stall checks.
    fn note_delivery(&mut self, delivered: &DeliveryState) {
        let DeliveryState { idle, ending, position, in_flight, durability, .. } = *delivered;
        self.delivered =
            LastDelivery { position, durable: durability.durable, ending, sink_is_down: durability.is_down };
        self.lease.hold_back(!idle);
        let flush = durability.position.flush;
        if self.head <= flush
            && let Some(since) = self.behind_since.take()
            && since.elapsed() > LONG
        {
            tracing::info!(position = %flush, seconds = since.elapsed().as_secs(), "caught up");
        }
        if in_flight {
            self.catalog_check.event_sent(self.last_read.transaction().final_lsn);
        }
        // records in flight hold back the change to bulk reads, but not the stream
        let drained = !self.bulk_reads.waits() || !in_flight && durability.settled;
        self.standstill.progressed(idle && drained, self.received);
        // the server's answer shows how far the stream is
        if durability.awaits > self.asked_for {
            self.asked_for = durability.awaits;
            self.queue_status(true);
        }
    }

    /// What Postgres has for the relay, if its log ends at `end`. `sent_all`: the walsender waits for more log.
    fn awaited(&self, end: Lsn, sent_all: bool) -> Awaited {
        if self.received < end && !sent_all {
            Awaited::Log
        } else if self.bulk_reads.moves_the_slot() {
            Awaited::Answer
        } else {
            Awaited::Nothing
        }
    }

    /// The source's state for the loop.
    fn state(&self, idle: bool, restarted: bool, again: bool) -> SourceState {
        let intake = if self.resume.is_under_way() {
            Intake::Verifying
        } else if self.bulk_reads.waits() {
            Intake::Paused
        } else if idle && !self.is_behind() {
            Intake::Live
        } else {
            Intake::Behind
        };
        SourceState {
            intake,
            received: self.received,
            confirmed: self.confirmation.confirmed(),
            caught_up: self.behind_since.is_none(),
            restarted,
            ended: self.end.is_some(),
            again,
            gathered: self.read == ReadWhen::Now,
        }
    }
}

impl<S: Transport> Source for SlotSource<S> {
    type End = SlotLeft;

    fn next(&mut self) -> Result<Read<'_>, Error> {
        self.next_message()
    }

    fn consume(&mut self) {
        if let Some(length) = self.last_read.consume(&mut self.throttle) {
            self.stream.consume(length);
        }
        if std::mem::take(&mut self.last_read.reply) {
            self.queue_status(false);
        }
    }

    fn look_ahead(&self, see: &mut dyn FnMut(Read<'_>) -> bool) {
        let prefix = self.config.outbox.message_prefix.as_deref();
        look_ahead::show(self.stream.look_ahead(), prefix, self.until, see);
    }

    fn after_dispatch(&mut self, delivered: &DeliveryState) -> Result<SourceState, Error> {
        self.lease.check(Clocks::now())?;
        self.last_read.clocks_checked();
        self.note_delivery(delivered);
        let (again, restarted) = self.read_in_bulk(delivered)?;
        if self.discards_input() {
            self.stream.discard_received()?;
        }
        self.read = if again || !delivered.idle { ReadWhen::Never } else { self.read_when()? };
        Ok(self.state(delivered.idle, restarted, again))
    }

    async fn wait(&mut self) -> Result<(), Error> {
        let gathered = self.read == ReadWhen::Now;
        let read_at = if let ReadWhen::At(then) = self.read { Some(then) } else { None };
        let at_once = self.read == ReadWhen::OnArrival || self.discards_input();
        let receiving = if at_once { Receiving::AtOnce } else { Receiving::Paused };
        // status updates keep the connection alive, so they come first
        tokio::select! {
            biased;
            _ = self.status_timer.tick() => self.status_due(),
            report = self.watch.report() => self.handle_report(report)?,
            () = until(read_at) => {}
            result = self.stream.io(receiving) => result?,
            () = std::future::ready(()), if gathered => {}
        }
        Ok(())
    }

    fn health(&self) -> Option<Stalled> {
        let unchecked = self.catalog_check.reason(self.confirmation.confirmed(), self.delivered.durable);
        let reason = unchecked.or_else(|| self.standstill.reason().map(str::to_owned))?;
        Some(Stalled { peer: Peer::Postgres, reason })
    }

    fn is_log_verified(&self) -> bool {
        !self.resume.is_under_way()
    }

    async fn confirm_last(&mut self, durable: Lsn) -> Result<(), Error> {
        self.delivered.durable = durable;
        let deadline = Instant::now() + FINAL_CHECK_TIMEOUT;
        while self.confirmation.confirmed() < durable {
            self.watch.check_now();
            match timeout_at(deadline, self.watch.report()).await {
                Ok(report) => self.handle_report(report)?,
                Err(_) => break,
            }
        }
        self.queue_status(false);
        Ok(())
    }

    async fn close(mut self, outcome: &Outcome, orderly: bool) -> SlotLeft {
        let log_end = self.log_end();
        let log_verified = self.is_log_verified();
        let moved = self.bulk_reads.closing_move(&self.config, self.confirmation.confirmed());
        if matches!(outcome, Outcome::Failed(_)) {
            self.stream.read_final_message().await;
        }
        let terminated = self.stream.was_terminated();
        let end = self.end.take().filter(|_| matches!(outcome, Outcome::SourceEnded));
        let mut lock = None;
        if orderly {
            match self.stream.finish(moved.as_deref()).await {
                Ok(session) if end.as_ref().is_some_and(SlotEnd::switches_mode) => {
                    lock = Some(HeldLock(Box::new(session)));
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "leaving the replication stream"),
            }
        }
        SlotLeft { end, log_verified, terminated, lock, log_end }
    }
}
