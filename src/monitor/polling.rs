//! What a router that polls knows of its table.

use pg_logical::PgTimestamp;

use super::report::Polling;

/// The rows at the last count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountedRows {
    /// Rows that are due; 10,000 stands for that or more.
    pub due: u64,
    /// When the oldest of them was inserted, if the table has that.
    pub oldest: Option<PgTimestamp>,
    /// Rows that were refused too often; 10,000 stands for that or more.
    pub failed: u64,
    /// When rows were last claimed, or none were found.
    pub polled: PgTimestamp,
}

impl CountedRows {
    pub(super) fn report(&self, now: PgTimestamp) -> Polling {
        // clocks may be set back
        let age = |time: PgTimestamp| now.0.saturating_sub(time.0).max(0) as f64 / 1e6;
        Polling {
            poll_age_seconds: age(self.polled),
            rows_due: self.due,
            oldest_due_seconds: self.oldest.map_or(0.0, age),
            rows_failed: self.failed,
        }
    }
}
