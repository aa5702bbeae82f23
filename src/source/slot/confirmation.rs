//! Bounds what is confirmed to the slot: what is durable, but never past the last good catalogue check.

use pg_logical::Lsn;

use crate::error::{Error, Peer};

/// The position in status updates. It only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Confirmation {
    confirmed: Lsn,
    /// The durable LSN at the previous check. The next check covers it even if the stream never pauses.
    candidate: Lsn,
}

impl Confirmation {
    pub(super) fn new(confirmed: Lsn) -> Self {
        Confirmation { confirmed, candidate: confirmed }
    }

    pub(super) fn confirmed(self) -> Lsn {
        self.confirmed
    }

    /// The catalogues were good up to `checked`, and everything before `durable` is durable.
    pub(super) fn checked(&mut self, durable: Lsn, checked: Lsn) {
        for lsn in [self.candidate, durable] {
            if lsn <= checked {
                self.confirmed = self.confirmed.max(lsn);
            }
        }
        self.candidate = durable;
    }
}

/// The error when somebody else has moved the slot.
pub(in crate::source) fn moved_by_another(slot: &str, to: Lsn) -> Error {
    Error::transient(
        Peer::Postgres,
        format!("the slot {slot} is confirmed up to {to}, and not by this session"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_quiet_stream_is_confirmed_at_once_and_a_busy_one_a_check_later() {
        let mut confirmation = Confirmation::new(Lsn(10));
        confirmation.checked(Lsn(20), Lsn(25));
        assert_eq!(confirmation.confirmed(), Lsn(20));
        confirmation.checked(Lsn(40), Lsn(35));
        assert_eq!(confirmation.confirmed(), Lsn(20));
        confirmation.checked(Lsn(60), Lsn(55));
        assert_eq!(confirmation.confirmed(), Lsn(40));
    }

    proptest! {
        #[test]
        fn never_past_a_check_never_past_the_flush_never_back(steps in prop::collection::vec((0u64..100, 0u64..100), 1..50)) {
            let mut confirmation = Confirmation::new(Lsn(0));
            let (mut flush, mut checked_up_to, mut before) = (0, 0, Lsn(0));
            for (more, checked) in steps {
                flush += more;
                checked_up_to = checked_up_to.max(checked);
                confirmation.checked(Lsn(flush), Lsn(checked));
                let now = confirmation.confirmed();
                prop_assert!(now.0 <= checked_up_to && now.0 <= flush && now >= before);
                before = now;
            }
        }
    }
}
