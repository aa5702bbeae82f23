//! Floating point numbers as Java's `Float.toString` and `Double.toString` write them (Java 19 and later).

use std::fmt::{LowerExp, Write as _};

use crate::scratch::Scratch;

/// `1.0`, `1.0E10`, `-0.0`, `NaN`, `Infinity`. A `float4` has fewer digits than a `float8` of the same value.
pub(crate) fn write<T: LowerExp + Copy + Into<f64>>(value: T, into: &mut String) {
    let wide: f64 = value.into();
    if wide.is_nan() {
        return into.push_str("NaN");
    }
    if wide.is_infinite() {
        return into.push_str(if wide > 0.0 { "Infinity" } else { "-Infinity" });
    }
    let mut scratch = Scratch::new();
    // neither form is longer than the scratch buffer
    let _ = write!(scratch, "{value:e}");
    if scratch.as_str().split_once('e').is_some_and(|(mantissa, _)| !mantissa.contains('.')) {
        // Java writes the closest number of two digits where one digit would suffice: 4.9E-324, not 5.0E-324
        scratch = Scratch::new();
        let _ = write!(scratch, "{value:.1e}");
    }
    let Some((mantissa, exponent)) = scratch.as_str().split_once('e') else { return };
    let mantissa = match mantissa.strip_prefix('-') {
        Some(positive) => {
            into.push('-');
            positive
        }
        None => mantissa,
    };
    let (first, rest) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let rest = rest.trim_end_matches('0');
    match exponent.parse::<i32>().unwrap_or_default() {
        exponent @ 0..7 => {
            let whole = exponent as usize;
            into.push_str(first);
            match rest.split_at_checked(whole) {
                Some((before, after)) => {
                    into.push_str(before);
                    into.push('.');
                    into.push_str(if after.is_empty() { "0" } else { after });
                }
                None => {
                    into.push_str(rest);
                    into.extend(std::iter::repeat_n('0', whole - rest.len()));
                    into.push_str(".0");
                }
            }
        }
        exponent @ -3..0 => {
            into.push_str("0.");
            into.extend(std::iter::repeat_n('0', (-1 - exponent) as usize));
            into.push_str(first);
            into.push_str(rest);
        }
        exponent => {
            into.push_str(first);
            into.push('.');
            into.push_str(if rest.is_empty() { "0" } else { rest });
            let _ = write!(into, "E{exponent}");
        }
    }
}

/// The same in JSON, which has no NaN and no infinities: Jackson puts them in quotes.
pub(crate) fn write_json<T: LowerExp + Copy + Into<f64>>(value: T, into: &mut String) {
    let quote = if value.into().is_finite() { "" } else { "\"" };
    into.push_str(quote);
    write(value, into);
    into.push_str(quote);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(value: f64) -> String {
        let mut into = String::new();
        write(value, &mut into);
        into
    }

    #[test]
    fn uses_scientific_notation_where_java_does() {
        for (value, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-12.5, "-12.5"),
            (100.0, "100.0"),
            (1_234_567.0, "1234567.0"),
            (9_999_999.5, "9999999.5"),
            (1e7, "1.0E7"),
            (1.5e10, "1.5E10"),
            (12_345_678.0, "1.2345678E7"),
            (0.1, "0.1"),
            (0.012, "0.012"),
            (0.001, "0.001"),
            (0.000_999, "9.99E-4"),
            (1e-7, "1.0E-7"),
            (1e23, "1.0E23"),
            (f64::MAX, "1.7976931348623157E308"),
            (f64::MIN_POSITIVE, "2.2250738585072014E-308"),
            (f64::from_bits(1), "4.9E-324"),
            (f64::from_bits(4), "2.0E-323"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "Infinity"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(text(value), expected);
        }
    }

    #[test]
    fn gives_a_float4_its_own_digits() {
        for (value, expected) in
            [(0.1_f32, "0.1"), (3.402_823_5e38, "3.4028235E38"), (f32::from_bits(1), "1.4E-45")]
        {
            let mut into = String::new();
            write(value, &mut into);
            assert_eq!(into, expected);
        }
    }

    proptest! {
        #[test]
        fn reads_back_as_the_same_number(bits in any::<u64>()) {
            let value = f64::from_bits(bits);
            prop_assume!(value.is_finite());
            prop_assert_eq!(text(value).parse::<f64>().unwrap().to_bits(), bits);
        }
    }
}
