//! The way back: which records are durable, and which was refused. Written by the sink's thread, read by the relay.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::progress::Sequence;
use crate::unsendable::{Reason, Unsendable};

/// The first refused record of a session, and how far the refusal reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The highest number that was refused for this reason: the records of one batch are refused together.
    pub last: Sequence,
    /// Whether sending the same record again could have another end.
    pub transient: bool,
    /// What the broker said, and what a person can do about it.
    pub why: Unsendable,
}

impl Refusal {
    /// Of no record in particular: this session cannot go on, and another one may.
    pub fn of_session(reason: String, remedy: &str) -> Self {
        let why = Unsendable::new(Reason::Refused, reason, remedy);
        Refusal { last: Sequence(0), transient: true, why }
    }

    /// It passes when a person does something: a right was taken away.
    pub fn waits_for_a_person(&self) -> bool {
        self.transient && !self.why.remedy.is_empty()
    }

    /// Of several reasons the one that says most: other records fail in consequence of it.
    fn rank(&self) -> u8 {
        u8::from(!self.transient) * 2 + u8::from(self.waits_for_a_person())
    }
}

#[derive(Debug, Default)]
struct State {
    delivered: Vec<Sequence>,
    refusal: Option<Refusal>,
}

/// Reports of one session.
#[derive(Debug, Default)]
pub struct Outcomes {
    state: Mutex<State>,
    changed: Notify,
}

impl Outcomes {
    /// The record is durable.
    pub fn delivered(&self, sequence: Sequence) {
        let mut state = self.lock();
        state.delivered.push(sequence);
        // the relay takes all there is at once, so it is woken for the first only
        let first = state.delivered.len() == 1;
        drop(state);
        if first {
            self.changed.notify_one();
        }
    }

    /// The record was refused. A definite reason takes the place of a transient one, and one that waits for a person that
    /// of one that does not: the rest of a batch fails because of the record that was refused for a reason of its own.
    pub fn refused(&self, refusal: Refusal) {
        let mut state = self.lock();
        match &mut state.refusal {
            Some(known) if known.rank() == refusal.rank() => known.last = known.last.max(refusal.last),
            Some(known) if known.rank() > refusal.rank() => {}
            other => *other = Some(refusal),
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Waits until there is something to take.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Moves the numbers of durable records into `into`, which should be empty; returns the refusal, if any.
    pub fn take(&self, into: &mut Vec<Sequence>) -> Option<Refusal> {
        let mut state = self.lock();
        std::mem::swap(&mut state.delivered, into);
        state.refusal.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // a panic elsewhere leaves the lists as they are, which is a valid state
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(last: u64, transient: bool) -> Refusal {
        Refusal { last: Sequence(last), transient, why: Unsendable::new(Reason::Refused, "", "") }
    }

    #[test]
    fn a_definite_refusal_hides_what_it_brought_with_it() {
        let outcomes = Outcomes::default();
        outcomes.refused(refusal(9, true));
        outcomes.refused(refusal(3, false));
        outcomes.refused(refusal(5, false));
        outcomes.refused(refusal(20, true));
        assert_eq!(outcomes.take(&mut Vec::new()), Some(refusal(5, false)));
    }

    #[test]
    fn what_waits_for_a_person_hides_what_passes_by_itself() {
        let outcomes = Outcomes::default();
        let denied = Refusal { why: Unsendable::new(Reason::Refused, "", "grant"), ..refusal(3, true) };
        outcomes.refused(refusal(0, true));
        outcomes.refused(denied.clone());
        outcomes.refused(refusal(9, true));
        assert_eq!(outcomes.take(&mut Vec::new()), Some(denied));
    }

    #[test]
    fn what_is_delivered_is_taken_once() {
        let outcomes = Outcomes::default();
        outcomes.delivered(Sequence(2));
        outcomes.delivered(Sequence(1));
        let mut taken = Vec::new();
        outcomes.take(&mut taken);
        assert_eq!(taken, [Sequence(2), Sequence(1)]);
        taken.clear();
        outcomes.take(&mut taken);
        assert_eq!(taken, []);
    }
}
