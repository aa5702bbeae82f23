//! How many duplicates a fault may bring: an upper bound, computed from what was seen of the router, its positions topic
//! and the topics of the events.
//!
//! A router goes on from a position. What of the log beyond it had arrived by then comes again, and so does what was in
//! flight and still arrives. Events are read in the order of their commits, so a position holds at least all events before
//! the first one that had not arrived: what came beyond such a hole is not in it.
//!
//! A router that was killed has the position that was last in Kafka when it died. What had arrived [`REMEMBERED`] before that
//! one was made is in it. A position that Kafka has not acknowledged cannot be gone back to, and none is made while one is on
//! its way, so a broker that is slow or frozen makes it older. One that answers as ever makes it [`OLDEST`] at the most,
//! whatever was seen. Nor can more come again than what was committed beyond what `/status` gave as remembered.
//!
//! A router that lives goes on from what was acknowledged. Where the log's end was at a [`Mark`], every event beyond that place
//! was committed later. So no more can be repeated than what was committed since the last mark at or below the position,
//! nor more than what arrived since it was last seen well, and what was in flight at the last look. After `slot reset` it
//! goes on from a bookmark; what bears no mark then is what came after the position that was last in Kafka. That is what a standby
//! goes on from, too.
//!
//! What arrives late, behind what the next session sent, can only be one request: `max.in.flight` is 1, and what was queued
//! behind it is thrown away with the session. A request holds records of one partition. A consumer on a busy machine may see it
//! later than the next session, but before the first record that comes again.

use std::time::{Duration, Instant};

use pg_logical::Lsn;

use crate::injected::{Injected, Left};
use crate::positions::Written;

/// What was acknowledged so long before is in a position.
pub(crate) const REMEMBERED: Duration = Duration::from_millis(100);

/// How long a request that the broker has takes to be seen by the consumer.
const SEEN_WITHIN: Duration = Duration::from_millis(100);

/// How old the newest position in Kafka may be while events flow and the broker answers as ever. It takes 25 ms and what
/// the broker takes; the rest is for machines with more work than processors.
const OLDEST: Duration = Duration::from_secs(1);

/// The router at one moment, as its `/status` said.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    /// When it was asked.
    pub(crate) at: Instant,
    pub(crate) ready: bool,
    /// Ready, and not because it waits for the slot.
    pub(crate) active: bool,
    /// Sent and not acknowledged.
    pub(crate) in_flight: u64,
    pub(crate) flushed: Option<Lsn>,
    /// Up to where the positions topic has it.
    pub(crate) remembered: Option<Lsn>,
}

/// A router has begun to stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Session {
    pub(crate) at: Instant,
    /// The first of its process: a standby takes over, or the router was restarted.
    pub(crate) first: bool,
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
    /// Which one it is in the order of the commits.
    pub(crate) place: usize,
}

/// What was seen during the campaign, each in the order of its times.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) looks: &'a [Look],
    pub(crate) marks: &'a [Mark],
    pub(crate) sessions: &'a [Session],
    pub(crate) arrivals: &'a [First],
    /// Further arrivals of the same events that nobody asked for.
    pub(crate) again: &'a [Instant],
    pub(crate) positions: &'a [Written],
    /// The next session may be that of another router, which knows no more than the positions topic.
    pub(crate) standbys: bool,
}

/// What a fault may bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Allowed {
    pub(crate) duplicates: u64,
    /// In how many partitions repetitions may be late.
    pub(crate) stale_partitions: u64,
}

/// Computes it; `until` is when the next fault began.
pub(crate) fn allowed(injected: &Injected, seen: Seen<'_>, until: Instant) -> Allowed {
    let mut duplicates = 0;
    let mut ended = 0;
    let late = REMEMBERED + injected.broker_late.unwrap_or_default();
    // what is sent after the last look, and is seen only when the next session has begun
    // A consumer that lags sees it later, but before what comes again: a partition has them in this order.
    let first_again = |moment: Instant| seen.again.iter().copied().find(|at| (moment..until).contains(at));
    let seen_by = |moment: Instant| match first_again(moment) {
        _ if !injected.on_its_way => moment,
        Some(again) => again.max(moment + SEEN_WITHIN),
        None => moment + SEEN_WITHIN,
    };
    if let Left::Position { died, restarted } = injected.left {
        ended += 1;
        let look = seen.looks_before(died).last();
        let remembered = look.and_then(|look| look.remembered);
        duplicates += look.map_or(0, |look| look.in_flight);
        // before it has caught up, the connection to the broker may not be what it was
        let answers = injected.broker_late.is_none() && !injected.overlaps;
        let age = seen.position_age(died).unwrap_or(Duration::MAX);
        let age = if answers { age.min(OLDEST) } else { age };
        let restarted = seen_by(restarted);
        let since = seen.arrived_beyond(died.checked_sub(age.saturating_add(late)), restarted);
        duplicates += since.min(seen.committed_beyond(remembered, restarted));
    }
    for session in seen.sessions_of(injected, until) {
        ended += 1;
        let looks = seen.looks_before(session.at);
        let position = looks.iter().rev().find_map(|look| look.flushed);
        let to = seen_by(session.at);
        let beyond = seen.committed_beyond(position, to);
        duplicates += match looks.last() {
            Some(last) if injected.on_its_way || seen.standbys => {
                let well = looks.iter().rev().find(|look| look.active).unwrap_or(last);
                let in_flight = last.in_flight.max(well.in_flight);
                // between two sessions it is well too, but acknowledges nothing
                let acknowledged = seen.last_arrival(session.at).map_or(well.at, |last| last.min(well.at));
                // what bears the mark of a reset ends at the position in Kafka, and is not counted here
                match injected.asked.is_some() || seen.standbys {
                    false => in_flight + seen.arrived_beyond(acknowledged.checked_sub(late), to).min(beyond),
                    true => {
                        let age = seen.position_age(well.at).unwrap_or(Duration::MAX).min(OLDEST);
                        in_flight + seen.arrived_beyond(well.at.checked_sub(age + late), to)
                    }
                }
            }
            _ => beyond,
        };
    }
    Allowed { duplicates, stale_partitions: if injected.on_its_way { ended } else { 0 } }
}

impl<'a> Seen<'a> {
    /// The sessions that began during the fault or after it. The first one after a kill is that of the router that was killed.
    pub(crate) fn sessions_of(
        self,
        injected: &Injected,
        until: Instant,
    ) -> impl Iterator<Item = &'a Session> {
        let (began, killed) = (injected.began, injected.left != Left::Process);
        let counts =
            move |session: &&Session| (began..until).contains(&session.at) && !(session.first && killed);
        self.sessions.iter().filter(counts)
    }

    fn looks_before(self, moment: Instant) -> &'a [Look] {
        self.looks.get(..self.looks.partition_point(|look| look.at < moment)).unwrap_or_default()
    }

    fn last_arrival(self, before: Instant) -> Option<Instant> {
        let known = self.arrivals.partition_point(|first| first.at < before);
        self.arrivals.get(..known)?.last().map(|first| first.at)
    }

    /// How long before a moment the position was made that was last in Kafka at that moment.
    pub(crate) fn position_age(self, moment: Instant) -> Option<Duration> {
        let there = self.positions.partition_point(|written| written.there <= moment);
        let last = self.positions.get(..there)?.last()?;
        Some(moment.saturating_duration_since(last.at))
    }

    /// How many had arrived before `to` that lie in the log behind an event which had not by `by`, or ever; and how many
    /// arrived again in that time, which may come once more.
    fn arrived_beyond(self, by: Option<Instant>, to: Instant) -> u64 {
        let arrived = |moment| self.arrivals.partition_point(|first| first.at < moment);
        let (old, known) = (by.map_or(0, arrived), self.arrivals.get(..arrived(to)).unwrap_or_default());
        let hole = self.arrivals.get(old..).unwrap_or_default().iter().map(|first| first.place).min();
        let beyond = known.iter().filter(|first| hole.is_some_and(|hole| first.place >= hole)).count();
        let again = self.again.iter().filter(|at| by.is_none_or(|by| **at >= by) && **at < to).count();
        (beyond + again) as u64
    }

    /// How many may have been committed beyond a position, and had arrived before a moment.
    fn committed_beyond(self, position: Option<Lsn>, to: Instant) -> u64 {
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
    use crate::injected::Asked;

    /// A look every 50 ms at which 3 records are in flight, a mark at the same time, and every 10 ms an event that arrives
    /// 5 ms after its commit; LSNs are milliseconds. What is acknowledged is told 100 ms late. A position is made every 20 ms
    /// and is there 10 ms later.
    struct World {
        start: Instant,
        looks: Vec<Look>,
        marks: Vec<Mark>,
        arrivals: Vec<First>,
        positions: Vec<Written>,
        again: Vec<Instant>,
        standbys: bool,
    }

    fn world() -> World {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let look = |n: u64| {
            let flushed = Some(Lsn((n * 50).saturating_sub(100)));
            Look { at: at(n * 50), ready: true, active: true, in_flight: 3, flushed, remembered: None }
        };
        let first = |n: u64| First { committed: at(n * 10), at: at(n * 10 + 5), place: n as usize };
        World {
            start,
            looks: (0..40).map(look).collect(),
            marks: (0..40).map(|n| Mark { at: at(n * 50), end: Lsn(n * 50) }).collect(),
            arrivals: (0..200).map(first).collect(),
            positions: (0..100).map(|n| Written { at: at(n * 20), there: at(n * 20 + 10) }).collect(),
            again: Vec::new(),
            standbys: false,
        }
    }

    impl World {
        fn at(&self, ms: u64) -> Instant {
            self.start + Duration::from_millis(ms)
        }

        fn allowed(&self, injected: &Injected, sessions: &[u64]) -> Allowed {
            self.allowed_where(injected, sessions, false)
        }

        fn allowed_where(&self, injected: &Injected, sessions: &[u64], first: bool) -> Allowed {
            let sessions: Vec<Session> =
                sessions.iter().map(|ms| Session { at: self.at(*ms), first }).collect();
            let World { looks, marks, arrivals, positions, again, .. } = self;
            let (sessions, standbys) = (&sessions[..], self.standbys);
            let seen = Seen { looks, marks, arrivals, positions, again, sessions, standbys };
            allowed(injected, seen, self.at(2000))
        }

        fn injected(&self, began: u64, left: Left) -> Injected {
            let (began, what) = (self.at(began), String::new());
            let (on_its_way, overlaps, broker_late, asked, withheld) = (true, false, None, None, None);
            let (back, names, recovers_within) = (began, &[][..], None);
            let (outlasted_lease, kept_locked) = (false, 0);
            Injected {
                began,
                back,
                left,
                on_its_way,
                broker_late,
                outlasted_lease,
                kept_locked,
                asked,
                withheld,
                names,
                recovers_within,
                overlaps,
                what,
            }
        }

        /// Killed at 1025, started at 1500: what is seen by 1600 counts.
        fn killed(&self, broker_late: Option<u64>) -> u64 {
            let [died, restarted] = [1025, 1500].map(|ms| self.at(ms));
            let injected = self.injected(1020, Left::Position { died, restarted });
            let broker_late = broker_late.map(Duration::from_millis);
            let allowed = self.allowed(&Injected { broker_late, ..injected }, &[]);
            assert_eq!(allowed.stale_partitions, 1);
            allowed.duplicates
        }

        /// Lived through what began at 920.
        fn lived(&self, sessions: &[u64], on_its_way: bool) -> (u64, u64) {
            let injected = Injected { on_its_way, ..self.injected(920, Left::Process) };
            let allowed = self.allowed(&injected, sessions);
            (allowed.duplicates, allowed.stale_partitions)
        }
    }

    #[test]
    fn a_killed_router_may_repeat_what_came_after_its_last_position() {
        let mut world = world();
        // the last one in Kafka was made at 1000, so what arrived from 900 on may be missing in it
        assert_eq!(world.killed(None), 3 + 70);
        // and with a broker whose answers take 200 ms, what arrived from 700 on
        assert_eq!(world.killed(Some(200)), 3 + 90);
        world.again = [899, 900, 1599, 1600].map(|ms| world.at(ms)).to_vec();
        assert_eq!(world.killed(None), 3 + 70 + 2, "what was being repeated may be repeated once more");
    }

    /// The consumer sees at 1700 only what the router sent first and what it repeats.
    #[test]
    fn what_a_consumer_that_lags_sees_before_the_first_repetition_counts() {
        let mut world = world();
        world.again = vec![world.at(1700)];
        assert_eq!(world.killed(None), 3 + 80);
    }

    #[test]
    fn a_killed_router_may_repeat_no_more_than_what_lies_beyond_what_it_said_to_be_remembered() {
        let mut world = world();
        for look in &mut world.looks {
            look.remembered = look.flushed;
        }
        // the look at 1000 told of 900
        assert_eq!(world.killed(Some(200)), 3 + 70);
    }

    #[test]
    fn after_a_reset_what_came_after_the_last_position_may_come_again_without_a_mark() {
        let world = world();
        let asked = Asked { mark: String::new(), from: world.start, to: world.at(920) };
        let injected = Injected { asked: Some(asked), ..world.injected(920, Left::Process) };
        // well at 1000; the position in Kafka then is of 980, and holds what had arrived by 880
        assert_eq!(world.allowed(&injected, &[1001]).duplicates, 3 + 22);
    }

    #[test]
    fn a_position_may_be_old_if_the_broker_does_not_answer_and_not_otherwise() {
        let mut world = world();
        world.positions.truncate(1);
        assert_eq!(world.killed(Some(0)), 3 + 160);
        world.arrivals = (0..200).map(|n| First { at: world.at(n * 10 + 5), ..world.arrivals[0] }).collect();
        for (place, first) in world.arrivals.iter_mut().enumerate() {
            first.place = place;
            first.at += Duration::from_millis(500);
        }
        // died at 1025, less a second and 100 ms: nothing had arrived by then
        assert_eq!(world.killed(None), 3 + 110);
        for look in &mut world.looks {
            look.at += Duration::from_secs(9);
        }
        assert_eq!(world.killed(None), 110, "no look, nothing in flight");
    }

    #[test]
    fn what_arrived_behind_a_hole_is_in_no_position() {
        let mut world = world();
        // the event of 300 arrives only at 980
        world.arrivals[30].at = world.at(980);
        world.arrivals.sort();
        assert_eq!(world.killed(None), 3 + 130);
    }

    #[test]
    fn a_router_that_lives_may_repeat_for_each_session_what_lay_beyond_its_position() {
        let world = world();
        assert_eq!(world.lived(&[], true), (0, 0));
        assert_eq!(world.lived(&[910, 2000], true), (0, 0), "of other faults");
        // the look at 1000 told of the position 900
        assert_eq!(world.lived(&[1001], true), (3 + 20, 1));
        assert_eq!(world.lived(&[1001, 1101], true), (2 * (3 + 20), 2));
        assert_eq!(world.lived(&[1001], false), (10, 0));
    }

    /// A session ended after 845 because Kafka refused a batch, and the next one begins at 1001. Meanwhile the router is well.
    #[test]
    fn what_arrived_last_before_a_slow_restart_may_come_again() {
        let mut world = world();
        world.arrivals.truncate(85);
        for look in &mut world.looks {
            look.flushed = look.flushed.min(Some(Lsn(700)));
        }
        assert_eq!(world.lived(&[1001], true), (3 + 11, 1));
    }

    #[test]
    fn a_standby_may_repeat_what_came_after_the_last_position() {
        let world = World { standbys: true, ..world() };
        // well at 1000; the position in Kafka then is of 980, and holds what had arrived by 880
        assert_eq!(world.lived(&[1001], true), (3 + 22, 1));
    }

    #[test]
    fn the_first_session_of_a_standby_counts_unless_the_router_was_killed() {
        let world = World { standbys: true, ..world() };
        let lived = world.injected(920, Left::Process);
        assert_eq!(world.allowed_where(&lived, &[1001], true), world.allowed_where(&lived, &[1001], false));
        let killed = world.injected(1020, Left::Position { died: world.at(1025), restarted: world.at(1500) });
        assert_eq!(world.allowed_where(&killed, &[1501], true), world.allowed_where(&killed, &[], true));
    }

    #[test]
    fn a_position_that_does_not_move_within_a_large_transaction_allows_no_more_than_what_came_since_the_last_look()
     {
        let mut world = world();
        for look in &mut world.looks {
            look.flushed = look.flushed.min(Some(Lsn(400)));
        }
        assert_eq!(world.lived(&[1001], true), (3 + 21, 1));
        // but for what must not be on its way at all
        assert_eq!(world.lived(&[1001], false), (60, 0));
        for look in world.looks.iter_mut().skip(13) {
            look.active = false;
        }
        assert_eq!(world.lived(&[1001], true), (3 + 60, 1));
    }
}
