use super::*;
use crate::lsn::Lsn;
use crate::progress::{Partial, Position, Sequence};

fn ended(outcome: Outcome, partial: u64, handled: u64, doubtful: u64, alone: Option<&str>) -> Ended {
    let partial = (partial > 0).then_some(Partial { final_lsn: Lsn(20), changes: partial });
    Ended {
        outcome,
        position: Position { flush: Lsn(10), partial },
        unacknowledged: 0,
        handled,
        doubtful,
        alone: alone.map(str::to_owned),
        batch_bytes: 1_000,
    }
}

fn refusal(transient: bool) -> Outcome {
    Outcome::Refused(Refusal {
        last: Sequence(0),
        transient,
        reason: "too large".into(),
        remedy: "Raise it".into(),
    })
}

fn refused() -> Error {
    Error::refused("wrong password", "correct it")
}

#[test]
fn a_refused_batch_is_sent_one_at_a_time_from_the_position_on() {
    let mut memory = Memory::default();
    assert_eq!(after_session(ended(refusal(false), 3, 50, 60, None), &mut memory), Next::Again);
    // the three changes that are skipped count, for numbers start at the flush LSN
    assert_eq!(memory.one_at_a_time, 63);
    assert_eq!(memory.batch_bytes, 1_000);
}

#[test]
fn a_record_refused_alone_stops_the_router_and_is_named() {
    let next =
        after_session(ended(refusal(false), 0, 5, 1, Some("42 to the topic orders")), &mut Memory::default());
    let Next::Never(definite) = next else { panic!("{next:?}") };
    assert_eq!(definite.exit, Exit::Unsafe);
    assert!(definite.what.contains("id 42 to the topic orders: too large"), "{definite}");
}

#[test]
fn sending_one_at_a_time_outlasts_a_lost_connection() {
    let mut memory = Memory { one_at_a_time: 10, ..Memory::default() };
    let lost = || Outcome::Failed(Error::transient(Peer::Postgres, "lost"));
    assert!(matches!(after_session(ended(lost(), 2, 4, 0, None), &mut memory), Next::Later(_)));
    assert_eq!(memory.one_at_a_time, 2 + 6);
    // one that ends before it has come to anything changes nothing
    assert!(matches!(after_session(ended(lost(), 2, 0, 0, None), &mut memory), Next::Later(_)));
    assert_eq!(memory.one_at_a_time, 2 + 6);
    assert!(matches!(after_session(ended(lost(), 2, 9, 0, None), &mut memory), Next::Later(_)));
    assert_eq!(memory.one_at_a_time, 0);
}

#[test]
fn what_may_pass_is_tried_again() {
    let next = after_session(ended(refusal(true), 0, 0, 0, None), &mut Memory::default());
    assert!(matches!(next, Next::Later(Transient { peer: Peer::Kafka, .. })));
}

#[test]
fn a_refused_password_is_definite_at_start_and_transient_later() {
    let mut memory = Memory::default();
    assert!(matches!(after_failure(refused(), &memory), Next::Never(_)));
    memory.was_active = true;
    assert!(matches!(after_failure(refused(), &memory), Next::Later(_)));
    assert!(matches!(after_failure(Error::not_safe("slot lost", "look"), &memory), Next::Never(_)));
}
