//! The lease on the slot: how long this session may still send to Kafka, because Postgres certainly keeps the slot for it.
//!
//! The server ends a session that is silent for `wal_sender_timeout`, and then another router may get the slot. So the lease runs
//! from the last moment at which the server certainly heard from this session:
//!
//! - While the stream is read, the server's answers prove it. An answer may wait unread while this process gets no processor
//!   time, so the lease runs from the time when the server sent it, by the server's clock; the fastest answer aligns the two
//!   clocks.
//! - While Kafka holds the stream back, nobody reads answers, and a proxy may accept data for a dead server. Then a catalogue
//!   query shows which status update the server has received, and the lease runs from the time when that was queued. A role
//!   without `pg_read_all_stats` sees only that the session exists, and the lease runs from the start of the query.
//! - Between bulk reads a catalogue query shows that the session exists.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use pg_logical::PgTimestamp;
use tokio::time::Instant;

use crate::config::Config;
use crate::error::{Error, Peer};

/// Two clocks may drift apart by one part in this many.
const DRIFT_DIVISOR: u32 = 1000;

/// Two clocks: the monotonic one stops while the machine sleeps, and the wall clock may be set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clocks {
    monotonic: Instant,
    wall: SystemTime,
}

impl Clocks {
    pub(super) fn now() -> Self {
        Clocks { monotonic: Instant::now(), wall: SystemTime::now() }
    }

    /// The longer of both: a wall clock that was set back shows too little, and one that was set ahead only too much.
    fn since(self, earlier: Clocks) -> Duration {
        let by_the_wall = self.wall.duration_since(earlier.wall).unwrap_or_default();
        self.monotonic.saturating_duration_since(earlier.monotonic).max(by_the_wall)
    }

    /// The clocks at an earlier moment.
    fn at(self, moment: Instant) -> Clocks {
        let ago = self.monotonic.saturating_duration_since(moment);
        Clocks { monotonic: self.monotonic - ago, wall: self.wall.checked_sub(ago).unwrap_or(self.wall) }
    }
}

/// How long the session may be silent. The server frees the slot after `wal_sender_timeout`, and by then nothing more may be sent
/// to Kafka. A busy server answers after half of it.
pub(super) fn silence(config: &Config) -> Duration {
    config.postgres.wal_sender_timeout * 3 / 4
}

/// The lease of a session that does not stream.
pub(crate) struct SessionLease(pub(super) Lease);

impl SessionLease {
    /// Before a query of the session, whose answer shows that it existed then.
    pub(crate) fn begin(config: &Config) -> Self {
        SessionLease(Lease::new(silence(config), Clocks::now()))
    }
}

/// The lease has expired.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Expired {
    /// How long ago the last proof is.
    pub(super) without_proof: Duration,
    /// How long the process did not run, if that is the reason: stopped by a signal, starved, or asleep with its machine.
    pub(super) paused_for: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Lease {
    limit: Duration,
    last_proof: Clocks,
    checked: Clocks,
    /// When the fastest answer was read here, and when the server sent it.
    fastest: Option<(Instant, PgTimestamp)>,
    /// Recent status updates by their timestamps.
    updates: VecDeque<(PgTimestamp, Clocks)>,
    /// Whether the stream is left unread; if not, until when it last was.
    held_back: bool,
    held_back_until: Option<Instant>,
}

impl Lease {
    /// A lease that lasts for `limit` from now and from each proof.
    pub(super) fn new(limit: Duration, now: Clocks) -> Self {
        Lease {
            limit,
            last_proof: now,
            checked: now,
            fastest: None,
            updates: VecDeque::new(),
            held_back: false,
            held_back_until: None,
        }
    }

    /// Fails if the lease has expired. An expired lease stays expired.
    pub(super) fn check(&mut self, now: Clocks) -> Result<(), Expired> {
        let since_last = now.since(std::mem::replace(&mut self.checked, now));
        let without_proof = self.without_proof(now);
        if without_proof <= self.limit {
            return Ok(());
        }
        let paused_for = (since_last > self.limit / 2).then_some(since_last);
        Err(Expired { without_proof, paused_for })
    }

    /// Whether it is time to query for a proof.
    pub(super) fn is_due(&self, now: Clocks) -> bool {
        self.without_proof(now) > self.limit / 4
    }

    fn without_proof(&self, now: Clocks) -> Duration {
        now.since(self.last_proof)
    }

    fn prove(&mut self, at: Clocks, now: Clocks) {
        if self.without_proof(now) <= self.limit && at.monotonic > self.last_proof.monotonic {
            self.last_proof = at;
        }
    }

    /// The stream has delivered an answer that the server sent at `sent`.
    pub(super) fn answered(&mut self, sent: PgTimestamp, now: Clocks) {
        let read = now.monotonic;
        let sent_here = self.fastest.and_then(|(fastest, then)| {
            let since = u64::try_from(sent.0.checked_sub(then.0)?).ok()?;
            let drift = read.saturating_duration_since(fastest) / DRIFT_DIVISOR;
            fastest.checked_add(Duration::from_micros(since) + drift)
        });
        match sent_here.filter(|here| *here < read) {
            Some(here) => self.prove(now.at(here), now),
            // the fastest answer so far, or the server's clock was set
            None => {
                self.fastest = Some((read, sent));
                self.prove(now, now);
            }
        }
    }

    /// A status update with this timestamp was queued.
    pub(super) fn queued(&mut self, update: PgTimestamp, now: Clocks) {
        while self.updates.front().is_some_and(|(_, queued)| now.since(*queued) > self.limit) {
            self.updates.pop_front();
        }
        self.updates.push_back((update, now));
    }

    /// The server has received the status update with this timestamp.
    pub(super) fn received_by_server(&mut self, update: PgTimestamp, now: Clocks) {
        if let Some((_, queued)) = self.updates.iter().find(|(known, _)| *known == update) {
            self.prove(*queued, now);
        }
    }

    /// The session existed at this time or later.
    pub(super) fn session_seen(&mut self, at: Instant, now: Clocks) {
        self.prove(now.at(at), now);
    }

    /// Records whether the stream is left unread from now on.
    pub(super) fn hold_back(&mut self, held_back: bool) {
        if std::mem::replace(&mut self.held_back, held_back) && !held_back {
            self.held_back_until = Some(Instant::now());
        }
    }

    /// Whether the stream was left unread then or later: its answers arrive late or not at all.
    pub(super) fn was_held_back_since(&self, then: Instant) -> bool {
        self.held_back || self.held_back_until >= Some(then)
    }
}

/// Once the lease has expired, another router may have the slot, whatever this one has heard.
impl From<Expired> for Error {
    fn from(Expired { without_proof, paused_for }: Expired) -> Self {
        let what = match paused_for {
            Some(away) => format!(
                "this process did not run for {:.1} s: it was stopped, starved of processor time, or its machine slept",
                away.as_secs_f32()
            ),
            None => format!(
                "Postgres has been silent for {:.1} s, and may have given the slot to another router",
                without_proof.as_secs_f32()
            ),
        };
        Error::transient(Peer::Postgres, what)
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LIMIT: Duration = Duration::from_secs(10);

    fn server(seconds: i64) -> PgTimestamp {
        PgTimestamp(seconds * 1_000_000)
    }

    /// A lease and the moments after its start, in seconds.
    fn lease() -> (Lease, impl Fn(u32) -> Clocks) {
        let start = Clocks::now();
        let after = move |seconds| Clocks {
            monotonic: start.monotonic + SECOND * seconds,
            wall: start.wall + SECOND * seconds,
        };
        (Lease::new(LIMIT, start), after)
    }

    #[test]
    fn an_answer_counts_from_the_time_it_was_sent() {
        let (mut lease, after) = lease();
        lease.answered(server(7), after(1));
        assert_eq!(lease.without_proof(after(1)), Duration::ZERO);
        // sent two seconds after the first, read five seconds after it
        lease.answered(server(9), after(6));
        assert_eq!(lease.without_proof(after(6)), SECOND * 3 - SECOND * 5 / DRIFT_DIVISOR);
    }

    #[test]
    fn a_faster_answer_aligns_the_clocks() {
        let (mut lease, after) = lease();
        lease.answered(server(0), after(3));
        lease.answered(server(4), after(5));
        assert_eq!(lease.without_proof(after(5)), Duration::ZERO);
        lease.answered(server(6), after(9));
        assert!(lease.without_proof(after(9)) > SECOND);
    }

    #[test]
    fn setting_the_server_clock_does_no_lasting_harm() {
        let (mut lease, after) = lease();
        lease.answered(server(1000), after(0));
        for back_by in [999, -5000] {
            for second in 1..3 {
                let now = after(second);
                lease.answered(server(1000 - back_by + i64::from(second)), now);
                assert_eq!(lease.without_proof(now), Duration::ZERO, "{back_by} {second}");
            }
        }
    }

    #[test]
    fn a_status_update_counts_from_the_time_it_was_queued() {
        let (mut lease, after) = lease();
        lease.queued(server(1), after(1));
        lease.queued(server(2), after(2));
        lease.received_by_server(server(1), after(5));
        assert_eq!(lease.without_proof(after(5)), SECOND * 4);
        // one that this session has never sent proves nothing
        lease.received_by_server(server(5), after(5));
        assert_eq!(lease.without_proof(after(5)), SECOND * 4);
        lease.received_by_server(server(2), after(5));
        assert_eq!(lease.without_proof(after(5)), SECOND * 3);
    }

    #[test]
    fn a_stream_is_held_back_until_it_is_read() {
        let (mut lease, _) = lease();
        let before = Instant::now();
        assert!(!lease.was_held_back_since(before));
        lease.hold_back(true);
        assert!(lease.was_held_back_since(Instant::now()));
        lease.hold_back(false);
        assert!(lease.was_held_back_since(before));
        assert!(!lease.was_held_back_since(Instant::now() + SECOND));
    }

    #[test]
    fn an_expired_lease_stays_expired() {
        let (mut lease, after) = lease();
        for second in 1..=10 {
            assert_eq!(lease.check(after(second)), Ok(()));
        }
        let expired = Expired { without_proof: SECOND * 11, paused_for: None };
        assert_eq!(lease.check(after(11)), Err(expired));
        lease.session_seen(after(11).monotonic, after(11));
        assert!(lease.check(after(12)).is_err());
    }

    #[test]
    fn a_process_that_stood_still_finds_out_by_either_clock() {
        for (stopped, asleep) in [(11, 11), (0, 11)] {
            let (mut lease, after) = lease();
            lease.session_seen(after(1).monotonic, after(1));
            assert_eq!(lease.check(after(1)), Ok(()));
            let now = Clocks { monotonic: after(1 + stopped).monotonic, wall: after(1 + asleep).wall };
            let expired = Expired { without_proof: SECOND * 11, paused_for: Some(SECOND * 11) };
            assert_eq!(lease.check(now), Err(expired));
        }
        // set back
        let (mut lease, after) = lease();
        let now = Clocks { monotonic: after(1).monotonic, wall: after(0).wall - SECOND * 100 };
        assert_eq!(lease.check(now), Ok(()));
        assert_eq!(lease.without_proof(now), SECOND);
    }
}
