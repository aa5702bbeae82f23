//! Durations (`5s`, `1h30m`) and sizes (`32MiB`) as people write them.

use std::time::Duration;

/// Milliseconds in each unit of a duration, largest first.
const DURATION_UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Bytes in each unit of a size, largest first within each family.
const SIZE_UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// What a duration looks like, for an error.
pub(super) const DURATION_FORM: &str = "a duration like \"500ms\", \"10s\" or \"1h30m\"";

/// What a size looks like, for an error.
pub(super) const SIZE_FORM: &str = "a size like \"512KiB\", \"32MiB\" or a number of bytes";

/// Parses a duration: the sum of numbers with the units d, h, m, s and ms. `0` needs no unit; any other number without one is
/// refused as ambiguous.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut millis: u64 = 0;
    while !rest.is_empty() {
        let (number, after) = split_number(rest)?;
        let length = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at_checked(length)?;
        let (_, scale) = DURATION_UNITS.iter().find(|(name, _)| *name == unit)?;
        millis = millis.checked_add(number.checked_mul(*scale)?)?;
        rest = after.trim_start();
    }
    (!text.trim().is_empty()).then_some(Duration::from_millis(millis))
}

/// Writes a duration in the largest unit that is exact; fractions of a millisecond are dropped.
pub(super) fn format_duration(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let unit = DURATION_UNITS.iter().find(|(_, scale)| millis > 0 && millis.is_multiple_of(*scale));
    unit.map_or_else(|| "0s".to_owned(), |(name, scale)| format!("{}{name}", millis / scale))
}

/// Parses a size: a whole number with a unit, or a number of bytes.
pub(super) fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split_number(text.trim())?;
    match unit.trim_start() {
        "" => Some(number),
        unit => {
            let (_, scale) = SIZE_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
            number.checked_mul(*scale)
        }
    }
}

/// Writes a size in the largest binary unit that is exact.
pub(super) fn format_size(bytes: u64) -> String {
    let binary = SIZE_UNITS.iter().filter(|(name, _)| name.ends_with("iB") || *name == "B");
    let unit = binary.into_iter().find(|(_, scale)| bytes > 0 && bytes.is_multiple_of(*scale));
    unit.map_or_else(|| "0B".to_owned(), |(name, scale)| format!("{}{name}", bytes / scale))
}

fn split_number(text: &str) -> Option<(u64, &str)> {
    let length = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at_checked(length)?;
    Some((digits.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_durations() {
        for (text, millis) in [
            ("0", 0),
            ("0s", 0),
            ("500ms", 500),
            ("5s", 5_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            (" 2d ", 172_800_000),
        ] {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn refuses_malformed_durations() {
        for text in ["", " ", "5", "s", "-5s", "5 parsecs", "1.5s", "5s5", "99999999999999999999s"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn reads_sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("1024", 1024),
            ("32MiB", 33_554_432),
            ("1 kB", 1000),
            ("1KB", 1000),
            ("2gib", 1 << 31),
            ("1TiB", 1 << 40),
            ("3TB", 3_000_000_000_000),
        ] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
    }

    #[test]
    fn refuses_malformed_sizes() {
        for text in ["", "MiB", "-1", "1.5MiB", "32 megs", "99999999999GiB"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_formatted_duration_parses_to_the_same(millis in 0..u64::MAX / 2) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Some(duration));
        }

        #[test]
        fn a_formatted_size_parses_to_the_same(bytes: u64) {
            prop_assert_eq!(parse_size(&format_size(bytes)), Some(bytes));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC*") {
            let _ = (parse_duration(&text), parse_size(&text));
        }
    }
}
