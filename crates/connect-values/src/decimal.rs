//! `numeric` and `money` as `java.math.BigDecimal`.

use std::fmt::Write as _;

use crate::Unwritable;
use crate::binary::write_base64;
use crate::scratch::Scratch;

/// The decimal digits of a number that Postgres printed. The value is `whole.fraction`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decimal<'a> {
    negative: bool,
    /// Without leading zeros.
    whole: &'a str,
    fraction: &'a str,
    /// The number of zeros after the fraction.
    padding: usize,
}

impl<'a> Decimal<'a> {
    /// A `numeric` with a scale, which becomes the scale of the `BigDecimal`.
    pub(crate) fn with_scale(text: &'a str, scale: u16) -> Result<Self, Unwritable> {
        let parsed = Decimal::parse(text)?;
        let scale = usize::from(scale);
        let (kept, beyond) = parsed.fraction.split_at_checked(scale).unwrap_or((parsed.fraction, ""));
        if beyond.bytes().any(|digit| digit != b'0') {
            return Err(Unwritable::Malformed);
        }
        Ok(Decimal { fraction: kept, padding: scale - kept.len(), ..parsed })
    }

    /// A `numeric` without scale: trailing zeros are dropped, but not those before the point.
    pub(crate) fn stripped(text: &'a str) -> Result<Self, Unwritable> {
        let parsed = Decimal::parse(text)?;
        Ok(Decimal { fraction: parsed.fraction.trim_end_matches('0'), ..parsed })
    }

    fn parse(text: &'a str) -> Result<Self, Unwritable> {
        let (negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let all_digits = whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !all_digits {
            return Err(match digits {
                "NaN" | "Infinity" => Unwritable::NotFinite,
                _ => Unwritable::Malformed,
            });
        }
        Ok(Decimal { negative, whole: whole.trim_start_matches('0'), fraction, padding: 0 })
    }

    pub(crate) fn scale(&self) -> usize {
        self.fraction.len() + self.padding
    }

    /// Writes it as `BigDecimal.toString` does: in scientific notation if six or more zeros follow the point.
    pub(crate) fn write(&self, into: &mut String) {
        let significant = self.fraction.trim_start_matches('0');
        let zero = self.whole.is_empty() && significant.is_empty();
        if self.negative && !zero {
            into.push('-');
        }
        let precision = match (self.whole.len(), zero) {
            (_, true) => 1,
            (0, false) => significant.len() + self.padding,
            (whole, false) => whole + self.scale(),
        };
        // the exponent, precision - 1 - scale, would be below -6
        if precision + 5 < self.scale() {
            let mut digits = significant.chars().chain(std::iter::repeat_n('0', self.padding));
            into.push(if zero { '0' } else { digits.next().unwrap_or('0') });
            if precision > 1 {
                into.push('.');
                into.extend(digits);
            }
            let _ = write!(into, "E-{}", self.scale() + 1 - precision);
            return;
        }
        into.push_str(if self.whole.is_empty() { "0" } else { self.whole });
        if self.scale() > 0 {
            into.push('.');
            into.push_str(self.fraction);
            into.extend(std::iter::repeat_n('0', self.padding));
        }
    }

    /// The unscaled value's bytes, big-endian, two's complement, as short as possible (`BigInteger.toByteArray`), in base64.
    pub(crate) fn write_unscaled(&self, into: &mut String) {
        let digits = self
            .whole
            .bytes()
            .chain(self.fraction.bytes())
            .chain(std::iter::repeat_n(b'0', self.padding))
            .map(|digit| digit - b'0');
        if self.whole.len() + self.scale() <= 38 {
            let magnitude = digits.fold(0_i128, |number, digit| number * 10 + i128::from(digit));
            let bytes = (if self.negative { -magnitude } else { magnitude }).to_be_bytes();
            write_base64(minimal(&bytes), into);
        } else {
            let bytes = big_bytes(digits, self.negative);
            write_base64(minimal(&bytes), into);
        }
    }
}

/// `money` has Debezium's default scale of 2 (`money.fraction.digits`). The currency sign is one character, and commas
/// separate thousands. Like Debezium, this reads no other `lc_monetary` settings.
pub(crate) fn money<T>(text: &str, write: impl FnOnce(&Decimal<'_>) -> T) -> Result<T, Unwritable> {
    let mut plain = Scratch::new();
    let unsigned = match text.strip_prefix('-') {
        Some(unsigned) => {
            let _ = plain.write_char('-');
            unsigned
        }
        None => text,
    };
    let mut amount = unsigned.chars();
    amount.next();
    for character in amount.filter(|&character| character != ',') {
        plain.write_char(character).map_err(|_| Unwritable::Malformed)?;
    }
    Ok(write(&Decimal::with_scale(plain.as_str(), 2)?))
}

/// Removes leading bytes that only repeat the sign.
fn minimal(mut bytes: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = bytes {
        match (first, rest.first()) {
            (0x00, Some(next)) if next & 0x80 == 0 => bytes = rest,
            (0xff, Some(next)) if next & 0x80 != 0 => bytes = rest,
            _ => break,
        }
    }
    bytes
}

/// For numbers of more than 38 digits.
fn big_bytes(digits: impl Iterator<Item = u8>, negative: bool) -> Vec<u8> {
    // least significant first; nine digits at a time
    let mut limbs: Vec<u32> = Vec::new();
    let mut add = |factor: u64, chunk: u64| {
        let mut carry = chunk;
        for limb in &mut limbs {
            let product = u64::from(*limb) * factor + carry;
            *limb = product as u32;
            carry = product >> 32;
        }
        if carry > 0 {
            limbs.push(carry as u32);
        }
    };
    let (mut factor, mut chunk) = (1, 0);
    for digit in digits {
        (factor, chunk) = (factor * 10, chunk * 10 + u64::from(digit));
        if factor == 1_000_000_000 {
            add(factor, chunk);
            (factor, chunk) = (1, 0);
        }
    }
    add(factor, chunk);
    // an additional zero limb leaves the sign bit clear
    limbs.push(0);
    if negative {
        let mut carry = true;
        for limb in &mut limbs {
            (*limb, carry) = (!*limb).overflowing_add(u32::from(carry));
        }
    }
    limbs.iter().rev().flat_map(|limb| limb.to_be_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(decimal: &Decimal<'_>) -> String {
        let mut into = String::new();
        decimal.write(&mut into);
        into
    }

    #[test]
    fn uses_scientific_notation_where_java_does() {
        for (number, scale, expected) in [
            ("0", 0, "0"),
            ("12345", 0, "12345"),
            ("12.3", 2, "12.30"),
            ("-0.01", 2, "-0.01"),
            ("-0.00", 2, "0.00"),
            ("0.000001", 6, "0.000001"),
            ("0.000000", 6, "0.000000"),
            ("0.0000000", 7, "0E-7"),
            ("0.0000001", 7, "1E-7"),
            ("-0.00000012", 8, "-1.2E-7"),
            ("0.00000010", 8, "1.0E-7"),
            ("0.0000001", 8, "1.0E-7"),
            ("0.0000010", 7, "0.0000010"),
            ("1.00000000000", 11, "1.00000000000"),
            ("1.500", 1, "1.5"),
        ] {
            assert_eq!(
                text(&Decimal::with_scale(number, scale).unwrap()),
                expected,
                "{number} scale {scale}"
            );
        }
    }

    #[test]
    fn refuses_numbers_that_java_would_round_or_cannot_represent() {
        for (number, error) in [
            ("1.55", Unwritable::Malformed),
            ("", Unwritable::Malformed),
            (".5", Unwritable::Malformed),
            ("1e5", Unwritable::Malformed),
            ("--1", Unwritable::Malformed),
            ("1.2.3", Unwritable::Malformed),
            ("٣", Unwritable::Malformed),
            ("NaN", Unwritable::NotFinite),
            ("-Infinity", Unwritable::NotFinite),
        ] {
            assert_eq!(Decimal::with_scale(number, 1), Err(error), "{number}");
        }
    }

    #[test]
    fn reads_money_with_commas_and_sign() {
        for (amount, expected) in
            [("$0.00", "0.00"), ("-$1,234,567.89", "-1234567.89"), ("$12", "12.00"), ("£1.5", "1.50")]
        {
            assert_eq!(money(amount, text).unwrap(), expected, "{amount}");
        }
        for amount in ["", "-", "$", "$1.234", "$1.234,56", "1 €", &format!("${}", "1".repeat(100))] {
            assert_eq!(money(amount, text), Err(Unwritable::Malformed), "{amount}");
        }
    }

    proptest! {
        #[test]
        fn long_and_short_numbers_have_the_same_bytes(number in any::<i64>()) {
            let digits = number.unsigned_abs().to_string().into_bytes().into_iter().map(|digit| digit - b'0');
            let long = big_bytes(digits, number < 0);
            let short = i128::from(number).to_be_bytes();
            prop_assert_eq!(minimal(&long), minimal(&short));
        }
    }
}
