use pg_logical::Lsn;

use super::*;
use crate::allowance::Look;
use crate::faults::lived_through;
use crate::judgement::Finding;

/// A minute. Every 100 ms a transaction of one event, which arrives 10 ms later, and is remembered 100 ms later; twice a
/// second an answer that all is well.
struct World {
    start: Instant,
    seen: Seen,
    log: log_reader::Said,
    judgement: Judgement,
    fault: Injected,
}

const EVENTS: u64 = 600;

fn well() -> Said {
    Said { code: 200, readyz: "active".to_owned(), ..Said::default() }
}

fn troubled() -> Said {
    let readyz = "reconnecting to kafka: it is away".to_owned();
    Said { code: 503, readyz, reason: Some("it is away".to_owned()), ..Said::default() }
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
    let account = |n: u64| Account { at: at(n * 500), alive: true, said: Some(well()) };
    World {
        start,
        seen: Seen {
            looks: (0..EVENTS).map(look).collect(),
            accounts: (0..120).map(account).collect(),
            ..Seen::default()
        },
        log: log_reader::Said::default(),
        judgement: Judgement { first_arrivals: (0..EVENTS).map(first).collect(), ..Judgement::default() },
        fault: lived_through(at(20_000), at(40_000), String::new()),
    }
}

impl World {
    fn at(&self, seconds: u64) -> Instant {
        self.start + Duration::from_secs(seconds)
    }

    /// What was to arrive between these arrives at the end.
    fn nothing_arrives(&mut self, from: u64, until: u64) {
        let (from, until) = (self.at(from), self.at(until));
        for first in self.judgement.first_arrivals.iter_mut().filter(|first| first.at >= from) {
            first.at = first.at.max(until);
        }
    }

    /// The position is what it was.
    fn position_stays(&mut self, from: u64, until: u64) {
        let (from, until) = (self.at(from), self.at(until));
        let before = self.seen.looks.iter().rev().find(|look| look.at < from).unwrap().flushed;
        for look in self.seen.looks.iter_mut().filter(|look| (from..until).contains(&look.at)) {
            look.remembered = before;
        }
    }

    fn says(&mut self, said: Option<Said>, from: u64, until: u64) {
        let (from, until) = (self.at(from), self.at(until));
        for account in self.seen.accounts.iter_mut().filter(|one| (from..until).contains(&one.at)) {
            account.said = said.clone();
        }
    }

    fn warns(&mut self, at: u64) {
        self.log.warnings.push(self.at(at));
    }

    fn found(&self) -> Vec<Unexplained> {
        let World { start, seen, log, judgement, fault } = self;
        let (start, end) = (*start, self.at(60));
        unexplained(Known { seen, log, judgement, faults: &[fault], start, end })
    }

    #[track_caller]
    fn finds(&self, whats: &[What]) {
        let found = self.found();
        assert_eq!(found.iter().map(|found| found.what).collect::<Vec<_>>(), whats, "{found:?}");
    }
}

#[test]
fn while_all_flows_nothing_needs_a_reason() {
    world().finds(&[]);
}

#[test]
fn events_that_stand_still_need_a_reason_within_ten_seconds() {
    let mut world = world();
    world.nothing_arrives(20, 30);
    world.finds(&[]);
    world.nothing_arrives(20, 35);
    world.finds(&[What::Events]);
    let found = world.found();
    assert_eq!(found[0].said.as_deref(), Some("/readyz 200 \"active\", reason in /status: nothing"));
    assert_eq!(found[0].until, world.at(35));
}

#[test]
fn a_reason_has_to_be_there_in_time_and_to_stay() {
    let mut world = world();
    world.nothing_arrives(20, 50);
    world.warns(21);
    world.says(Some(troubled()), 29, 50);
    world.finds(&[]);
    world.says(Some(well()), 29, 50);
    world.says(Some(troubled()), 32, 50);
    world.finds(&[What::Events]);
    world.says(Some(troubled()), 21, 33);
    world.says(Some(well()), 33, 50);
    world.finds(&[What::Events]);
}

#[test]
fn a_reason_is_one_in_readyz_and_in_status() {
    let ready = Said { code: 200, ..troubled() };
    let no_reason = Said { reason: None, ..troubled() };
    let probe_knows_nothing = Said { code: 200, readyz: "active".to_owned(), ..troubled() };
    for (said, finds) in
        [(ready, vec![]), (no_reason, vec![What::Events]), (probe_knows_nothing, vec![What::Events])]
    {
        let mut world = world();
        world.nothing_arrives(20, 50);
        world.warns(21);
        world.says(Some(said), 21, 50);
        world.finds(&finds);
    }
}

#[test]
fn without_a_line_in_the_log_a_reason_is_half_a_reason() {
    let mut world = world();
    world.nothing_arrives(25, 50);
    world.says(Some(troubled()), 25, 50);
    world.finds(&[What::Log]);
    // of before the fault
    world.warns(14);
    world.finds(&[What::Log]);
    // the fault began at 20, and what it does may be told before the last event has arrived
    world.warns(20);
    world.finds(&[]);
}

#[test]
fn a_reason_has_to_name_what_is_known_to_be_wrong() {
    let mut world = world();
    world.nothing_arrives(20, 38);
    world.warns(21);
    world.says(Some(troubled()), 20, 38);
    world.fault.names = &["away", "it"];
    world.finds(&[]);
    world.fault.names = &["away", "WRITE"];
    world.finds(&[What::Events]);
    // it is over
    world.fault.back = world.at(21);
    world.finds(&[]);
}

#[test]
fn an_unread_log_is_no_reason() {
    let mut world = world();
    world.nothing_arrives(20, 40);
    world.warns(21);
    world.says(Some(troubled()), 20, 40);
    world.log.unread.push((world.at(20), Some(world.at(40))));
    world.finds(&[What::Events]);
    // it ended soon, and something else lasted; and no line could be written
    world.log.unread = vec![(world.at(20), Some(world.at(30)))];
    world.log.warnings.clear();
    world.finds(&[]);
}

#[test]
fn a_router_that_waits_for_the_slot_need_not_explain_what_another_one_does() {
    let mut world = world();
    world.position_stays(20, 40);
    world.warns(21);
    let (readyz, reason) = ("waiting: the slot is held".to_owned(), Some("the slot is held".to_owned()));
    world.says(Some(Said { readyz, reason, ..well() }), 20, 40);
    world.log.unread.push((world.at(20), Some(world.at(40))));
    world.finds(&[]);
    world.says(Some(Said { reason: Some("it is slow".to_owned()), ..troubled() }), 20, 40);
    world.finds(&[What::Position]);
}

#[test]
fn who_was_killed_or_frozen_need_not_say_anything_for_so_long() {
    let mut world = world();
    world.nothing_arrives(20, 45);
    world.seen.excused = vec![(world.at(21), Some(world.at(40)))];
    world.finds(&[]);
    world.seen.excused = vec![(world.at(21), Some(world.at(30)))];
    world.finds(&[What::Events]);
    world.seen.excused = vec![(world.at(40), None)];
    world.finds(&[What::Events]);
}

#[test]
fn nothing_stands_still_where_nothing_waits() {
    let mut world = world();
    // no commit either
    let (from, until) = (world.at(20), world.at(50));
    world.judgement.first_arrivals.retain(|first| first.committed < from || first.committed >= until);
    world.finds(&[]);
    let lost = Finding { fault: Fault::Lost, what: String::new(), at: Some(world.at(30)), place: None };
    world.judgement.findings.push(lost);
    world.finds(&[What::Events]);
    assert_eq!(world.found()[0].from, world.at(30));
}

#[test]
fn a_position_that_stays_while_events_flow_needs_a_reason_too() {
    let mut world = world();
    world.position_stays(20, 50);
    world.finds(&[What::Position]);
    world.warns(21);
    let said = Said { not_remembered: Some("it cannot be written".to_owned()), ..well() };
    world.says(Some(said), 21, 50);
    world.finds(&[]);
}

#[test]
fn a_position_need_not_move_within_a_large_transaction() {
    let mut world = world();
    world.position_stays(20, 50);
    let one = world.at(22);
    let (from, until) = (world.at(20), world.at(48));
    for first in &mut world.judgement.first_arrivals {
        if first.at >= from && first.at < until {
            first.committed = one;
        }
    }
    world.finds(&[]);
}

#[test]
fn an_endpoint_that_does_not_answer_is_found_unless_it_is_excused() {
    let mut world = world();
    world.says(None, 20, 25);
    world.finds(&[]);
    world.says(None, 20, 30);
    world.finds(&[What::Silent]);
    world.says(Some(Said { last_turn: SILENT * 2, ..well() }), 20, 30);
    world.finds(&[What::Silent]);
    world.says(None, 20, 30);
    world.seen.excused = vec![(world.at(20), Some(world.at(28)))];
    world.finds(&[]);
    world.seen.excused.clear();
    for account in &mut world.seen.accounts {
        account.alive = account.said.is_some();
    }
    world.finds(&[]);
}
