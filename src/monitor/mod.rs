//! The live picture of a running router: the relay paints it, the admin endpoint shows it.
//!
//! ```text
//!   relay, sink, supervisor --numbers--> Monitor --StatusReport--> /status, /readyz, /healthz
//!                                            \----text-----------> /metrics
//! ```
//!
//! [`Monitor`] holds the truth in atomics; the metrics exporter is filled from them when somebody asks, so what is
//! called per event costs an addition and never waits for a reader.

mod clock;
mod dead_letters;
mod exposition;
mod heartbeat;
mod positions;
mod report;
mod several;
mod state;
mod topics;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pg_logical::{Lsn, PgTimestamp};

use crate::error::Peer;
use crate::metrics::histogram::Histogram;
use crate::postgres::slot_headroom::Level;
use crate::unsendable::Reason;
use crate::utc::Utc;

pub(crate) use clock::Clock;
#[cfg(test)]
pub(crate) use clock::SetClock;
pub use report::{
    DeadLetters, Heartbeat, InFlight, Lag, ParkedFor, Positions, Problem, Reconnects, Slot, StatusReport,
    Totals,
};
pub use several::Monitors;
pub use state::{State, StateKind};
pub use topics::{OTHER_TOPICS, TOPIC_LIMIT, TopicCounters, TopicReport};

/// The main loop is healthy if it turned within this time. It must turn at least every second or so,
/// whatever it waits for.
pub const HEARTBEAT_LIMIT: Duration = Duration::from_secs(10);

/// How many topics the status report names.
pub const TOPICS_REPORTED: usize = 20;

/// "No commit is unacknowledged" among the timestamps.
const NONE: i64 = i64::MIN;

/// A handle to the picture; a clone shows the same one. No method blocks on anything slow, and those that say
/// nothing else are a store or an addition to an atomic.
#[derive(Debug, Clone)]
pub struct Monitor(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    name: String,
    shard: Option<u32>,
    clock: Clock,
    state: Mutex<Stated>,
    last_turn_micros: AtomicU64,
    positions: positions::Positions,
    in_flight_records: AtomicU64,
    in_flight_bytes: AtomicU64,
    oldest_unacknowledged: AtomicI64,
    commit_to_ack: Histogram,
    reconnects_postgres: AtomicU64,
    reconnects_kafka: AtomicU64,
    events_dropped: AtomicU64,
    keyless_events: AtomicU64,
    headers_dropped: AtomicU64,
    timestamps_replaced: AtomicU64,
    dead_letters: dead_letters::Counts,
    partitions_grown: AtomicU64,
    bites: AtomicU64,
    in_bites: AtomicBool,
    ignored_changes: AtomicU64,
    contract_violations: AtomicU64,
    contracts_broken: Mutex<BTreeSet<String>>,
    topics: topics::Topics,
    slot: Mutex<Slot>,
    heartbeat: Mutex<Option<heartbeat::Beat>>,
    last_problem: Mutex<Option<Problem>>,
}

#[derive(Debug, Default)]
struct Stated {
    state: State,
    since: PgTimestamp,
}

/// What a probe is answered, and the sentence that goes with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// Status 200 or 503.
    pub ok: bool,
    /// Why, as one sentence without a full stop.
    pub text: String,
}

impl Monitor {
    /// The picture of a router called `name` that has just started.
    pub fn new(name: impl Into<String>) -> Self {
        Self::of_shard(name, None)
    }

    /// The same of one shard, whose metrics say so.
    pub fn of_shard(name: impl Into<String>, shard: Option<u32>) -> Self {
        Self::with_clock(name.into(), shard, Clock::default())
    }

    /// The same with a clock that the test sets.
    #[cfg(test)]
    pub(crate) fn for_test(name: &str) -> (Self, Arc<SetClock>) {
        let clock = Arc::new(SetClock::default());
        (Self::with_clock(name.to_owned(), None, Clock::Set(Arc::clone(&clock))), clock)
    }

    fn with_clock(name: String, shard: Option<u32>, clock: Clock) -> Self {
        let state = Mutex::new(Stated { state: State::Starting, since: clock.now() });
        let oldest_unacknowledged = AtomicI64::new(NONE);
        Monitor(Arc::new(Inner { name, shard, clock, state, oldest_unacknowledged, ..Inner::default() }))
    }

    /// What the router does from now on. A new reason for the same state leaves its `since` as it was.
    /// Takes a short lock; meant for changes, not for every turn.
    pub fn state(&self, state: State) {
        let now = self.0.clock.now();
        let mut stated = lock(&self.0.state);
        let since = if state.continues(&stated.state) { stated.since } else { now };
        *stated = Stated { state, since };
    }

    /// What the router is doing.
    pub fn current_state(&self) -> State {
        lock(&self.0.state).state.clone()
    }

    /// The main loop has turned once more. Reads the monotonic clock.
    pub fn turned(&self) {
        self.0.last_turn_micros.store(micros(self.0.clock.elapsed()), Relaxed);
    }

    /// The end of the log at the server, as a message of the stream said.
    pub fn server_wal_end(&self, lsn: Lsn) {
        self.0.positions.server_wal_end.set(lsn);
    }

    /// The stream has been received up to here.
    pub fn received(&self, lsn: Lsn) {
        self.0.positions.received.set(lsn);
    }

    /// Everything up to here is acknowledged. Say so at the start of the stream too: before that there is no lag.
    pub fn flushed(&self, lsn: Lsn) {
        self.0.positions.flushed.set(lsn);
    }

    /// Everything up to here is durable in the positions topic, or need not be.
    pub fn remembered(&self, lsn: Lsn) {
        self.0.positions.remembered.set(lsn);
    }

    /// Why positions cannot be written; `None` if they can. Takes a short lock.
    pub fn positions_failed(&self, reason: Option<&str>) {
        self.0.positions.failed(reason);
    }

    /// Postgres was told that it needs nothing before this position.
    pub fn confirmed(&self, lsn: Lsn) {
        self.0.positions.confirmed.set(lsn);
    }

    /// What is sent and not yet acknowledged, now; `bytes` of keys, values and headers.
    pub fn in_flight(&self, records: usize, bytes: usize) {
        self.0.in_flight_records.store(records as u64, Relaxed);
        self.0.in_flight_bytes.store(bytes as u64, Relaxed);
    }

    /// The producer is closed and the stream ended: nothing is under way. What is not acknowledged stays so.
    pub fn session_over(&self) {
        self.in_flight(0, 0);
        self.reads_in_bulk(false);
    }

    /// Another session reads the slot: the position that this router has reached is history, and how far behind it is nobody knows
    /// here.
    pub fn waits(&self) {
        self.0.positions.forget();
        self.oldest_unacknowledged(None);
    }

    /// The commit time of the oldest transaction that is not wholly acknowledged; `None` if all are.
    pub fn oldest_unacknowledged(&self, commit: Option<PgTimestamp>) {
        self.0.oldest_unacknowledged.store(commit.map_or(NONE, |commit| commit.0), Relaxed);
    }

    /// The counters of `topic`. Takes a short lock; keep the handle.
    pub fn topic_counters(&self, topic: &str) -> TopicCounters {
        self.0.topics.counters(topic)
    }

    /// `count` events were acknowledged `seconds` after their commit.
    pub fn commit_to_ack(&self, seconds: f64, count: usize) {
        self.0.commit_to_ack.record(seconds, count as u64);
    }

    /// A lost connection with `peer` stands again.
    pub fn reconnected(&self, peer: Peer) {
        let counter = match peer {
            Peer::Postgres => &self.0.reconnects_postgres,
            Peer::Kafka => &self.0.reconnects_kafka,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Events were dropped by a rule, or because no rule matches them.
    pub fn events_dropped(&self, count: u64) {
        self.0.events_dropped.fetch_add(count, Relaxed);
    }

    /// Events whose aggregate id is NULL: sent without a key, so without order.
    pub fn keyless_events(&self, count: u64) {
        self.0.keyless_events.fetch_add(count, Relaxed);
    }

    /// Members of a headers column left out because they are named like one of the router's own headers.
    pub fn headers_dropped(&self, count: u64) {
        self.0.headers_dropped.fetch_add(count, Relaxed);
    }

    /// Timestamps that the topic would have refused and that the commit time replaced.
    pub fn timestamps_replaced(&self, count: u64) {
        self.0.timestamps_replaced.fetch_add(count, Relaxed);
    }

    /// An event was parked.
    pub fn event_parked(&self, reason: Reason) {
        self.0.dead_letters.parked(reason);
    }

    /// So many aggregates are parked, with so many events in all.
    pub fn dead_letters(&self, aggregates: usize, events: u64) {
        self.0.dead_letters.now(aggregates, events);
    }

    /// A parked event was sent.
    pub fn dead_letter_retried(&self) {
        self.0.dead_letters.retried();
    }

    /// A parked event was thrown away.
    pub fn dead_letter_discarded(&self) {
        self.0.dead_letters.discarded();
    }

    /// Topics were found to have more partitions than before.
    pub fn partitions_grown(&self, count: u64) {
        self.0.partitions_grown.fetch_add(count, Relaxed);
    }

    /// How the slot is read.
    pub fn reads_in_bulk(&self, bulk_reads: bool) {
        self.0.in_bites.store(bulk_reads, Relaxed);
    }

    /// A bulk read has ended.
    pub fn bulk_read(&self) {
        self.0.bites.fetch_add(1, Relaxed);
    }

    /// Changes in the stream that are no events: of other tables, or not inserts.
    pub fn ignored_changes(&self, count: u64) {
        self.0.ignored_changes.fetch_add(count, Relaxed);
    }

    /// An event was sent whose payload is not as `contract` says. True for the first one of this contract. Takes a short
    /// lock.
    pub fn contract_violated(&self, contract: &str) -> bool {
        self.0.contract_violations.fetch_add(1, Relaxed);
        let mut broken = lock(&self.0.contracts_broken);
        !broken.contains(contract) && broken.insert(contract.to_owned())
    }

    /// What the last look said of the slot. Takes a short lock.
    pub fn slot(&self, slot: Slot) {
        *lock(&self.0.slot) = slot;
    }

    /// The room of the slot as of the last look, of this session or an earlier one.
    pub fn slot_room(&self) -> Level {
        lock(&self.0.slot).room
    }

    /// The heartbeat is on. Until one comes back, its age is counted from now.
    pub fn heartbeat_on(&self, interval: Duration) {
        *lock(&self.0.heartbeat) = Some(heartbeat::Beat::new(interval, self.0.clock.now()));
    }

    /// One that was `written` then has come back, and was under way for `lag`. Takes a short lock.
    pub fn heartbeat_seen(&self, written: PgTimestamp, lag: Duration) {
        if let Some(beat) = lock(&self.0.heartbeat).as_mut() {
            beat.seen(written, lag);
        }
    }

    /// Why none can be written, if so. Takes a short lock.
    pub fn heartbeat_refused(&self, reason: Option<String>) {
        if let Some(beat) = lock(&self.0.heartbeat).as_mut() {
            beat.refused = reason;
        }
    }

    /// The log between what is acknowledged and the server's end; `None` until the stream has started.
    pub fn lag_bytes(&self) -> Option<u64> {
        self.lag().bytes
    }

    /// Something went wrong: one sentence for the operator, without secrets or payloads. Kept, with the time, until
    /// the next one. Takes a short lock.
    pub fn last_problem(&self, what: impl Into<String>) {
        let problem = Problem { at: rfc3339(self.0.clock.now()), what: what.into() };
        *lock(&self.0.last_problem) = Some(problem);
    }

    /// Whether the main loop turns, whatever its peers do.
    pub fn health(&self) -> Probe {
        let silence = self.silence();
        let ok = silence <= HEARTBEAT_LIMIT;
        let text = if ok {
            "the main loop turns".to_owned()
        } else {
            format!("the main loop has not turned for {} s", silence.as_secs())
        };
        Probe { ok, text }
    }

    /// Whether the router is active, or a standby that waits its turn.
    pub fn readiness(&self) -> Probe {
        let state = self.current_state();
        Probe { ok: state.kind().is_ready(), text: state.to_string() }
    }

    /// The whole picture, with the [`TOPICS_REPORTED`] topics of most events.
    pub fn snapshot(&self) -> StatusReport {
        let mut report = self.report();
        topics::keep_busiest(&mut report.topics);
        report
    }

    /// The whole picture, with all topics by name.
    fn report(&self) -> StatusReport {
        let inner = &*self.0;
        let (state, since) = {
            let stated = lock(&inner.state);
            (stated.state.clone(), stated.since)
        };
        let topics = inner.topics.report();
        StatusReport {
            name: inner.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            state: state.kind(),
            peer: state.peer().map(|peer| peer.label().to_owned()),
            reason: state.reason().map(str::to_owned),
            since: rfc3339(since),
            ready: state.kind().is_ready(),
            healthy: self.health().ok,
            last_turn_seconds: self.silence().as_secs_f64(),
            positions: inner.positions.report(),
            lag: self.lag(),
            in_bites: inner.in_bites.load(Relaxed),
            in_flight: InFlight {
                records: inner.in_flight_records.load(Relaxed),
                bytes: inner.in_flight_bytes.load(Relaxed),
            },
            slot: lock(&inner.slot).clone(),
            heartbeat: lock(&inner.heartbeat).as_ref().map(|beat| beat.report(inner.clock.now())),
            dead_letters: inner.dead_letters.report(),
            totals: Totals {
                events: topics.iter().map(|topic| topic.events).sum(),
                bytes: topics.iter().map(|topic| topic.bytes).sum(),
                events_dropped: inner.events_dropped.load(Relaxed),
                keyless_events: inner.keyless_events.load(Relaxed),
                headers_dropped: inner.headers_dropped.load(Relaxed),
                timestamps_replaced: inner.timestamps_replaced.load(Relaxed),
                partitions_grown: inner.partitions_grown.load(Relaxed),
                bites: inner.bites.load(Relaxed),
                contract_violations: inner.contract_violations.load(Relaxed),
                ignored_changes: inner.ignored_changes.load(Relaxed),
            },
            topics,
            reconnects: Reconnects {
                postgres: inner.reconnects_postgres.load(Relaxed),
                kafka: inner.reconnects_kafka.load(Relaxed),
            },
            last_problem: lock(&inner.last_problem).clone(),
            shards: Vec::new(),
        }
    }

    fn lag(&self) -> Lag {
        let oldest = self.0.oldest_unacknowledged.load(Relaxed);
        // the database's clock may be ahead of this machine's
        let age_micros = if oldest == NONE { 0 } else { self.0.clock.now().0.saturating_sub(oldest).max(0) };
        Lag { bytes: self.0.positions.lag_bytes(), seconds: age_micros as f64 / 1e6 }
    }

    /// How long ago the main loop turned; before its first turn, how long ago the router started.
    fn silence(&self) -> Duration {
        let last = Duration::from_micros(self.0.last_turn_micros.load(Relaxed));
        self.0.clock.elapsed().saturating_sub(last)
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn rfc3339(at: PgTimestamp) -> String {
    Utc(at.unix_micros()).to_string()
}

/// What is behind these locks is whole at any time, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(crate) mod tests;
