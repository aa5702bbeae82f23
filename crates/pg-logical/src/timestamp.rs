//! Points in time as Postgres represents them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Microseconds since 2000-01-01 00:00 UTC, Postgres's own epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PgTimestamp(pub i64);

/// The seconds between the Unix epoch and that of Postgres.
const PG_EPOCH_SECONDS: i64 = 946_684_800;

impl PgTimestamp {
    /// The time of the system's clock, or 1970 if that is earlier.
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        PgTimestamp::from_unix_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    /// Microseconds since 1970-01-01, the Unix epoch.
    pub fn unix_micros(self) -> i64 {
        self.0.saturating_add(PG_EPOCH_SECONDS * 1_000_000)
    }

    /// Milliseconds since the Unix epoch.
    pub fn unix_millis(self) -> i64 {
        self.unix_micros().div_euclid(1_000)
    }

    /// From microseconds since the Unix epoch.
    pub fn from_unix_micros(micros: i64) -> Self {
        PgTimestamp(micros.saturating_sub(PG_EPOCH_SECONDS * 1_000_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgres_epoch_is_the_year_2000() {
        assert_eq!(PgTimestamp(0).unix_millis(), 946_684_800_000);
        assert_eq!(PgTimestamp(-1_500).unix_millis(), 946_684_799_998);
        assert_eq!(PgTimestamp::from_unix_micros(PgTimestamp(77).unix_micros()), PgTimestamp(77));
    }
}
