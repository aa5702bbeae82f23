//! What a router that polls knows of its table.

use pg_logical::PgTimestamp;

use super::report::Polling;
use crate::postgres::polling::messages::CountedRows;

/// The rows at the last count, as the status report has them.
pub fn rows_in_report(rows: &CountedRows, now: PgTimestamp) -> Polling {
    // clocks may be set back
    let age = |time: PgTimestamp| now.0.saturating_sub(time.0).max(0) as f64 / 1e6;
    Polling {
        poll_age_seconds: age(rows.polled),
        rows_due: rows.due,
        oldest_due_seconds: rows.oldest.map_or(0.0, age),
        rows_refused: rows.refused,
        rows_failed: rows.failed,
    }
}
