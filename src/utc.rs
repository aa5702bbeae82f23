//! Moments as people and machines read them: RFC 3339 in UTC.

use std::fmt;

use time::OffsetDateTime;

/// Microseconds since 1970-01-01, shown as `2026-01-31T23:59:59.123Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Utc(pub(crate) i64);

impl From<OffsetDateTime> for Utc {
    fn from(time: OffsetDateTime) -> Self {
        Utc(i64::try_from(time.unix_timestamp_nanos() / 1_000).unwrap_or(i64::MAX))
    }
}

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // only years beyond 9999 have no date; a clock that wrong is shown as the epoch
        let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000)
            .unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let (date, time) = (at.date(), at.time());
        write!(
            f,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
            date.year(),
            u8::from(date.month()),
            date.day(),
            time.hour(),
            time.minute(),
            time.second(),
            time.millisecond()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_milliseconds_in_utc() {
        assert_eq!(Utc(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Utc(1_769_903_999_123_999).to_string(), "2026-01-31T23:59:59.123Z");
        assert_eq!(Utc(i64::MAX).to_string(), "1970-01-01T00:00:00.000Z");
    }
}
