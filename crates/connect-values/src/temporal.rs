//! Converts dates, times and intervals from the ISO text of Postgres to Debezium's numbers and texts.

use std::fmt::Write as _;

use crate::Unwritable;
use crate::types::Unit;

const SECONDS_PER_DAY: i64 = 86_400;

/// The unread rest of a text.
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn take(&mut self, literal: &[u8]) -> bool {
        match self.0.strip_prefix(literal) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    /// Reads a number with this many digits, at most eighteen.
    fn number(&mut self, digits: std::ops::RangeInclusive<usize>) -> Option<i64> {
        let length = self.0.iter().take(*digits.end()).take_while(|byte| byte.is_ascii_digit()).count();
        if length < *digits.start() {
            return None;
        }
        let (number, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(number.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0')))
    }

    fn two_digits_after(&mut self, separator: &[u8]) -> Option<i64> {
        self.take(separator).then(|| self.number(2..=2)).flatten()
    }

    /// Days since 1970-01-01, for the year AD and for the same year BC, because a `BC` may follow at the end of the text.
    fn date(&mut self) -> Option<(i64, i64)> {
        let year = self.number(4..=10)?;
        let month = self.two_digits_after(b"-")?;
        let day = self.two_digits_after(b"-")?;
        if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
            return None;
        }
        // 1 BC is the year 0
        Some((days(year, month, day), days(1 - year, month, day)))
    }

    /// Reads `HH:MM:SS` with up to six digits of a fraction. `hours` is the number of digits of the hours, because those of an
    /// interval may exceed 24.
    fn time(&mut self, hours: std::ops::RangeInclusive<usize>) -> Option<(i64, i64, i64, i64)> {
        let hours = self.number(hours)?;
        let minutes = self.two_digits_after(b":")?;
        let seconds = self.two_digits_after(b":")?;
        let mut microseconds = 0;
        if self.take(b".") {
            let length = self.0.len();
            microseconds = self.number(1..=6)?;
            for _ in length - self.0.len()..6 {
                microseconds *= 10;
            }
        }
        (minutes < 60 && seconds <= 60).then_some((hours, minutes, seconds, microseconds))
    }

    /// Seconds east of Greenwich: `+02`, `-05:30`, `+01:02:03`.
    fn offset(&mut self) -> Option<i64> {
        let west = self.take(b"-");
        if !west && !self.take(b"+") {
            return None;
        }
        let mut seconds = self.number(2..=2)? * 3600;
        for unit in [60, 1] {
            if self.take(b":") {
                seconds += self.number(2..=2)? * unit;
            }
        }
        Some(if west { -seconds } else { seconds })
    }

    fn at_end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Days since 1970-01-01 in the proleptic Gregorian calendar; years before 1 are 0 and negative.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // years are counted from March here, so that a leap day is the last day
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Year, month and day from days since 1970-01-01.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = (year + era * 400, if month < 10 { month + 3 } else { month - 9 });
    (if month <= 2 { year + 1 } else { year }, month, day)
}

/// Days since 1970-01-01. Infinities become the numbers that Debezium uses for them.
pub(crate) fn date(text: &str) -> Result<i64, Unwritable> {
    match text {
        "infinity" => return Ok(-2_147_472_692),
        "-infinity" => return Ok(-2_147_472_691),
        _ => {}
    }
    let mut cursor = Cursor(text.as_bytes());
    let (after, before) = cursor.date().ok_or(Unwritable::Malformed)?;
    let days = if cursor.take(b" BC") { before } else { after };
    cursor.at_end().map(|()| days).ok_or(Unwritable::Malformed)
}

/// A `timestamp` since 1970-01-01. Infinities become the numbers that Debezium uses for them.
pub(crate) fn timestamp(text: &str, unit: Unit) -> Result<i64, Unwritable> {
    match (text, unit) {
        ("infinity", Unit::Milliseconds) => return Ok(9_223_372_036_825_200),
        ("infinity", Unit::Microseconds) => return Ok(9_223_372_036_825_200_000),
        ("-infinity", Unit::Milliseconds) => return Ok(-9_223_372_036_832_400),
        ("-infinity", Unit::Microseconds) => return Ok(-9_223_372_036_832_400_000),
        _ => {}
    }
    let (seconds, microseconds) = moment(text, false).ok_or(Unwritable::Malformed)?;
    Ok(in_unit(unit, seconds, microseconds))
}

fn in_unit(unit: Unit, seconds: i64, microseconds: i64) -> i64 {
    match unit {
        Unit::Milliseconds => seconds * 1_000 + microseconds / 1_000,
        // in the last 29 years of Postgres's range, Debezium's number overflows and wraps
        Unit::Microseconds => seconds.saturating_mul(1_000_000).wrapping_add(microseconds),
    }
}

/// A `timestamptz` in UTC: `2024-02-29T12:34:56.700Z`. The fraction has this many `digits`; 0: as many as needed.
pub(crate) fn write_timestamp_tz(text: &str, digits: u8, into: &mut String) -> Result<(), Unwritable> {
    if matches!(text, "infinity" | "-infinity") {
        into.push_str(text);
        return Ok(());
    }
    let (seconds, microseconds) = moment(text, true).ok_or(Unwritable::Malformed)?;
    let (year, month, day) = civil(seconds.div_euclid(SECONDS_PER_DAY));
    let _ = match year {
        10_000.. => write!(into, "+{year}"),
        0.. => write!(into, "{year:04}"),
        _ => write!(into, "-{:04}", -year),
    };
    let _ = write!(into, "-{month:02}-{day:02}T");
    write_clock(seconds.rem_euclid(SECONDS_PER_DAY), microseconds, digits, into);
    Ok(())
}

/// A `time` since midnight; `24:00:00` is a whole day.
pub(crate) fn time(text: &str, unit: Unit) -> Result<i64, Unwritable> {
    let mut cursor = Cursor(text.as_bytes());
    let (hours, minutes, seconds, microseconds) = cursor.time(2..=2).ok_or(Unwritable::Malformed)?;
    cursor.at_end().ok_or(Unwritable::Malformed)?;
    Ok(in_unit(unit, hours * 3600 + minutes * 60 + seconds, microseconds))
}

/// A `time` in an array: whole milliseconds, less than a day.
pub(crate) fn time_in_array(text: &str, unit: Unit) -> Result<i64, Unwritable> {
    let milliseconds = time(text, Unit::Milliseconds)? % (SECONDS_PER_DAY * 1_000);
    Ok(match unit {
        Unit::Milliseconds => milliseconds,
        Unit::Microseconds => milliseconds * 1_000,
    })
}

/// A `timetz` in UTC: `10:34:56.5Z`.
pub(crate) fn write_time_tz(text: &str, fraction: bool, into: &mut String) -> Result<(), Unwritable> {
    let mut cursor = Cursor(text.as_bytes());
    let (hours, minutes, seconds, microseconds) = cursor.time(2..=2).ok_or(Unwritable::Malformed)?;
    let offset = cursor.offset().ok_or(Unwritable::Malformed)?;
    cursor.at_end().ok_or(Unwritable::Malformed)?;
    let seconds = (hours * 3600 + minutes * 60 + seconds - offset).rem_euclid(SECONDS_PER_DAY);
    write_clock(seconds, if fraction { microseconds } else { 0 }, 0, into);
    Ok(())
}

/// An `interval` (`1 year -2 mons +3 days -04:05:06.5`) in microseconds, by the formula of Debezium's `MicroDuration`, with
/// its rounding.
pub(crate) fn interval(text: &str) -> Result<i64, Unwritable> {
    let (mut months, mut days) = (0_i32, 0_i32);
    let (mut sign, mut clock) = (1.0, (0, 0, 0, 0));
    let mut words = text.split(' ');
    while let Some(word) = words.next().filter(|word| !word.is_empty()) {
        if word.contains(':') {
            sign = if word.starts_with('-') { -1.0 } else { 1.0 };
            let mut cursor = Cursor(word.trim_start_matches(['+', '-']).as_bytes());
            clock = cursor.time(2..=10).ok_or(Unwritable::Malformed)?;
            cursor.at_end().ok_or(Unwritable::Malformed)?;
            continue;
        }
        let number: i32 = word.parse().map_err(|_| Unwritable::Malformed)?;
        match words.next() {
            Some("year" | "years") => months = months.wrapping_add(number.wrapping_mul(12)),
            Some("mon" | "mons") => months = months.wrapping_add(number),
            Some("day" | "days") => days = number,
            _ => return Err(Unwritable::Malformed),
        }
    }
    let (hours, minutes, seconds, microseconds) = clock;
    let (hours, minutes) = (sign * hours as f64, sign * minutes as f64);
    let seconds = sign * (seconds as f64 + microseconds as f64 / 1e6);
    let days = f64::from(months) * (365.25 / 12.0) + f64::from(days);
    let seconds = (((days * 24.0 + hours) * 60.0) + minutes) * 60.0 + seconds;
    Ok((seconds * 1e6) as i64)
}

/// Seconds since 1970-01-01, and microseconds, from `2024-02-29 12:34:56.789` or `0044-03-15 01:02:03 BC`; with `zone`, an
/// offset follows the time and is subtracted.
fn moment(text: &str, zone: bool) -> Option<(i64, i64)> {
    let mut cursor = Cursor(text.as_bytes());
    let (after, before) = cursor.date()?;
    let (hours, minutes, seconds, microseconds) = cursor.take(b" ").then(|| cursor.time(2..=2)).flatten()?;
    let offset = if zone { cursor.offset()? } else { 0 };
    let days = if cursor.take(b" BC") { before } else { after };
    cursor.at_end()?;
    Some((days * SECONDS_PER_DAY + hours * 3600 + minutes * 60 + seconds - offset, microseconds))
}

/// `12:34:56.700Z`
fn write_clock(second_of_day: i64, microseconds: i64, digits: u8, into: &mut String) {
    let (hours, minutes, seconds) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    let _ = write!(into, "{hours:02}:{minutes:02}:{seconds:02}");
    if digits > 0 || microseconds > 0 {
        let _ = write!(into, ".{microseconds:06}");
        match digits {
            0 => into.truncate(into.trim_end_matches('0').len()),
            _ => into.truncate(into.len() - usize::from(6 - digits.min(6))),
        }
    }
    into.push('Z');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn refuses_forms_that_postgres_does_not_print() {
        for text in [
            "",
            "2024-1-01",
            "2024-13-01",
            "2024-01-00",
            "2024-01-01x",
            "01/02/2024",
            "-2024-01-01",
            "٢٠٢٤-01-01",
        ] {
            assert!(date(text).is_err(), "{text}");
            assert!(timestamp(&format!("{text} 00:00:00"), Unit::Microseconds).is_err(), "{text}");
        }
        for text in ["", "1:00:00", "12:60:00", "12:00", "12:00:00.", "12:00:00.1234567", "12:00:00+00"] {
            assert!(time(text, Unit::Microseconds).is_err(), "{text}");
        }
        for text in ["12:00:00", "12:00:00+2", "12:00:00Z", "12:00:00+00 BC"] {
            assert!(write_time_tz(text, true, &mut String::new()).is_err(), "{text}");
        }
        for text in ["1", "1 week", "P1D", "1 day 2", "x days", "1:2:3", "@ 1 day"] {
            assert!(interval(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn days_and_dates_are_each_others_inverse(day in -4_000_000_i64..2_200_000_000) {
            let (year, month, of_month) = civil(day);
            prop_assert_eq!(days(year, month, of_month), day);
        }
    }
}
