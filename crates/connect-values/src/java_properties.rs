//! Parses the text form of `java.util.Properties`: the configuration of a Connect worker in standalone mode and of Debezium
//! Server, and the column in which Debezium's tracing stores its context.
//!
//! It follows the documentation of `Properties.load(Reader)`. Existing crates decode ISO 8859-1, which turns each umlaut of a
//! UTF-8 file into two characters; Connect's and Quarkus' files are UTF-8.

/// A line that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: `\\u` is not followed by four hexadecimal digits")]
pub struct PropertiesError {
    /// The line where the entry begins, counted from 1.
    line: usize,
}

/// Returns names and values in the order of the file. A name may occur more than once; Java uses the last one.
///
/// # Errors
/// A `\u` without its four digits, which Java refuses too.
pub fn parse(text: &str) -> Result<Vec<(String, String)>, PropertiesError> {
    let mut entries = Vec::new();
    let mut lines = natural_lines(text).enumerate();
    while let Some((index, line)) = lines.next() {
        let mut logical = line.trim_start_matches(BLANK).to_owned();
        // a comment cannot be continued
        if logical.is_empty() || logical.starts_with(['#', '!']) {
            continue;
        }
        while ends_in_odd_backslashes(&logical) {
            logical.pop();
            match lines.next() {
                Some((_, next)) => logical.push_str(next.trim_start_matches(BLANK)),
                None => break,
            }
        }
        entries.push(entry(&logical).ok_or(PropertiesError { line: index + 1 })?);
    }
    Ok(entries)
}

const BLANK: [char; 3] = [' ', '\t', '\x0C'];

/// Lines end with `\n`, `\r` or both.
fn natural_lines(text: &str) -> impl Iterator<Item = &str> {
    text.split('\n').flat_map(|line| line.strip_suffix('\r').unwrap_or(line).split('\r'))
}

fn ends_in_odd_backslashes(line: &str) -> bool {
    (line.len() - line.trim_end_matches('\\').len()) % 2 == 1
}

/// The name ends at the first `=`, `:` or blank that is not escaped. Blanks after it, and one `=` or `:` among them, are part
/// of neither the name nor the value.
fn entry(line: &str) -> Option<(String, String)> {
    let mut escaped = false;
    let end = line.char_indices().find(|(_, character)| {
        let ends = !escaped && (matches!(character, '=' | ':') || BLANK.contains(character));
        escaped = *character == '\\' && !escaped;
        ends
    });
    let end = end.map_or(line.len(), |(at, _)| at);
    let (name, rest) = line.split_at_checked(end)?;
    let rest = rest.trim_start_matches(BLANK);
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start_matches(BLANK);
    Some((unescape(name)?, unescape(value)?))
}

/// Resolves escapes. A backslash before a character without a special meaning is dropped. `\u` is a UTF-16 unit.
fn unescape(text: &str) -> Option<String> {
    let mut units: Vec<u16> = Vec::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        let meant = match if character == '\\' { rest.next() } else { None } {
            Some('u') => {
                let digits: String = rest.by_ref().take(4).collect();
                let plain = digits.len() == 4 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                units.push(u16::from_str_radix(&digits, 16).ok().filter(|_| plain)?);
                continue;
            }
            Some('t') => '\t',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('f') => '\x0C',
            Some(other) => other,
            // a backslash at the end of the text
            None if character == '\\' => continue,
            None => character,
        };
        units.extend_from_slice(meant.encode_utf16(&mut [0; 2]));
    }
    // Java's UTF-8 encoder writes half a surrogate pair as a question mark
    Some(char::decode_utf16(units).map(|character| character.unwrap_or('?')).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        parse(text).unwrap()
    }

    fn one(line: &str) -> (String, String) {
        let mut all = pairs(line);
        assert_eq!(all.len(), 1, "{line}");
        all.remove(0)
    }

    #[test]
    fn a_name_ends_at_the_first_separator_or_blank() {
        for line in ["a=b", "a:b", "a b", " a = b", "a\t:\tb", "a  b", "\ta=b"] {
            assert_eq!(one(line), ("a".into(), "b".into()), "{line:?}");
        }
        assert_eq!(one("a"), ("a".into(), String::new()));
        assert_eq!(one("a="), ("a".into(), String::new()));
        assert_eq!(one("=b"), (String::new(), "b".into()));
        assert_eq!(one("a==b"), ("a".into(), "=b".into()));
        assert_eq!(one("a = : b"), ("a".into(), ": b".into()));
        assert_eq!(one("a=b "), ("a".into(), "b ".into()), "blanks at the end belong to the value");
        assert_eq!(one(r"a\:b\=c\ d=e"), ("a:b=c d".into(), "e".into()));
        assert_eq!(one(r"a\\=b"), (r"a\".into(), "b".into()));
    }

    #[test]
    fn escapes() {
        assert_eq!(one(r"a=\t\n\r\f\\\q\:\u0041\u00e9").1, "\t\n\r\x0C\\q:A\u{e9}");
        assert_eq!(one(r"a=\ud83d\ude00").1, "\u{1f600}");
        assert_eq!(one(r"a=public\\.outbox").1, r"public\.outbox");
        assert_eq!(one(r"a=public\.outbox").1, "public.outbox", "one backslash is lost, in Java too");
        assert_eq!(parse("a=1\nb=\\u00g1"), Err(PropertiesError { line: 2 }));
        assert_eq!(parse(r"a=\u00"), Err(PropertiesError { line: 1 }));
        assert_eq!(parse(r"a=\u+041"), Err(PropertiesError { line: 1 }));
    }

    #[test]
    fn a_backslash_at_the_end_joins_lines() {
        assert_eq!(one("a=b,\\\n   c,\\\r\n\td").1, "b,c,d");
        assert_eq!(one("a=b\\\n# c").1, "b# c", "no comment inside of a value");
        assert_eq!(pairs("a=b\\\\\nc=d").len(), 2);
        assert_eq!(one("a=b\\").1, "b");
        assert_eq!(one("a\\\n  b=c"), ("ab".into(), "c".into()));
    }

    #[test]
    fn comments_and_empty_lines_are_skipped() {
        assert_eq!(pairs("# a=b\\\nc=d\n\n  ! e=f\n \t\ng=h").len(), 2);
        assert_eq!(pairs("a=b # c").remove(0).1, "b # c");
        assert_eq!(pairs("a=1\rb=2\r\nc=3").len(), 3);
    }

    proptest! {
        #[test]
        fn escaped_text_parses_to_the_original(name in "[^\\x00]{1,8}", value in "\\PC{0,12}") {
            let escape = |text: &str| -> String {
                text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect()
            };
            let line = format!("{}={}", escape(&name), escape(&value));
            prop_assert_eq!(pairs(&line), [(name, value)]);
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in r"(\\|u|0041|=|:| |#|\n|\r|a)*") {
            let _ = parse(&text);
        }
    }
}
