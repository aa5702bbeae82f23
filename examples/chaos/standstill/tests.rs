use pg_logical::Lsn;

use super::*;
use crate::allowance::Look;
use crate::faults::survived;
use crate::judgement::Finding;

/// One minute of a campaign. Every 100 ms a transaction of one event, which arrives 10 ms later and is in a checkpoint 100 ms
/// later. Twice per second the router answers that it is active.
struct World {
    start: Instant,
    seen: Seen,
    log: log_reader::LogSummary,
    judgement: Judgement,
    fault: Injected,
}

const EVENTS: u64 = 600;

fn healthy() -> Answer {
    Answer { code: 200, readyz: "active".to_owned(), ..Answer::default() }
}

fn with_reason() -> Answer {
    let readyz = "reconnecting to kafka: it is away".to_owned();
    Answer { code: 503, readyz, reason: Some("it is away".to_owned()), ..Answer::default() }
}

fn world() -> World {
    let start = Instant::now();
    let at = |ms: u64| start + Duration::from_millis(ms);
    let first = |n: u64| First { at: at(n * 100 + 10), committed: at(n * 100), place: n as usize };
    let look = |n: u64| {
        let position = Some(Lsn(n));
        Look {
            at: at(n * 100 + 100),
            ready: true,
            active: true,
            in_flight: 0,
            flushed: position,
            remembered: position,
        }
    };
    let probe = |n: u64| Probe { at: at(n * 500), alive: true, answer: Some(healthy()) };
    World {
        start,
        seen: Seen {
            looks: (0..EVENTS).map(look).collect(),
            probes: (0..120).map(probe).collect(),
            ..Seen::default()
        },
        log: log_reader::LogSummary::default(),
        judgement: Judgement { first_arrivals: (0..EVENTS).map(first).collect(), ..Judgement::default() },
        fault: survived(at(20_000), at(40_000), String::new()),
    }
}

impl World {
    fn at(&self, seconds: u64) -> Instant {
        self.start + Duration::from_secs(seconds)
    }

    /// Delays the arrivals of this period to its end.
    fn nothing_arrives(&mut self, from: u64, until: u64) {
        let (from, until) = (self.at(from), self.at(until));
        for first in self.judgement.first_arrivals.iter_mut().filter(|first| first.at >= from) {
            first.at = first.at.max(until);
        }
    }

    /// Keeps the position of the beginning of this period.
    fn position_stays(&mut self, from: u64, until: u64) {
        let (from, until) = (self.at(from), self.at(until));
        let before = self.seen.looks.iter().rev().find(|look| look.at < from).unwrap().flushed;
        for look in self.seen.looks.iter_mut().filter(|look| (from..until).contains(&look.at)) {
            look.remembered = before;
        }
    }

    fn answers(&mut self, answer: Option<Answer>, from: u64, until: u64) {
        let (from, until) = (self.at(from), self.at(until));
        for probe in self.seen.probes.iter_mut().filter(|probe| (from..until).contains(&probe.at)) {
            probe.answer = answer.clone();
        }
    }

    fn logs_warning(&mut self, at: u64) {
        self.log.warnings.push(self.at(at));
    }

    fn found(&self) -> Vec<Unexplained> {
        let World { start, seen, log, judgement, fault } = self;
        let (start, end) = (*start, self.at(60));
        unexplained(Observations { seen, log, judgement, faults: &[fault], start, end })
    }

    #[track_caller]
    fn assert_found(&self, whats: &[What]) {
        let found = self.found();
        assert_eq!(found.iter().map(|found| found.what).collect::<Vec<_>>(), whats, "{found:?}");
    }
}

#[test]
fn nothing_needs_a_reason_while_events_flow() {
    world().assert_found(&[]);
}

#[test]
fn standstill_of_events_needs_a_reason_within_ten_seconds() {
    let mut world = world();
    world.nothing_arrives(20, 30);
    world.assert_found(&[]);
    world.nothing_arrives(20, 35);
    world.assert_found(&[What::Events]);
    let found = world.found();
    assert_eq!(found[0].answer.as_deref(), Some("/readyz 200 \"active\", reason in /status: none"));
    assert_eq!(found[0].until, world.at(35));
}

#[test]
fn reason_must_appear_in_time_and_stay() {
    let mut world = world();
    world.nothing_arrives(20, 50);
    world.logs_warning(21);
    world.answers(Some(with_reason()), 29, 50);
    world.assert_found(&[]);
    world.answers(Some(healthy()), 29, 50);
    world.answers(Some(with_reason()), 32, 50);
    world.assert_found(&[What::Events]);
    world.answers(Some(with_reason()), 21, 33);
    world.answers(Some(healthy()), 33, 50);
    world.assert_found(&[What::Events]);
}

#[test]
fn reason_must_be_in_readyz_and_status() {
    let ready = Answer { code: 200, ..with_reason() };
    let not_in_status = Answer { reason: None, ..with_reason() };
    let not_in_readyz = Answer { code: 200, readyz: "active".to_owned(), ..with_reason() };
    for (answer, expected) in
        [(ready, vec![]), (not_in_status, vec![What::Events]), (not_in_readyz, vec![What::Events])]
    {
        let mut world = world();
        world.nothing_arrives(20, 50);
        world.logs_warning(21);
        world.answers(Some(answer), 21, 50);
        world.assert_found(&expected);
    }
}

#[test]
fn reason_must_be_in_the_log_too() {
    let mut world = world();
    world.nothing_arrives(25, 50);
    world.answers(Some(with_reason()), 25, 50);
    world.assert_found(&[What::Log]);
    // logged before the fault began
    world.logs_warning(14);
    world.assert_found(&[What::Log]);
    // the fault began at 20; its reason may be logged before the last event arrives
    world.logs_warning(20);
    world.assert_found(&[]);
}

#[test]
fn reason_must_name_the_active_fault() {
    let mut world = world();
    world.nothing_arrives(20, 38);
    world.logs_warning(21);
    world.answers(Some(with_reason()), 20, 38);
    world.fault.names = &["away", "it"];
    world.assert_found(&[]);
    world.fault.names = &["away", "WRITE"];
    world.assert_found(&[What::Events]);
    // the fault is over
    world.fault.back = world.at(21);
    world.assert_found(&[]);
}

#[test]
fn unread_log_excuses_no_standstill() {
    let mut world = world();
    world.nothing_arrives(20, 40);
    world.logs_warning(21);
    world.answers(Some(with_reason()), 20, 40);
    world.log.unread.push((world.at(20), Some(world.at(40))));
    world.assert_found(&[What::Events]);
    // the log was read again before the standstill ended; no line could be logged in time
    world.log.unread = vec![(world.at(20), Some(world.at(30)))];
    world.log.warnings.clear();
    world.assert_found(&[]);
}

#[test]
fn standby_need_not_explain_the_active_router() {
    let mut world = world();
    world.position_stays(20, 40);
    world.logs_warning(21);
    let (readyz, reason) = ("waiting: the slot is held".to_owned(), Some("the slot is held".to_owned()));
    world.answers(Some(Answer { readyz, reason, ..healthy() }), 20, 40);
    world.log.unread.push((world.at(20), Some(world.at(40))));
    world.assert_found(&[]);
    world.answers(Some(Answer { reason: Some("it is slow".to_owned()), ..with_reason() }), 20, 40);
    world.assert_found(&[What::Position]);
}

#[test]
fn killed_or_frozen_router_needs_no_reason_meanwhile() {
    let mut world = world();
    world.nothing_arrives(20, 45);
    world.seen.downtimes = vec![(world.at(21), Some(world.at(40)))];
    world.assert_found(&[]);
    world.seen.downtimes = vec![(world.at(21), Some(world.at(30)))];
    world.assert_found(&[What::Events]);
    world.seen.downtimes = vec![(world.at(40), None)];
    world.assert_found(&[What::Events]);
}

#[test]
fn no_standstill_without_waiting_rows() {
    let mut world = world();
    // no commit either
    let (from, until) = (world.at(20), world.at(50));
    world.judgement.first_arrivals.retain(|first| first.committed < from || first.committed >= until);
    world.assert_found(&[]);
    let lost = Finding { fault: Fault::Lost, what: String::new(), at: Some(world.at(30)), place: None };
    world.judgement.findings.push(lost);
    world.assert_found(&[What::Events]);
    assert_eq!(world.found()[0].from, world.at(30));
}

#[test]
fn standstill_of_position_needs_a_reason_too() {
    let mut world = world();
    world.position_stays(20, 50);
    world.assert_found(&[What::Position]);
    world.logs_warning(21);
    let answer = Answer { not_remembered: Some("it cannot be written".to_owned()), ..healthy() };
    world.answers(Some(answer), 21, 50);
    world.assert_found(&[]);
}

#[test]
fn position_need_not_move_within_a_large_transaction() {
    let mut world = world();
    world.position_stays(20, 50);
    let one = world.at(22);
    let (from, until) = (world.at(20), world.at(48));
    for first in &mut world.judgement.first_arrivals {
        if first.at >= from && first.at < until {
            first.committed = one;
        }
    }
    world.assert_found(&[]);
}

#[test]
fn silent_endpoint_is_found_except_during_downtime() {
    let mut world = world();
    world.answers(None, 20, 25);
    world.assert_found(&[]);
    world.answers(None, 20, 30);
    world.assert_found(&[What::Silent]);
    world.answers(Some(Answer { last_turn: MAX_SILENCE * 2, ..healthy() }), 20, 30);
    world.assert_found(&[What::Silent]);
    world.answers(None, 20, 30);
    world.seen.downtimes = vec![(world.at(20), Some(world.at(28)))];
    world.assert_found(&[]);
    world.seen.downtimes.clear();
    for probe in &mut world.seen.probes {
        probe.alive = probe.answer.is_some();
    }
    world.assert_found(&[]);
}
