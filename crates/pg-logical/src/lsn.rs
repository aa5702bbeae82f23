//! Positions in the write-ahead log.

use std::fmt;
use std::str::FromStr;

/// A byte position in the write-ahead log, like `pg_lsn` in Postgres.
///
/// Zero (`0/0`) is `InvalidXLogRecPtr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// `InvalidXLogRecPtr`: no position.
    pub const INVALID: Lsn = Lsn(0);

    /// The number of bytes of log between `earlier` and `self`; 0 if `earlier` is not earlier.
    pub fn bytes_since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// The text does not have the form `16/B374D848`.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a log position of the form 16/B374D848")]
pub struct ParseLsnError(String);

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let half = |digits: &str| {
            // from_str_radix would also accept a sign
            let hex = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
            hex.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
        };
        let parts = text.split_once('/').and_then(|(high, low)| Some((half(high)?, half(low)?)));
        match parts {
            Some((high, low)) => Ok(Lsn(u64::from(high) << 32 | u64::from(low))),
            None => Err(ParseLsnError(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn text_and_number_are_the_same_position(n: u64) {
            prop_assert_eq!(Lsn(n).to_string().parse(), Ok(Lsn(n)));
        }
    }

    #[test]
    fn malformed_positions_are_refused() {
        for text in ["", "/", "1", "1/", "/1", "+1/2", "1/2/3", "G/0", "100000000/0"] {
            assert!(text.parse::<Lsn>().is_err(), "{text}");
        }
    }
}
