//! Parses a timestamp that Postgres printed with `DateStyle` ISO.

/// Milliseconds since the Unix epoch, as [`parse_micros`].
pub(super) fn parse_millis(text: &[u8]) -> Option<i64> {
    parse_micros(text).map(|micros| micros.div_euclid(1_000))
}

/// Microseconds since the Unix epoch for `2026-11-21 09:06:15.123456+00` or `2026-11-21 09:06:15`; without a zone, the time
/// is in UTC. `None` for `infinity`, dates BC and anything else, which no record can have.
pub fn parse_micros(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let (date, time) = text.split_once(' ')?;
    let mut date = date.splitn(3, '-').map(digits);
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (clock, offset) = match time.find(['+', '-']) {
        Some(at) => (time.get(..at)?, offset_seconds(time.get(at..)?)?),
        None => (time, 0),
    };
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let seconds = clock_seconds(clock)?;
    // Postgres prints 24:00:00 as such, and carries leap seconds over
    let valid = (1..=12).contains(&month) && (1..=31).contains(&day) && year <= 300_000;
    let days = valid.then(|| days_from_civil(year, month, day))?;
    (days * 86_400 + seconds - offset).checked_mul(1_000_000)?.checked_add(micros(fraction)?)
}

/// Digits only: `parse` would also accept a sign.
fn digits(text: &str) -> Option<i64> {
    let plain = !text.is_empty() && text.len() <= 6 && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

/// `HH`, `HH:MM` or `HH:MM:SS`.
fn clock_seconds(text: &str) -> Option<i64> {
    let mut parts = text.splitn(3, ':').map(digits);
    let hours = parts.next()??;
    let minutes = parts.next().unwrap_or(Some(0))?;
    let seconds = parts.next().unwrap_or(Some(0))?;
    (hours <= 24 && minutes < 60 && seconds <= 60).then_some(hours * 3_600 + minutes * 60 + seconds)
}

fn offset_seconds(text: &str) -> Option<i64> {
    match text.strip_prefix('-') {
        Some(west) => clock_seconds(west).map(|seconds| -seconds),
        None => clock_seconds(text.strip_prefix('+')?),
    }
}

/// A fraction of a second, of up to six digits.
fn micros(fraction: &str) -> Option<i64> {
    if fraction.is_empty() {
        return Some(0);
    }
    Some(digits(fraction)? * [100_000, 10_000, 1_000, 100, 10, 1].get(fraction.len() - 1)?)
}

/// Days since 1970-01-01 in the proleptic Gregorian calendar. Years begin in March here, so that a leap day is the last day.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leap_days + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_postgres_prints() {
        for (text, millis) in [
            ("1970-01-01 00:00:00+00", 0),
            ("2000-01-01 00:00:00", 946_684_800_000),
            ("2026-11-21 09:06:15.123456+00", 1_795_251_975_123),
            ("2026-11-21 09:06:15.1+00", 1_795_251_975_100),
            ("2026-11-21 14:36:15+05:30", 1_795_251_975_000),
            ("2026-11-21 05:36:15-03:30", 1_795_251_975_000),
            ("1883-11-18 12:03:58-07:52:58", -2_717_640_184_000),
            ("2024-02-29 23:59:59.999+00", 1_709_251_199_999),
            ("1969-12-31 23:59:59.999+00", -1),
            ("12026-01-01 00:00:00+00", 317_336_745_600_000),
        ] {
            assert_eq!(parse_millis(text.as_bytes()), Some(millis), "{text}");
        }
    }

    #[test]
    fn timestamps_that_no_record_can_have_are_none() {
        for text in [
            "infinity",
            "-infinity",
            "",
            "0044-03-15 12:00:00+00 BC",
            "2026-13-01 00:00:00",
            "2026-01-01",
            "x y",
        ] {
            assert_eq!(parse_millis(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = parse_millis(&text);
        }

        #[test]
        fn days_follow_one_another(day in -100_000i64..4_000_000) {
            // the inverse by search: steps from the civil date of the day before
            let (year, month, dom) = civil(day);
            prop_assert_eq!(days_from_civil(year, month, dom), day);
        }
    }

    fn civil(day: i64) -> (i64, i64, i64) {
        let leap = |y: i64| y % 4 == 0 && (y % 100 != 0 || y % 400 == 0);
        let (mut year, mut left) = (1970, day);
        while left < 0 {
            year -= 1;
            left += if leap(year) { 366 } else { 365 };
        }
        while left >= if leap(year) { 366 } else { 365 } {
            left -= if leap(year) { 366 } else { 365 };
            year += 1;
        }
        let february = if leap(year) { 29 } else { 28 };
        for (month, length) in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31].into_iter().enumerate()
        {
            if left < length {
                return (year, month as i64 + 1, left + 1);
            }
            left -= length;
        }
        unreachable!()
    }
}
