//! A column's value as JSON.

use connect_values::write_json_string;

use super::text::null_or;
use crate::config::TextForm;
use crate::json::check;
use crate::outbox::ColumnType;

const BOOLEAN: u32 = 16;
/// `bigint`, `smallint`, `integer`, `oid`, `real`, `double precision`, `numeric`
const NUMBERS: [u32; 7] = [20, 21, 23, 26, 700, 701, 1700];

/// Writes a column's value as JSON: numbers, booleans and JSON as such, bytes in Base64, and everything else as a string.
pub(super) fn write(
    form: TextForm,
    value: Option<&[u8]>,
    of: ColumnType,
    into: &mut String,
) -> Result<(), &'static str> {
    let Some(bytes) = value else {
        into.push_str("null");
        return Ok(());
    };
    let text = std::str::from_utf8(bytes).map_err(|_| "is not UTF-8")?;
    if form == TextForm::Connect {
        if let Err(error) = connect_values::write_json(of.connect, Some(text), into) {
            null_or(error)?;
            into.push_str("null");
        }
        return Ok(());
    }
    match of.id.0 {
        BOOLEAN => into.push_str(if text == "t" { "true" } else { "false" }),
        // JSON has no NaN or infinity
        number if NUMBERS.contains(&number) && check(text).is_ok() => into.push_str(text),
        _ if of.is_json() => into.push_str(text),
        _ if of.is_bytea() => {
            let written = connect_values::write_json(of.connect, Some(text), into);
            written.map_err(|_| "is a bytea that is not in hexadecimal")?;
        }
        _ => write_json_string(text, into),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pg_logical::Oid;

    fn written(value: Option<&str>, type_id: u32) -> String {
        let mut json = String::new();
        let of = ColumnType::built_in(Oid(type_id), -1);
        write(TextForm::Postgres, value.map(str::as_bytes), of, &mut json).unwrap();
        json
    }

    #[test]
    fn columns_are_written_by_their_types() {
        for (value, type_id, json) in [
            (None, 25, "null"),
            (Some("t"), 16, "true"),
            (Some("f"), 16, "false"),
            (Some("-42"), 20, "-42"),
            (Some("1e+20"), 701, "1e+20"),
            (Some("NaN"), 1700, r#""NaN""#),
            (Some("-Infinity"), 701, r#""-Infinity""#),
            (Some(r#"{"a": 1}"#), 3802, r#"{"a": 1}"#),
            (Some(r"\x00ff10"), 17, r#""AP8Q""#),
            (Some("42"), 25, r#""42""#),
            (Some("2026-11-21"), 1082, r#""2026-11-21""#),
        ] {
            assert_eq!(written(value, type_id), json);
        }
    }

    #[test]
    fn columns_of_domains_are_written_as_their_base_type() {
        for (value, base, name, postgres, connect) in [
            ("1.50", 1700, "numeric", "1.50", r#""1.50""#),
            ("NaN", 1700, "numeric", r#""NaN""#, r#""NaN""#),
            ("{1.50,2}", 1231, "_numeric", r#""{1.50,2}""#, r#"["1.50","2"]"#),
            ("10101010", 1560, "bit", r#""10101010""#, r#""10101010""#),
            ("t", 16, "bool", "true", "true"),
            ("{1,2}", 1007, "_int4", r#""{1,2}""#, "[1,2]"),
            (r#"{"a": 1}"#, 3802, "jsonb", r#"{"a": 1}"#, r#""{\"a\": 1}""#),
        ] {
            for (form, json) in [(TextForm::Postgres, postgres), (TextForm::Connect, connect)] {
                let mut written = String::new();
                write(form, Some(value.as_bytes()), ColumnType::domain(Oid(base), name), &mut written)
                    .unwrap();
                assert_eq!(written, json, "{name} {form:?}");
            }
        }
    }
}
