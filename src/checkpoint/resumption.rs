//! Where a session resumes. Pure: from the state of the process, the stored checkpoint and the server's state.
//!
//! Which checkpoint counts after which event ([`latest`]):
//!
//! | event | this process has | the topic has | what counts |
//! |---|---|---|---|
//! | a session ended, in at-least-once | its own | the same epoch | its own: more may be delivered than was stored |
//! | a session ended, in exactly-once | its own | the same epoch | the topic's: committed means delivered, answer or not |
//! | another router was active, or a position was reset | its own | a later epoch | the topic's |
//! | a record of an earlier session arrives late | its own | an earlier epoch | its own |
//! | the process died | none | any | the topic's |
//! | there is no positions topic | its own, or none | none | its own, or else the slot's position |
//! | the checkpoint or the topic was deleted while the process ran | its own | none | its own |
//! | the same while it was stopped, or `name` or `slot` was changed | none | none | the slot's position, if the slot is new and no router has left another one; in at-least-once also if no router is known to have read the slot |
//!
//! Without a positions topic, a session that the server ended drops the process's own checkpoint: a command may have moved the slot.
//!
//! Then [`resume`] compares that checkpoint with the slot and the server. After a crash of Postgres the slot lies before it, and the
//! session skips what is delivered. After a failover the log may be another one, which the [`ResumeCheck`] detects at the start of the
//! stream.

use pg_logical::Lsn;

use super::record::Checkpoint;
use super::resume::decide;
use super::resume_check::{self, ResumeCheck};
use super::resume_conflict::ResumeConflict;
use super::start::Start;
use super::start_facts::StartFacts;
use super::without_checkpoint::unknown_slot;

/// Where a session resumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resumption {
    /// The position, and the reason.
    pub start: Start,
    /// The first checkpoint of the session.
    pub checkpoint: Checkpoint,
    /// The check that the stream has to pass first.
    pub check: Option<ResumeCheck>,
    /// Without a checkpoint, at a slot that is not known to be new: what that means, and what to do.
    pub unknown_slot: Option<(String, String)>,
}

/// Which of two checkpoints counts: this process's own, or the stored one.
pub fn latest(own: Option<&Checkpoint>, stored: Option<Checkpoint>) -> Option<Checkpoint> {
    match (own, stored) {
        // another router or a reset has written a later epoch
        (Some(own), Some(stored)) if stored.epoch > own.epoch => Some(stored),
        // in exactly-once mode committed is delivered, and this process may have missed the answer
        (Some(own), Some(stored)) if stored.exactly_once && stored.epoch == own.epoch => Some(stored),
        (Some(own), _) => Some(own.clone()),
        (None, stored) => stored,
    }
}

/// Decides where a session resumes after `before`. `accepted` is the position of `--accept-gap`.
///
/// # Errors
/// Events may be missing or be sent twice, and an operator has to decide.
pub fn resume(
    before: Option<&Checkpoint>,
    found: &StartFacts<'_>,
    accepted: Option<Lsn>,
) -> Result<Resumption, ResumeConflict> {
    let start = decide(before, found, accepted)?;
    let position = start.position();
    let (fingerprint, definition, check) =
        resume_check::begin(before, start, found.confirmed, found.definition.clone());
    let system = found.system;
    let checkpoint = Checkpoint {
        epoch: Checkpoint::next_epoch(before),
        slot: found.slot.to_owned(),
        system_identifier: system.identifier.clone(),
        timeline: system.timeline,
        position,
        fingerprint,
        definition,
        replay: before.and_then(|before| before.replay_at(position, found.slot, &system.identifier)),
        // an accepted gap includes lost parked events
        parked: before.filter(|_| !matches!(start, Start::Accepted(_))).and_then(|before| before.parked),
        retried: before.map(|before| before.retried.clone()).unwrap_or_default(),
        // another slot has other rows before it
        backfill: before
            .filter(|before| before.slot == found.slot)
            .and_then(|before| before.backfill.clone()),
        exactly_once: found.exactly_once,
        // nobody knows yet whether that still holds
        stopped: None,
    };
    let unknown_slot = if matches!(start, Start::First(_)) { unknown_slot(found) } else { None };
    Ok(Resumption { start, checkpoint, check, unknown_slot })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::sample_checkpoint;
    use crate::progress::Position;

    fn at(epoch: u64, flush: u64) -> Checkpoint {
        Checkpoint { epoch, position: Position { flush: Lsn(flush), partial: None }, ..sample_checkpoint() }
    }

    #[test]
    fn the_own_checkpoint_counts_unless_another_router_was_active_since() {
        let own = at(2, 9);
        assert_eq!(latest(None, None), None);
        assert_eq!(latest(None, Some(at(1, 5))), Some(at(1, 5)));
        assert_eq!(latest(Some(&own), Some(at(2, 5))), Some(at(2, 9)));
        assert_eq!(latest(Some(&own), None), Some(at(2, 9)));
        // a late record of an earlier epoch
        assert_eq!(latest(Some(&own), Some(at(1, 5))), Some(at(2, 9)));
        assert_eq!(latest(Some(&own), Some(at(3, 5))), Some(at(3, 5)));
        let committed = |epoch, flush| Checkpoint { exactly_once: true, ..at(epoch, flush) };
        assert_eq!(latest(Some(&committed(2, 5)), Some(committed(2, 9))), Some(committed(2, 9)));
        assert_eq!(latest(Some(&committed(2, 5)), None), Some(committed(2, 5)));
    }
}
