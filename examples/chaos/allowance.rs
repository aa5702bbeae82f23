//! How many duplicates a fault may bring: an upper bound, computed from what was seen of the router before it.
//!
//! Repeated is what was not yet put down as acknowledged when the fault came. At a look at `/status`, `in_flight` is what
//! had been sent and not acknowledged; what was sent later arrived later. So if everything acknowledged before that look is
//! remembered, no more can be repeated than was in flight at it, and what arrived from then on until the router started
//! again. A router that lives through a fault knows what was acknowledged: for each session that it lost it may repeat what
//! was in flight then, which is no more than was in flight at a look and arrived until the next. The bounds are not tight.

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
    pub(crate) in_flight: u64,
    pub(crate) flushed: Option<Lsn>,
}

/// How many duplicates are allowed. `arrivals` are the times of all records that are no duplicates, sorted; `until` is when
/// the next fault began.
pub(crate) fn allowed(
    injected: &Injected,
    remembered: Remembered,
    looks: &[Look],
    arrivals: &[Instant],
    until: Instant,
) -> u64 {
    match injected.left {
        Left::Position { died, restarted, confirmed } => {
            let is_covered = |look: &&Look| match remembered {
                Remembered::BySlot => look.flushed.is_some_and(|flushed| flushed < confirmed),
                Remembered::Before(duration) => look.at + duration <= died,
            };
            match looks.iter().rev().filter(|look| look.at < died).find(is_covered) {
                Some(look) => look.in_flight + between(arrivals, look.at, restarted),
                // as far back as there are looks; with none of them everything may come again
                None => between(arrivals, arrivals.first().copied().unwrap_or(died), restarted),
            }
        }
        Left::Process { sessions } => {
            let first = looks.partition_point(|look| look.at < injected.began).saturating_sub(1);
            let last = looks.partition_point(|look| look.at < until);
            let during = looks.get(first..last).unwrap_or_default();
            let most = during
                .windows(2)
                .filter_map(|pair| match pair {
                    [one, other] => Some(one.in_flight + between(arrivals, one.at, other.at)),
                    _ => None,
                })
                .max();
            sessions * most.unwrap_or_default()
        }
    }
}

/// How many lie between the two, the first moment included.
fn between(arrivals: &[Instant], from: Instant, to: Instant) -> u64 {
    let [from, to] = [from, to].map(|moment| arrivals.partition_point(|at| *at < moment));
    to.saturating_sub(from) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look every 50 ms at which 3 records are in flight, and a record every 10 ms; LSNs are milliseconds.
    struct World {
        start: Instant,
        looks: Vec<Look>,
        arrivals: Vec<Instant>,
    }

    fn world() -> World {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let look = |n: u64| Look { at: at(n * 50), ready: true, in_flight: 3, flushed: Some(Lsn(n * 50)) };
        World { start, looks: (0..40).map(look).collect(), arrivals: (0..200).map(|n| at(n * 10)).collect() }
    }

    impl World {
        fn at(&self, ms: u64) -> Instant {
            self.start + Duration::from_millis(ms)
        }

        fn allowed(&self, left: Left, began: u64, until: u64, remembered: Remembered) -> u64 {
            let injected =
                Injected { began: self.at(began), back: self.at(began), left, what: String::new() };
            allowed(&injected, remembered, &self.looks, &self.arrivals, self.at(until))
        }
    }

    #[test]
    fn a_killed_router_may_repeat_what_came_since_the_last_look_that_is_covered() {
        let world = world();
        let left = Left::Position { died: world.at(1020), restarted: world.at(1500), confirmed: Lsn(620) };
        // the look 100 ms before is that at 900: 60 arrivals up to 1500
        assert_eq!(world.allowed(left, 1020, 2000, FIGURE), 3 + 60);
        // the last look below 620 is that at 600
        assert_eq!(world.allowed(left, 1020, 2000, Remembered::BySlot), 3 + 90);
        let nothing = Left::Position { died: world.at(1020), restarted: world.at(1500), confirmed: Lsn(0) };
        assert_eq!(world.allowed(nothing, 1020, 2000, Remembered::BySlot), 150);
    }

    #[test]
    fn a_router_that_lives_may_repeat_what_is_in_flight_for_each_session_that_it_lost() {
        let world = world();
        for (sessions, allowed) in [(0, 0), (1, 3 + 5), (2, 2 * (3 + 5))] {
            assert_eq!(world.allowed(Left::Process { sessions }, 920, 1200, REMEMBERED), allowed);
        }
    }
}
