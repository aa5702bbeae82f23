//! Values as text in keys and headers, and as JSON like that of `JsonConverter` without schemas.

use std::fmt::{LowerExp, Write as _};

use crate::json::write_json_string;
use crate::types::Scalar;
use crate::{ConnectType, Unwritable, array, binary, decimal, float, hstore, temporal};

/// Where the value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// In a key: `toString` of the Java object.
    Key,
    /// In a header: `Values.convertToString`.
    Header,
    /// In an array in a header, where texts are quoted.
    HeaderElement,
    /// As a JSON value.
    Json,
}

/// Writes a value as `StringConverter` does, with Java's `toString`.
///
/// # Errors
/// [`Unwritable`]; `into` is unchanged then.
pub fn write_key(connect_type: ConnectType, value: &str, into: &mut String) -> Result<(), Unwritable> {
    if !connect_type.has_key_text() {
        return Err(Unwritable::NoKeyText);
    }
    write(connect_type, Form::Key, value, into)
}

/// Writes a value as `SimpleHeaderConverter` does, the default of Kafka Connect for headers.
///
/// # Errors
/// [`Unwritable`]; `into` is unchanged then.
pub fn write_header(connect_type: ConnectType, value: &str, into: &mut String) -> Result<(), Unwritable> {
    write(connect_type, Form::Header, value, into)
}

/// Writes a value as JSON: numbers as such, bytes and decimals in base64, everything else as strings. `None` is `null`.
///
/// # Errors
/// [`Unwritable`]; `into` is unchanged then.
pub fn write_json(
    connect_type: ConnectType,
    value: Option<&str>,
    into: &mut String,
) -> Result<(), Unwritable> {
    match value {
        Some(value) => write(connect_type, Form::Json, value, into),
        None => {
            into.push_str("null");
            Ok(())
        }
    }
}

/// Writes a value, or an array of values.
fn write(connect_type: ConnectType, form: Form, value: &str, into: &mut String) -> Result<(), Unwritable> {
    let start = into.len();
    // the name of a user-defined type may begin with `_` even if it is not an array
    let array = connect_type.array && (connect_type.scalar != Scalar::String || value.ends_with('}'));
    let written = if array {
        write_array(connect_type.scalar, form, value, into)
    } else {
        write_scalar(connect_type.scalar, form, value, into)
    };
    if written.is_err() {
        into.truncate(start);
    }
    written
}

fn write_array(scalar: Scalar, form: Form, value: &str, into: &mut String) -> Result<(), Unwritable> {
    let (separator, form) = match form {
        Form::Key => (", ", Form::Key),
        Form::Header | Form::HeaderElement => (",", Form::HeaderElement),
        Form::Json => (",", Form::Json),
    };
    into.push('[');
    let mut first = true;
    array::elements(value, |element| {
        if !std::mem::take(&mut first) {
            into.push_str(separator);
        }
        match element {
            Some(element) => write_scalar(scalar, form, element, into),
            None => {
                into.push_str("null");
                Ok(())
            }
        }
    })?;
    into.push(']');
    Ok(())
}

fn write_scalar(scalar: Scalar, form: Form, value: &str, into: &mut String) -> Result<(), Unwritable> {
    match scalar {
        Scalar::String => write_string(form, value, into),
        Scalar::Hstore => {
            let mut json = String::new();
            hstore::write(value, &mut json)?;
            write_string(form, &json, into);
        }
        Scalar::Boolean => into.push_str(match value {
            "t" => "true",
            "f" => "false",
            _ => return Err(Unwritable::Malformed),
        }),
        Scalar::Bit => into.push_str(match value {
            "1" => "true",
            "0" => "false",
            _ => return Err(Unwritable::Malformed),
        }),
        Scalar::Integer => into.push_str(integer(value)?),
        Scalar::Float32 => write_float::<f32>(form, value.parse().map_err(|_| Unwritable::Malformed)?, into),
        Scalar::Float64 => write_float::<f64>(form, value.parse().map_err(|_| Unwritable::Malformed)?, into),
        Scalar::Date => write_number(temporal::date(value)?, into),
        Scalar::Timestamp(unit) => write_number(temporal::timestamp(value, unit)?, into),
        Scalar::Time(unit) => write_number(temporal::time(value, unit)?, into),
        Scalar::TimeInArray(unit) => write_number(temporal::time_in_array(value, unit)?, into),
        Scalar::Interval => write_number(temporal::interval(value)?, into),
        Scalar::TimestampTz(digits) => {
            write_unescaped(form, into, |into| temporal::write_timestamp_tz(value, digits, into))?;
        }
        Scalar::TimeTz => write_unescaped(form, into, |into| temporal::write_time_tz(value, true, into))?,
        Scalar::TimeTzInArray => {
            write_unescaped(form, into, |into| temporal::write_time_tz(value, false, into))?
        }
        Scalar::Decimal(scale) => write_decimal(form, &decimal::Decimal::with_scale(value, scale)?, into),
        Scalar::Money => decimal::money(value, |amount| write_decimal(form, amount, into))?,
        Scalar::Bytes => write_unescaped(form, into, |into| binary::write_bytea(value, into))?,
        Scalar::Bits => write_unescaped(form, into, |into| binary::write_bits(value, into))?,
        // a Struct is JSON in headers as well
        Scalar::VariableDecimal => {
            let number = decimal::Decimal::stripped(value)?;
            into.push_str("{\"scale\":");
            write_number(number.scale() as i64, into);
            into.push_str(",\"value\":\"");
            number.write_unscaled(into);
            into.push_str("\"}");
        }
        Scalar::Point => {
            let (x, y) = binary::point(value)?;
            into.push_str("{\"x\":");
            write_float(form, x, into);
            into.push_str(",\"y\":");
            write_float(form, y, into);
            into.push_str(",\"wkb\":\"");
            binary::write_base64(&binary::well_known_binary(x, y), into);
            into.push_str("\",\"srid\":null}");
        }
    }
    Ok(())
}

/// The digits unchanged, if they are a valid JSON number.
fn integer(value: &str) -> Result<&str, Unwritable> {
    let digits = value.strip_prefix('-').unwrap_or(value);
    let number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    // Postgres prints neither "007" nor "-0"
    let plain = digits == value && digits == "0" || !digits.starts_with('0');
    if number && plain { Ok(value) } else { Err(Unwritable::Malformed) }
}

fn write_number(number: i64, into: &mut String) {
    let _ = write!(into, "{number}");
}

fn write_float<T: LowerExp + Copy + Into<f64>>(form: Form, number: T, into: &mut String) {
    match form {
        Form::Json => float::write_json(number, into),
        _ => float::write(number, into),
    }
}

fn write_decimal(form: Form, number: &decimal::Decimal<'_>, into: &mut String) {
    if form == Form::Json {
        into.push('"');
        number.write_unscaled(into);
        into.push('"');
    } else {
        number.write(into);
    }
}

fn write_string(form: Form, value: &str, into: &mut String) {
    match form {
        Form::Key | Form::Header => into.push_str(value),
        Form::HeaderElement => write_quoted(value, into),
        Form::Json => write_json_string(value, into),
    }
}

/// Writes a text that needs no escapes, in quotes where `form` requires them.
fn write_unescaped(
    form: Form,
    into: &mut String,
    write: impl FnOnce(&mut String) -> Result<(), Unwritable>,
) -> Result<(), Unwritable> {
    let quote = if matches!(form, Form::HeaderElement | Form::Json) { "\"" } else { "" };
    into.push_str(quote);
    write(into)?;
    into.push_str(quote);
    Ok(())
}

/// A text in an array in a header: `Values` only escapes backslashes and quotation marks.
fn write_quoted(text: &str, into: &mut String) {
    into.push('"');
    for character in text.chars() {
        if matches!(character, '"' | '\\') {
            into.push('\\');
        }
        into.push(character);
    }
    into.push('"');
}
