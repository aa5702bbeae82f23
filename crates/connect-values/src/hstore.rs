//! Writes `hstore` pairs as Debezium does (`hstore.handling.mode=json`): as JSON, in the order of Java's `HashMap`.

use crate::Unwritable;
use crate::array::{quoted, unescaped};
use crate::json::write_unit;

/// The initial capacity of a `HashMap`.
const CAPACITY: usize = 16;

/// One pair. Its texts still contain the backslashes of Postgres.
struct Pair<'t> {
    hash: u32,
    key: &'t str,
    /// `None` for NULL.
    value: Option<&'t str>,
}

/// Writes pairs that Postgres printed (`"a"=>"1", "b"=>NULL`) as `{"a":"1","b":null}`.
pub(crate) fn write(text: &str, into: &mut String) -> Result<(), Unwritable> {
    let mut pairs = pairs(text)?;
    let capacity = capacity(pairs.len());
    // a stable sort keeps the order within a bucket
    pairs.sort_by_key(|pair| pair.hash as usize & (capacity - 1));
    let mut separator = '{';
    for pair in &pairs {
        into.push(separator);
        write_string(pair.key, into);
        into.push(':');
        match pair.value {
            Some(value) => write_string(value, into),
            None => into.push_str("null"),
        }
        separator = ',';
    }
    into.push_str(if pairs.is_empty() { "{}" } else { "}" });
    Ok(())
}

/// The number of buckets of a map with this many pairs: it doubles whenever three quarters are exceeded. (With nine keys in
/// one bucket, Java's map grows further or turns the bucket into a tree, which this does not imitate.)
fn capacity(pairs: usize) -> usize {
    let mut capacity = CAPACITY;
    while pairs > capacity / 4 * 3 {
        capacity *= 2;
    }
    capacity
}

fn pairs(text: &str) -> Result<Vec<Pair<'_>>, Unwritable> {
    let mut pairs = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (key, after) = quoted(rest).ok_or(Unwritable::Malformed)?;
        let after = after.strip_prefix("=>").ok_or(Unwritable::Malformed)?;
        let (value, after) = match after.strip_prefix("NULL") {
            Some(after) => (None, after),
            None => {
                let (value, after) = quoted(after).ok_or(Unwritable::Malformed)?;
                (Some(value), after)
            }
        };
        pairs.push(Pair { hash: hash(key), key, value });
        rest = match after.strip_prefix(", ") {
            Some(next) if !next.is_empty() => next,
            None if after.is_empty() => after,
            _ => return Err(Unwritable::Malformed),
        };
    }
    Ok(pairs)
}

/// `String.hashCode`, with the bits spread as in `HashMap.hash`.
fn hash(key: &str) -> u32 {
    let mut units = [0; 2];
    let mut hash: u32 = 0;
    for character in unescaped(key) {
        for unit in character.encode_utf16(&mut units) {
            hash = hash.wrapping_mul(31).wrapping_add(u32::from(*unit));
        }
    }
    hash ^ hash >> 16
}

/// Debezium writes this JSON to a character stream, so Jackson does not escape characters beyond the basic plane here.
fn write_string(text: &str, into: &mut String) {
    into.push('"');
    for character in unescaped(text) {
        match u8::try_from(character) {
            Ok(byte @ (0..0x20 | b'"' | b'\\')) => write_unit(u16::from(byte), into),
            _ => into.push(character),
        }
    }
    into.push('"');
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::golden::rows;

    const HSTORES: &str = include_str!("golden/hstores.tsv");

    fn json(text: &str) -> Result<String, Unwritable> {
        let mut into = String::new();
        write(text, &mut into).map(|()| into)
    }

    #[test]
    fn pairs_are_written_as_debezium_writes_them() {
        for [text, expected] in rows(HSTORES) {
            assert_eq!(json(&text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn malformed_hstores_are_refused() {
        for text in [
            " ",
            "a=>1",
            "\"a\"",
            "\"a\"=>",
            "\"a\"=>1",
            "\"a\"=>\"1",
            "\"a\"=>\"1\\\"",
            "\"a\"=>NULLS",
            "\"a\"=>null",
            "\"a\"=>\"1\",",
            "\"a\"=>\"1\", ",
            "\"a\"=>\"1\",\"b\"=>\"2\"",
            "NULL=>\"1\"",
        ] {
            assert_eq!(json(text), Err(Unwritable::Malformed), "{text}");
        }
    }

    fn quote(text: &str) -> String {
        format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
    }

    proptest! {
        #[test]
        fn every_pair_is_in_the_json(pairs: BTreeMap<String, Option<String>>) {
            let printed: Vec<String> = pairs
                .iter()
                .map(|(key, value)| {
                    let value = value.as_ref().map_or_else(|| "NULL".to_owned(), |value| quote(value));
                    format!("{}=>{value}", quote(key))
                })
                .collect();
            let written = json(&printed.join(", ")).unwrap();
            prop_assert_eq!(serde_json::from_str::<BTreeMap<String, Option<String>>>(&written).unwrap(), pairs);
        }

        #[test]
        fn any_text_is_written_or_refused(text in "([a\"\\\\,=> ]|NULL){0,20}|.*") {
            if let Ok(written) = json(&text) {
                prop_assert!(serde_json::from_str::<serde::de::IgnoredAny>(&written).is_ok(), "{}", written);
            }
        }
    }
}
