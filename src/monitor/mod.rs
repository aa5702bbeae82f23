//! The live status of a running router: its parts report to the monitor, and the admin endpoint shows it.
//!
//! ```text
//!   relay, sink, supervisor --numbers--> Monitor --StatusReport--> /status, /readyz, /healthz
//!                                            \----text-----------> /metrics
//! ```
//!
//! [`Monitor`] stores everything in atomics, from which the metrics exporter is filled on request. So a call per event costs an
//! addition and never waits for a reader.

mod clock;
mod counts;
mod event_source;
mod exposition;
mod heartbeat;
mod partitions;
mod polling;
mod positions;
mod report;
mod retention;
mod shards;
mod state;
mod topics;
mod unsent;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pg_logical::{Lsn, PgTimestamp};

use crate::metrics::histogram::Histogram;
use crate::postgres::bookmarks::{Bookmark, KnownBookmarks};
use crate::postgres::polling::messages::CountedRows;
use crate::postgres::slot_headroom::Level;
use crate::utc::Utc;

use event_source::EventSources;

pub(crate) use clock::Clock;
#[cfg(test)]
pub(crate) use clock::TestClock;
pub use counts::{Counter, Counts};
pub use event_source::EventSource;
pub use partitions::CountedPartitions;
pub use polling::rows_in_report;
pub use report::{
    BookmarksReport, DeadLetters, Heartbeat, InFlight, Lag, ParkedCount, PartitionsReport, Polling,
    Positions, Problem, Reconnects, Retention, Slot, StatusReport, TopicReport, Totals,
};
pub use shards::Monitors;
pub use state::{State, StateKind};
pub use topics::{OTHER_TOPICS, TOPIC_LIMIT, TopicCounters};

/// The main loop is healthy if its last iteration is at most this long ago. It must iterate about once a second, whatever it
/// waits for.
pub const MAIN_LOOP_TIMEOUT: Duration = Duration::from_secs(10);

/// How many topics the status report names.
pub const TOPICS_REPORTED: usize = 20;

/// The timestamp that means that no commit is unacknowledged.
const NONE: i64 = i64::MIN;

/// A handle to the status; clones share it. No method blocks on anything slow, and unless documented otherwise, a method only
/// stores to an atomic or adds to it.
#[derive(Debug, Clone)]
pub struct Monitor(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    name: String,
    shard: Option<u32>,
    clock: Clock,
    state: Mutex<StateSince>,
    last_iteration_micros: AtomicU64,
    main_loop_ended: AtomicBool,
    positions: positions::Positions,
    in_flight_records: AtomicU64,
    in_flight_bytes: AtomicU64,
    oldest_unacknowledged: AtomicI64,
    unsent: unsent::Unsent,
    commit_to_ack: Histogram,
    counts: Counts,
    parked_aggregates: AtomicU64,
    parked_events: AtomicU64,
    bulk_reading: AtomicBool,
    violated_contracts: Mutex<BTreeSet<String>>,
    topics: topics::Topics,
    slot: Mutex<Slot>,
    bookmarks: KnownBookmarks,
    heartbeat: Mutex<Option<heartbeat::HeartbeatState>>,
    rows: Mutex<Option<CountedRows>>,
    retention: Mutex<Option<retention::RetentionState>>,
    partitions: Mutex<BTreeMap<String, CountedPartitions>>,
    sources: Mutex<EventSources>,
    last_problem: Mutex<Option<Problem>>,
}

#[derive(Debug, Default)]
struct StateSince {
    state: State,
    since: PgTimestamp,
}

/// The answer to a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// Whether the HTTP status is 200 or 503.
    pub ok: bool,
    /// Why, as one sentence without a full stop.
    pub text: String,
}

impl Monitor {
    /// The status of a router called `name` that has just started.
    pub fn new(name: impl Into<String>) -> Self {
        Self::for_shard(name, None)
    }

    /// The same for one shard; its number is a label of the metrics.
    pub fn for_shard(name: impl Into<String>, shard: Option<u32>) -> Self {
        Self::with_clock(name.into(), shard, Clock::default())
    }

    /// The same with a clock that the test controls.
    #[cfg(test)]
    pub(crate) fn for_test(name: &str) -> (Self, Arc<TestClock>) {
        let clock = Arc::new(TestClock::default());
        (Self::with_clock(name.to_owned(), None, Clock::Test(Arc::clone(&clock))), clock)
    }

    fn with_clock(name: String, shard: Option<u32>, clock: Clock) -> Self {
        let state = Mutex::new(StateSince { state: State::Starting, since: clock.now() });
        let oldest_unacknowledged = AtomicI64::new(NONE);
        Monitor(Arc::new(Inner { name, shard, clock, state, oldest_unacknowledged, ..Inner::default() }))
    }

    /// Sets the state. A new reason for the same state keeps its `since`. Takes a short lock; meant for changes, not for every
    /// iteration.
    pub fn state(&self, state: State) {
        let now = self.0.clock.now();
        let mut current = lock(&self.0.state);
        let since = if state.continues(&current.state) { current.since } else { now };
        *current = StateSince { state, since };
    }

    /// What the router is doing.
    pub fn current_state(&self) -> State {
        lock(&self.0.state).state.clone()
    }

    /// The main loop has run another iteration. Reads the monotonic clock.
    pub fn main_loop_ran(&self) {
        self.0.last_iteration_micros.store(micros(self.0.clock.elapsed()), Relaxed);
    }

    /// The main loop has ended, and is healthy from now on: other shards of the process go on without it.
    pub fn main_loop_ended(&self) {
        self.0.main_loop_ended.store(true, Relaxed);
    }

    /// The end of the server's log, according to a message of the stream.
    pub fn server_wal_end(&self, lsn: Lsn) {
        self.0.positions.server_wal_end.set(lsn);
    }

    /// The stream has been received up to here.
    pub fn received(&self, lsn: Lsn) {
        self.0.positions.received.set(lsn);
    }

    /// Everything up to here is acknowledged. Call it at the start of the stream too: without it, the lag is unknown.
    pub fn flushed(&self, lsn: Lsn) {
        self.0.positions.flushed.set(lsn);
    }

    /// A checkpoint up to here is durable in the positions topic, or there is no such topic.
    pub fn checkpointed(&self, lsn: Lsn) {
        self.0.positions.remembered.set(lsn);
    }

    /// Why checkpoints cannot be written; `None` if they can. Takes a short lock.
    pub fn checkpoints_failed(&self, reason: Option<&str>) {
        self.0.positions.failed(reason);
    }

    /// The router confirmed this position to Postgres.
    pub fn confirmed(&self, lsn: Lsn) {
        self.0.positions.confirmed.set(lsn);
    }

    /// How many records are in flight now; `bytes` as the window counts them.
    pub fn in_flight(&self, records: usize, bytes: usize) {
        self.0.in_flight_records.store(records as u64, Relaxed);
        self.0.in_flight_bytes.store(bytes as u64, Relaxed);
    }

    /// The producer is closed and the stream has ended, so nothing is in flight. The lag remains.
    pub fn session_ended(&self) {
        self.in_flight(0, 0);
        self.set_bulk_reading(false);
    }

    /// Another session reads the slot: the positions of this router are outdated, and its lag is unknown.
    pub fn became_standby(&self) {
        self.0.positions.forget();
        self.0.unsent.forget();
        self.oldest_unacknowledged(None);
    }

    /// Everything that the router was started for is delivered. What is committed later is not its concern.
    pub fn ended(&self) {
        self.0.unsent.forget();
        self.state(State::Ended);
    }

    /// The commit time of the oldest transaction that is not fully acknowledged; `None` if all are.
    pub fn oldest_unacknowledged(&self, commit: Option<PgTimestamp>) {
        self.0.oldest_unacknowledged.store(commit.map_or(NONE, |commit| commit.0), Relaxed);
    }

    /// The server's log ended at `end` at a check, and was received up to `received`. Takes a short lock.
    pub fn unsent(&self, end: Lsn, received: Lsn) {
        self.0.unsent.checked(end, received, self.0.clock.now());
    }

    /// The counters of `topic`. Takes a short lock; keep the handle.
    pub fn topic_counters(&self, topic: &str) -> TopicCounters {
        self.0.topics.counters(topic)
    }

    /// `count` events were acknowledged `seconds` after their commit.
    pub fn commit_to_ack(&self, seconds: f64, count: usize) {
        self.0.commit_to_ack.record(seconds, count as u64);
    }

    /// The counters.
    pub fn counts(&self) -> &Counts {
        &self.0.counts
    }

    /// How many aggregates have parked events, and how many events are parked.
    pub fn dead_letters(&self, aggregates: usize, events: u64) {
        self.0.parked_aggregates.store(aggregates as u64, Relaxed);
        self.0.parked_events.store(events, Relaxed);
    }

    /// Whether the slot is read in bulk.
    pub fn set_bulk_reading(&self, bulk_reads: bool) {
        self.0.bulk_reading.store(bulk_reads, Relaxed);
    }

    /// An event was sent whose payload violates `contract`. True for the first one of this contract. Takes a short lock.
    pub fn contract_violated(&self, contract: &str) -> bool {
        self.0.counts.contract_violations.add(1);
        let mut broken = lock(&self.0.violated_contracts);
        !broken.contains(contract) && broken.insert(contract.to_owned())
    }

    /// What the catalogue watch found out about the slot. Takes a short lock.
    pub fn slot(&self, slot: Slot) {
        *lock(&self.0.slot) = Slot { at: Some(rfc3339(self.0.clock.now())), ..slot };
    }

    /// The slot headroom at the last check, in this session or an earlier one.
    pub fn slot_headroom_level(&self) -> Level {
        lock(&self.0.slot).room
    }

    /// The transaction that made the slot retain log at the last check, in this session or an earlier one.
    pub fn slot_held_by(&self) -> Option<String> {
        lock(&self.0.slot).held_by.clone()
    }

    /// These bookmarks exist. Takes a short lock.
    pub fn found_bookmarks(&self, found: Vec<Bookmark>) {
        for problem in self.0.bookmarks.look(found) {
            self.last_problem(problem);
        }
    }

    /// The bookmarks, for the task that makes and drops some.
    pub fn bookmarks(&self) -> KnownBookmarks {
        self.0.bookmarks.clone()
    }

    /// The rows of a table that is polled. Takes a short lock.
    pub fn counted_rows(&self, rows: CountedRows) {
        *lock(&self.0.rows) = Some(rows);
    }

    /// The process deletes old rows.
    pub fn retention_enabled(&self) {
        *lock(&self.0.retention) = Some(retention::RetentionState::new(self.0.clock.now()));
    }

    /// So many rows of an outbox were deleted or archived, or, if `archived`, deleted from the archive. Takes a short lock.
    pub fn pruned(&self, rows: u64, archived: bool) {
        if let Some(state) = lock(&self.0.retention).as_mut() {
            if archived { state.pruned_archived += rows } else { state.pruned += rows }
        }
    }

    /// A prune has ended: how many old rows have to stay, or why it failed. Takes a short lock.
    pub fn prune_ended(&self, kept: Result<u64, String>) {
        if let Some(state) = lock(&self.0.retention).as_mut() {
            state.ended(self.0.clock.now(), kept);
        }
    }

    /// A session begins to deliver what it reads from there. Takes a short lock.
    pub fn reads_from(&self, source: EventSource) {
        let delivered = self.0.topics.report().iter().map(|topic| topic.events).sum();
        lock(&self.0.sources).session_begins(source, delivered);
    }

    /// The partitions of an outbox that are created ahead. Takes a short lock.
    pub fn counted_partitions(&self, table: String, counted: CountedPartitions) {
        lock(&self.0.partitions).insert(table, counted);
    }

    /// The heartbeat is enabled. Until one comes back, its age is measured from now.
    pub fn heartbeat_enabled(&self, interval: Duration) {
        *lock(&self.0.heartbeat) = Some(heartbeat::HeartbeatState::new(interval, self.0.clock.now()));
    }

    /// A heartbeat that was `written` at this time came back after `lag`. Takes a short lock.
    pub fn heartbeat_received(&self, written: PgTimestamp, lag: Duration) {
        if let Some(beat) = lock(&self.0.heartbeat).as_mut() {
            beat.seen(written, lag);
        }
    }

    /// Why heartbeats cannot be written; `None` if they can. Takes a short lock.
    pub fn heartbeat_failed(&self, reason: Option<String>) {
        if let Some(beat) = lock(&self.0.heartbeat).as_mut() {
            beat.refused = reason;
        }
    }

    /// Bytes of log between the flush LSN and the end of the server's log; `None` until the stream has started.
    pub fn lag_bytes(&self) -> Option<u64> {
        self.lag().bytes
    }

    /// Stores a problem with the time, until the next one: one sentence for the operator, without secrets or payloads. Takes a
    /// short lock.
    pub fn last_problem(&self, what: impl Into<String>) {
        let problem = Problem { at: rfc3339(self.0.clock.now()), what: what.into() };
        *lock(&self.0.last_problem) = Some(problem);
    }

    /// Whether the main loop is running or has ended, whatever the state of Postgres and Kafka.
    pub fn health(&self) -> Probe {
        if self.0.main_loop_ended.load(Relaxed) {
            return Probe { ok: true, text: "the main loop has ended".to_owned() };
        }
        let silence = self.silence();
        let ok = silence <= MAIN_LOOP_TIMEOUT;
        let text = if ok {
            "the main loop is running".to_owned()
        } else {
            format!("the main loop has been stuck for {} s", silence.as_secs())
        };
        Probe { ok, text }
    }

    /// Whether the router is active, a standby that waits for the slot, or done.
    pub fn readiness(&self) -> Probe {
        let state = self.current_state();
        Probe { ok: state.kind().is_ready(), text: state.to_string() }
    }

    /// The status report, with the [`TOPICS_REPORTED`] topics with the most events.
    pub fn snapshot(&self) -> StatusReport {
        let mut report = self.report();
        topics::keep_busiest(&mut report.topics);
        report
    }

    /// The status report with all topics, sorted by name.
    fn report(&self) -> StatusReport {
        let inner = &*self.0;
        let (usable, lost) = inner.bookmarks.counts();
        let bookmarks = BookmarksReport { usable, lost };
        let (state, since) = {
            let current = lock(&inner.state);
            (current.state.clone(), current.since)
        };
        let topics = inner.topics.report();
        let totals = inner.counts.totals(&topics);
        StatusReport {
            name: inner.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            state: state.kind(),
            peer: state.peer().map(|peer| peer.label().to_owned()),
            code: state.code(),
            reason: state.reason().map(str::to_owned),
            since: rfc3339(since),
            ready: state.kind().is_ready(),
            healthy: self.health().ok,
            last_turn_seconds: self.silence().as_secs_f64(),
            positions: inner.positions.report(),
            lag: self.lag(),
            reading_in_bulk: inner.bulk_reading.load(Relaxed),
            in_flight: InFlight {
                records: inner.in_flight_records.load(Relaxed),
                bytes: inner.in_flight_bytes.load(Relaxed),
            },
            slot: lock(&inner.slot).clone(),
            bookmarks,
            heartbeat: lock(&inner.heartbeat).as_ref().map(|beat| beat.report(inner.clock.now())),
            polling: lock(&inner.rows).as_ref().map(|rows| rows_in_report(rows, inner.clock.now())),
            retention: lock(&inner.retention).as_ref().map(|state| state.report(inner.clock.now())),
            partitions: partitions::report(&lock(&inner.partitions), inner.clock.now()),
            dead_letters: DeadLetters {
                aggregates: inner.parked_aggregates.load(Relaxed),
                events: inner.parked_events.load(Relaxed),
                parked: inner.counts.parked(),
                retried: inner.counts.dead_letters_retried.get(),
                discarded: inner.counts.dead_letters_discarded.get(),
            },
            sources: lock(&inner.sources).report(totals.events),
            totals,
            topics,
            reconnects: Reconnects {
                postgres: inner.counts.reconnects_postgres.get(),
                kafka: inner.counts.reconnects_kafka.get(),
            },
            last_problem: lock(&inner.last_problem).clone(),
            shards: Vec::new(),
        }
    }

    fn lag(&self) -> Lag {
        let now = self.0.clock.now();
        let oldest = self.0.oldest_unacknowledged.load(Relaxed);
        // the database's clock may be ahead of this machine's
        let age_micros = if oldest == NONE { 0 } else { now.0.saturating_sub(oldest).max(0) };
        let unsent = self.0.unsent.lasts(now);
        let seconds = (age_micros as f64 / 1e6).max(unsent.as_secs_f64());
        Lag { bytes: self.0.positions.lag_bytes(), seconds }
    }

    /// How long ago the main loop ran its last iteration, or the router started.
    fn silence(&self) -> Duration {
        let last = Duration::from_micros(self.0.last_iteration_micros.load(Relaxed));
        self.0.clock.elapsed().saturating_sub(last)
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn rfc3339(at: PgTimestamp) -> String {
    Utc(at.unix_micros()).to_string()
}

/// Ignores poisoning, because the data behind these locks is consistent at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(crate) mod tests;
