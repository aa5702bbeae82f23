//! Where a session goes on. Pure: of what this process knows, what is stored, and what the servers say.
//!
//! Which checkpoint counts, after what has happened ([`latest`]):
//!
//! | what happened | this process has | the topic has | what counts |
//! |---|---|---|---|
//! | a session ended, in at-least-once | its own | the same epoch | its own: more may be delivered than was stored |
//! | a session ended, in exactly-once | its own | the same epoch | the topic's: what is committed is delivered, heard of or not |
//! | another router was active, or a position was reset | its own | a later epoch | the topic's |
//! | a record of an earlier session arrives late | its own | an earlier epoch | its own |
//! | the process died | none | any | the topic's |
//! | there is no positions topic | its own, or none | none | its own, or else the slot's position |
//! | the checkpoint or the topic was deleted | none | none | the slot's position; in exactly-once only if the slot is new |
//!
//! Then [`resume`] judges that checkpoint by the slot and the server: after a crash of Postgres the slot lies behind it, which is fine, and
//! after a failover the log may be another one, which the [`ResumeCheck`] finds out at the beginning of the stream.

use pg_logical::Lsn;

use super::record::Checkpoint;
use super::resume::{Found, ResumeConflict, judge};
use super::resume_check::{self, ResumeCheck};
use super::start::Start;

/// Where a session goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resumption {
    /// Where, and why there.
    pub start: Start,
    /// The first checkpoint of the session.
    pub checkpoint: Checkpoint,
    /// What the stream has to show first.
    pub check: Option<ResumeCheck>,
}

/// Which of two checkpoints counts: that of this process, or the stored one.
pub fn latest(own: Option<&Checkpoint>, stored: Option<Checkpoint>) -> Option<Checkpoint> {
    match (own, stored) {
        // another router, or a reset, was there meanwhile
        (Some(own), Some(stored)) if stored.epoch > own.epoch => Some(stored),
        // delivered is what is committed, and that may be more than this process has heard of
        (Some(own), Some(stored)) if stored.exactly_once && stored.epoch == own.epoch => Some(stored),
        (Some(own), _) => Some(own.clone()),
        (None, stored) => stored,
    }
}

/// Decides where a session goes on after `before`. `accepted` is what a person has said to go on at.
///
/// # Errors
/// Events may be missing, or come twice, in a way that a person has to know of.
pub fn resume(
    before: Option<&Checkpoint>,
    found: &Found<'_>,
    accepted: Option<Lsn>,
    exactly_once: bool,
) -> Result<Resumption, ResumeConflict> {
    let start = judge(before, found, accepted)?;
    let position = start.position();
    let (tail, reading, check) = resume_check::begin(before, start, found.confirmed, found.reading.clone());
    let system = found.system;
    let checkpoint = Checkpoint {
        epoch: Checkpoint::next_epoch(before),
        slot: found.slot.to_owned(),
        system_identifier: system.identifier.clone(),
        timeline: system.timeline,
        position,
        tail,
        reading,
        replay: before.and_then(|before| before.replay_at(position, found.slot, &system.identifier)),
        // what was accepted is accepted
        parked: before.filter(|_| !matches!(start, Start::Accepted(_))).and_then(|before| before.parked),
        retried: before.map(|before| before.retried.clone()).unwrap_or_default(),
        exactly_once,
    };
    Ok(Resumption { start, checkpoint, check })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::remembered;
    use crate::progress::Position;

    fn at(epoch: u64, flush: u64) -> Checkpoint {
        Checkpoint { epoch, position: Position { flush: Lsn(flush), partial: None }, ..remembered() }
    }

    #[test]
    fn what_this_process_has_delivered_counts_unless_another_was_there_meanwhile() {
        let own = at(2, 9);
        assert_eq!(latest(None, None), None);
        assert_eq!(latest(None, Some(at(1, 5))), Some(at(1, 5)));
        assert_eq!(latest(Some(&own), Some(at(2, 5))), Some(at(2, 9)));
        assert_eq!(latest(Some(&own), None), Some(at(2, 9)));
        // one that arrived late
        assert_eq!(latest(Some(&own), Some(at(1, 5))), Some(at(2, 9)));
        assert_eq!(latest(Some(&own), Some(at(3, 5))), Some(at(3, 5)));
        let committed = |epoch, flush| Checkpoint { exactly_once: true, ..at(epoch, flush) };
        assert_eq!(latest(Some(&committed(2, 5)), Some(committed(2, 9))), Some(committed(2, 9)));
        assert_eq!(latest(Some(&committed(2, 5)), None), Some(committed(2, 5)));
    }
}
