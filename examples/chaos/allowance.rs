//! How many duplicates a fault may bring: an upper bound, computed from what was seen of the router and of the log.
//!
//! A router goes on from a position. What of the log beyond it had arrived by then comes again, and so does what was in
//! flight and still arrives. Where the log's end was at a [`Mark`], every event beyond that place was committed later. So no
//! more can be repeated than what was committed since the last mark at or below the position and had arrived when the router
//! went on, and what was in flight at the last look. The bounds are not tight.
//!
//! What arrives late, behind what the next session sent, can only be one request: `max.in.flight` is 1, and what was queued
//! behind it is thrown away with the session. A request holds records of one partition.

use std::time::{Duration, Instant};

use outbox_router::lsn::Lsn;

use crate::injected::{Injected, Left};

/// What a router that was killed is taken to remember. The one place to change when it remembers more.
///
/// Today it is the slot, which is confirmed about once a second and only up to the end of a transaction.
pub(crate) const REMEMBERED: Remembered = Remembered::BySlot;

/// The figure to reach: all that was acknowledged so long before.
pub(crate) const FIGURE: Remembered = Remembered::Before(Duration::from_millis(100));

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remembered {
    /// What the slot was confirmed to.
    #[allow(dead_code, reason = "one of the two is in use")]
    BySlot,
    /// All that was acknowledged so long before it died.
    Before(Duration),
}

/// The router at one moment, as its `/status` said.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    /// When it was asked.
    pub(crate) at: Instant,
    pub(crate) ready: bool,
    /// Sent and not acknowledged.
    pub(crate) in_flight: u64,
    pub(crate) flushed: Option<Lsn>,
}

/// Where the log ended at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    /// When Postgres was asked.
    pub(crate) at: Instant,
    pub(crate) end: Lsn,
}

/// The first arrival of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct First {
    pub(crate) at: Instant,
    /// When the writer heard of its commit; of its arrival where nobody did.
    pub(crate) committed: Instant,
}

/// What was seen during the campaign, each in the order of its times.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) looks: &'a [Look],
    pub(crate) marks: &'a [Mark],
    /// When the router had begun a session anew without being started anew.
    pub(crate) sessions: &'a [Instant],
    pub(crate) arrivals: &'a [First],
}

/// What a fault may bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allowed {
    pub(crate) duplicates: u64,
    /// In how many partitions repetitions may be late.
    pub(crate) stale_partitions: u64,
}

/// Computes it; `until` is when the next fault began.
pub(crate) fn allowed(
    injected: &Injected,
    remembered: Remembered,
    seen: Seen<'_>,
    until: Instant,
) -> Allowed {
    let mut duplicates = 0;
    let mut ended = 0;
    let on_its_way = |looks: &[Look]| match looks.last() {
        Some(look) if injected.on_its_way => look.in_flight,
        _ => 0,
    };
    if let Left::Position { died, restarted, confirmed } = injected.left {
        ended += 1;
        let looks = seen.looks_before(died);
        duplicates += on_its_way(looks);
        duplicates += match remembered {
            Remembered::BySlot => seen.beyond(Some(confirmed), restarted),
            // at the look before the time that counts, what was not acknowledged was in flight, or arrived later
            Remembered::Before(duration) => {
                let before = seen.looks_before(died.checked_sub(duration).unwrap_or(died)).last();
                before.map_or(0, |look| look.in_flight) + seen.arrived(before.map(|look| look.at), restarted)
            }
        };
    }
    for session in seen.sessions.iter().filter(|at| (injected.began..until).contains(*at)) {
        ended += 1;
        let looks = seen.looks_before(*session);
        let position = looks.iter().rev().find_map(|look| look.flushed);
        duplicates += on_its_way(looks) + seen.beyond(position, *session);
    }
    Allowed { duplicates, stale_partitions: if injected.on_its_way { ended } else { 0 } }
}

impl<'a> Seen<'a> {
    fn looks_before(self, moment: Instant) -> &'a [Look] {
        self.looks.get(..self.looks.partition_point(|look| look.at < moment)).unwrap_or_default()
    }

    /// How many first arrived from one moment on, or ever, and before another.
    fn arrived(self, from: Option<Instant>, to: Instant) -> u64 {
        let before = |moment| self.arrivals.partition_point(|first| first.at < moment);
        before(to).saturating_sub(from.map_or(0, before)) as u64
    }

    /// How many may have been committed beyond a position, and had arrived before a moment.
    fn beyond(self, position: Option<Lsn>, to: Instant) -> u64 {
        let marks =
            position.and_then(|lsn| self.marks.get(..self.marks.partition_point(|mark| mark.end <= lsn)));
        let since = marks.unwrap_or_default().last().map(|mark| mark.at);
        let before = self.arrivals.partition_point(|first| first.at < to);
        // nothing arrives before it is committed, but for the time that the writer's answer takes
        let after = since.map_or(0, |since| self.arrivals.partition_point(|first| first.at < since));
        let candidates = self.arrivals.get(after..before).unwrap_or_default();
        candidates.iter().filter(|first| since.is_none_or(|since| first.committed >= since)).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look every 50 ms at which 3 records are in flight, a mark at the same time, and every 10 ms an event that arrives
    /// 5 ms after its commit; LSNs are milliseconds. The router's position is 100 ms old.
    struct World {
        start: Instant,
        looks: Vec<Look>,
        marks: Vec<Mark>,
        arrivals: Vec<First>,
    }

    fn world() -> World {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let look = |n: u64| {
            let flushed = Some(Lsn((n * 50).saturating_sub(100)));
            Look { at: at(n * 50), ready: true, in_flight: 3, flushed }
        };
        let first = |n: u64| First { committed: at(n * 10), at: at(n * 10 + 5) };
        World {
            start,
            looks: (0..40).map(look).collect(),
            marks: (0..40).map(|n| Mark { at: at(n * 50), end: Lsn(n * 50) }).collect(),
            arrivals: (0..200).map(first).collect(),
        }
    }

    impl World {
        fn at(&self, ms: u64) -> Instant {
            self.start + Duration::from_millis(ms)
        }

        fn allowed(&self, injected: &Injected, sessions: &[u64], remembered: Remembered) -> Allowed {
            let sessions: Vec<Instant> = sessions.iter().map(|ms| self.at(*ms)).collect();
            let (looks, marks, arrivals) = (&self.looks, &self.marks, &self.arrivals);
            let seen = Seen { looks, marks, arrivals, sessions: &sessions };
            allowed(injected, remembered, seen, self.at(2000))
        }

        /// Killed at 1020, started at 1500.
        fn killed(&self, confirmed: u64, remembered: Remembered) -> u64 {
            let [died, restarted] = [1020, 1500].map(|ms| self.at(ms));
            let left = Left::Position { died, restarted, confirmed: Lsn(confirmed) };
            let what = String::new();
            let (on_its_way, overlaps) = (true, false);
            let injected = Injected { began: died, back: restarted, left, on_its_way, overlaps, what };
            let allowed = self.allowed(&injected, &[], remembered);
            assert_eq!(allowed.stale_partitions, 1);
            allowed.duplicates
        }

        /// Lived through what began at 920.
        fn lived(&self, sessions: &[u64], on_its_way: bool) -> (u64, u64) {
            let (began, what) = (self.at(920), String::new());
            let (left, overlaps) = (Left::Process, false);
            let injected = Injected { began, back: began, left, on_its_way, overlaps, what };
            let allowed = self.allowed(&injected, sessions, REMEMBERED);
            (allowed.duplicates, allowed.stale_partitions)
        }
    }

    #[test]
    fn a_killed_router_may_repeat_what_lies_beyond_its_position() {
        let world = world();
        // the mark below 620 is that of 600: what was committed from 600 on and arrived before 1500
        assert_eq!(world.killed(620, Remembered::BySlot), 3 + 90);
        assert_eq!(world.killed(600, Remembered::BySlot), 3 + 90);
        assert_eq!(world.killed(599, Remembered::BySlot), 3 + 95);
        assert_eq!(world.killed(5_000, Remembered::BySlot), 3, "the end of the log");
        // the look 100 ms before is that of 900
        assert_eq!(world.killed(620, FIGURE), 3 + 3 + 60);
    }

    #[test]
    fn a_position_below_every_mark_allows_everything() {
        let mut world = world();
        world.marks.drain(..5);
        assert_eq!(world.killed(10, Remembered::BySlot), 3 + 150);
    }

    #[test]
    fn a_router_that_lives_may_repeat_for_each_session_what_lay_beyond_its_position() {
        let world = world();
        assert_eq!(world.lived(&[], true), (0, 0));
        assert_eq!(world.lived(&[910, 2000], true), (0, 0), "of other faults");
        // the look at 1000 told of the position 900
        assert_eq!(world.lived(&[1001], true), (3 + 10, 1));
        assert_eq!(world.lived(&[1001, 1101], true), (2 * (3 + 10), 2));
        assert_eq!(world.lived(&[1001], false), (10, 0));
    }

    #[test]
    fn what_is_acknowledged_beyond_a_hole_may_be_repeated() {
        let mut world = world();
        for look in &mut world.looks {
            look.flushed = look.flushed.min(Some(Lsn(400)));
        }
        assert_eq!(world.lived(&[1001], true), (3 + 60, 1));
    }
}
