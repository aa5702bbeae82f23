//! The way back: which records are durable, and which was refused. Written by the sink's thread, read by the relay.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::progress::Sequence;
use crate::relay::Refusal;

/// Of several reasons the one that says most: other records fail in consequence of it.
fn rank(refusal: &Refusal) -> u8 {
    u8::from(!refusal.transient) * 2 + u8::from(refusal.waits_for_a_person())
}

#[derive(Debug, Default)]
struct State {
    delivered: Vec<Sequence>,
    refusal: Option<Refusal>,
}

/// Reports of one session.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    state: Mutex<State>,
    changed: Notify,
}

impl Outcomes {
    /// The record is durable.
    pub(crate) fn delivered(&self, sequence: Sequence) {
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
    pub(crate) fn refused(&self, refusal: Refusal) {
        let mut state = self.lock();
        match &mut state.refusal {
            Some(known) if rank(known) == rank(&refusal) => known.last = known.last.max(refusal.last),
            Some(known) if rank(known) > rank(&refusal) => {}
            other => *other = Some(refusal),
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Waits until there is something to take.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Moves the numbers of durable records into `into`, which should be empty; returns the refusal, if any.
    pub(crate) fn take(&self, into: &mut Vec<Sequence>) -> Option<Refusal> {
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
    use crate::unsendable::{Reason, Unsendable};

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
