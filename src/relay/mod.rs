//! The one loop that joins the parts: stream, outbox, routing, sink, progress, and back.
//!
//! ```text
//!   stream --> outbox --> router --> sink        data goes one way
//!     ^                                                |
//!     +-- confirmation <-- checkpointer <- progress <--+   only a number comes back
//! ```
//!
//! A message stays in the receive buffer until it is dealt with. When the window is full, or a topic has to be made
//! first, the relay stops reading and keeps answering: status updates and reports go on.

mod bite_size;
mod catching_up;
mod closing;
mod confirmation;
mod ending;
mod feedback;
mod heartbeat;
mod lease;
mod pace;
mod parking;
mod reading;
mod recognizing;
mod sending;
mod showing;
mod unchecked;
mod window;
mod withheld;
mod working;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pg_logical::replication::{Receiving, ReplicationStream};
use pg_logical::stream::Transport;
use pg_logical::{Lsn, PgTimestamp};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::checkpoint::{Checkpoint, ResumeCheck};
use crate::config::Config;
use crate::error::{Error, Peer};
use crate::monitor::{Monitor, TopicCounters};
use crate::outbox::Outbox;
use crate::postgres::dead_letters::store::{DeadLetterStore, Loaded, Report};
use crate::postgres::slot_headroom::SlotHeadroom;
use crate::postgres::watch::Watch;
use crate::progress::{Partial, Progress, Sequence};
use crate::routing::{Origin, Router};
use crate::sink::kafka::checkpoint_topic::CheckpointStore;
use crate::sink::kafka::properties::transaction_timeout;
use crate::sink::kafka::{Admitted, Checkpointer, Intake, KafkaSink, StallDetector, TransactionSize};
use crate::sink::{DeliveryStats, Outcomes, Refusal};
use crate::unsendable::Unsendable;
use catching_up::CatchingUp;
pub(crate) use catching_up::begins_with_bites;
use confirmation::Confirmation;
pub use ending::{Ended, HeldLock, Outcome};
use heartbeat::Heartbeat;
use lease::{Clocks, Expired, Lease};
use pace::Pace;
use parking::Parking;
use reading::Reading;
use recognizing::Recognizing;
pub use recognizing::no_gap_to_accept;
use sending::Sending;
pub use sending::SentAlone;
use unchecked::Unchecked;
use window::Window;
use withheld::Withheld;
use working::Pause;

/// A status update goes out at least this often, and at most this late after something was acknowledged.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// The parts of one session, ready to run.
pub struct Parts<S> {
    /// The configuration.
    pub config: Arc<Config>,
    /// The started stream.
    pub stream: ReplicationStream<S>,
    /// Reads rows.
    pub outbox: Outbox,
    /// Makes records.
    pub router: Router,
    /// Takes records.
    pub sink: KafkaSink,
    /// What the sink reports to.
    pub outcomes: Arc<Outcomes>,
    /// TopicMonitor at the catalogues.
    pub watch: Watch,
    /// How positions are remembered besides the slot.
    pub positions: CheckpointStore,
    /// What the session began with: where it goes on, of what server.
    pub remembered: Checkpoint,
    /// What the slot is confirmed to.
    pub confirmed: Lsn,
    /// What has to come first, if the stream was started before that.
    pub recognition: Option<ResumeCheck>,
    /// Whether a gap was accepted on the command line that was not found so far.
    pub gap_accepted: bool,
    /// How large Kafka transactions are.
    pub transaction_size: TransactionSize,
    /// The end of the server's log as of the start: what the router has to catch up with.
    pub head: Lsn,
    /// Changes up to and including this one are sent one at a time, because a batch of them was refused.
    pub alone_up_to: Option<Partial>,
    /// The parked events, if they are parked: who writes them, and which there are.
    pub parking: Option<(DeadLetterStore, Loaded)>,
    /// Events that the brokers refused, to be parked.
    pub refused: BTreeMap<Partial, Unsendable>,
    /// Parked events are sent one at a time, because a batch of them was refused.
    pub retries_alone: bool,
    /// The change that was refused: it is sent when everything before it is certain.
    pub alone_after_commit: Option<Partial>,
    /// Where this router's part of the log ends: what was committed from there on is for others. `None`: nowhere.
    pub until: Option<Lsn>,
    /// Bites have failed: up to there the slot is streamed.
    pub stream_until: Lsn,
    /// The server process of the stream's session.
    pub backend_pid: i32,
    /// Shows what goes on.
    pub monitor: Monitor,
    /// Cancelled when the router is asked to stop.
    pub stop: CancellationToken,
}

/// One session of the relay.
pub struct Relay<S> {
    config: Arc<Config>,
    stream: ReplicationStream<S>,
    sending: Sending,
    outcomes: Arc<Outcomes>,
    checkpointer: Checkpointer,
    stalls: StallDetector,
    confirmation: Confirmation,
    recognizing: Recognizing,
    watch: Watch,
    heartbeat: Option<Heartbeat>,
    room: SlotHeadroom,
    monitor: Monitor,
    stop: CancellationToken,

    /// Where its part of the log ends.
    until: Option<Lsn>,
    received: Lsn,
    lease: Lease,
    /// The end of the server's log, as of the last look at it.
    server_end: Lsn,
    counters: Vec<TopicCounters>,
    /// What was delivered for certain, to be counted.
    certain: DeliveryStats,
    /// The end of the server's log as of the start.
    head: Lsn,
    /// Since when what lies before it is read; `None`: all of it was delivered.
    behind_since: Option<Instant>,
    withheld: Withheld,
    unchecked: Unchecked,
    /// What keeps events from coming or being acknowledged while brokers answer, as it is shown.
    obstacle: Option<String>,
    /// That rows are updated was told in this session.
    update_told: bool,
    /// That messages are not transactional was told in this session.
    stray_told: bool,
    pace: Pace,
    catching_up: CatchingUp,
    /// Why intake has ended, and how long the records in flight are waited for; `None`: as long as it takes.
    ending: Option<(Outcome, Option<Instant>)>,
    /// When a router that was asked to stop gives up what is still under way.
    leave_by: Option<Instant>,
    /// Taken reports, kept for its allocation.
    reports: Vec<Sequence>,
}

impl<S: Transport> Relay<S> {
    /// Joins the parts.
    pub fn new(parts: Parts<S>) -> Self {
        let start = parts.remembered.position;
        let catching_up = CatchingUp::new(&parts);
        parts.monitor.reads_in_bites(false);
        let delivery = &parts.config.delivery;
        let window = Window::new(delivery.window_records, delivery.window_bytes);
        let sending = Sending {
            outbox: parts.outbox,
            router: parts.router,
            sink: parts.sink,
            progress: Progress::new(start),
            replay: parts.remembered.replay.clone(),
            window,
            monitor: parts.monitor.clone(),
            origin: Origin {
                final_lsn: Lsn::INVALID,
                xid: 0,
                commit_time: PgTimestamp::default(),
                ordinal: 0,
            },
            pending: None,
            parking: parts.parking.map(|(desk, loaded)| {
                let most = parts.config.dead_letters.max_aggregates;
                let rests_on = parts.remembered.parked;
                let parking = Parking::new(desk, loaded, most, parts.refused, parts.retries_alone, rests_on);
                // the table may have changed since the last session, or another process has written it
                parking.show(&parts.monitor);
                parking
            }),
            sent: 0,
            uncommitted: false,
            waits_for_commit: false,
            alone_after_commit: parts.alone_after_commit,
            alone_up_to: parts.alone_up_to,
            sent_alone: None,
        };
        Relay {
            stream: parts.stream,
            sending,
            outcomes: parts.outcomes,
            checkpointer: Checkpointer::new(
                parts.positions,
                parts.remembered,
                parts.transaction_size,
                transaction_timeout(&parts.config),
            ),
            stalls: StallDetector::new(start),
            confirmation: Confirmation::new(parts.confirmed),
            recognizing: Recognizing::new(parts.recognition, parts.gap_accepted),
            watch: parts.watch,
            heartbeat: Heartbeat::of(&parts.config, PgTimestamp::now()),
            room: SlotHeadroom::new(parts.monitor.slot_room()),
            monitor: parts.monitor,
            stop: parts.stop,
            until: parts.until,
            received: parts.confirmed,
            lease: Lease::new(feedback::silence(&parts.config), Clocks::now()),
            server_end: parts.head,
            counters: Vec::new(),
            certain: DeliveryStats::default(),
            head: parts.head,
            behind_since: Some(Instant::now()),
            withheld: Withheld::new(Instant::now()),
            unchecked: Unchecked::new(Instant::now()),
            obstacle: None,
            update_told: false,
            stray_told: false,
            pace: Pace::new(Instant::now()),
            catching_up,
            ending: None,
            leave_by: None,
            reports: Vec::new(),
            config: parts.config,
        }
    }

    /// Runs until the session is over, one way or another. The producer is purged and closed when this returns, and
    /// the position is what was acknowledged until then.
    pub async fn run(mut self) -> Ended {
        match self.turns().await {
            Ok(outcome) => self.end_in_order(outcome).await,
            Err(error) => self.close(Outcome::Failed(error), false).await,
        }
    }

    /// Ends with an outcome when the stream can still be answered, with an error when it cannot, or must not be.
    async fn turns(&mut self) -> Result<Outcome, Error> {
        let every = STATUS_EVERY.min(self.config.postgres.wal_sender_timeout / 8);
        let mut status_timer = interval(every);
        status_timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stop = self.stop.clone();
        loop {
            self.monitor.turned();
            self.lease.check(Clocks::now())?;
            if let Some(refusal) = self.take_reports() {
                // before anything that takes time: nothing may be sent behind a refused record
                self.sending.sink.purge();
                return Ok(Outcome::Refused(refusal));
            }
            if self.sending.is_settled() && self.checkpointer.is_settled() {
                self.sending.sink.settled()?;
            }
            self.sending.sink.turned(PgTimestamp::now());
            self.sending.uncommitted = !self.checkpointer.is_settled();
            self.sending.window.takes(self.checkpointer.room());
            let read = match self.work()? {
                Pause::NeedsInput => true,
                Pause::HeldBack => false,
            };
            let fetch_at = self.parked_events();
            self.checkpointer.sent(std::mem::take(&mut self.sending.sent), self.sending.window.sent_bytes());
            self.lease.hold_back(!read);
            self.caught_up();
            self.progressed(read);
            let (mut remember_at, mut reopened) = (None, false);
            if !self.recognizing.is_under_way() && self.sending.sink.has_producers() {
                self.checkpointer.recognized(self.config.outbox.message_prefix.as_deref());
                let (intake, closing) = (self.intake(read), self.checkpointer.is_closing());
                remember_at = self.offer_checkpoint(intake)?;
                // the commit has begun, and what was held back until then need not wait for its end
                reopened = closing && !self.checkpointer.is_closing();
            }
            let more = self.catch_up(read)?;
            if self.passes_over() {
                self.stream.pass_over_all()?;
            }
            self.broker_state();
            self.show();
            if let Some(outcome) = self.ended() {
                return Ok(outcome);
            }
            if reopened || more {
                continue;
            }
            let reading = if read { self.reading()? } else { Reading::Not };
            let gathered = matches!(reading, Reading::Gathered);
            let read_at = if let Reading::At(then) = reading { Some(then) } else { None };
            let at_once = matches!(reading, Reading::AtOnce) || self.passes_over();
            let receiving = if at_once { Receiving::AtOnce } else { Receiving::Not };
            let deadline = self.ending.as_ref().and_then(|(_, deadline)| *deadline);
            // The order is the priority: an order to stop, what frees memory, what keeps the connection alive, and
            // only then more work.
            tokio::select! {
                biased;
                () = stop.cancelled(), if !self.is_stopping() => self.end_intake(Outcome::Stopped),
                // what has gathered goes first, and the next turn takes the reports anyway
                () = self.outcomes.changed(), if !gathered => {}
                delivered = self.checkpointer.reported() => {
                    self.remembered(delivered.map_err(|error| self.sending.sink.explained(error))?);
                }
                _ = status_timer.tick() => self.status_due()?,
                report = self.watch.report() => self.looked(report)?,
                report = parked(&mut self.sending.parking) => self.parking_reported(report)?,
                admitted = self.sending.sink.set_up() => self.admitted(admitted?),
                () = until(deadline) => {}
                () = until(remember_at) => {}
                () = until(fetch_at) => {}
                () = until(read_at) => {}
                result = self.stream.io(receiving) => result?,
                // the runtime looks after its timers and sockets in between
                () = tokio::task::yield_now(), if gathered => {}
            }
        }
    }

    /// Records of one more topic can be sent, or of one again.
    fn admitted(&mut self, admitted: Option<Admitted>) {
        let Some(Admitted { topic, name, grown }) = admitted else { return };
        // topics are numbered as they are admitted; one that was looked at again has its number
        if topic == self.counters.len() {
            self.counters.push(self.monitor.topic_counters(&name));
        }
        if grown {
            self.monitor.partitions_grown(1);
        }
    }

    /// Writes or commits the position if its time has come. Returns when to ask again.
    fn offer_checkpoint(&mut self, intake: Intake) -> Result<Option<Instant>, Error> {
        let (transactional, settled) = (self.checkpointer.is_transactional(), self.sending.is_settled());
        let Sending { sink, progress, parking, .. } = &mut self.sending;
        let add_parked = |remembered: &mut Checkpoint| {
            if let Some(parking) = parking {
                parking.add_to(remembered, transactional);
            }
        };
        self.checkpointer.offer(sink, progress, settled, intake, add_parked)
    }

    /// Takes in what the sink has reported.
    fn take_reports(&mut self) -> Option<Refusal> {
        let mut reports = std::mem::take(&mut self.reports);
        let refusal = self.outcomes.take(&mut reports);
        if !reports.is_empty() {
            self.stalls.acknowledged();
        }
        let transactional = self.checkpointer.is_transactional();
        let stats = self.checkpointer.uncounted().unwrap_or(&mut self.certain);
        for sequence in reports.drain(..) {
            self.sending.sink.acknowledged(sequence);
            if Parking::is_ours(sequence) {
                let parking = self.sending.parking.as_mut();
                let record =
                    parking.and_then(|parking| parking.delivered(sequence, transactional, &self.monitor));
                record.into_iter().for_each(|record| stats.add(record));
                continue;
            }
            self.sending.progress.acknowledge(sequence);
            if let Some(record) = self.sending.window.acknowledged(sequence) {
                stats.add(record);
            }
        }
        self.certain.count(&self.counters, &self.monitor, PgTimestamp::now());
        self.reports = reports;
        refusal
    }
}

/// Waits for what was done to parked events, for ever if none are parked.
async fn parked(parking: &mut Option<Parking>) -> Report {
    match parking {
        Some(parking) => parking.report().await,
        None => std::future::pending().await,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Another router may have the slot by now, whatever this one has heard.
impl From<Expired> for Error {
    fn from(Expired { unproven, stood_still }: Expired) -> Self {
        let what = match stood_still {
            Some(away) => format!(
                "this process stood still for {:.1} s: it was stopped, starved of processor time, or its machine slept",
                away.as_secs_f32()
            ),
            None => format!(
                "Postgres has been silent for {:.1} s, and may have given the slot to another router",
                unproven.as_secs_f32()
            ),
        };
        Error::transient(Peer::Postgres, what)
    }
}
