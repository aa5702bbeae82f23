//! Checks that the server's log is the one that the router has read. A data directory restored from a copy looks the same, and
//! its log may have grown past the position again. So the stream starts at the last acknowledged transaction: it must arrive
//! again, and nothing else before the position. Until then nothing is confirmed and no checkpoint is written.

use pg_logical::Lsn;

use super::record::{Checkpoint, LogFingerprint};
use super::start::Start;
use super::stream_definition::StreamDefinition;
use crate::progress::{Landmark, Position};
use crate::utc::Utc;

/// A running check. Call it before each change, commit and keepalive is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumeCheck {
    fingerprint: LogFingerprint,
    /// Whether the landmark has yet to arrive. It cannot if the slot is past it.
    expected: bool,
    /// Where the stream has to start.
    start: Lsn,
    /// A transaction with a commit record before this LSN must be the landmark.
    seen_before: Lsn,
    /// The message prefix of the earlier sessions.
    message_prefix: Option<String>,
}

/// The log differs from the one that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogMismatch {
    fingerprint: LogFingerprint,
    /// A transaction that the router has not seen there; `None` if the expected one is missing.
    found: Option<Landmark>,
}

/// The result of one more part of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// More of the stream is needed.
    Undecided,
    /// It is the log that the router has read.
    Verified,
}

/// The fingerprint and stream definition of a start's checkpoint, and the check that the stream has to pass. Until it has passed,
/// the checkpoint repeats those of the one before, since nothing new is known.
pub(super) fn begin(
    before: Option<&Checkpoint>,
    start: Start,
    confirmed: Lsn,
    definition: StreamDefinition,
) -> (LogFingerprint, StreamDefinition, Option<ResumeCheck>) {
    let position = start.position();
    let quiet = LogFingerprint::Quiet { from: position.flush };
    let Some(before) = before else { return (quiet, definition, None) };
    let same_place =
        before.position.flush == position.flush && before.definition.same_publication(&definition);
    if !matches!(start, Start::Resumed(_)) && !same_place {
        return (quiet, definition, None);
    }
    let prefix = &before.definition.message_prefix;
    match ResumeCheck::new(before.fingerprint, before.position, confirmed, prefix.clone()) {
        Some(look) => (
            before.fingerprint,
            StreamDefinition { message_prefix: prefix.clone(), ..definition },
            Some(look),
        ),
        // the slot itself proves that nothing was there to check
        None if before.fingerprint == LogFingerprint::Unknown || *prefix != definition.message_prefix => {
            (quiet, definition, None)
        }
        None => (before.fingerprint, definition, None),
    }
}

impl ResumeCheck {
    /// The check for `position`, with the fingerprint of the log before it and a slot confirmed up to `confirmed`. `None` if the
    /// slot itself is proof enough, or if nothing is known.
    pub fn new(
        fingerprint: LogFingerprint,
        position: Position,
        confirmed: Lsn,
        message_prefix: Option<String>,
    ) -> Option<Self> {
        let (from, seen_before, expected) = match fingerprint {
            LogFingerprint::Unknown => return None,
            LogFingerprint::Quiet { from } => (from, position.flush, false),
            LogFingerprint::Landmark(Landmark { final_lsn, .. }) => {
                let after = Lsn(final_lsn.0.saturating_add(1));
                (final_lsn.min(position.flush), position.flush.max(after), final_lsn >= confirmed)
            }
        };
        let start = confirmed.max(from);
        (start < seen_before).then_some(ResumeCheck {
            fingerprint,
            expected,
            start,
            seen_before,
            message_prefix,
        })
    }

    /// Where the stream has to start.
    pub fn start(&self) -> Lsn {
        self.start
    }

    /// The prefix of the messages that count as changes during the check.
    pub fn message_prefix(&self) -> Option<&str> {
        self.message_prefix.as_deref()
    }

    /// A change of `transaction` has arrived.
    pub fn change(&mut self, transaction: Landmark) -> Result<Verdict, LogMismatch> {
        let is_landmark = self.fingerprint == LogFingerprint::Landmark(transaction);
        if !is_landmark && (self.expected || transaction.final_lsn < self.seen_before) {
            return Err(LogMismatch { fingerprint: self.fingerprint, found: Some(transaction) });
        }
        self.expected = false;
        // nothing after the partly delivered transaction was seen before
        if transaction.final_lsn.0 + 1 >= self.seen_before.0 {
            return Ok(Verdict::Verified);
        }
        Ok(Verdict::Undecided)
    }

    /// Everything up to `lsn` has arrived, and no transaction is open.
    pub fn reached(&self, lsn: Lsn) -> Result<Verdict, LogMismatch> {
        if lsn < self.seen_before {
            return Ok(Verdict::Undecided);
        }
        if self.expected {
            return Err(LogMismatch { fingerprint: self.fingerprint, found: None });
        }
        Ok(Verdict::Verified)
    }
}

impl std::fmt::Display for LogMismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let utc = |landmark: &Landmark| Utc(landmark.commit_time.unix_micros());
        match &self.fingerprint {
            LogFingerprint::Landmark(last) => {
                let Landmark { final_lsn, xid, .. } = last;
                write!(f, "the last delivered transaction is {xid}, committed {} at {final_lsn}", utc(last))?;
            }
            LogFingerprint::Quiet { from } => write!(f, "there was nothing to deliver from {from} on")?,
            LogFingerprint::Unknown => {}
        }
        match &self.found {
            Some(found) => {
                write!(f, ", but the log has {}, committed {} at {}", found.xid, utc(found), found.final_lsn)
            }
            None => f.write_str(", but the log does not contain it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::sample_checkpoint;
    use super::Verdict::{Undecided, Verified};
    use super::*;
    use crate::progress::Partial;
    use pg_logical::PgTimestamp;

    fn transaction(final_lsn: u64) -> Landmark {
        Landmark { final_lsn: Lsn(final_lsn), xid: 742, commit_time: PgTimestamp(1) }
    }

    const POSITION: Position = Position { flush: Lsn(0x200), partial: None };

    /// A router that has delivered up to 0x200, and last the transaction at 0x100.
    fn check(confirmed: u64) -> Option<ResumeCheck> {
        ResumeCheck::new(LogFingerprint::Landmark(transaction(0x100)), POSITION, Lsn(confirmed), None)
    }

    #[test]
    fn an_unverified_fingerprint_is_carried_over() {
        let before = Checkpoint {
            fingerprint: LogFingerprint::Landmark(transaction(0x100)),
            position: POSITION,
            ..sample_checkpoint()
        };
        let prefixed =
            StreamDefinition { message_prefix: Some("outbox".into()), ..before.definition.clone() };
        let begun = |before: &Checkpoint, start, confirmed, definition: &StreamDefinition| {
            let (fingerprint, definition, look) =
                begin(Some(before), start, Lsn(confirmed), definition.clone());
            (fingerprint, definition.message_prefix, look.is_some())
        };
        let quiet = LogFingerprint::Quiet { from: Lsn(0x200) };
        let (on, accepted) = (Start::Resumed(POSITION), Start::Accepted(POSITION));
        assert_eq!(begun(&before, on, 0x80, &before.definition), (before.fingerprint, None, true));
        // other changes count from now on, but only after the check
        assert_eq!(begun(&before, on, 0x80, &prefixed), (before.fingerprint, None, true));
        assert_eq!(begun(&before, on, 0x200, &prefixed), (quiet, Some("outbox".into()), false));
        assert_eq!(begun(&before, on, 0x200, &before.definition), (before.fingerprint, None, false));
        // an altered table says nothing about the log
        assert_eq!(begun(&before, accepted, 0x80, &before.definition), (before.fingerprint, None, true));
        let elsewhere = Start::Accepted(Position { flush: Lsn(0x80), partial: None });
        assert!(!begun(&before, elsewhere, 0x80, &before.definition).2);
        let another = StreamDefinition { publication: Some("16400/800".into()), ..before.definition.clone() };
        assert_eq!(begun(&before, accepted, 0x80, &another), (before.fingerprint, None, true), "altered");
        let another = StreamDefinition { publication: Some("16500/800".into()), ..before.definition.clone() };
        assert_eq!(begun(&before, accepted, 0x80, &another), (quiet, None, false), "created again");
        let unknown = Checkpoint { fingerprint: LogFingerprint::Unknown, ..before.clone() };
        assert_eq!(begun(&unknown, on, 0x80, &before.definition), (quiet, None, false));
    }

    #[test]
    fn no_check_where_the_slot_is_proof_enough() {
        assert_eq!(check(0x200), None);
        assert_eq!(check(0x80).map(|look| look.start()), Some(Lsn(0x100)));
        assert_eq!(check(0x180).map(|look| look.start()), Some(Lsn(0x180)));
        assert_eq!(ResumeCheck::new(LogFingerprint::Unknown, POSITION, Lsn(0x80), None), None);
    }

    #[test]
    fn the_log_is_verified_by_the_last_transaction_and_nothing_else_before_the_position() {
        let mut look = check(0x80).unwrap();
        assert_eq!(look.reached(Lsn(0xF0)), Ok(Undecided));
        assert_eq!(look.change(transaction(0x100)), Ok(Undecided));
        assert_eq!(look.change(transaction(0x100)), Ok(Undecided));
        assert_eq!(look.reached(Lsn(0x140)), Ok(Undecided));
        let mut other = look.clone();
        assert_eq!(look.reached(Lsn(0x200)), Ok(Verified));
        assert_eq!(other.change(transaction(0x200)), Ok(Verified));
    }

    #[test]
    fn no_guessing_about_a_log_that_has_something_else_there() {
        let other = |found| LogMismatch { fingerprint: LogFingerprint::Landmark(transaction(0x100)), found };
        for found in [
            // earlier; later but before the position; after the position; and at the same place
            transaction(0x90),
            transaction(0x180),
            transaction(0x300),
            Landmark { xid: 741, ..transaction(0x100) },
            Landmark { commit_time: PgTimestamp(2), ..transaction(0x100) },
        ] {
            assert_eq!(check(0x80).unwrap().change(found), Err(other(Some(found))), "{found:?}");
        }
        assert_eq!(check(0x80).unwrap().reached(Lsn(0x200)), Err(other(None)));
        let mut seen = check(0x80).unwrap();
        assert_eq!(seen.change(transaction(0x100)), Ok(Undecided));
        let found = transaction(0x180);
        assert_eq!(seen.change(found), Err(other(Some(found))));
        // the slot is past the landmark: only the range up to the position is checked
        let mut past = check(0x180).unwrap();
        assert_eq!(past.clone().reached(Lsn(0x200)), Ok(Verified));
        assert_eq!(past.clone().change(transaction(0x200)), Ok(Verified));
        assert_eq!(past.change(found), Err(other(Some(found))));
        for (found, words) in [(None, "does not contain it"), (Some(found), "has 742, committed")] {
            assert!(other(found).to_string().contains(words));
        }
    }

    #[test]
    fn a_partly_delivered_transaction_is_a_landmark_and_verifies_the_log_at_once() {
        let partial = Some(Partial { final_lsn: Lsn(0x300), changes: 7 });
        let position = Position { partial, ..POSITION };
        // the slot proves only what comes before
        for confirmed in [0x80, 0x200] {
            let fingerprint = LogFingerprint::Landmark(transaction(0x300));
            let mut look = ResumeCheck::new(fingerprint, position, Lsn(confirmed), None).unwrap();
            assert_eq!(look.start(), Lsn(0x200));
            assert!(look.clone().change(transaction(0x280)).is_err());
            assert!(look.reached(Lsn(0x301)).is_err());
            assert_eq!(look.change(transaction(0x300)), Ok(Verified));
        }
    }

    #[test]
    fn no_guessing_where_nothing_was_there_to_deliver() {
        let quiet = |confirmed| {
            ResumeCheck::new(LogFingerprint::Quiet { from: Lsn(0x100) }, POSITION, Lsn(confirmed), None)
        };
        assert_eq!(quiet(0x200), None);
        let mut look = quiet(0x80).unwrap();
        assert_eq!(look.start(), Lsn(0x100));
        assert_eq!(look.reached(Lsn(0x1F0)), Ok(Undecided));
        assert_eq!(look.clone().reached(Lsn(0x200)), Ok(Verified));
        assert_eq!(look.clone().change(transaction(0x200)), Ok(Verified));
        let other = look.change(transaction(0x180)).unwrap_err().to_string();
        assert!(other.contains("there was nothing to deliver from 0/100 on, but the log has 742"), "{other}");
    }
}
