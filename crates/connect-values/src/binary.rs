//! Bytes, `bytea`, `bit(n)` and points, in base64.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::Unwritable;

/// Standard base64 with padding.
pub(crate) fn write_base64(bytes: &[u8], into: &mut String) {
    STANDARD.encode_string(bytes, into);
}

/// The bytes of a `bytea` as Postgres prints them: `\x00ff`.
pub(crate) fn write_bytea(text: &str, into: &mut String) -> Result<(), Unwritable> {
    let digits = text.strip_prefix("\\x").filter(|digits| digits.len() % 2 == 0);
    let (pairs, _) = digits.ok_or(Unwritable::Malformed)?.as_bytes().as_chunks();
    let value = |digit: &u8| char::from(*digit).to_digit(16);
    let bytes = pairs.iter().map(|[high, low]| Some((value(high)? << 4 | value(low)?) as u8));
    write_base64(&bytes.collect::<Option<Vec<u8>>>().ok_or(Unwritable::Malformed)?, into);
    Ok(())
}

/// The bytes of a text of `0` and `1`. The last bit is the lowest bit of the first byte, and leading zeros are dropped
/// (`java.util.BitSet.toByteArray`).
pub(crate) fn write_bits(text: &str, into: &mut String) -> Result<(), Unwritable> {
    if !text.bytes().all(|bit| matches!(bit, b'0' | b'1')) {
        return Err(Unwritable::Malformed);
    }
    let significant = text.trim_start_matches('0').as_bytes();
    let bytes = significant.rchunks(8).map(|byte| byte.iter().fold(0, |byte, bit| byte << 1 | (bit - b'0')));
    write_base64(&bytes.collect::<Vec<u8>>(), into);
    Ok(())
}

/// The coordinates of a `point`: `(1,2.5)`.
pub(crate) fn point(text: &str) -> Result<(f64, f64), Unwritable> {
    let coordinates = text.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    let (x, y) = coordinates.and_then(|both| both.split_once(',')).ok_or(Unwritable::Malformed)?;
    Ok((x.parse().map_err(|_| Unwritable::Malformed)?, y.parse().map_err(|_| Unwritable::Malformed)?))
}

/// A point in the well-known binary format, little-endian.
pub(crate) fn well_known_binary(x: f64, y: f64) -> Vec<u8> {
    // Java has only one NaN
    let bytes = |number: f64| (if number.is_nan() { f64::NAN } else { number }).to_le_bytes();
    [1, 1, 0, 0, 0].into_iter().chain(bytes(x)).chain(bytes(y)).collect()
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
            write_base64(bytes.as_bytes(), &mut into);
            assert_eq!(into, expected);
        }
    }

    #[test]
    fn refuses_malformed_bytes_and_bits() {
        for text in ["", "00", "\\x0", "\\x0g", "\\xé"] {
            assert!(write_bytea(text, &mut String::new()).is_err(), "{text}");
        }
        assert!(write_bits("012", &mut String::new()).is_err());
        for text in ["", "()", "(1)", "(1,2", "(a,b)"] {
            assert!(point(text).is_err(), "{text}");
        }
    }
}
