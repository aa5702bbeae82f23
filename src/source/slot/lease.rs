//! The lease on the slot: how long this session may still send to Kafka, because Postgres certainly keeps the slot for it.
//!
//! The server ends a session that it has not heard from for `wal_sender_timeout`, and then another router may have the slot. So
//! the lease counts from the last moment at which the server is known to have heard from this session:
//!
//! - While the stream is read its answers tell. One may lie unread while this process gets no time, so it counts from when the
//!   server has sent it, by the server's own clock; the two clocks are compared at the fastest answer.
//! - While Kafka holds the stream back nobody reads it, and a hop between takes what is sent to the server whether that is there
//!   or not. Then a look at the catalogues tells which status update the server has taken in, and it counts from when that was
//!   queued. A role without `pg_read_all_stats` sees only that the session is there, and it counts from when the look began.
//! - Between bulk reads a look tells that the session is there.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use pg_logical::PgTimestamp;
use tokio::time::Instant;

use crate::config::Config;
use crate::error::{Error, Peer};

/// By how much two clocks may run apart: a thousandth.
const APART: u32 = 1000;

/// Two clocks: one stands still while the machine sleeps, the other may be set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clocks {
    monotonic: Instant,
    wall: SystemTime,
}

impl Clocks {
    pub(super) fn now() -> Self {
        Clocks { monotonic: Instant::now(), wall: SystemTime::now() }
    }

    /// A clock that was set back tells nothing, one that was set ahead too much.
    fn since(self, earlier: Clocks) -> Duration {
        let by_the_wall = self.wall.duration_since(earlier.wall).unwrap_or_default();
        self.monotonic.saturating_duration_since(earlier.monotonic).max(by_the_wall)
    }

    /// As they were at a moment before.
    fn at(self, moment: Instant) -> Clocks {
        let ago = self.monotonic.saturating_duration_since(moment);
        Clocks { monotonic: self.monotonic - ago, wall: self.wall.checked_sub(ago).unwrap_or(self.wall) }
    }
}

/// The server frees the slot when it has heard nothing for all of `wal_sender_timeout`. By then nothing more may go to Kafka
/// from here. One that is busy answers after half of it.
pub(super) fn silence(config: &Config) -> Duration {
    config.postgres.wal_sender_timeout * 3 / 4
}

/// It is over.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Expired {
    /// For how long nothing has been known.
    pub(super) unproven: Duration,
    /// For how long the process stood still, if that is why: stopped by a signal, starved, or asleep with its machine.
    pub(super) stood_still: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Lease {
    limit: Duration,
    proven: Clocks,
    checked: Clocks,
    /// When the fastest answer was read here, and when the server had sent it.
    fastest: Option<(Instant, PgTimestamp)>,
    /// The status updates of the last while, by the timestamps in them.
    updates: VecDeque<(PgTimestamp, Clocks)>,
    /// Whether the stream is left unread, and if it is not, until when it last was.
    held_back: bool,
    held_back_until: Option<Instant>,
}

impl Lease {
    /// One that lasts for `limit` from now on, and from each proof on.
    pub(super) fn new(limit: Duration, now: Clocks) -> Self {
        Lease {
            limit,
            proven: now,
            checked: now,
            fastest: None,
            updates: VecDeque::new(),
            held_back: false,
            held_back_until: None,
        }
    }

    /// Whether it still holds. Once it is over nothing brings it back.
    pub(super) fn check(&mut self, now: Clocks) -> Result<(), Expired> {
        let since_last = now.since(std::mem::replace(&mut self.checked, now));
        let unproven = self.unproven(now);
        if unproven <= self.limit {
            return Ok(());
        }
        let stood_still = (since_last > self.limit / 2).then_some(since_last);
        Err(Expired { unproven, stood_still })
    }

    /// Whether it is time to look for a proof.
    pub(super) fn is_due(&self, now: Clocks) -> bool {
        self.unproven(now) > self.limit / 4
    }

    fn unproven(&self, now: Clocks) -> Duration {
        now.since(self.proven)
    }

    fn prove(&mut self, at: Clocks, now: Clocks) {
        if self.unproven(now) <= self.limit && at.monotonic > self.proven.monotonic {
            self.proven = at;
        }
    }

    /// An answer of the stream was read.
    pub(super) fn answered(&mut self, sent: PgTimestamp, now: Clocks) {
        let read = now.monotonic;
        let sent_here = self.fastest.and_then(|(fastest, then)| {
            let since = u64::try_from(sent.0.checked_sub(then.0)?).ok()?;
            let drift = read.saturating_duration_since(fastest) / APART;
            fastest.checked_add(Duration::from_micros(since) + drift)
        });
        match sent_here.filter(|here| *here < read) {
            Some(here) => self.prove(now.at(here), now),
            // the fastest so far, or one whose clock was set
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

    /// The server has taken in the status update with this timestamp.
    pub(super) fn taken_in(&mut self, update: PgTimestamp, now: Clocks) {
        if let Some((_, queued)) = self.updates.iter().find(|(known, _)| *known == update) {
            self.prove(*queued, now);
        }
    }

    /// The server had the session at that time, or later.
    pub(super) fn seen(&mut self, at: Instant, now: Clocks) {
        self.prove(now.at(at), now);
    }

    /// From now on the stream is left unread, or read.
    pub(super) fn hold_back(&mut self, held_back: bool) {
        if std::mem::replace(&mut self.held_back, held_back) && !held_back {
            self.held_back_until = Some(Instant::now());
        }
    }

    /// Whether the stream was left unread then or later: its answers tell late, or not at all.
    pub(super) fn was_held_back_since(&self, then: Instant) -> bool {
        self.held_back || self.held_back_until >= Some(then)
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
    fn an_answer_counts_from_when_it_was_sent() {
        let (mut lease, after) = lease();
        lease.answered(server(7), after(1));
        assert_eq!(lease.unproven(after(1)), Duration::ZERO);
        // sent two seconds after the first, read five seconds after it
        lease.answered(server(9), after(6));
        assert_eq!(lease.unproven(after(6)), SECOND * 3 - SECOND * 5 / APART);
    }

    #[test]
    fn an_answer_that_took_less_time_sets_the_clocks() {
        let (mut lease, after) = lease();
        lease.answered(server(0), after(3));
        lease.answered(server(4), after(5));
        assert_eq!(lease.unproven(after(5)), Duration::ZERO);
        lease.answered(server(6), after(9));
        assert!(lease.unproven(after(9)) > SECOND);
    }

    #[test]
    fn a_clock_of_the_server_that_is_set_does_no_lasting_harm() {
        let (mut lease, after) = lease();
        lease.answered(server(1000), after(0));
        for back_by in [999, -5000] {
            for second in 1..3 {
                let now = after(second);
                lease.answered(server(1000 - back_by + i64::from(second)), now);
                assert_eq!(lease.unproven(now), Duration::ZERO, "{back_by} {second}");
            }
        }
    }

    #[test]
    fn a_status_update_counts_from_when_it_was_queued() {
        let (mut lease, after) = lease();
        lease.queued(server(1), after(1));
        lease.queued(server(2), after(2));
        lease.taken_in(server(1), after(5));
        assert_eq!(lease.unproven(after(5)), SECOND * 4);
        // one that this session has never sent proves nothing
        lease.taken_in(server(5), after(5));
        assert_eq!(lease.unproven(after(5)), SECOND * 4);
        lease.taken_in(server(2), after(5));
        assert_eq!(lease.unproven(after(5)), SECOND * 3);
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
    fn a_lease_that_is_over_stays_over() {
        let (mut lease, after) = lease();
        for second in 1..=10 {
            assert_eq!(lease.check(after(second)), Ok(()));
        }
        let expired = Expired { unproven: SECOND * 11, stood_still: None };
        assert_eq!(lease.check(after(11)), Err(expired));
        lease.seen(after(11).monotonic, after(11));
        assert!(lease.check(after(12)).is_err());
    }

    #[test]
    fn a_process_that_stood_still_finds_out_by_either_clock() {
        for (stopped, asleep) in [(11, 11), (0, 11)] {
            let (mut lease, after) = lease();
            lease.seen(after(1).monotonic, after(1));
            assert_eq!(lease.check(after(1)), Ok(()));
            let now = Clocks { monotonic: after(1 + stopped).monotonic, wall: after(1 + asleep).wall };
            let expired = Expired { unproven: SECOND * 11, stood_still: Some(SECOND * 11) };
            assert_eq!(lease.check(now), Err(expired));
        }
        // set back
        let (mut lease, after) = lease();
        let now = Clocks { monotonic: after(1).monotonic, wall: after(0).wall - SECOND * 100 };
        assert_eq!(lease.check(now), Ok(()));
        assert_eq!(lease.unproven(now), SECOND);
    }
}
