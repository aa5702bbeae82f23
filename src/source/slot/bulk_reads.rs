//! Reads a slot that lags in bulk, and switches to the stream near the end of the log.
//!
//! ```text
//!     far behind, at the start of a session
//!         |
//!         v   everything is acknowledged and durable         near the end
//!     draining -----------------------------------> querying slot ----> resetting session --> starting stream --> streaming
//!         ^                                              | far behind                                                 |
//!         | near the end, or the stream is faster        v                                                 far behind |
//!         +---- reading <-------------------------- copying slot                                                      v
//!                 ^  |                                                                                   another session
//!                 |  v every ten seconds
//!             moving slot
//! ```
//!
//! A refusal leads back to draining, and from there to the stream. If Kafka is too slow for bulk reads, or the session for them
//! cannot be started, the next session streams up to the end that the log had then.
//!
//! Bulk reads use a copy of the slot. The next one is requested while the previous one arrives, and the slot itself is moved to
//! the position that is durable and confirmed, where the stream begins. A walsender streams a slot only once: a second
//! START_REPLICATION in the same session ends at once. So another session replaces one that has streamed.

use pg_logical::bulk_read::Extent;
use pg_logical::replication::{Answer, BulkRead, StreamOf};
use pg_logical::stream::Transport;
use pg_logical::{Lsn, bulk_read};
use tokio::time::{Duration, Instant};

use super::bulk_read_size::{BulkReadSize, SlotAt, Slower};
use super::{SlotEnd, SlotParts, SlotSource, moved_by_another};
use crate::config::{CatchUp, Config};
use crate::error::{Error, Peer};
use crate::postgres::catalog::Slot;
use crate::postgres::slot_functions;
use crate::relay::DeliveryState;
use crate::source::lease::silence;

/// Bulk reads end at this fraction of `catch_up_lag`. At the lag itself the router would keep switching back and forth.
const NEAR_FRACTION: u64 = 4;

/// How often the slot is moved between bulk reads. After each move the server reads the log up to there once more.
const MOVE_INTERVAL: Duration = Duration::from_secs(10);

/// The server reads this much log again (bytes) in a tenth of a second, so it does not matter.
const LITTLE_REREAD: u64 = 256 << 20;

/// A step of the diagram above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Streaming,
    /// Waits until everything received is durable.
    Draining,
    /// The slot is moved to this position if necessary, and queried.
    QueryingSlot(Lsn),
    /// The session copies the slot.
    CopyingSlot,
    Reading(Extents),
    /// The slot is moved to this position between two bulk reads.
    MovingSlot(Lsn),
    /// The session's settings are reset for the stream.
    ResettingSession,
    StartingStream,
}

/// The current bulk read, and the one requested after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extents {
    extent: Extent,
    next: Option<Extent>,
}

/// The way of reading. During bulk reads these positions never decrease in this order: `slot_at`, the confirmed position
/// (`Confirmation`), the received position, `checked`.
pub(super) struct BulkReads {
    pub(super) step: Step,
    /// The lag in bytes from which the slot is read in bulk. `None` if this session does not read in bulk, by configuration or
    /// because the server refused, which was logged.
    pub(super) bound: Option<u64>,
    size: BulkReadSize,
    /// The slot's confirmed position, and when the slot was moved there.
    slot_at: Lsn,
    last_move: Instant,
    /// The copy of the slot, if it exists, and how many bytes of log its last bulk read covered.
    pub(super) copy: Option<SlotAt>,
    passed: u64,
    /// The catalogues were checked up to this position.
    checked: Lsn,
    /// The slot's `restart_lsn` at that time, or a little less.
    restart: Option<Lsn>,
    /// Whether Postgres waits for standbys before it sends changes, by the last check. It does not wait for a copy of a slot, so
    /// there are no bulk reads then. `standbys_logged`: this was logged.
    waits_for_standbys: bool,
    standbys_logged: bool,
    /// The session streams up to this position: the stream is faster, or bulk reads have failed.
    stream_until: Lsn,
    /// When the session was last read, or idle.
    last_received: Instant,
    /// The backend process of this session, which the name of the copy contains.
    backend_pid: i32,
}

/// Whether a session that resumes at `position` begins with bulk reads. `head` is the end of the log, and up to `stream_until`
/// the session has to stream.
pub(crate) fn begins_with_bulk_reads(config: &Config, position: Lsn, head: Lsn, stream_until: Lsn) -> bool {
    position >= stream_until && bound(config).is_some_and(|bound| head.0.saturating_sub(position.0) > bound)
}

/// Without positions topic a parked event is acknowledged only when the stream has reached the end of the log, but bulk reads
/// wait for acknowledgements before that.
fn bound(config: &Config) -> Option<u64> {
    let possible = config.delivery.positions_topic.is_some() || !config.dead_letters.park();
    let lag = u64::try_from(config.postgres.catch_up_lag).unwrap_or(u64::MAX);
    (config.postgres.catch_up == CatchUp::Auto && possible).then_some(lag)
}

impl BulkReads {
    pub(super) fn new<S: Transport>(parts: &SlotParts<S>) -> Self {
        BulkReads {
            step: if parts.stream.is_streaming() { Step::Streaming } else { Step::Draining },
            bound: bound(&parts.config),
            size: BulkReadSize::new(parts.stream.transport(), parts.config.delivery.window_bytes),
            slot_at: parts.confirmed,
            last_move: Instant::now(),
            copy: None,
            passed: 0,
            checked: Lsn::INVALID,
            restart: None,
            waits_for_standbys: false,
            standbys_logged: false,
            stream_until: parts.stream_until,
            last_received: Instant::now(),
            backend_pid: parts.backend_pid,
        }
    }

    /// Whether nothing more is read until everything received is durable.
    pub(super) fn waits(&self) -> bool {
        !matches!(self.step, Step::Streaming | Step::Reading(_) | Step::MovingSlot(_))
    }

    /// The catalogues were checked up to `checked`, with this slot.
    pub(super) fn catalog_checked(&mut self, checked: Lsn, slot: &Slot) {
        self.checked = self.checked.max(checked);
        self.restart = slot.retained_bytes.map(|bytes| Lsn(checked.0.saturating_sub(bytes)));
        self.waits_for_standbys = !slot.waits_for.is_empty();
    }

    /// Whether the server is moving the slot, for which it waits for standbys too.
    pub(super) fn moves_the_slot(&self) -> bool {
        matches!(self.step, Step::QueryingSlot(_) | Step::MovingSlot(_))
    }

    /// The statement that moves the slot to `confirmed`; `None` if it is there.
    pub(super) fn closing_move(&self, config: &Config, confirmed: Lsn) -> Option<String> {
        (confirmed > self.slot_at).then(|| slot_functions::advance(&config.postgres.slot, confirmed))
    }

    fn lag(&self, read: Lsn) -> u64 {
        self.checked.0.saturating_sub(read.0)
    }

    /// Whether the server would read more log again for each bulk read, and for a new stream, than the slot is behind at
    /// `position`.
    fn rereads_too_much(&self, position: Lsn, restart: Lsn) -> bool {
        let reread = position.0.saturating_sub(restart.0);
        reread > LITTLE_REREAD && reread > self.lag(position)
    }

    /// Whether the stream is better than bulk reads after `read`.
    fn prefers_stream(&self, read: Lsn) -> bool {
        self.waits_for_standbys
            || self.bound.is_none_or(|bound| self.lag(read) <= bound / NEAR_FRACTION)
            || read < self.stream_until
    }
}

impl<S: Transport> SlotSource<S> {
    /// Takes the next step if it is due. Returns whether there may be more to dispatch now, and whether reading restarts at the
    /// same position.
    pub(super) fn read_in_bulk(&mut self, delivered: &DeliveryState) -> Result<(bool, bool), Error> {
        if delivered.idle {
            self.bulk_reads.last_received = Instant::now();
        }
        // a session that ends ignores further answers
        if self.resume.is_under_way() || self.is_ending() {
            return Ok((false, false));
        }
        if let Some(answer) = self.stream.answer() {
            self.answered(answer)?;
            return Ok((true, false));
        }
        let (step, checked) = (self.bulk_reads.step, self.bulk_reads.checked > Lsn::INVALID);
        match step {
            Step::Streaming if self.is_far_behind() => self.leave_the_stream(),
            Step::Draining if checked && self.stream.is_idle() && self.all_durable(delivered) => {
                let to = self.move_and_query_slot();
                self.bulk_reads.step = Step::QueryingSlot(to);
                return Ok((false, true));
            }
            Step::Reading(Extents { extent, next: None }) if self.stream.rows_read() > 0 => {
                self.prefetch(extent)
            }
            _ => {}
        }
        Ok((false, false))
    }

    /// Whether nothing more is read, by the loop or because the source ends.
    fn is_ending(&self) -> bool {
        self.delivered.ending || self.end.is_some()
    }

    fn leave_the_stream(&mut self) {
        let behind = self.bulk_reads.lag(self.received);
        if !self.bulk_reads.waits_for_standbys {
            tracing::info!(behind, "far behind: switching to bulk reads");
            self.end = Some(SlotEnd::FarBehind);
        } else if !std::mem::replace(&mut self.bulk_reads.standbys_logged, true) {
            tracing::info!(
                behind,
                "far behind, but still streaming: bulk reads would send what the standbys of synchronized_standby_slots have \
                 not confirmed"
            );
        }
    }

    fn is_far_behind(&self) -> bool {
        let reads = &self.bulk_reads;
        // the rest of a transaction arrives in any case
        let commit = self.last_read.is_inside().then(|| self.last_read.transaction().final_lsn);
        let position = self.received.max(commit.unwrap_or(Lsn::INVALID));
        let rereads_too_much =
            || reads.restart.is_some_and(|restart| reads.rereads_too_much(position, restart));
        reads.bound.is_some_and(|bound| reads.lag(position) > bound)
            && position >= reads.stream_until
            && !rereads_too_much()
    }

    /// Whether everything received is delivered, durable and confirmed, or can be confirmed now.
    fn all_durable(&mut self, delivered: &DeliveryState) -> bool {
        let DeliveryState { position, complete, in_flight, durability, .. } = *delivered;
        let durable = durability.durable;
        if !complete || in_flight || !durability.settled || durable < position.flush {
            return false;
        }
        self.confirmation.checked(durable, self.bulk_reads.checked);
        if self.confirmation.confirmed() < durable {
            self.watch.check_now();
            return false;
        }
        true
    }

    /// Moves the slot to the confirmed position if it is not there, and queries its state.
    fn move_and_query_slot(&mut self) -> Lsn {
        let (slot, confirmed) = (&self.config.postgres.slot, self.confirmation.confirmed());
        let query = bulk_read::position_query(slot);
        match self.bulk_reads.closing_move(&self.config, confirmed) {
            Some(moved) => self.stream.query(&format!("{moved}; {query}")),
            None => self.stream.query(&query),
        }
        self.bulk_reads.last_move = Instant::now();
        self.monitor.confirmed(confirmed);
        confirmed
    }

    /// Checks the slot's position after a move, and returns its state. Nobody else may move it.
    fn check_moved_slot(&mut self, to: Lsn, row: &[Option<String>]) -> Result<SlotAt, Error> {
        let slot = slot_at(row)?;
        if slot.confirmed != to {
            return Err(moved_by_another(&self.config.postgres.slot, slot.confirmed));
        }
        self.bulk_reads.slot_at = to;
        Ok(slot)
    }

    /// Handles an answer of the server.
    fn answered(&mut self, answer: Answer) -> Result<(), Error> {
        let step = self.bulk_reads.step;
        match (step, answer) {
            (_, Answer::Refused(refused)) => self.refused(*refused)?,
            (Step::QueryingSlot(to), Answer::Row(row)) => {
                let slot = self.check_moved_slot(to, &row)?;
                self.begin_bulk_reads_or_stream(slot);
            }
            (Step::CopyingSlot, Answer::Row(row)) => {
                self.bulk_reads.copy = Some(slot_at(&row)?);
                self.next_step();
            }
            (Step::Reading(extents), Answer::BulkRead(read, row)) => {
                self.bulk_read_completed(extents, read, slot_at(&row)?)?
            }
            (Step::MovingSlot(to), Answer::Row(row)) => {
                self.check_moved_slot(to, &row)?;
                self.next_step();
            }
            (Step::ResettingSession, Answer::Row(_)) => {
                self.bulk_reads.copy = None;
                let postgres = &self.config.postgres;
                let start = self.delivered.position.flush;
                self.stream.begin(StreamOf {
                    slot: &postgres.slot,
                    publication: &postgres.publication,
                    start,
                    messages: self.config.reads_messages(),
                });
                self.bulk_reads.step = Step::StartingStream;
            }
            (Step::StartingStream, Answer::Streaming) => {
                self.bulk_reads.step = Step::Streaming;
                self.monitor.set_bulk_reading(false);
                let position = self.delivered.position.flush;
                if self.bulk_reads.bound.is_some() && position >= self.bulk_reads.stream_until {
                    tracing::info!(%position, "near the end of the log: streaming");
                } else {
                    tracing::info!(%position, "streaming");
                }
            }
            (step, answer) => return Err(protocol_error(&format!("{answer:?} while {step:?}"))),
        }
        Ok(())
    }

    fn begin_bulk_reads_or_stream(&mut self, slot: SlotAt) {
        let copy = slot_functions::bulk_read_copy(self.bulk_reads.backend_pid);
        let reads = &mut self.bulk_reads;
        if !reads.prefers_stream(slot.confirmed) && reads.rereads_too_much(slot.confirmed, slot.restart) {
            tracing::info!(
                restart = %slot.restart, until = %reads.checked,
                "streaming: for each bulk read the server would read more log again than the router is behind"
            );
            reads.stream_until = reads.checked;
        }
        if self.bulk_reads.prefers_stream(slot.confirmed) {
            // the copy would retain WAL
            let dropped = self.bulk_reads.copy.map(|_| slot_functions::drop(&copy) + "; ");
            self.stream.query(&(dropped.unwrap_or_default() + bulk_read::BEFORE_STREAMING));
            self.bulk_reads.step = Step::ResettingSession;
        } else if self.bulk_reads.copy.is_some() {
            self.next_step();
        } else {
            let postgres = &self.config.postgres;
            let copied = slot_functions::copy(&postgres.slot, &copy, true);
            self.stream.query(&format!("{copied}; {}", bulk_read::position_query(&copy)));
            self.monitor.set_bulk_reading(true);
            self.bulk_reads.step = Step::CopyingSlot;
        }
    }

    /// A bulk read is completely dispatched, though not acknowledged.
    fn bulk_read_completed(&mut self, extents: Extents, read: BulkRead, copy: SlotAt) -> Result<(), Error> {
        if self.last_read.is_inside() {
            return Err(protocol_error("a bulk read has ended inside a transaction"));
        }
        // With fewer rows than requested it has covered everything up to `upto`. A full one may have ended earlier.
        if read.rows < extents.extent.rows {
            self.received = self.received.max(extents.extent.upto);
            self.last_read.bulk_read_reached(self.received);
        }
        let reads = &mut self.bulk_reads;
        let before = reads.copy.replace(copy).unwrap_or(copy);
        if copy.confirmed < before.confirmed {
            return Err(protocol_error("a bulk read has moved the copy of the slot back"));
        }
        reads.passed = copy.confirmed.0.saturating_sub(before.confirmed.0);
        if let Some((slower, until)) = reads.size.completed(before, read, copy.confirmed) {
            // a bulk read that was requested before the last one was complete says the same
            if reads.stream_until < copy.confirmed {
                tracing::info!(%until, "{}, so the stream is faster than bulk reads", because(slower));
            }
            reads.stream_until = until;
        }
        tracing::debug!(
            rows = read.rows, bytes = read.bytes, upto = %copy.confirmed, restart = %copy.restart,
            "a bulk read is complete"
        );
        self.monitor.counts().bulk_reads.add(1);
        match extents.next {
            Some(extent) => self.bulk_reads.step = Step::Reading(Extents { extent, next: None }),
            None => self.next_step(),
        }
        Ok(())
    }

    /// Requests a bulk read, moves the slot if that is due, or drains near the end of the log.
    fn next_step(&mut self) {
        let Some(copy) = self.bulk_reads.copy else { return };
        if self.bulk_reads.prefers_stream(copy.confirmed) {
            self.bulk_reads.step = Step::Draining;
            return;
        }
        if self.is_time_to_move() {
            let to = self.move_and_query_slot();
            self.bulk_reads.step = Step::MovingSlot(to);
            return;
        }
        let extent = self.bulk_reads.size.next(copy, self.bulk_reads.checked);
        self.request_bulk_read(extent);
        self.bulk_reads.step = Step::Reading(Extents { extent, next: None });
    }

    /// Requests the next bulk read while this one arrives, so that the server reads log in the meantime.
    fn prefetch(&mut self, extent: Extent) {
        let Some(copy) = self.bulk_reads.copy.filter(|_| !self.bulk_reads.size.is_first()) else { return };
        let expected = Lsn(copy.confirmed.0.saturating_add(self.bulk_reads.passed));
        if self.bulk_reads.prefers_stream(expected) || self.is_time_to_move() {
            return;
        }
        // the expected position only determines its size: the server continues where the previous one really ends
        let slot = SlotAt { confirmed: expected, ..copy };
        let next = self.bulk_reads.size.next_after(extent, slot, self.bulk_reads.checked);
        self.request_bulk_read(next);
        self.bulk_reads.step = Step::Reading(Extents { extent, next: Some(next) });
    }

    fn request_bulk_read(&mut self, extent: Extent) {
        // the result of this check bounds the next bulk read
        self.watch.check_now();
        let name = slot_functions::bulk_read_copy(self.bulk_reads.backend_pid);
        let publication = &self.config.postgres.publication;
        self.stream.bulk_read(&bulk_read::read_query(
            &name,
            publication,
            self.config.reads_messages(),
            extent,
        ));
    }

    fn is_time_to_move(&self) -> bool {
        self.bulk_reads.last_move.elapsed() >= MOVE_INTERVAL
    }

    /// Called when a status update would be due. Sends a query from time to time instead, and abandons a bulk read that nobody
    /// takes.
    pub(super) fn send_query_if_due(&mut self) {
        let limit = silence(&self.config);
        let held = self.bulk_reads.last_received.elapsed();
        if matches!(self.bulk_reads.step, Step::Reading(_)) && !self.is_ending() && held > limit / 2 {
            let until = self.log_end();
            tracing::warn!(
                peer = "kafka",
                reason = unread(held),
                "Kafka is too slow for bulk reads; after the records in flight the router streams the slot up to {until}"
            );
            self.end = Some(SlotEnd::SinkTooSlow);
        }
        self.stream.ping(limit / 3);
    }

    /// The last known end of the log.
    pub(super) fn log_end(&self) -> Lsn {
        self.server_end.max(self.bulk_reads.checked)
    }

    /// Whether input is discarded: nobody needs it any more, and the server gives up a session that leaves it unread.
    pub(super) fn discards_input(&self) -> bool {
        self.is_ending() && !self.stream.is_streaming()
    }
}

fn because(slower: Slower) -> &'static str {
    match slower {
        Slower::LargeRows => "the events are large",
        Slower::RareEvents => "there are few events in the log",
    }
}

fn slot_at(row: &[Option<String>]) -> Result<SlotAt, Error> {
    let parsed = || {
        let [Some(confirmed), Some(restart), Some(work_mem)] = row else { return None };
        Some(SlotAt {
            confirmed: confirmed.parse().ok()?,
            restart: restart.parse().ok()?,
            work_mem: work_mem.parse().ok()?,
        })
    };
    parsed().ok_or_else(|| protocol_error("the slot's row cannot be read"))
}

/// The server aborts a bulk read whose rows nobody takes.
fn unread(held: Duration) -> String {
    format!("rows of a bulk read have waited for Kafka for {:.1} s", held.as_secs_f32())
}

fn protocol_error(what: &str) -> Error {
    Error::transient(Peer::Postgres, format!("the Postgres session is out of sequence: {what}"))
}
