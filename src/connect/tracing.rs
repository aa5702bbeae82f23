//! A span's context in a column, as Debezium's `tracingspancontext` holds it.

use std::borrow::Cow;

/// The members of a span's context that become headers. They are not checked: a propagator ignores what it cannot
/// read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SpanContext<'a> {
    /// W3C Trace Context's `traceparent`.
    pub traceparent: Option<Cow<'a, str>>,
    /// W3C Trace Context's `tracestate`.
    pub tracestate: Option<Cow<'a, str>>,
}

/// Reads a text in the form of `java.util.Properties`. Of a name that is there twice the last value counts; a value with
/// a `\u` that four hexadecimal digits do not follow is left out (Java refuses the whole text).
pub fn span_context(text: &str) -> SpanContext<'_> {
    let mut context = SpanContext::default();
    let mut rest = text;
    while let Some((line, after)) = logical_line(rest) {
        rest = after;
        match line {
            Cow::Borrowed(line) => {
                let (name, value) = name_and_value(line);
                context.set(name, unescape(value));
            }
            Cow::Owned(line) => {
                let (name, value) = name_and_value(&line);
                context.set(name, unescape(value).map(|value| Cow::Owned(value.into_owned())));
            }
        }
    }
    context
}

impl<'a> SpanContext<'a> {
    fn set(&mut self, name: &str, value: Option<Cow<'a, str>>) {
        match unescape(name).as_deref() {
            Some("traceparent") => self.traceparent = value,
            Some("tracestate") => self.tracestate = value,
            _ => {}
        }
    }
}

fn blank(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\x0c')
}

fn line_end(character: char) -> bool {
    matches!(character, '\n' | '\r')
}

/// The next line that is neither empty nor a comment, with those that it is continued in; and what follows.
fn logical_line(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let mut rest = text.trim_start_matches(|character| blank(character) || line_end(character));
    while rest.starts_with(['#', '!']) {
        let comment = rest.find(line_end).unwrap_or(rest.len());
        rest = rest.get(comment..)?.trim_start_matches(|character| blank(character) || line_end(character));
    }
    if rest.is_empty() {
        return None;
    }
    let mut line = Cow::Borrowed("");
    loop {
        let (natural, after) = rest.split_at_checked(rest.find(line_end).unwrap_or(rest.len()))?;
        let backslashes = natural.len() - natural.trim_end_matches('\\').len();
        let continued = backslashes % 2 == 1;
        line += if continued { natural.get(..natural.len() - 1)? } else { natural };
        if !continued {
            return Some((line, after));
        }
        let after = after.strip_prefix("\r\n").or_else(|| after.strip_prefix(line_end)).unwrap_or(after);
        rest = after.trim_start_matches(blank);
    }
}

/// Apart at the first `=`, `:` or blank that has no backslash before it.
fn name_and_value(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = line.find(|character: char| {
        let ends = !escaped && (blank(character) || matches!(character, '=' | ':'));
        escaped = character == '\\' && !escaped;
        ends
    });
    let (name, rest) = line.split_at_checked(end.unwrap_or(line.len())).unwrap_or((line, ""));
    let rest = rest.trim_start_matches(blank);
    (name, rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start_matches(blank))
}

fn unescape(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('\\') {
        return Some(Cow::Borrowed(text));
    }
    let mut units = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        units.extend(before.encode_utf16());
        let mut characters = after.chars();
        let escaped = characters.next();
        rest = characters.as_str();
        if escaped == Some('u') {
            let (digits, after) = rest.split_at_checked(4)?;
            if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return None;
            }
            units.push(u16::from_str_radix(digits, 16).ok()?);
            rest = after;
            continue;
        }
        let character = match escaped {
            Some('t') => '\t',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('f') => '\x0c',
            Some(other) => other,
            None => continue,
        };
        units.extend(character.encode_utf16(&mut [0; 2]).iter());
    }
    units.extend(rest.encode_utf16());
    // half a pair is a question mark in Java's UTF-8
    let characters = char::decode_utf16(units).map(|character| character.unwrap_or('?'));
    Some(Cow::Owned(characters.collect()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> (Option<String>, Option<String>) {
        let context = span_context(text);
        (context.traceparent.map(Cow::into_owned), context.tracestate.map(Cow::into_owned))
    }

    #[test]
    fn reads_what_java_stores() {
        let stored = "#\n#Thu Feb 29 12:34:56 UTC 2024\ntraceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\ntracestate=a\\=1,b\\:2\n";
        assert_eq!(
            read(stored),
            (Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()), Some("a=1,b:2".into()))
        );
        assert!(matches!(span_context(stored).traceparent, Some(Cow::Borrowed(_))));
    }

    #[test]
    fn takes_every_separator_and_escape() {
        for (text, value) in [
            ("traceparent=x", "x"),
            ("  traceparent : x ", "x "),
            ("traceparent x=y", "x=y"),
            ("traceparent\t=\t=x", "=x"),
            ("traceparent", ""),
            ("traceparent=", ""),
            ("other=1\r\ntraceparent=x\r\n", "x"),
            ("!traceparent=c\\\ntraceparent=x", "x"),
            ("traceparent=a\\\n   b\\\r\n\t#c", "ab#c"),
            ("trace\\\n parent=x", "x"),
            ("trace\\u0070arent=\\u00e9\\ud83d\\ude00\\ud83d", "é😀?"),
            ("traceparent=\\t\\n\\x\\\\", "\t\nx\\"),
            ("traceparent=a\\", "a"),
            ("traceparent=a\ntraceparent=b", "b"),
            ("\\traceparent=a\ntraceparent=b", "b"),
        ] {
            assert_eq!(read(text).0.as_deref(), Some(value), "{text:?}");
        }
    }

    #[test]
    fn leaves_out_what_is_not_there_or_unreadable() {
        for text in [
            "",
            "\n\n",
            "#traceparent=x",
            "uber-trace-id=x",
            "Traceparent=x",
            "traceparent=\\u12",
            "traceparent=\\u+123",
        ] {
            assert_eq!(read(text), (None, None), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "(traceparent|[\\\\=: \t\r\n#!u0é])*") {
            let _ = span_context(&text);
        }
    }
}
