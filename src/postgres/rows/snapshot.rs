//! Which rows had been committed when a snapshot was taken.
//!
//! A row keeps the id of the transaction that inserted it, also once it is frozen, but only 32 bits of it. The snapshot of a new slot names
//! every transaction after its `xmin` that it does not see, subtransactions included (unlike those of other statements), so the
//! conditions below are exact (tried on 14 to 18).

use std::fmt;

use super::moment;

/// The number of transaction ids before they are used again.
const EPOCH: u64 = 1 << 32;

/// In microseconds. Nobody uses up all transaction ids in this time.
const TWO_DAYS: i64 = 2 * 86_400_000_000;

/// The full id of the transaction that inserted `q`, if it is one of the last 2^32: the latest one that ends in these 32 bits.
const TRANSACTION: &str = "(q.xmin::text::bigint + ((((SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint) \
     - q.xmin::text::bigint) >> 32) << 32))";

/// Rows that were inserted more than 2^32 transactions before.
#[derive(Debug, Clone, Copy)]
pub enum OldRows<'a> {
    /// There are none.
    None,
    /// Those that were inserted long before the snapshot count as committed.
    Before {
        /// An expression for the time of the insert.
        created_at: &'a str,
        /// When the snapshot was taken, in microseconds since 1970.
        taken_at: i64,
    },
}

/// A snapshot, as Postgres writes it: `xmin:xmax:xip`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    xmin: u64,
    xmax: u64,
    /// Those between them that it does not see.
    unseen: Vec<u64>,
}

impl Snapshot {
    /// Reads the text of a `pg_snapshot`. That of a new slot may have an `xmin` after its `xmax`, if the transactions between them were
    /// rolled back; Postgres does not read such a text.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (xmin, xmax, unseen) =
            (parts.next()?.parse().ok()?, parts.next()?.parse::<u64>().ok()?, parts.next()?);
        let unseen = unseen.split(',').filter(|xid| !xid.is_empty()).map(str::parse);
        Some(Snapshot { xmin, xmax: xmax.max(xmin), unseen: unseen.collect::<Result<_, _>>().ok()? })
    }

    /// A condition on `q`: its transaction had been committed.
    ///
    /// `old` tells about rows that were inserted more than 2^32 transactions before, whose ids may have been used again since.
    pub fn sees(&self, old: OldRows<'_>) -> String {
        let Snapshot { xmin, xmax, unseen } = self;
        let unseen: Vec<String> = unseen.iter().map(u64::to_string).collect();
        let old = match old {
            OldRows::None => String::new(),
            OldRows::Before { created_at, taken_at } => {
                let long_before = moment(taken_at.saturating_sub(TWO_DAYS));
                format!(" OR {TRANSACTION} >= {} AND {created_at} < {long_before}", EPOCH + 3)
            }
        };
        format!(
            "({TRANSACTION} < {xmin} OR {TRANSACTION} < {xmax} AND {TRANSACTION} <> ALL ('{{{}}}'::bigint[]){old})",
            unseen.join(",")
        )
    }

    /// A condition on `q`, among rows that the snapshot sees: its id is used again soon, or was already.
    pub fn is_old(&self) -> String {
        // half of all ids
        let soon = i128::from(self.xmax) - i128::from(EPOCH / 2);
        format!("({TRANSACTION} < {soon} OR NOT {})", self.sees(OldRows::None))
    }
}

/// As Postgres reads it.
impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unseen: Vec<String> = self.unseen.iter().map(u64::to_string).collect();
        write!(f, "{}:{}:{}", self.xmin, self.xmax, unseen.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_read_as_postgres_writes_it() {
        let snapshot = |xmin, xmax, unseen: &[u64]| Some(Snapshot { xmin, xmax, unseen: unseen.to_vec() });
        assert_eq!(Snapshot::parse("1064:1064:"), snapshot(1064, 1064, &[]));
        assert_eq!(Snapshot::parse("3555:3670:3555,3670"), snapshot(3555, 3670, &[3555, 3670]));
        assert_eq!(Snapshot::parse("16789:16788:"), snapshot(16789, 16789, &[]));
        for text in ["1064:1064:", "3555:3670:3555,3670"] {
            assert_eq!(Snapshot::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "1:2", "1:2:x", "a:2:"] {
            assert_eq!(Snapshot::parse(text), None, "{text}");
        }
    }
}
