//! Sizes as a person reads them.

/// `16.0 MiB`
pub(crate) fn bytes(count: u64) -> String {
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

#[cfg(test)]
mod tests {
    use super::bytes;

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
}
