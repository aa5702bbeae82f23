use pg_logical::Lsn;

use super::*;
use crate::checkpoint::remembered;
use crate::progress::Sequence;
use crate::sink::kafka::{KafkaEnd, TransactionSize};
use crate::source::slot::SlotLeft;
use crate::unsendable::{Reason, Unsendable};

const DOUBTFUL: Partial = Partial { final_lsn: Lsn(20), changes: 63 };

fn ended(outcome: Outcome, alone: Option<&str>) -> SessionEnded {
    let alone = alone.map(|event| SentAlone {
        event: event.to_owned(),
        how_to_skip: "leave it out".to_owned(),
        nothing_before: true,
    });
    let slot = SlotLeft { end: None, recognized: true, sent_away: false, lock: None, log_end: Lsn::INVALID };
    let kafka = KafkaEnd {
        checkpoint: remembered(),
        advanced: true,
        last_suspect: Some(DOUBTFUL),
        alone,
        batch_bytes: 1_000,
        transaction_size: TransactionSize::default(),
    };
    SessionEnded { outcome, unacknowledged: 0, slot, kafka, retry: None }
}

fn refusal(transient: bool) -> Outcome {
    let why = Unsendable::new(Reason::TooLarge, "too large", if transient { "" } else { "Raise it" });
    Outcome::Refused(Refusal { last: Sequence(0), transient, why })
}

fn refused() -> Error {
    Error::refused("wrong password", "correct it")
}

#[test]
fn a_refused_batch_is_sent_one_at_a_time_from_the_position_on() {
    let mut memory = SessionState::default();
    assert_eq!(after_session(ended(refusal(false), None), false, &mut memory), Next::Again);
    assert_eq!(memory.suspect, Suspect::UpTo(DOUBTFUL));
    assert_eq!(memory.batch_bytes, 1_000);
    // also after a connection that is lost meanwhile
    let lost = Outcome::Failed(Error::transient(Peer::Postgres, "lost"));
    assert!(matches!(after_session(ended(lost, None), false, &mut memory), Next::Later(_)));
    assert_eq!(memory.suspect, Suspect::UpTo(DOUBTFUL));
}

#[test]
fn a_record_refused_alone_stops_the_router_and_is_named() {
    let next = after_session(
        ended(refusal(false), Some("42 to the topic orders")),
        false,
        &mut SessionState::default(),
    );
    let Next::Never(definite) = next else { panic!("{next:?}") };
    assert_eq!(definite.exit, Exit::Unsafe);
    assert!(definite.what.contains("id 42 to the topic orders: too large"), "{definite}");
}

/// Otherwise each attempt would repeat what follows it in other topics.
#[test]
fn a_record_that_waits_for_a_right_is_asked_for_alone() {
    let mut memory = SessionState::default();
    let Outcome::Refused(mut refusal) = refusal(true) else { unreachable!() };
    refusal.why.remedy = "Grant it".into();
    let next = after_session(ended(Outcome::Refused(refusal), Some("42")), false, &mut memory);
    assert!(matches!(next, Next::Later(Transient { peer: Peer::Kafka, .. })), "{next:?}");
    assert_eq!(memory.suspect, Suspect::UpTo(DOUBTFUL));
}

#[test]
fn what_may_pass_is_tried_again() {
    let next = after_session(ended(refusal(true), None), false, &mut SessionState::default());
    assert!(matches!(next, Next::Later(Transient { peer: Peer::Kafka, .. })));
}

#[test]
fn a_refused_password_is_definite_at_start_and_transient_later() {
    let mut memory = SessionState::default();
    assert!(matches!(after_failure(refused(), &memory), Next::Never(_)));
    memory.was_active = true;
    assert!(matches!(after_failure(refused(), &memory), Next::Later(_)));
    assert!(matches!(after_failure(Error::not_safe("slot lost", "look"), &memory), Next::Never(_)));
}
