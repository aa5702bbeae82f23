//! Sizes and times as people read them.

use std::fmt::Display;
use std::time::Duration;

/// `1 event`, `2 events`
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, what: &str) -> String {
    let plural = if count == N::from(1) { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// `16.0 MiB`
pub fn bytes(count: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut size = count as f64 / 1024.0;
    let mut chosen = "KiB";
    for unit in units.into_iter().skip(1) {
        // 1023.95 would be shown as 1024.0
        if size < 1023.95 {
            break;
        }
        size /= 1024.0;
        chosen = unit;
    }
    format!("{size:.1} {chosen}")
}

/// `12 minutes`, in the largest unit of which there are at least two.
pub fn time(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let units = [(86_400, "days"), (3_600, "hours"), (60, "minutes")];
    match units.into_iter().find(|(unit, _)| seconds >= 2 * unit) {
        Some((unit, name)) => format!("{} {name}", seconds / unit),
        None if seconds == 1 => "1 second".to_owned(),
        None => format!("{seconds} seconds"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1024 * 1024 - 1, "1.0 MiB"),
            (16 << 20, "16.0 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn times_are_readable() {
        for (seconds, text) in [
            (0, "0 seconds"),
            (1, "1 second"),
            (119, "119 seconds"),
            (120, "2 minutes"),
            (7_199, "119 minutes"),
            (7_200, "2 hours"),
            (200_000, "2 days"),
        ] {
            assert_eq!(time(Duration::from_secs(seconds)), text);
        }
    }
}
