//! Delivery reports on their way from librdkafka's threads to the loop: which records are durable, and which was refused.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::progress::Sequence;
use crate::relay::Refusal;

/// The refusal with the highest rank is the cause; the others are its consequences.
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
pub(crate) struct DeliveryReports {
    state: Mutex<State>,
    changed: Notify,
}

impl DeliveryReports {
    /// The record is durable.
    pub(crate) fn delivered(&self, sequence: Sequence) {
        let mut state = self.lock();
        state.delivered.push(sequence);
        // the loop takes all at once, so only the first wakes it
        let first = state.delivered.len() == 1;
        drop(state);
        if first {
            self.changed.notify_one();
        }
    }

    /// The record was refused. A definite reason replaces a transient one, and one that needs a person replaces one that
    /// does not: the rest of a batch fails because of the record that was refused for a reason of its own.
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

    /// Waits until there are reports.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Moves the sequences of durable records into `into`, which should be empty. Returns the refusal, if any.
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
    fn a_definite_refusal_replaces_its_consequences() {
        let delivery_reports = DeliveryReports::default();
        delivery_reports.refused(refusal(9, true));
        delivery_reports.refused(refusal(3, false));
        delivery_reports.refused(refusal(5, false));
        delivery_reports.refused(refusal(20, true));
        assert_eq!(delivery_reports.take(&mut Vec::new()), Some(refusal(5, false)));
    }

    #[test]
    fn a_refusal_that_needs_a_person_replaces_a_temporary_one() {
        let delivery_reports = DeliveryReports::default();
        let denied = Refusal { why: Unsendable::new(Reason::Refused, "", "grant"), ..refusal(3, true) };
        delivery_reports.refused(refusal(0, true));
        delivery_reports.refused(denied.clone());
        delivery_reports.refused(refusal(9, true));
        assert_eq!(delivery_reports.take(&mut Vec::new()), Some(denied));
    }

    #[test]
    fn each_delivery_is_taken_once() {
        let delivery_reports = DeliveryReports::default();
        delivery_reports.delivered(Sequence(2));
        delivery_reports.delivered(Sequence(1));
        let mut taken = Vec::new();
        delivery_reports.take(&mut taken);
        assert_eq!(taken, [Sequence(2), Sequence(1)]);
        taken.clear();
        delivery_reports.take(&mut taken);
        assert_eq!(taken, []);
    }
}
