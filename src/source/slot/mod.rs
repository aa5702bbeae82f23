//! A replication slot: streamed, or read in bulk where it lags far behind.
//!
//! - `messages` turns what the server sends into what the loop reads; `read_policy` and `read_throttle` say when to read
//! - `bulk_reads` goes over between stream and bulk reads, whose size is `bulk_read_size`'s
//! - `resume_check` watches the beginning: is this the log that was read before?
//! - `feedback` answers the server and looks at the catalogues; `confirmation` is what the slot may be confirmed to
//! - `lease` says how long this session may still send
//! - when nothing comes: `heartbeat`, `standby_wait`, `catalog_check`

mod bulk_read_size;
mod bulk_reads;
mod catalog_check;
mod confirmation;
mod feedback;
mod heartbeat;
mod lease;
mod messages;
mod read_policy;
mod read_throttle;
mod resume_check;
mod standby_wait;

use std::sync::Arc;

use pg_logical::Lsn;
use pg_logical::replication::{Receiving, ReplicationStream};
use pg_logical::stream::Transport;
use tokio::time::{Duration, Instant, Interval, MissedTickBehavior, interval, timeout_at};

use crate::checkpoint::{OtherLog, ResumeCheck};
use crate::config::Config;
use crate::error::{Error, Peer};
use crate::monitor::Monitor;
use crate::postgres::slot_headroom::SlotHeadroom;
use crate::postgres::watch::Watch;
use crate::progress::Position;
use crate::relay::{Delivered, Intake, Outcome, Read, Reading, Source, Stalled, until};
use bulk_reads::BulkReads;
pub(crate) use bulk_reads::begins_with_bulk_reads;
use catalog_check::CatalogCheck;
use confirmation::Confirmation;
use heartbeat::Heartbeat;
use lease::{Clocks, Lease};
use messages::LastRead;
use read_throttle::ReadThrottle;
use resume_check::Resume;
pub use resume_check::no_gap_to_accept;
use standby_wait::StandbyWait;

/// A status update goes out at least this often, and at most this late after something was acknowledged.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// A backlog that takes longer is worth a line.
const LONG: Duration = Duration::from_secs(10);

/// How long the end waits for a last look at the catalogues, so that the last confirmation covers everything.
const LAST_LOOK: Duration = Duration::from_secs(2);

/// What a session reads from, and where it begins.
pub struct SlotParts<S> {
    /// The configuration.
    pub config: Arc<Config>,
    /// The started stream, or one at rest.
    pub stream: ReplicationStream<S>,
    /// Looks at the catalogues.
    pub watch: Watch,
    /// What the slot is confirmed to.
    pub confirmed: Lsn,
    /// What has to come first, if the stream was started before that.
    pub resume_check: Option<ResumeCheck>,
    /// Whether a gap was accepted on the command line that was not found so far.
    pub gap_accepted: bool,
    /// The end of the server's log as of the start: what the router has to catch up with.
    pub head: Lsn,
    /// Where this router's part of the log ends: what was committed from there on is for others. `None`: nowhere.
    pub until: Option<Lsn>,
    /// Bulk reads have failed: up to there the slot is streamed.
    pub stream_until: Lsn,
    /// The server process of the stream's session.
    pub backend_pid: i32,
    /// Shows what goes on.
    pub monitor: Monitor,
}

/// One session with a slot.
pub struct SlotSource<S> {
    config: Arc<Config>,
    stream: ReplicationStream<S>,
    watch: Watch,
    lease: Lease,
    confirmation: Confirmation,
    resume: Resume,
    bulk_reads: BulkReads,
    heartbeat: Option<Heartbeat>,
    headroom: SlotHeadroom,
    standby_wait: StandbyWait,
    catalog_check: CatalogCheck,
    throttle: ReadThrottle,
    monitor: Monitor,
    status_timer: Interval,
    /// Where its part of the log ends.
    until: Option<Lsn>,
    received: Lsn,
    /// The end of the server's log, as of the last look at it, and as of the start.
    server_end: Lsn,
    head: Lsn,
    /// Since when what lies before `head` is read; `None`: all of it was delivered.
    behind_since: Option<Instant>,
    /// What the sink waits for, and was asked for.
    asked_for: Option<Lsn>,
    last_read: LastRead,
    /// What the loop said last.
    delivered: Told,
    /// When and how the stream is read until the next turn.
    read: ReadWhen,
    end: Option<SlotEnd>,
    /// The error about messages that are not transactional was logged in this session.
    stray_logged: bool,
}

/// What is known of what was delivered, between two turns.
#[derive(Debug, Clone, Copy)]
struct Told {
    position: Position,
    durable: Lsn,
    /// Intake has ended.
    ending: bool,
    sink_is_down: bool,
}

/// When the stream is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadWhen {
    /// Something else has to happen first: the bytes are left where they are.
    Never,
    /// They are taken as they come.
    AtOnce,
    /// They are left until then.
    At(Instant),
    /// What has come was taken.
    Gathered,
}

/// Why a slot ends by itself.
#[derive(Debug)]
pub enum SlotEnd {
    /// It lags so far that another session reads on in bulk.
    FarBehind,
    /// Kafka takes so little that the server would give a bulk read up: another session streams on.
    TooSlow,
    /// Everything before the end of its part of the log is acknowledged.
    EndOfPart,
    /// The server's log is not the one that was read before. Nothing of it was sent.
    OtherLog(OtherLog),
}

impl SlotEnd {
    /// Whether the next session reads on in another way.
    fn goes_on(&self) -> bool {
        matches!(self, SlotEnd::FarBehind | SlotEnd::TooSlow)
    }
}

/// What a session leaves behind.
#[derive(Debug)]
pub struct SlotLeft {
    /// Why it has ended, if it has done so by itself.
    pub end: Option<SlotEnd>,
    /// Whether the server's log is known to be the one that was read before.
    pub recognized: bool,
    /// Whether somebody has ended the server's process.
    pub sent_away: bool,
    /// The session of one whose slot another reads on in another way, to take the lock over from.
    pub lock: Option<HeldLock>,
    /// The end of the server's log, as far as it was known.
    pub log_end: Lsn,
}

/// A session that does nothing any more than hold the slot's lock. Dropping it ends it.
pub struct HeldLock(#[expect(dead_code, reason = "it is held")] Box<dyn Send>);

impl std::fmt::Debug for HeldLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HeldLock")
    }
}

impl<S: Transport> SlotSource<S> {
    /// Goes on at `start`.
    pub fn new(parts: SlotParts<S>, start: Position) -> Self {
        let now = Instant::now();
        let every = STATUS_EVERY.min(parts.config.postgres.wal_sender_timeout / 8);
        let mut status_timer = interval(every);
        status_timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        parts.monitor.reads_in_bulk(false);
        SlotSource {
            bulk_reads: BulkReads::new(&parts),
            lease: Lease::new(lease::silence(&parts.config), Clocks::now()),
            confirmation: Confirmation::new(parts.confirmed),
            resume: Resume::new(parts.resume_check, parts.gap_accepted),
            heartbeat: Heartbeat::of(&parts.config, pg_logical::PgTimestamp::now()),
            headroom: SlotHeadroom::new(parts.monitor.slot_room()),
            standby_wait: StandbyWait::new(now),
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
            delivered: Told { position: start, durable: start.flush, ending: false, sink_is_down: false },
            read: ReadWhen::Never,
            end: None,
            stray_logged: false,
            config: parts.config,
            stream: parts.stream,
            watch: parts.watch,
            monitor: parts.monitor,
        }
    }

    /// Notes what was delivered, and what that says of the session.
    fn told(&mut self, delivered: &Delivered) {
        let Delivered { idle, ending, position, in_flight, certain, .. } = *delivered;
        self.delivered = Told { position, durable: certain.durable, ending, sink_is_down: certain.is_down };
        self.lease.hold_back(!idle);
        let flush = certain.position.flush;
        if self.head <= flush
            && let Some(since) = self.behind_since.take()
            && since.elapsed() > LONG
        {
            tracing::info!(position = %flush, seconds = since.elapsed().as_secs(), "caught up");
        }
        if in_flight {
            self.catalog_check.delivers(self.last_read.transaction().final_lsn);
        }
        self.standby_wait.turned(idle && !in_flight && certain.settled, self.received);
        // the answer says how far the stream is
        if certain.awaits > self.asked_for {
            self.asked_for = certain.awaits;
            self.queue_status(true);
        }
    }

    /// How the source goes on, for the loop.
    fn reading(&self, idle: bool, begins_again: bool, again: bool) -> Reading {
        let intake = if self.resume.is_under_way() {
            Intake::Recognizing
        } else if self.bulk_reads.waits() {
            Intake::Waits
        } else if idle && !self.is_behind() {
            Intake::Live
        } else {
            Intake::Behind
        };
        Reading {
            intake,
            received: self.received,
            confirmed: self.confirmation.confirmed(),
            caught_up: self.behind_since.is_none(),
            begins_again,
            ended: self.end.is_some(),
            again,
            gathered: self.read == ReadWhen::Gathered,
        }
    }
}

impl<S: Transport> Source for SlotSource<S> {
    type End = SlotLeft;

    fn next(&mut self) -> Result<Read<'_>, Error> {
        self.next_message()
    }

    fn dealt_with(&mut self) {
        if let Some(length) = self.last_read.dealt_with(&mut self.throttle) {
            self.stream.consume(length);
        }
        if std::mem::take(&mut self.last_read.reply) {
            self.queue_status(false);
        }
    }

    fn turn(&mut self, delivered: &Delivered) -> Result<Reading, Error> {
        self.lease.check(Clocks::now())?;
        self.last_read.turned();
        self.told(delivered);
        let (again, begins_again) = self.read_in_bulk(delivered)?;
        if self.passes_over() {
            self.stream.pass_over_all()?;
        }
        self.read = if again || !delivered.idle { ReadWhen::Never } else { self.read_when()? };
        Ok(self.reading(delivered.idle, begins_again, again))
    }

    async fn changed(&mut self) -> Result<(), Error> {
        let gathered = self.read == ReadWhen::Gathered;
        let read_at = if let ReadWhen::At(then) = self.read { Some(then) } else { None };
        let at_once = self.read == ReadWhen::AtOnce || self.passes_over();
        let receiving = if at_once { Receiving::AtOnce } else { Receiving::Not };
        // what keeps the connection alive comes first
        tokio::select! {
            biased;
            _ = self.status_timer.tick() => self.status_due(),
            report = self.watch.report() => self.looked(report)?,
            () = until(read_at) => {}
            result = self.stream.io(receiving) => result?,
            () = std::future::ready(()), if gathered => {}
        }
        Ok(())
    }

    fn health(&self) -> Option<Stalled> {
        let unchecked = self.catalog_check.reason(self.confirmation.confirmed(), self.delivered.durable);
        let reason = unchecked.or_else(|| self.standby_wait.reason().map(str::to_owned))?;
        Some(Stalled { peer: Peer::Postgres, reason })
    }

    fn is_recognized(&self) -> bool {
        !self.resume.is_under_way()
    }

    async fn confirm_last(&mut self, durable: Lsn) -> Result<(), Error> {
        self.delivered.durable = durable;
        let deadline = Instant::now() + LAST_LOOK;
        while self.confirmation.confirmed() < durable {
            self.watch.check_now();
            match timeout_at(deadline, self.watch.report()).await {
                Ok(report) => self.looked(report)?,
                Err(_) => break,
            }
        }
        self.queue_status(false);
        Ok(())
    }

    async fn close(mut self, outcome: &Outcome, orderly: bool) -> SlotLeft {
        let log_end = self.log_end();
        let recognized = self.is_recognized();
        let moved = self.bulk_reads.closing_move(&self.config, self.confirmation.confirmed());
        if matches!(outcome, Outcome::Failed(_)) {
            self.stream.hear_out().await;
        }
        let sent_away = self.stream.was_sent_away();
        let end = self.end.take().filter(|_| matches!(outcome, Outcome::SourceEnded));
        let mut lock = None;
        if orderly {
            match self.stream.finish(moved.as_deref()).await {
                Ok(session) if end.as_ref().is_some_and(SlotEnd::goes_on) => {
                    lock = Some(HeldLock(Box::new(session)));
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "leaving the replication stream"),
            }
        }
        SlotLeft { end, recognized, sent_away, lock, log_end }
    }
}
