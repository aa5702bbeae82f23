//! Where a start resumes, and why it may be refused.

use super::super::record::tests::sample_checkpoint;
use super::*;
use crate::checkpoint::{
    LeftOut, LogFingerprint, LogMismatch, ResumeCheck, SlotRecord, StreamDefinition, System, Traces,
};
use crate::error::{Effect, Error, ErrorCode, Remedy, Step};
use crate::progress::{Landmark, Partial};
use pg_logical::PgTimestamp;

const HISTORY: &str = "1\t0/1800\tno recovery target specified\n";

struct Case {
    checkpoint: Option<Checkpoint>,
    slot: &'static str,
    confirmed: u64,
    identifier: &'static str,
    flush: u64,
    history: Option<&'static str>,
    definition: StreamDefinition,
    log_mismatch: Option<LogMismatch>,
    record: Option<SlotRecord>,
    exactly_once: bool,
    bookmark: Option<&'static str>,
    left_out: Option<LeftOut>,
}

impl Case {
    /// A router that has delivered up to 0/1000, and a slot that is confirmed up to 0/800.
    fn new() -> Self {
        Case {
            checkpoint: Some(sample_checkpoint()),
            slot: "outbox_router",
            confirmed: 0x800,
            identifier: "7423",
            flush: 0x3000,
            history: None,
            definition: sample_checkpoint().definition,
            log_mismatch: None,
            record: None,
            exactly_once: true,
            bookmark: None,
            left_out: None,
        }
    }

    fn decided(&self, accepted: Option<u64>) -> Result<Start, ResumeConflict> {
        let timeline = if self.history.is_some() { 2 } else { 1 };
        let system = System { identifier: self.identifier.into(), timeline, flush: Lsn(self.flush) };
        let rows = [Step::new("Save all rows")];
        let found = StartFacts {
            router: "shop",
            slot: self.slot,
            confirmed: Lsn(self.confirmed),
            system: &system,
            history: self.history,
            definition: &self.definition,
            left_out: self.left_out.as_ref(),
            recovery: &Remedy::from("In one session: SELECT 1"),
            log_mismatch: self.log_mismatch,
            record: self.record.as_ref(),
            exactly_once: self.exactly_once,
            bookmark: self.bookmark,
            rows: Some(&rows),
            run: "outbox-router run",
        };
        decide(self.checkpoint.as_ref(), &found, accepted.map(Lsn))
    }
}

fn at(lsn: u64) -> Position {
    Position { flush: Lsn(lsn), partial: None }
}

#[test]
fn starts_where_the_router_left_off_and_the_first_time_where_the_slot_is() {
    assert_eq!(Case::new().decided(None), Ok(Start::Resumed(at(0x1000))));
    assert_eq!(Case { confirmed: 0x1000, ..Case::new() }.decided(None), Ok(Start::Resumed(at(0x1000))));
    assert_eq!(Case { checkpoint: None, ..Case::new() }.decided(None), Ok(Start::First(at(0x800))));
    // a promotion after the position changes nothing
    assert_eq!(Case { history: Some(HISTORY), ..Case::new() }.decided(None), Ok(Start::Resumed(at(0x1000))));
    // a gap that does not exist need not be accepted
    assert_eq!(Case::new().decided(Some(0x800)), Ok(Start::Resumed(at(0x1000))));
}

#[test]
fn a_slot_that_may_not_be_new_is_not_read_without_a_position() {
    let case = |record| Case { checkpoint: None, record: Some(record), ..Case::new() };
    let new = SlotRecord { created_at: Some(Lsn(0x800)), usable: true, ..SlotRecord::default() };
    let read_by = |name: &str| SlotRecord { router: Some(name.into()), ..new.clone() };
    assert_eq!(case(new.clone()).decided(None), Ok(Start::First(at(0x800))));
    for (record, words) in [
        (read_by("billing"), &["the router billing has read it"][..]),
        (read_by("shop"), &["this router has read it"][..]),
        (SlotRecord { created_at: Some(Lsn(0x700)), ..new.clone() }, &["created it at 0/700"][..]),
        (SlotRecord { created_at: None, ..new.clone() }, &["does not say"][..]),
        (SlotRecord::default(), &["cannot read and write"][..]),
    ] {
        let gap = case(record.clone()).decided(None).unwrap_err();
        assert_eq!(gap.resume_at, Lsn(0x800), "{gap:?}");
        for word in words {
            assert!(gap.what.contains(word), "{word}: {gap:?}");
        }
        assert!(case(record.clone()).decided(Some(0x801)).unwrap_err().what.contains("does not match"));
        assert_eq!(case(record).decided(Some(0x800)), Ok(Start::Accepted(at(0x800))));
    }
}

#[test]
fn at_least_once_a_slot_that_no_router_has_read_needs_no_checkpoint() {
    let case = |record| Case { checkpoint: None, record: Some(record), exactly_once: false, ..Case::new() };
    let record = SlotRecord { created_at: Some(Lsn(0x700)), usable: true, ..SlotRecord::default() };
    for record in [record.clone(), SlotRecord { created_at: None, ..record }, SlotRecord::default()] {
        assert_eq!(case(record).decided(None), Ok(Start::First(at(0x800))));
    }
}

/// A checkpoint that is lost, or stored under another name, would have shown that the slot was moved or the publication altered.
#[test]
fn a_position_that_was_read_under_another_name_is_a_conflict_in_both_modes() {
    let new = SlotRecord { created_at: Some(Lsn(0x800)), usable: true, ..SlotRecord::default() };
    let read_by = |name: &str| SlotRecord { router: Some(name.into()), ..new.clone() };
    let beside = |record: &SlotRecord, slot: &str, router: &str| SlotRecord {
        others: vec![(slot.into(), router.into())],
        ..record.clone()
    };
    let by_hand = SlotRecord { created_at: None, ..new.clone() };
    let former = "In the configuration set name = \"db.former\", and under `[postgres]` slot = \"former\"";
    for exactly_once in [false, true] {
        for (record, code, words) in [
            (read_by("shop"), ErrorCode::CheckpointLost, "this router has read it"),
            (read_by("billing"), ErrorCode::CheckpointLost, "set name = \"billing\" as before"),
            (read_by("billing/1"), ErrorCode::CheckpointLost, "set name = \"billing\" as before"),
            (beside(&new, "former", "db.former"), ErrorCode::AnotherSlot, former),
            (beside(&new, "former_0_of_2", "db.former/0"), ErrorCode::AnotherSlot, "`name`, and under"),
            (beside(&new, "former", "shop"), ErrorCode::AnotherSlot, "(read by shop)"),
        ] {
            let case = Case { checkpoint: None, record: Some(record), exactly_once, ..Case::new() };
            let conflict = case.decided(None).unwrap_err();
            assert_eq!((conflict.code, conflict.events.effect), (code, Effect::Lost), "{conflict:?}");
            let refusal = conflict.refusal(None).to_string();
            for words in [words, "published for a time", "--accept-gap 0/800"] {
                assert!(refusal.contains(words), "{words}: {refusal}");
            }
            assert!(
                ["outbox-router run`", "Save all rows"].iter().any(|words| refusal.contains(words)),
                "the rows are kept: {refusal}"
            );
            assert_eq!(case.decided(Some(0x800)), Ok(Start::Accepted(at(0x800))));
        }
        // the shards of one router, and none
        for record in [beside(&new, "former_1_of_2", "shop/1"), new.clone()] {
            let case = Case { checkpoint: None, record: Some(record), exactly_once, ..Case::new() };
            assert_eq!(case.decided(None), Ok(Start::First(at(0x800))));
        }
    }
    let case = Case {
        checkpoint: None,
        record: Some(beside(&by_hand, "former", "db.former")),
        exactly_once: false,
        ..Case::new()
    };
    assert_eq!(
        case.decided(None).unwrap_err().code,
        ErrorCode::AnotherSlot,
        "a slot that was created by hand"
    );
}

/// `check`, a start and the watch compare log and stream where the catalogues alone cannot tell.
#[test]
fn an_alteration_is_a_conflict_only_if_it_left_rows_out() {
    let sample = || sample_checkpoint().definition;
    let touched = StreamDefinition {
        publication: sample().publication.map(|publication| format!("{publication}0")),
        ..sample()
    };
    let replaced = StreamDefinition { publication: Some("9/745".into()), ..sample() };
    let named = |xid: &str| {
        let traces = Traces { named_at: Some(xid.into()), ..Traces::default() };
        StreamDefinition { traces: [("public.outbox".into(), traces)].into(), ..sample() }
    };
    let rows = |missing| Some(LeftOut::Rows { missing, incomplete: 0 });
    let unknown = || Some(LeftOut::Unknown("no test_decoding".into()));
    for (definition, left_out, says) in [
        (touched.clone(), Some(LeftOut::None), None),
        (touched.clone(), rows(1), Some("one row that was committed since is not in the stream")),
        (touched.clone(), rows(7), Some("7 rows that were committed since are not")),
        (touched.clone(), unknown(), Some("is not known: no test_decoding")),
        (touched, None, Some("was altered")),
        (named("2"), Some(LeftOut::None), None),
        (named("2"), rows(5), Some("5 rows")),
        (named("2"), unknown(), None),
        (replaced, Some(LeftOut::None), Some("was altered")),
    ] {
        let mut case = Case { definition, left_out, ..Case::new() };
        case.checkpoint.as_mut().unwrap().definition = named("1");
        let decided = case.decided(None);
        match says {
            None => assert_eq!(decided, Ok(Start::Resumed(at(0x1000)))),
            Some(says) => {
                let conflict = decided.unwrap_err();
                assert_eq!(conflict.code, ErrorCode::AlteredWhileAway);
                assert!(conflict.what.contains(says), "{conflict:?}");
            }
        }
    }
}

/// The slots of two databases have nothing to do with each other.
#[test]
fn rows_that_were_not_published_are_missed_in_another_slot_of_the_database() {
    let altered =
        StreamDefinition { publication: Some("16400/800".into()), ..sample_checkpoint().definition };
    let elsewhere =
        StreamDefinition { tables: [("public.outbox".into(), "9 1/2; ".into())].into(), ..altered.clone() };
    for (definition, confirmed, effect, words) in [
        (altered.clone(), 0x800, Effect::Lost, "while the table was not published"),
        (altered, 0x1400, Effect::Lost, "published, and those committed between 0/1000 and 0/1400"),
        (elsewhere, 0x800, Effect::Doubled, "none is missing"),
        (sample_checkpoint().definition, 0x800, Effect::Doubled, "none is missing"),
    ] {
        let case = Case { slot: "other", definition, confirmed, ..Case::new() };
        let conflict = case.decided(None).unwrap_err();
        assert_eq!((conflict.code, conflict.events.effect), (ErrorCode::AnotherSlot, effect), "{conflict:?}");
        assert!(conflict.events.which.contains(words), "{conflict:?}");
        assert_eq!(conflict.remedy.to_string().contains("Save all rows"), effect == Effect::Lost);
        assert_eq!(conflict.what.contains("publication"), effect == Effect::Lost, "{conflict:?}");
    }
}

/// The slot of a server that was restored from a backup is created after the restore.
#[test]
fn a_new_slot_on_a_restored_server_lacks_what_was_committed_before_it() {
    let new = SlotRecord { created_at: Some(Lsn(0x800)), usable: true, ..SlotRecord::default() };
    let read = SlotRecord { router: Some("shop".into()), ..new.clone() };
    let position = sample_checkpoint().position;
    let landmark = |xid| Landmark { final_lsn: Lsn(0xF00), xid, commit_time: PgTimestamp(0) };
    let mut look =
        ResumeCheck::new(LogFingerprint::Landmark(landmark(742)), position, Lsn(0x800), None).unwrap();
    let log_mismatch = look.change(landmark(741)).err();
    for (record, effect) in [(new, Effect::Lost), (read, Effect::Doubled)] {
        for case in [
            Case { flush: 0xF00, record: Some(record.clone()), ..Case::new() },
            Case { log_mismatch, record: Some(record.clone()), ..Case::new() },
        ] {
            let conflict = case.decided(None).unwrap_err();
            assert_eq!(conflict.events.effect, effect, "{conflict:?}");
            assert_eq!(conflict.remedy.to_string().contains("Save all rows"), effect == Effect::Lost);
        }
    }
}

#[test]
fn what_another_router_has_read_since_is_not_sent_again() {
    let record = |name: &str| Some(SlotRecord { router: Some(name.into()), ..SlotRecord::default() });
    for exactly_once in [false, true] {
        let mut case = Case { record: record("billing"), exactly_once, ..Case::new() };
        let gap = case.decided(None).unwrap_err();
        assert!(
            gap.what.contains("the router billing has read the slot") && gap.resume_at == Lsn(0x1000),
            "{gap:?}"
        );
        assert_eq!(case.decided(Some(0x1000)), Ok(Start::Accepted(at(0x1000))));
        case.record = record("shop");
        assert_eq!(case.decided(None), Ok(Start::Resumed(at(0x1000))));
    }
}

#[test]
fn parked_events_whose_rows_the_server_does_not_have_are_missed() {
    let parked = |parked| {
        let mut case = Case::new();
        case.checkpoint.as_mut().unwrap().parked = Some(Lsn(parked));
        case
    };
    let here = Ok(Start::Resumed(at(0x1000)));
    assert_eq!(parked(0x3000).decided(None), here);
    let gap = parked(0x3001).decided(None).unwrap_err();
    assert!(gap.what.contains("parked events are lost") && gap.resume_at == Lsn(0x1000), "{}", gap.what);
    let mut inside = parked(0x3001);
    let partial = Some(Partial { final_lsn: Lsn(0x1500), changes: 7 });
    inside.checkpoint.as_mut().unwrap().position.partial = partial;
    let whole = Position { flush: Lsn(0x1000), partial };
    assert_eq!(
        inside.decided(Some(0x1000)),
        Ok(Start::Accepted(whole)),
        "the delivered part is not sent again"
    );
    // the promoted standby was behind
    let promoted = |parked_at| Case { history: Some(HISTORY), ..parked(parked_at) }.decided(None);
    assert_eq!(promoted(0x1000), here);
    assert!(promoted(0x2fff).unwrap_err().what.contains("parked events are lost"));
}

#[test]
fn a_transaction_is_not_skipped_by_numbers_that_mean_something_else_now() {
    let partial = Some(Partial { final_lsn: Lsn(0x1100), changes: 7 });
    let mut case = Case::new();
    case.checkpoint.as_mut().unwrap().position.partial = partial;
    assert_eq!(case.decided(None).map(|start| start.position().partial), Ok(partial));
    case.definition.message_prefix = Some("outbox".into());
    assert_eq!(case.decided(None).map(|start| start.position()), Ok(at(0x1000)));
}

#[test]
fn no_guessing_about_a_transaction_under_way_that_the_log_no_longer_holds() {
    let partial = |final_lsn| Some(Partial { final_lsn: Lsn(final_lsn), changes: 7 });
    let mut cut = Case { flush: 0x2000, ..Case::new() };
    cut.checkpoint.as_mut().unwrap().position.partial = partial(0x2000);
    assert!(
        cut.decided(None)
            .unwrap_err()
            .what
            .contains("ends at 0/2000, 1 B before the router's position 0/2001")
    );
    cut.flush = 0x2001;
    assert!(cut.decided(None).is_ok());
    let mut left = Case { history: Some(HISTORY), ..Case::new() };
    left.checkpoint.as_mut().unwrap().position.partial = partial(0x1800);
    assert_eq!(left.decided(None).unwrap_err().resume_at, Lsn(0x1800));
}

#[test]
fn no_guessing_where_the_two_positions_do_not_fit() {
    let mut behind = Case { history: Some(HISTORY), ..Case::new() };
    behind.checkpoint.as_mut().unwrap().position.flush = Lsn(0x2000);
    let landmark = |xid| Landmark { final_lsn: Lsn(0xF00), xid, commit_time: PgTimestamp(0) };
    let position = sample_checkpoint().position;
    let mut look =
        ResumeCheck::new(LogFingerprint::Landmark(landmark(742)), position, Lsn(0x800), None).unwrap();
    let log_mismatch = look.change(landmark(741)).err();
    let altered =
        StreamDefinition { publication: Some("16400/800".into()), ..sample_checkpoint().definition };
    for (case, words, resume_at) in [
        (Case { identifier: "9", ..Case::new() }, &["another database cluster", "7423"][..], 0x800),
        (Case { slot: "other", ..Case::new() }, &["outbox_router", "other"][..], 0x800),
        (behind, &["timeline 1", "0/1800", "0/2000", "2.0 KiB", "no longer exist"][..], 0x1800),
        (
            Case { history: Some(""), ..Case::new() },
            &["timeline 2", "timeline 1", "does not descend from"][..],
            0x800,
        ),
        (Case { flush: 0xF00, ..Case::new() }, &["ends at 0/F00", "256 B", "0/1000"][..], 0x800),
        (
            Case { confirmed: 0x1400, ..Case::new() },
            &["moved by another", "0/1400", "0/1000", "1.0 KiB"][..],
            0x1400,
        ),
        (
            Case { definition: altered.clone(), confirmed: 0x1400, ..Case::new() },
            &[
                "moved by another",
                "0/1400",
                "; and the publication",
                "created again",
                "restored to an earlier state",
            ][..],
            0x1400,
        ),
        (Case { definition: altered, ..Case::new() }, &["created again", "0/1000"][..], 0x1000),
        (
            Case { log_mismatch, ..Case::new() },
            &["0/1000", "742, committed 2000-01-01", "at 0/F00", "has 741", "snapshot"][..],
            0x800,
        ),
    ] {
        let gap = case.decided(None).unwrap_err();
        assert_eq!(gap.resume_at, Lsn(resume_at), "{gap:?}");
        for word in words {
            assert!(gap.what.contains(word), "{word}: {gap:?}");
        }
        // only the position that was shown is accepted
        assert!(case.decided(Some(resume_at + 1)).unwrap_err().what.contains("does not match"));
        assert_eq!(case.decided(Some(resume_at)), Ok(Start::Accepted(at(resume_at))));
        let Error::Definite(definite) = gap.refusal(None) else { panic!() };
        assert!(
            definite.remedy.to_string().contains(&format!("--accept-gap {}", Lsn(resume_at))),
            "{definite}"
        );
    }
}

/// The slot no longer has the log between the two positions. After a reset to a bookmark it has, and the start finds the alteration
/// again; without one, the table has all rows.
#[test]
fn unpublished_rows_are_left_to_the_start_after_a_reset() {
    let definition =
        StreamDefinition { publication: Some("16400/800".into()), ..sample_checkpoint().definition };
    for (bookmark, of_table) in [(None, true), (Some("slot reset --to before"), false)] {
        let case = Case { definition: definition.clone(), confirmed: 0x1400, bookmark, ..Case::new() };
        let remedy = case.decided(None).unwrap_err().remedy.to_string();
        assert_eq!(remedy.contains("Save all rows"), of_table, "{remedy}");
        assert_eq!(remedy.contains("slot reset --to before"), !of_table, "{remedy}");
        assert!(!remedy.contains("In one session: SELECT 1"), "{remedy}");
    }
}

/// The publication differs too, which does not count for another database.
#[test]
fn the_catalogues_are_not_compared_with_those_of_another_database() {
    let elsewhere = StreamDefinition {
        publication: Some("16400/800".into()),
        tables: [("public.outbox".into(), "9 1/2; ".into())].into(),
        ..sample_checkpoint().definition
    };
    for case in [
        Case { slot: "other", definition: elsewhere.clone(), ..Case::new() },
        Case { identifier: "9", definition: elsewhere.clone(), ..Case::new() },
    ] {
        let gap = case.decided(None).unwrap_err();
        assert!(!gap.what.contains("publication"), "{gap:?}");
        assert!(gap.remedy.to_string().starts_with("Either two routers share one name"), "{gap:?}");
        assert!(!gap.remedy.to_string().contains("SELECT 1"), "{gap:?}");
    }
}
