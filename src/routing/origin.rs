//! Where an event comes from.

use std::fmt;

use pg_logical::{Lsn, PgTimestamp};

/// The place of one event in the stream. It is the same whenever the event is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The LSN of its transaction's commit record.
    pub final_lsn: Lsn,
    /// Its transaction id.
    pub xid: u32,
    /// When its transaction committed.
    pub commit_time: PgTimestamp,
    /// The number of the change within its transaction, counted from 1.
    pub ordinal: u64,
}

impl Origin {
    /// A text whose byte order is the delivery order: 16 hexadecimal digits of the commit's LSN, then 16 of the ordinal.
    pub fn sequence(&self) -> impl fmt::Display + use<> {
        Sequence { lsn: self.final_lsn.0, ordinal: self.ordinal }
    }
}

struct Sequence {
    lsn: u64,
    ordinal: u64,
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.lsn, self.ordinal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sequences_sort_as_their_places(a in any::<(u64, u64)>(), b in any::<(u64, u64)>()) {
            let sequence = |(lsn, ordinal)| {
                let origin = Origin { final_lsn: Lsn(lsn), xid: 7, commit_time: PgTimestamp(0), ordinal };
                origin.sequence().to_string()
            };
            prop_assert_eq!(a.cmp(&b), sequence(a).cmp(&sequence(b)));
        }
    }
}
