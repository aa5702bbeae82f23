//! `host=db port=5432 dbname='my shop' password=it\'s`
//!
//! See Postgres manual, "Keyword/Value Connection Strings". Errors never quote the string: a word without a keyword is most
//! likely the rest of an unquoted password.

use super::keywords::Parameters;
use crate::error::InvalidConnInfo;

const QUOTE: &str = "Write keyword=value pairs; put a value with spaces into single quotes, and \\ before a quote or backslash in it";

/// Reads a keyword/value string into parameters.
pub(super) fn parse(text: &str) -> Result<Parameters, InvalidConnInfo> {
    let mut parameters = Parameters::default();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let character = text.get(..text.len() - rest.len()).map_or(0, |before| before.chars().count()) + 1;
        let end = rest.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(rest.len());
        let (name, after) = rest.split_at_checked(end).unwrap_or((rest, ""));
        let value = after.trim_start().strip_prefix('=').ok_or_else(|| {
            InvalidConnInfo::new(format!("the word at character {character} is not followed by `=`"), QUOTE)
        })?;
        let (value, after) = read_value(value.trim_start())?;
        parameters.set(name, value, character)?;
        rest = after.trim_start();
    }
    Ok(parameters)
}

/// The value at the start of `text`, and the rest.
fn read_value(text: &str) -> Result<(String, &str), InvalidConnInfo> {
    let (quoted, text) = text.strip_prefix('\'').map_or((false, text), |text| (true, text));
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            // as in libpq, a trailing backslash is ignored
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            '\'' if quoted => return Ok((value, text.get(at + 1..).unwrap_or_default())),
            c if !quoted && c.is_whitespace() => return Ok((value, text.get(at..).unwrap_or_default())),
            c => value.push(c),
        }
    }
    if quoted {
        Err(InvalidConnInfo::new("a quoted value has no closing quote", QUOTE))
    } else {
        Ok((value, ""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn get(text: &str, name: &str) -> Option<String> {
        parse(text).ok()?.get(name).map(str::to_owned)
    }

    #[test]
    fn quotes_and_backslashes_follow_libpq() {
        for (text, password) in [
            ("password=abc", "abc"),
            ("password = abc host=h", "abc"),
            ("host=h password='a b' ", "a b"),
            (r"password='it\'s' host=h", "it's"),
            (r"password=it\'s", "it's"),
            (r"password=a\ b", "a b"),
            (r"password='a\\b'", r"a\b"),
            (r"password=a\", "a"),
            ("password=a'b", "a'b"),
            ("password=one password=two", "two"),
            ("password=a=b", "a=b"),
        ] {
            assert_eq!(get(text, "password").as_deref(), Some(password), "{text}");
        }
        assert_eq!(get("password='' host=h", "password"), None);
        assert_eq!(get("password= host=h", "host"), None, "libpq reads the value after the blanks too");
    }

    proptest! {
        #[test]
        fn a_quoted_value_reads_back(value in "[^\\x00]+") {
            let quoted = value.replace('\\', r"\\").replace('\'', r"\'");
            prop_assert_eq!(get(&format!("password='{quoted}' host=h"), "password"), Some(value));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC*") {
            let _ = parse(&text);
        }

        #[test]
        fn texts_of_special_characters_are_parsed_or_refused(text in r"(host|=|'|\\| |a)*") {
            let _ = parse(&text);
        }
    }
}
