use pg_logical::Lsn;

use super::*;
use crate::checkpoint::sample_checkpoint;
use crate::error::Step;
use crate::progress::Sequence;
use crate::sink::kafka::{KafkaEnd, TransactionSize};
use crate::source::slot::SlotLeft;
use crate::unsendable::{Reason, Unsendable};

const DOUBTFUL: Partial = Partial { final_lsn: Lsn(20), changes: 63 };

fn ended(outcome: Outcome, alone: Option<&str>) -> SessionEnded {
    let alone = alone.map(|event| SentAlone {
        event: event.to_owned(),
        how_to_skip: [Step::new("count"), Step::new("leave it out")],
        all_before_durable: true,
    });
    let slot =
        SlotLeft { end: None, log_verified: true, terminated: false, lock: None, log_end: Lsn::INVALID };
    let kafka = KafkaEnd {
        checkpoint: sample_checkpoint(),
        advanced: true,
        last_suspect: Some(DOUBTFUL),
        alone,
        batch_bytes: 1_000,
        transaction_size: TransactionSize::default(),
    };
    SessionEnded { outcome, unacknowledged: 0, slot: Some(slot), kafka, retry: None }
}

fn refusal(transient: bool) -> Outcome {
    let why = Unsendable::new(Reason::TooLarge, "too large", if transient { "" } else { "Raise it" });
    Outcome::Refused(Refusal { last: Sequence(0), transient, why })
}

fn refused() -> Error {
    Error::refused(ErrorCode::PostgresLogin, "wrong password", "correct it")
}

#[test]
fn a_refused_batch_is_sent_one_at_a_time_from_the_position_on() {
    let mut state = SessionState::default();
    assert_eq!(after_session(ended(refusal(false), None), false, &mut state), NextStep::Restart);
    assert_eq!(state.suspect, Suspect::UpTo(DOUBTFUL));
    assert_eq!(state.batch_bytes, 1_000);
    // also after a connection was lost in between
    let lost = Outcome::Failed(Error::transient(Peer::Postgres, "lost"));
    assert!(matches!(after_session(ended(lost, None), false, &mut state), NextStep::Retry(_)));
    assert_eq!(state.suspect, Suspect::UpTo(DOUBTFUL));
}

#[test]
fn a_record_refused_alone_stops_the_router_and_is_named() {
    let next = after_session(
        ended(refusal(false), Some("42 to the topic options")),
        false,
        &mut SessionState::default(),
    );
    let NextStep::Fail(definite) = next else { panic!("{next:?}") };
    assert_eq!(definite.exit, Exit::Unsafe);
    assert!(definite.what.contains("id 42 to the topic options: too large"), "{definite}");
}

/// Otherwise each attempt would repeat later records to other topics.
#[test]
fn a_record_that_waits_for_a_privilege_is_sent_alone() {
    let mut state = SessionState::default();
    let Outcome::Refused(mut refusal) = refusal(true) else { unreachable!() };
    refusal.why.remedy = "Grant it".into();
    let next = after_session(ended(Outcome::Refused(refusal), Some("42")), false, &mut state);
    assert!(matches!(next, NextStep::Retry(Transient { peer: Peer::Kafka, .. })), "{next:?}");
    assert_eq!(state.suspect, Suspect::UpTo(DOUBTFUL));
}

#[test]
fn a_transient_refusal_is_retried() {
    let next = after_session(ended(refusal(true), None), false, &mut SessionState::default());
    assert!(matches!(next, NextStep::Retry(Transient { peer: Peer::Kafka, .. })));
}

#[test]
fn a_refused_password_is_definite_at_start_and_transient_later() {
    let mut state = SessionState::default();
    assert!(matches!(after_failure(refused(), &state), NextStep::Fail(_)));
    state.was_active = true;
    let NextStep::Retry(waits) = after_failure(refused(), &state) else { panic!("it is retried") };
    assert_eq!((waits.code(), waits.peer), (ErrorCode::PostgresLogin, Peer::Postgres));
    assert_eq!(waits.what, "wrong password. correct it");
    assert!(waits.in_lines().contains("correct it"), "{}", waits.in_lines());
    let json = serde_json::to_value(Error::from(waits)).unwrap();
    assert_eq!((&json["error_code"], &json["message"]), (&"OBR-1002".into(), &"wrong password".into()));
    let of_kafka = Error::refused(ErrorCode::KafkaLogin, "wrong password", "correct it");
    assert!(matches!(after_failure(of_kafka, &state), NextStep::Retry(Transient { peer: Peer::Kafka, .. })));
    assert!(matches!(
        after_failure(Error::not_safe(ErrorCode::SlotLost, "slot lost", "look"), &state),
        NextStep::Fail(_)
    ));
}
