//! Whether the server's log is the one that the router has read: a data directory that was put back from a copy looks the
//! same as before, and may have grown past the position again. So the stream starts at the last transaction that was
//! acknowledged, which must come again, and before the position nothing else. Until then nothing is confirmed or remembered.

use pg_logical::Lsn;

use super::reading::Reading;
use super::record::{Checkpoint, LogFingerprint};
use super::start::Start;
use crate::progress::{Landmark, Position};
use crate::utc::Utc;

/// A look under way. Ask before each change, and before each commit and keepalive is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumeCheck {
    tail: LogFingerprint,
    /// Whether the landmark is yet to come. Where the slot is past it, it cannot.
    expected: bool,
    /// Where the stream is to be started.
    start: Lsn,
    /// Before it, what begins its commit must be the landmark.
    seen_before: Lsn,
    /// The prefix of the messages that were changes then.
    message_prefix: Option<String>,
}

/// What was found instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherLog {
    tail: LogFingerprint,
    /// A transaction that the router has not seen there, or none at all.
    found: Option<Landmark>,
}

/// What one more part of the stream says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Not enough yet.
    Open,
    /// It is the log that was read.
    Recognized,
}

/// What the record of a start says of the stretch before it, and what has to be seen there first. As long as that is not seen, the
/// record goes on to say what the one before it did: nothing has become known.
pub(super) fn begin(
    before: Option<&Checkpoint>,
    start: Start,
    confirmed: Lsn,
    reading: Reading,
) -> (LogFingerprint, Reading, Option<ResumeCheck>) {
    let position = start.position();
    let quiet = LogFingerprint::Quiet { from: position.flush };
    let Some(before) = before else { return (quiet, reading, None) };
    let same_place = before.position.flush == position.flush && before.reading.same_publication(&reading);
    if !matches!(start, Start::Resumed(_)) && !same_place {
        return (quiet, reading, None);
    }
    let prefix = &before.reading.message_prefix;
    match ResumeCheck::new(before.tail, before.position, confirmed, prefix.clone()) {
        Some(look) => (before.tail, Reading { message_prefix: prefix.clone(), ..reading }, Some(look)),
        // the slot vouches for it
        None if before.tail == LogFingerprint::Unknown || *prefix != reading.message_prefix => {
            (quiet, reading, None)
        }
        None => (before.tail, reading, None),
    }
}

impl ResumeCheck {
    /// Of a position with this stretch before it, and a slot that is confirmed up to `confirmed`. `None` if the slot itself
    /// vouches for all of it, or nothing is known.
    pub fn new(
        tail: LogFingerprint,
        position: Position,
        confirmed: Lsn,
        message_prefix: Option<String>,
    ) -> Option<Self> {
        let (from, seen_before, expected) = match tail {
            LogFingerprint::Unknown => return None,
            LogFingerprint::Quiet { from } => (from, position.flush, false),
            LogFingerprint::Landmark(Landmark { final_lsn, .. }) => {
                let after = Lsn(final_lsn.0.saturating_add(1));
                (final_lsn.min(position.flush), position.flush.max(after), final_lsn >= confirmed)
            }
        };
        let start = confirmed.max(from);
        (start < seen_before).then_some(ResumeCheck { tail, expected, start, seen_before, message_prefix })
    }

    /// Where the stream is to be started.
    pub fn start(&self) -> Lsn {
        self.start
    }

    /// The prefix of the messages that count as changes here.
    pub fn message_prefix(&self) -> Option<&str> {
        self.message_prefix.as_deref()
    }

    /// A change of `transaction` has come.
    pub fn change(&mut self, transaction: Landmark) -> Result<Verdict, OtherLog> {
        let is_landmark = self.tail == LogFingerprint::Landmark(transaction);
        if !is_landmark && (self.expected || transaction.final_lsn < self.seen_before) {
            return Err(OtherLog { tail: self.tail, found: Some(transaction) });
        }
        self.expected = false;
        // behind what was under way comes nothing that was seen
        if transaction.final_lsn.0 + 1 >= self.seen_before.0 {
            return Ok(Verdict::Recognized);
        }
        Ok(Verdict::Open)
    }

    /// Everything up to there has come, outside of a transaction.
    pub fn reached(&self, lsn: Lsn) -> Result<Verdict, OtherLog> {
        if lsn < self.seen_before {
            return Ok(Verdict::Open);
        }
        if self.expected {
            return Err(OtherLog { tail: self.tail, found: None });
        }
        Ok(Verdict::Recognized)
    }
}

impl std::fmt::Display for OtherLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let utc = |landmark: &Landmark| Utc(landmark.commit_time.unix_micros());
        match &self.tail {
            LogFingerprint::Landmark(last) => {
                let Landmark { final_lsn, xid, .. } = last;
                write!(
                    f,
                    "the last transaction that was delivered is {xid}, committed {} at {final_lsn}",
                    utc(last)
                )?;
            }
            LogFingerprint::Quiet { from } => write!(f, "nothing was there to deliver from {from} on")?,
            LogFingerprint::Unknown => {}
        }
        match &self.found {
            Some(found) => {
                write!(f, ", and the log has {}, committed {} at {}", found.xid, utc(found), found.final_lsn)
            }
            None => f.write_str(", and the log does not have it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::remembered;
    use super::Verdict::{Open, Recognized};
    use super::*;
    use crate::progress::Partial;
    use pg_logical::PgTimestamp;

    fn transaction(final_lsn: u64) -> Landmark {
        Landmark { final_lsn: Lsn(final_lsn), xid: 742, commit_time: PgTimestamp(1) }
    }

    const POSITION: Position = Position { flush: Lsn(0x200), partial: None };

    /// Of a router that has delivered up to 0x200, and last of all the transaction at 0x100.
    fn recognition(confirmed: u64) -> Option<ResumeCheck> {
        ResumeCheck::new(LogFingerprint::Landmark(transaction(0x100)), POSITION, Lsn(confirmed), None)
    }

    #[test]
    fn what_is_not_recognized_yet_is_not_forgotten_either() {
        let before = Checkpoint {
            tail: LogFingerprint::Landmark(transaction(0x100)),
            position: POSITION,
            ..remembered()
        };
        let prefixed = Reading { message_prefix: Some("outbox".into()), ..before.reading.clone() };
        let begun = |before: &Checkpoint, start, confirmed, reading: &Reading| {
            let (tail, reading, look) = begin(Some(before), start, Lsn(confirmed), reading.clone());
            (tail, reading.message_prefix, look.is_some())
        };
        let quiet = LogFingerprint::Quiet { from: Lsn(0x200) };
        let (on, accepted) = (Start::Resumed(POSITION), Start::Accepted(POSITION));
        assert_eq!(begun(&before, on, 0x80, &before.reading), (before.tail, None, true));
        // other changes count from now on, but not before the log is recognized
        assert_eq!(begun(&before, on, 0x80, &prefixed), (before.tail, None, true));
        assert_eq!(begun(&before, on, 0x200, &prefixed), (quiet, Some("outbox".into()), false));
        assert_eq!(begun(&before, on, 0x200, &before.reading), (before.tail, None, false));
        // a table was altered, which says nothing of the log
        assert_eq!(begun(&before, accepted, 0x80, &before.reading), (before.tail, None, true));
        let elsewhere = Start::Accepted(Position { flush: Lsn(0x80), partial: None });
        assert!(!begun(&before, elsewhere, 0x80, &before.reading).2);
        let another = Reading { publication: Some("16400/800".into()), ..before.reading.clone() };
        assert_eq!(begun(&before, accepted, 0x80, &another), (before.tail, None, true), "altered");
        let another = Reading { publication: Some("16500/800".into()), ..before.reading.clone() };
        assert_eq!(begun(&before, accepted, 0x80, &another), (quiet, None, false), "made anew");
        let unknown = Checkpoint { tail: LogFingerprint::Unknown, ..before.clone() };
        assert_eq!(begun(&unknown, on, 0x80, &before.reading), (quiet, None, false));
    }

    #[test]
    fn what_the_slot_vouches_for_need_not_be_looked_for() {
        assert_eq!(recognition(0x200), None);
        assert_eq!(recognition(0x80).map(|look| look.start()), Some(Lsn(0x100)));
        assert_eq!(recognition(0x180).map(|look| look.start()), Some(Lsn(0x180)));
        assert_eq!(ResumeCheck::new(LogFingerprint::Unknown, POSITION, Lsn(0x80), None), None);
    }

    #[test]
    fn the_log_is_known_when_the_last_transaction_comes_again_and_nothing_else_before_the_position() {
        let mut look = recognition(0x80).unwrap();
        assert_eq!(look.reached(Lsn(0xF0)), Ok(Open));
        assert_eq!(look.change(transaction(0x100)), Ok(Open));
        assert_eq!(look.change(transaction(0x100)), Ok(Open));
        assert_eq!(look.reached(Lsn(0x140)), Ok(Open));
        let mut other = look.clone();
        assert_eq!(look.reached(Lsn(0x200)), Ok(Recognized));
        assert_eq!(other.change(transaction(0x200)), Ok(Recognized));
    }

    #[test]
    fn no_guessing_about_a_log_that_has_something_else_there() {
        let other = |found| OtherLog { tail: LogFingerprint::Landmark(transaction(0x100)), found };
        for found in [
            // earlier, later but before the position, after it, and at the same place
            transaction(0x90),
            transaction(0x180),
            transaction(0x300),
            Landmark { xid: 741, ..transaction(0x100) },
            Landmark { commit_time: PgTimestamp(2), ..transaction(0x100) },
        ] {
            assert_eq!(recognition(0x80).unwrap().change(found), Err(other(Some(found))), "{found:?}");
        }
        assert_eq!(recognition(0x80).unwrap().reached(Lsn(0x200)), Err(other(None)));
        let mut seen = recognition(0x80).unwrap();
        assert_eq!(seen.change(transaction(0x100)), Ok(Open));
        let found = transaction(0x180);
        assert_eq!(seen.change(found), Err(other(Some(found))));
        // the slot is past the landmark: only what is between it and the position is looked for
        let mut past = recognition(0x180).unwrap();
        assert_eq!(past.clone().reached(Lsn(0x200)), Ok(Recognized));
        assert_eq!(past.clone().change(transaction(0x200)), Ok(Recognized));
        assert_eq!(past.change(found), Err(other(Some(found))));
        for (found, words) in [(None, "does not have it"), (Some(found), "has 742, committed")] {
            assert!(other(found).to_string().contains(words));
        }
    }

    #[test]
    fn a_transaction_that_was_under_way_is_a_landmark_too_and_settles_it_at_once() {
        let partial = Some(Partial { final_lsn: Lsn(0x300), changes: 7 });
        let position = Position { partial, ..POSITION };
        // the slot vouches for what comes before it only
        for confirmed in [0x80, 0x200] {
            let tail = LogFingerprint::Landmark(transaction(0x300));
            let mut look = ResumeCheck::new(tail, position, Lsn(confirmed), None).unwrap();
            assert_eq!(look.start(), Lsn(0x200));
            assert!(look.clone().change(transaction(0x280)).is_err());
            assert!(look.reached(Lsn(0x301)).is_err());
            assert_eq!(look.change(transaction(0x300)), Ok(Recognized));
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
        assert_eq!(look.reached(Lsn(0x1F0)), Ok(Open));
        assert_eq!(look.clone().reached(Lsn(0x200)), Ok(Recognized));
        assert_eq!(look.clone().change(transaction(0x200)), Ok(Recognized));
        let other = look.change(transaction(0x180)).unwrap_err().to_string();
        assert!(other.contains("nothing was there to deliver from 0/100 on, and the log has 742"), "{other}");
    }
}
