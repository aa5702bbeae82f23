//! Moments as people and machines read them: RFC 3339 in UTC.

use std::fmt;

use time::OffsetDateTime;

/// Microseconds since 1970-01-01, shown as `2026-01-31T23:59:59.123Z`. RFC 3339 has years of four digits: what is earlier or later
/// than those is shown as the first or last moment of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Utc(pub(crate) i64);

/// The first moment of the year 1, and the last of 9999.
const WRITABLE: std::ops::RangeInclusive<i64> = -62_135_596_800_000_000..=253_402_300_799_999_999;

impl Utc {
    /// Whether it has a year of four digits.
    pub(crate) fn is_writable(self) -> bool {
        WRITABLE.contains(&self.0)
    }
}

impl From<OffsetDateTime> for Utc {
    fn from(time: OffsetDateTime) -> Self {
        Utc(i64::try_from(time.unix_timestamp_nanos() / 1_000).unwrap_or(i64::MAX))
    }
}

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.clamp(*WRITABLE.start(), *WRITABLE.end());
        let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1_000)
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
    }

    #[test]
    fn times_without_a_year_of_four_digits_are_shown_as_the_nearest_that_have_one() {
        for (micros, text) in [
            (i64::MIN, "0001-01-01T00:00:00.000Z"),
            (*WRITABLE.start(), "0001-01-01T00:00:00.000Z"),
            (*WRITABLE.end(), "9999-12-31T23:59:59.999Z"),
            (i64::MAX, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(Utc(micros).to_string(), text);
            assert_eq!(Utc(micros).is_writable(), WRITABLE.contains(&micros), "{micros}");
        }
        assert!(!Utc(WRITABLE.end() + 1).is_writable() && Utc(*WRITABLE.end()).is_writable());
    }
}
