//! Reading a slot that lags in bulk, and going over to the stream near the end of the log.
//!
//! ```text
//!     far behind, at the start of a session
//!         |
//!         v   everything is acknowledged and remembered       near the end
//!     settling -----------------------------------> looking ---------------> calming --> starting --> streaming
//!         ^                                            | far behind                                       |
//!         | near the end                               v                                       far behind |
//!         +---- reading <-------------------------- copying                                               v
//!                 ^  |                                                                          another session
//!                 |  v now and then
//!                moving
//! ```
//!
//! A refusal leads back to settling, and from there to the stream. If Kafka is too slow for bulk reads, or the session for them
//! cannot be made, the next session streams up to the end that the log had then.
//!
//! Bulk reads use a copy of the slot. Each is requested while the one before arrives, and the slot itself is moved to what is
//! acknowledged, stored and confirmed. The stream begins there. A walsender streams a slot only once: a second
//! START_REPLICATION in the same session ends as soon as it has begun. So a session that has streamed is replaced by another one
//! for bulk reads.

use pg_logical::bulk_read::Extent;
use pg_logical::replication::{Answer, BulkRead, NotStarted, StreamOf};
use pg_logical::server_error::ServerError;
use pg_logical::stream::Transport;
use pg_logical::{Lsn, bulk_read};
use tokio::time::{Duration, Instant};

use super::bulk_read_size::{BulkReadSize, SlotAt};
use super::confirmation::moved_by_another;
use super::lease::silence;
use super::{SlotEnd, SlotParts, SlotSource};
use crate::advice;
use crate::config::{CatchUp, Config};
use crate::error::{Error, Peer};
use crate::postgres::slot_functions;
use crate::relay::Delivered;

/// At the bound itself the router would switch back and forth all the time.
const NEAR: u64 = 4;

/// How often the slot is moved between bulk reads: the server reads the log up to there once more each time.
const MOVE_EVERY: Duration = Duration::from_secs(10);

/// The present step of the diagram above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Streaming,
    /// Nothing more is to come before all that has come is certain.
    Settling,
    /// The slot is moved there, if it is not, and looked at.
    Looking(Lsn),
    /// The session gets its copy of the slot.
    Copying,
    Reading(Extents),
    /// The slot is moved there between two bulk reads.
    Moving(Lsn),
    /// The session is made fit for the stream.
    Calming,
    Starting,
}

/// A bulk read under way, and the one that was asked for behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extents {
    extent: Extent,
    next: Option<Extent>,
}

/// How the slot is read. While there are bulk reads, of these places in the log none lies before the last: `slot_at`, what is confirmed
/// (`Confirmation`), what was received, `checked`.
pub(super) struct BulkReads {
    step: Step,
    /// Bytes; `None`: this session takes no bulk reads (any more): by configuration, or because the server has refused one, which
    /// was told then.
    bound: Option<u64>,
    size: BulkReadSize,
    /// The slot is confirmed so far, and when it was moved there.
    slot_at: Lsn,
    last_move: Instant,
    /// The copy, once there is one, and what its last bulk read passed.
    copy: Option<SlotAt>,
    passed: u64,
    /// All is well with the log up to here, by the last look.
    checked: Lsn,
    /// Standbys have to confirm what is sent, by the last look. Bulk reads are read of a copy of the slot, for which Postgres waits
    /// for none; so there are none meanwhile. That this keeps a router that is far behind from them is told once.
    waits_for_standbys: bool,
    standbys_told: bool,
    /// Up to here the stream is the quicker.
    stream_until: Lsn,
    /// When the session was last read, or waited for.
    listened: Instant,
    /// The server process of this session, after which the copy is named.
    backend_pid: i32,
}

/// Whether the session begins with bulk reads, for one that reads on from `position` while the log ends at `head`, and streams up to
/// `stream_until`.
pub(crate) fn begins_with_bulk_reads(config: &Config, position: Lsn, head: Lsn, stream_until: Lsn) -> bool {
    position >= stream_until && bound(config).is_some_and(|bound| head.0.saturating_sub(position.0) > bound)
}

/// Without a positions topic what is parked is acknowledged when the stream has come to the end of the log, and
/// bulk reads wait for acknowledgements before.
fn bound(config: &Config) -> Option<u64> {
    let possible = config.delivery.positions_topic.is_some() || !config.dead_letters.park();
    let lag = u64::try_from(config.postgres.catch_up_lag).unwrap_or(u64::MAX);
    (config.postgres.catch_up == CatchUp::Auto && possible).then_some(lag)
}

impl BulkReads {
    pub(super) fn new<S: Transport>(parts: &SlotParts<S>) -> Self {
        BulkReads {
            step: if parts.stream.is_streaming() { Step::Streaming } else { Step::Settling },
            bound: bound(&parts.config),
            size: BulkReadSize::new(parts.config.delivery.window_bytes),
            slot_at: parts.confirmed,
            last_move: Instant::now(),
            copy: None,
            passed: 0,
            checked: Lsn::INVALID,
            waits_for_standbys: false,
            standbys_told: false,
            stream_until: parts.stream_until,
            listened: Instant::now(),
            backend_pid: parts.backend_pid,
        }
    }

    /// Whether nothing more is read before everything is certain.
    pub(super) fn waits(&self) -> bool {
        !matches!(self.step, Step::Streaming | Step::Reading(_) | Step::Moving(_))
    }

    /// A look has found all well up to `checked`, and that Postgres waits for these standby slots.
    pub(super) fn looked(&mut self, checked: Lsn, standby_slots: &[String]) {
        self.checked = self.checked.max(checked);
        self.waits_for_standbys = !standby_slots.is_empty();
    }

    /// Whether the server was asked to move the slot, for which it waits for standbys too.
    pub(super) fn moves_the_slot(&self) -> bool {
        matches!(self.step, Step::Looking(_) | Step::Moving(_))
    }

    /// The statement that moves the slot to `confirmed`, if it has not been.
    pub(super) fn closing_move(&self, config: &Config, confirmed: Lsn) -> Option<String> {
        (confirmed > self.slot_at).then(|| slot_functions::advance(&config.postgres.slot, confirmed))
    }

    fn lag(&self, read: Lsn) -> u64 {
        self.checked.0.saturating_sub(read.0)
    }

    /// Whether the stream is better for what comes behind `read`.
    fn is_near(&self, read: Lsn) -> bool {
        self.waits_for_standbys
            || self.bound.is_none_or(|bound| self.lag(read) <= bound / NEAR)
            || read < self.stream_until
    }
}

impl<S: Transport> SlotSource<S> {
    /// Takes the next step, if its time has come. Says whether there may be more to deal with by that, and whether the slot is
    /// read on from the same position anew.
    pub(super) fn read_in_bulk(&mut self, delivered: &Delivered) -> Result<(bool, bool), Error> {
        if delivered.idle {
            self.bulk_reads.listened = Instant::now();
        }
        // what a session that ends is still told it does not act on
        if self.resume.is_under_way() || self.is_ending() {
            return Ok((false, false));
        }
        if let Some(answer) = self.stream.answer() {
            self.answered(answer)?;
            return Ok((true, false));
        }
        let (step, looked) = (self.bulk_reads.step, self.bulk_reads.checked > Lsn::INVALID);
        match step {
            Step::Streaming if self.is_far_behind() => self.leave_the_stream(),
            Step::Settling if looked && self.stream.is_at_rest() && self.is_certain(delivered) => {
                let to = self.move_slot();
                self.bulk_reads.step = Step::Looking(to);
                return Ok((false, true));
            }
            Step::Reading(Extents { extent, next: None }) if self.stream.rows_read() > 0 => {
                self.read_behind(extent)
            }
            _ => {}
        }
        Ok((false, false))
    }

    /// Whether nothing more is read: by the loop, or because the slot is read on in another way.
    fn is_ending(&self) -> bool {
        self.delivered.ending || self.end.is_some()
    }

    fn leave_the_stream(&mut self) {
        let behind = self.bulk_reads.lag(self.received);
        if !self.bulk_reads.waits_for_standbys {
            tracing::info!(behind, "far behind: reading in bulk from here on");
            self.end = Some(SlotEnd::FarBehind);
        } else if !std::mem::replace(&mut self.bulk_reads.standbys_told, true) {
            tracing::info!(
                behind,
                "far behind, but still streaming: bulk reads would send what the standbys of synchronized_standby_slots have \
                 not confirmed"
            );
        }
    }

    fn is_far_behind(&self) -> bool {
        let known = &self.bulk_reads;
        known
            .bound
            .is_some_and(|bound| known.lag(self.received) > bound && self.received >= known.stream_until)
    }

    /// Whether all that was read is delivered, remembered and confirmed, or can be confirmed.
    fn is_certain(&mut self, delivered: &Delivered) -> bool {
        let Delivered { position, complete, in_flight, certain, .. } = *delivered;
        let durable = certain.durable;
        if !complete || in_flight || !certain.settled || durable < position.flush {
            return false;
        }
        self.confirmation.checked(durable, self.bulk_reads.checked);
        if self.confirmation.confirmed() < durable {
            self.watch.check_now();
            return false;
        }
        true
    }

    /// Moves the slot to what is confirmed, if it is not there, and looks at it.
    fn move_slot(&mut self) -> Lsn {
        let (slot, confirmed) = (&self.config.postgres.slot, self.confirmation.confirmed());
        let look = bulk_read::look(slot);
        match self.bulk_reads.closing_move(&self.config, confirmed) {
            Some(moved) => self.stream.ask(&format!("{moved}; {look}")),
            None => self.stream.ask(&look),
        }
        self.bulk_reads.last_move = Instant::now();
        self.monitor.confirmed(confirmed);
        confirmed
    }

    /// Takes in where the slot is after a move. Nobody else moves it.
    fn slot_has_moved(&mut self, to: Lsn, row: &[Option<String>]) -> Result<(), Error> {
        let slot = slot_at(row)?;
        if slot.confirmed != to {
            return Err(moved_by_another(&self.config.postgres.slot, slot.confirmed));
        }
        self.bulk_reads.slot_at = to;
        Ok(())
    }

    /// Something has come of what was asked.
    fn answered(&mut self, answer: Answer) -> Result<(), Error> {
        let step = self.bulk_reads.step;
        match (step, answer) {
            (_, Answer::Refused(refused)) => self.refused(*refused)?,
            (Step::Looking(to), Answer::Row(row)) => {
                self.slot_has_moved(to, &row)?;
                self.begin_bulk_reads_or_stream(to);
            }
            (Step::Copying, Answer::Row(row)) => {
                self.bulk_reads.copy = Some(slot_at(&row)?);
                self.read_more();
            }
            (Step::Reading(extents), Answer::BulkRead(read, row)) => {
                self.was_read(extents, read, slot_at(&row)?)?
            }
            (Step::Moving(to), Answer::Row(row)) => {
                self.slot_has_moved(to, &row)?;
                self.read_more();
            }
            (Step::Calming, Answer::Row(_)) => {
                self.bulk_reads.copy = None;
                let postgres = &self.config.postgres;
                let start = self.delivered.position.flush;
                self.stream.begin(StreamOf {
                    slot: &postgres.slot,
                    publication: &postgres.publication,
                    start,
                    messages: self.config.reads_messages(),
                });
                self.bulk_reads.step = Step::Starting;
            }
            (Step::Starting, Answer::Streaming) => {
                self.bulk_reads.step = Step::Streaming;
                self.monitor.reads_in_bulk(false);
                let position = self.delivered.position.flush;
                if self.bulk_reads.bound.is_some() && position >= self.bulk_reads.stream_until {
                    tracing::info!(%position, "near the end of the log: streaming");
                } else {
                    tracing::info!(%position, "streaming");
                }
            }
            (step, answer) => return Err(out_of_turn(&format!("{answer:?} while {step:?}"))),
        }
        Ok(())
    }

    fn begin_bulk_reads_or_stream(&mut self, confirmed: Lsn) {
        let copy = slot_functions::bulk_read_copy(self.bulk_reads.backend_pid);
        if self.bulk_reads.is_near(confirmed) {
            // a copy would keep the log from being removed
            let dropped = self.bulk_reads.copy.map(|_| slot_functions::drop(&copy) + "; ");
            self.stream.ask(&(dropped.unwrap_or_default() + bulk_read::BEFORE_STREAMING));
            self.bulk_reads.step = Step::Calming;
        } else if self.bulk_reads.copy.is_some() {
            self.read_more();
        } else {
            let postgres = &self.config.postgres;
            let copied = slot_functions::copy(&postgres.slot, &copy, true);
            self.stream.ask(&format!("{copied}; {}", bulk_read::look(&copy)));
            self.monitor.reads_in_bulk(true);
            self.bulk_reads.step = Step::Copying;
        }
    }

    /// All of a bulk read has been dealt with, though not acknowledged.
    fn was_read(&mut self, extents: Extents, read: BulkRead, copy: SlotAt) -> Result<(), Error> {
        if self.last_read.is_inside() {
            return Err(out_of_turn("a bulk read has ended inside a transaction"));
        }
        // Fewer than were asked for: it has passed all up to `upto`. One that is full may have left some before that.
        if read.rows < extents.extent.rows {
            self.received = self.received.max(extents.extent.upto);
            self.last_read.passed(self.received);
        }
        let known = &mut self.bulk_reads;
        let before = known.copy.replace(copy).unwrap_or(copy);
        known.passed = copy.confirmed.0.saturating_sub(before.confirmed.0);
        if let Some(stream_until) = known.size.brought(before, read, copy.confirmed) {
            known.stream_until = stream_until;
        }
        tracing::debug!(
            rows = read.rows, bytes = read.bytes, upto = %copy.confirmed, restart = %copy.restart,
            "a bulk read was read"
        );
        self.monitor.counts().bulk_reads.add(1);
        match extents.next {
            Some(extent) => self.bulk_reads.step = Step::Reading(Extents { extent, next: None }),
            None => self.read_more(),
        }
        Ok(())
    }

    /// Asks for a bulk read, or moves the slot first if that is due. Near the end of the log there are no more.
    fn read_more(&mut self) {
        let Some(copy) = self.bulk_reads.copy else { return };
        if self.bulk_reads.is_near(copy.confirmed) {
            self.bulk_reads.step = Step::Settling;
            return;
        }
        if self.is_time_to_move() {
            let to = self.move_slot();
            self.bulk_reads.step = Step::Moving(to);
            return;
        }
        let extent = self.ask_for_more(copy);
        self.bulk_reads.step = Step::Reading(Extents { extent, next: None });
    }

    /// Asks for the next bulk read while this one comes, so that the server reads the log meanwhile.
    fn read_behind(&mut self, extent: Extent) {
        let Some(copy) = self.bulk_reads.copy else { return };
        let expected = Lsn(copy.confirmed.0.saturating_add(self.bulk_reads.passed));
        if self.bulk_reads.is_near(expected) || self.is_time_to_move() {
            return;
        }
        // a guess, for its size alone: the server goes on where the one before really ends
        let next = Some(self.ask_for_more(SlotAt { confirmed: expected, ..copy }));
        self.bulk_reads.step = Step::Reading(Extents { extent, next });
    }

    fn ask_for_more(&mut self, copy: SlotAt) -> Extent {
        // what the next one may take in is known by then
        self.watch.check_now();
        let extent = self.bulk_reads.size.next(copy, self.bulk_reads.checked);
        let name = slot_functions::bulk_read_copy(self.bulk_reads.backend_pid);
        let publication = &self.config.postgres.publication;
        self.stream.bulk_read(&bulk_read::read(&name, publication, self.config.reads_messages(), extent));
        extent
    }

    fn is_time_to_move(&self) -> bool {
        self.bulk_reads.last_move.elapsed() >= MOVE_EVERY
    }

    /// Whatever it was, the stream says better what is wrong, if anything is.
    fn refused(&mut self, refused: ServerError) -> Result<(), Error> {
        let slot = &self.config.postgres.slot;
        if self.bulk_reads.step == Step::Starting {
            return Err(advice::not_started(NotStarted::Server(refused), slot));
        }
        let told = self.bulk_reads.bound.is_none();
        if refused.severity != "ERROR" || told && self.bulk_reads.step != Step::Settling {
            return Err(Error::transient(
                Peer::Postgres,
                format!("Postgres has ended the session: {refused}"),
            ));
        }
        // what was asked for behind it is refused too
        if told {
            return Ok(());
        }
        tracing::warn!(
            reason = %refused,
            remedy = remedy(&refused),
            "Postgres refuses to let the slot {slot} be read in bulk; this session streams it, which is slower"
        );
        // with any error the server drops what is temporary
        (self.bulk_reads.bound, self.bulk_reads.copy) = (None, None);
        self.bulk_reads.step = Step::Settling;
        Ok(())
    }

    /// Without status updates, sends a query now and then, and abandons a bulk read that nobody reads.
    pub(super) fn remind(&mut self) {
        let limit = silence(&self.config);
        let held = self.bulk_reads.listened.elapsed();
        if matches!(self.bulk_reads.step, Step::Reading(_)) && !self.is_ending() && held > limit / 2 {
            let until = self.log_end();
            tracing::warn!(
                peer = "kafka",
                reason = unread(held),
                "Kafka takes too little for bulk reads; once it has what is under way, the slot is streamed up to {until}"
            );
            self.end = Some(SlotEnd::TooSlow);
        }
        self.stream.remind(limit / 3);
    }

    /// The end of the log, as far as it is known.
    pub(super) fn log_end(&self) -> Lsn {
        self.server_end.max(self.bulk_reads.checked)
    }

    /// Whether what comes is thrown away: nobody deals with it any more, and the server gives up a session that leaves it.
    pub(super) fn passes_over(&self) -> bool {
        self.is_ending() && !self.stream.is_streaming()
    }
}

/// What to do about a refusal.
fn remedy(refused: &ServerError) -> &'static str {
    match refused.code.code() {
        // insufficient_privilege
        "42501" => {
            "Run what outbox-router init --print-sql has for it, the GRANTs on functions; or set `catch_up = \"stream\"` under [postgres]"
        }
        // configuration_limit_exceeded
        "53400" => {
            "Bulk reads take one replication slot more (max_replication_slots), and temporary files (temp_file_limit); `catch_up = \"stream\"` \
             under [postgres] does without"
        }
        _ => "The next session tries again; `catch_up = \"stream\"` under [postgres] does without",
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
    parsed().ok_or_else(|| out_of_turn("the slot's row cannot be read"))
}

/// The server gives a bulk read up whose rows nobody takes.
fn unread(held: Duration) -> String {
    format!(
        "what Postgres has sent of a bulk read could not be handed to Kafka for {:.1} s",
        held.as_secs_f32()
    )
}

fn out_of_turn(what: &str) -> Error {
    Error::transient(Peer::Postgres, format!("the session with Postgres is out of step: {what}"))
}
