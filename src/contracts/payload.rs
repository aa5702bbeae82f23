//! Reads a payload as Postgres accepts JSON: numbers of any size, deep nesting, and in columns of type `json` halves of surrogate
//! pairs.

use std::borrow::Cow;
use std::panic;
use std::thread;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Deserializer, Value};

/// How deeply a payload may be nested. With the greatest usual `max_stack_depth`, 7 MB, Postgres stops earlier.
pub(super) const MAX_DEPTH: usize = 65_536;

/// Up to this depth, serde_json and the validator recurse on the stack of the caller.
const SHALLOW: usize = 128;

/// The stack for each further level. A recursive schema needs several calls for one.
const STACK_PER_LEVEL: usize = 32 * 1024;

/// Calls `then` with the value of a JSON text, on a thread with a larger stack if the value is nested deeply.
///
/// # Errors
/// Why it cannot be read, as the end of a sentence. It quotes nothing from the payload.
pub(super) fn read<T: Send>(json: &[u8], then: impl FnOnce(&Value) -> T + Send) -> Result<T, String> {
    if let Ok(value) = serde_json::from_slice::<Value>(json) {
        return Ok(then(&value));
    }
    // skips strings and numbers without converting them, and does not recurse
    serde_json::from_slice::<IgnoredAny>(json).map_err(|error| not_json(&error))?;
    let depth = depth(json);
    if depth > MAX_DEPTH {
        return Err(format!("it is nested more than {MAX_DEPTH} levels deep"));
    }
    let json = without_half_pairs(json);
    let read = || {
        let mut deserializer = Deserializer::from_slice(&json);
        deserializer.disable_recursion_limit();
        Value::deserialize(&mut deserializer).map(|value| then(&value)).map_err(|error| not_json(&error))
    };
    if depth < SHALLOW {
        return read();
    }
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(depth * STACK_PER_LEVEL);
        match thread.spawn_scoped(scope, read) {
            Ok(thread) => thread.join().unwrap_or_else(|cause| panic::resume_unwind(cause)),
            Err(_) => Err(format!("it is nested {depth} levels deep, for which there is not enough memory")),
        }
    })
}

fn not_json(error: &serde_json::Error) -> String {
    format!("it is not JSON (line {}, column {})", error.line(), error.column())
}

/// How deeply arrays and objects are nested in a JSON text.
fn depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => {
                while let Some(byte) = bytes.next().filter(|byte| **byte != b'"') {
                    if *byte == b'\\' {
                        bytes.next();
                    }
                }
            }
            _ => {}
        }
    }
    deepest
}

/// The JSON text with U+FFFD in place of each half of a surrogate pair: a string of Rust cannot hold one.
fn without_half_pairs(json: &[u8]) -> Cow<'_, [u8]> {
    const ESCAPE: usize = "\\uXXXX".len();
    let unit = |at: usize| -> Option<u32> {
        let digits = json.get(at..at + ESCAPE)?.strip_prefix(b"\\u")?;
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let mut replaced = Cow::Borrowed(json);
    let mut at = 0;
    while let Some(backslash) = json.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == b'\\')) {
        at += backslash;
        at += match (unit(at), unit(at + ESCAPE)) {
            (Some(0xd800..0xdc00), Some(0xdc00..0xe000)) => 2 * ESCAPE,
            (Some(0xd800..0xe000), _) => {
                if let Some(escape) = replaced.to_mut().get_mut(at..at + ESCAPE) {
                    escape.copy_from_slice(b"\\ufffd");
                }
                ESCAPE
            }
            (Some(_), _) => ESCAPE,
            (None, _) => 2,
        };
    }
    replaced
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(json: &str) -> Result<String, String> {
        read(json.as_bytes(), Value::to_string)
    }

    #[test]
    fn what_postgres_accepts_is_read() {
        let cases = [
            ("1e400", "1e+400"),
            ("-18446744073709551617", "-18446744073709551617"),
            ("0.10000000000000000000001", "0.10000000000000000000001"),
            (r#"["\ud83d\ude00", "\\ud83d"]"#, r#"["😀","\\ud83d"]"#),
            (r#"["\ud83d", "a\ude00b", "\ude00\ud83d", "\uD83D\u0041"]"#, r#"["�","a�b","��","�A"]"#),
        ];
        for (json, read) in cases {
            assert_eq!(value(json).as_deref(), Ok(read), "{json}");
        }
        for depth in [127, 128, 10_000, MAX_DEPTH] {
            let nested = "[".repeat(depth) + &"]".repeat(depth);
            assert_eq!(value(&nested).as_deref(), Ok(nested.as_str()));
        }
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        let too_deep = "[".repeat(MAX_DEPTH + 1) + &"]".repeat(MAX_DEPTH + 1);
        let cases = [
            ("{\"a\":\n x}", "it is not JSON (line 2, column 2)"),
            ("1e", "it is not JSON (line 1, column 2)"),
            (r#""\ud8""#, "it is not JSON (line 1, column 6)"),
            (&"[".repeat(1000), "it is not JSON (line 1, column 1000)"),
            (&too_deep, "it is nested more than 65536 levels deep"),
        ];
        for (json, why) in cases {
            assert_eq!(value(json), Err(why.to_owned()));
        }
        assert_eq!(
            read(b"[\"\\ud83d\", \"\xff\"]", |_| ()),
            Err("it is not JSON (line 1, column 13)".to_owned())
        );
    }

    #[test]
    fn brackets_in_strings_do_not_nest() {
        assert_eq!(depth(br#"{"a]\"[": [[1], "\\", {"b": "[["}]}"#), 3);
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_tried(json in proptest::collection::vec(any::<u8>(), 0..50), text in r#"[\\ud8Dcf"\[\]]{0,20}"#) {
            let _ = read(&json, |_| ());
            let _ = read(text.as_bytes(), |_| ());
            prop_assert_eq!(without_half_pairs(text.as_bytes()).len(), text.len());
        }
    }
}
