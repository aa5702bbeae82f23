//! Bytes, `bytea`, `bit(n)` and points, in base64.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::Unwritable;

/// Standard base64 with padding, from a slice.
pub(crate) fn write_base64_bytes(bytes: &[u8], into: &mut String) {
    STANDARD.encode_string(bytes, into);
}

/// Standard base64 with padding.
pub(crate) fn write_base64_of(bytes: impl Iterator<Item = u8>, into: &mut String) {
    write_base64_bytes(&bytes.collect::<Vec<u8>>(), into);
}

/// The bytes of a `bytea` as Postgres prints them: `\x00ff`.
pub(crate) fn bytea(text: &str) -> Result<impl Iterator<Item = u8> + '_, Unwritable> {
    let digits = text.strip_prefix("\\x").ok_or(Unwritable::Malformed)?.as_bytes();
    if digits.len() % 2 != 0 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(Unwritable::Malformed);
    }
    let (pairs, _) = digits.as_chunks();
    Ok(pairs.iter().map(|[high, low]| nibble(*high) << 4 | nibble(*low)))
}

fn nibble(digit: u8) -> u8 {
    char::from(digit).to_digit(16).unwrap_or_default() as u8
}

/// The bytes of a text of `0` and `1`. The last bit is the lowest bit of the first byte, and leading zeros are dropped
/// (`java.util.BitSet.toByteArray`).
pub(crate) fn bits(text: &str) -> Result<impl Iterator<Item = u8> + '_, Unwritable> {
    if !text.bytes().all(|bit| matches!(bit, b'0' | b'1')) {
        return Err(Unwritable::Malformed);
    }
    let significant = text.trim_start_matches('0').as_bytes();
    Ok(significant.rchunks(8).map(|byte| byte.iter().fold(0, |byte, bit| byte << 1 | (bit - b'0'))))
}

/// The coordinates of a `point`: `(1,2.5)`.
pub(crate) fn point(text: &str) -> Result<(f64, f64), Unwritable> {
    let coordinates = text.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    let (x, y) = coordinates.and_then(|both| both.split_once(',')).ok_or(Unwritable::Malformed)?;
    Ok((x.parse().map_err(|_| Unwritable::Malformed)?, y.parse().map_err(|_| Unwritable::Malformed)?))
}

/// A point as well-known binary, little-endian.
pub(crate) fn well_known(x: f64, y: f64) -> impl Iterator<Item = u8> {
    // Java has one NaN
    let bytes = |number: f64| (if number.is_nan() { f64::NAN } else { number }).to_le_bytes();
    [1, 1, 0, 0, 0].into_iter().chain(bytes(x)).chain(bytes(y))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_base64_with_padding() {
        for (bytes, expected) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("ÿ~?", "w79+Pw=="),
        ] {
            let mut into = String::new();
            write_base64_bytes(bytes.as_bytes(), &mut into);
            assert_eq!(into, expected);
        }
    }

    #[test]
    fn refuses_bytes_and_bits_that_are_none() {
        for text in ["", "00", "\\x0", "\\x0g", "\\xé"] {
            assert!(bytea(text).is_err(), "{text}");
        }
        assert!(bits("012").is_err());
        for text in ["", "()", "(1)", "(1,2", "(a,b)"] {
            assert!(point(text).is_err(), "{text}");
        }
    }
}
