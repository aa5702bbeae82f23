//! A router and a server exchange status updates and answers over a network that delays them at random, or loses them from some
//! moment on, while the router is stopped at random and the server's clock drifts. While the lease holds, the server must not
//! have ended the session.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// `wal_sender_timeout`, in milliseconds.
const TIMEOUT: u64 = 10_000;

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Time passes, during which the router may be stopped.
    Pass(u64),
    /// The router sends a status update, which takes this long to arrive. Its answer takes that long.
    Update(u64, u64),
    /// The router reads what has arrived.
    Read,
    /// The router asks in another session which update the server has received. The query runs and returns after these times.
    Ask(u64, u64),
    /// From now on no update arrives.
    LoseUpdates,
    /// From now on no answer arrives.
    LoseAnswers,
}

struct World {
    /// Milliseconds since the start.
    now: u64,
    start: Clocks,
    /// By how many parts in 2000 the server's clock is faster.
    drift: i64,
    lease: Lease,
    /// Updates under way: when they arrive, their timestamps, and how long the answers take.
    updates: VecDeque<(u64, PgTimestamp, u64)>,
    /// Answers under way: when they arrive, and when they were sent.
    answers: VecDeque<(u64, u64)>,
    updates_lost: bool,
    answers_lost: bool,
    /// When the server last heard from the router.
    heard: u64,
    /// The last update that it has received.
    received: Option<PgTimestamp>,
}

impl World {
    fn new(drift: i64) -> Self {
        let start = Clocks::now();
        let limit = Duration::from_millis(TIMEOUT) * 3 / 4;
        World {
            now: 0,
            start,
            drift,
            lease: Lease::new(limit, start),
            updates: VecDeque::new(),
            answers: VecDeque::new(),
            updates_lost: false,
            answers_lost: false,
            heard: 0,
            received: None,
        }
    }

    fn clocks(&self) -> Clocks {
        let passed = Duration::from_millis(self.now);
        Clocks { monotonic: self.start.monotonic + passed, wall: self.start.wall + passed }
    }

    fn server_clock(&self, at: u64) -> PgTimestamp {
        let at = i64::try_from(at).unwrap() * 1000;
        PgTimestamp(1_000_000_000 + at + at * self.drift / 2000)
    }

    /// Whether the server has ended the session by now.
    fn is_ended(&self) -> bool {
        self.now >= self.heard + TIMEOUT
    }

    /// The server handles the updates that have arrived until then.
    fn serve(&mut self, until: u64) {
        while let Some((at, update, answer_takes)) =
            self.updates.front().copied().filter(|(at, ..)| *at <= until)
        {
            self.updates.pop_front();
            if at >= self.heard + TIMEOUT {
                continue;
            }
            (self.heard, self.received) = (at, Some(update));
            if !self.answers_lost {
                let earlier = self.answers.back().map_or(0, |(at, _)| *at);
                self.answers.push_back((earlier.max(at + answer_takes), at));
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Pass(time) => self.now += time,
            Step::Update(takes, answer_takes) => {
                // its own clock, which needs no relation to the server's
                let update = PgTimestamp(i64::try_from(self.now).unwrap());
                self.lease.queued(update, self.clocks());
                if !self.updates_lost {
                    let earlier = self.updates.back().map_or(0, |(at, ..)| *at);
                    self.updates.push_back((earlier.max(self.now + takes), update, answer_takes));
                }
                // two updates have different timestamps
                self.now += 1;
            }
            Step::Read => {
                while let Some((_, sent)) = self.answers.front().copied().filter(|(at, _)| *at <= self.now) {
                    self.answers.pop_front();
                    self.lease.answered(self.server_clock(sent), self.clocks());
                }
            }
            Step::Ask(runs, returns) => {
                self.now += runs;
                self.serve(self.now);
                let found = self.received.filter(|_| !self.is_ended());
                self.now += returns;
                if let Some(update) = found {
                    self.lease.received_by_server(update, self.clocks());
                }
            }
            Step::LoseUpdates => self.updates_lost = true,
            Step::LoseAnswers => self.answers_lost = true,
        }
        self.serve(self.now);
    }
}

fn step() -> impl Strategy<Value = Step> {
    let delay = || prop_oneof![4 => 0..200_u64, 1 => 0..9_000_u64];
    prop_oneof![
        6 => prop_oneof![8 => 0..1_000_u64, 1 => 0..20_000_u64].prop_map(Step::Pass),
        8 => (delay(), delay()).prop_map(|(there, back)| Step::Update(there, back)),
        8 => Just(Step::Read),
        2 => (delay(), delay()).prop_map(|(runs, returns)| Step::Ask(runs, returns)),
        1 => Just(Step::LoseUpdates),
        1 => Just(Step::LoseAnswers),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn while_the_lease_holds_the_server_keeps_the_session(
        steps in prop::collection::vec(step(), 1..60),
        drift in -1..=1_i64,
        first_answer in 0..1_000_u64,
    ) {
        let mut world = World::new(drift);
        // the clocks are aligned by an answer that took less than a quarter of the timeout
        for begin in [Step::Update(0, first_answer), Step::Pass(first_answer), Step::Read] {
            world.step(begin);
        }
        let mut held = 0;
        for step in steps {
            world.step(step);
            if world.lease.check(world.clocks()).is_err() {
                break;
            }
            held += 1;
            prop_assert!(!world.is_ended(), "after {} ms and {held} steps, heard at {} ms", world.now, world.heard);
        }
    }
}
