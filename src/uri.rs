//! URIs by RFC 3986.

use std::borrow::Cow;

/// Whether a text is a URI reference: a URI, or a relative reference.
pub(crate) fn is_reference(text: &str) -> bool {
    if !text.chars().all(legal) || !has_complete_escapes(text) {
        return false;
    }
    let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
    let hierarchical = text.split('?').next().unwrap_or_default();
    let (scheme, rest) = match hierarchical.split_once(':').filter(|(before, _)| !before.contains('/')) {
        Some((scheme, rest)) => (Some(scheme), rest),
        None => (None, hierarchical),
    };
    // brackets are around an IP address only
    let (authority, path) = match rest.strip_prefix("//") {
        Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        None => ("", rest),
    };
    let query = text.get(hierarchical.len()..).unwrap_or_default();
    let brackets = |text: &str| text.contains(['[', ']']);
    scheme.is_none_or(is_scheme)
        && ![path, query, fragment].into_iter().any(brackets)
        && !fragment.contains('#')
        && (!brackets(authority) || is_ip_literal(authority))
}

/// Whether a text is a URI with a scheme.
pub(crate) fn is_absolute(text: &str) -> bool {
    is_reference(text) && text.split_once(':').is_some_and(|(scheme, _)| is_scheme(scheme))
}

/// Whether a text may be a part of a URI, by its characters alone.
pub(crate) fn may_contain(text: &str) -> bool {
    text.chars().all(legal)
}

/// The text with everything but unreserved characters, and those in `kept`, as percent and two digits.
pub(crate) fn percent_encoded<'t>(text: &'t str, kept: &str) -> Cow<'t, str> {
    let plain = |byte: &u8| unreserved(char::from(*byte)) || kept.as_bytes().contains(byte);
    if text.bytes().all(|byte| plain(&byte)) {
        return Cow::Borrowed(text);
    }
    let mut encoded = String::with_capacity(text.len() + 8);
    for byte in text.bytes() {
        match plain(&byte) {
            true => encoded.push(char::from(byte)),
            false => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    Cow::Owned(encoded)
}

fn unreserved(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-._~".contains(c)
}

fn legal(c: char) -> bool {
    unreserved(c) || ":/?#[]@!$&'()*+,;=%".contains(c)
}

/// Whether each percent sign is followed by two digits.
fn has_complete_escapes(text: &str) -> bool {
    let hexadecimal = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.split('%').skip(1).all(|after| after.get(..2).is_some_and(hexadecimal))
}

fn is_scheme(text: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(legal)
}

/// Whether the host is one address in brackets, after a user and before a port.
fn is_ip_literal(authority: &str) -> bool {
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let Some((address, port)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) else {
        return false;
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    !address.is_empty()
        && !address.contains('[')
        && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_and_other_texts() {
        for text in [
            "",
            "/",
            "a/b",
            "/public/outbox",
            "https://shop.example/a?b=c:d#e/f?",
            "urn:shop:orders",
            "//host/a:b",
            "#x",
            "?x",
            "./a:b",
            "a/b:c",
            "/a%20b",
            "mailto:a@b",
            "http://[::1]:80/x",
            "http://user@[fe80::1]",
        ] {
            assert!(is_reference(text), "{text}");
        }
        for text in [
            "a b",
            "/ü",
            "1a:b",
            ":a",
            "a%",
            "/a%2",
            "/a%zz",
            "/a[1]",
            "/a?b=[1]",
            "a#b#c",
            "http://[::1",
            "http://a[b]",
            "http://[::1]x",
            "<a>",
            "a\"b",
            "a\\b",
            "a^b",
            "a`b",
            "{a}",
            "a|b",
        ] {
            assert!(!is_reference(text), "{text}");
        }
        for (text, absolute) in
            [("https://a/b", true), ("urn:a", true), ("/a:b", false), ("a.json", false), ("1:b", false)]
        {
            assert_eq!(is_absolute(text), absolute, "{text}");
        }
    }

    #[test]
    fn names_are_encoded() {
        for (text, encoded) in [
            ("outbox_1", "outbox_1"),
            ("Out Box", "Out%20Box"),
            ("a/b?", "a%2Fb%3F"),
            ("größe", "gr%C3%B6%C3%9Fe"),
            ("50%", "50%25"),
        ] {
            assert_eq!(percent_encoded(text, ""), encoded);
            assert!(is_reference(&percent_encoded(text, "")));
        }
        assert_eq!(percent_encoded("a/b c", "/"), "a/b%20c");
    }
}
