//! What CloudEvents 1.0 accepts as the value of an attribute.

use crate::uri;

/// Checks the whole value of an attribute.
///
/// # Errors
/// Why the text cannot be one, as the end of a sentence.
pub(crate) fn check(name: &str, value: &str) -> Result<(), &'static str> {
    if value.is_empty() {
        return Err("is empty, but it is required");
    }
    check_characters(name, value)?;
    match name {
        "source" if !uri::is_reference(value) => Err("is not a URI reference (RFC 3986)"),
        "dataschema" if !uri::is_absolute(value) => Err("is not a URI with a scheme (RFC 3986)"),
        "datacontenttype" if !is_media_type(value) => {
            Err("is not a media type such as `application/json` (RFC 2046)")
        }
        _ => Ok(()),
    }
}

/// Checks a part of the value of an attribute.
///
/// # Errors
/// Why the text cannot be one, as the end of a sentence.
pub(crate) fn check_characters(name: &str, text: &str) -> Result<(), &'static str> {
    let forbidden = |c: char| {
        c.is_control() || (u32::from(c) & 0xfffe) == 0xfffe || ('\u{fdd0}'..='\u{fdef}').contains(&c)
    };
    if text.contains(forbidden) {
        return Err("contains a character that is not allowed (CloudEvents 1.0, \"Type System\")");
    }
    match name {
        "source" | "dataschema" if !uri::may_contain(text) => {
            Err("contains a character that no URI has (RFC 3986); percent-encode it")
        }
        _ => Ok(()),
    }
}

/// `type/subtype`, and perhaps parameters, which are not examined.
fn is_media_type(text: &str) -> bool {
    let token = |text: &str| {
        let legal = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        !text.is_empty() && text.chars().all(legal)
    };
    let media_type = text.split(';').next().unwrap_or_default().trim();
    media_type.split_once('/').is_some_and(|(kind, subtype)| token(kind) && token(subtype))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attribute_has_its_form() {
        for (name, value) in [
            ("source", "/public/outbox"),
            ("dataschema", "https://shop.example/schemas/1#order"),
            ("datacontenttype", "application/vnd.shop+json; charset=\"utf-8\""),
            ("type", "größer als 1"),
            ("subject", "a b"),
        ] {
            assert_eq!(check(name, value), Ok(()), "{name}");
        }
        let wrong = [
            ("source", ""),
            ("source", "a b"),
            ("source", "1:a"),
            ("dataschema", "schemas/order.json"),
            ("datacontenttype", "json"),
            ("datacontenttype", "application/"),
            ("datacontenttype", "text plain/x"),
            ("type", "a\u{7}b"),
            ("region", "\u{fdd0}"),
        ];
        let said = wrong.map(|(name, value)| format!("{name} {value:?} {}", check(name, value).unwrap_err()));
        insta::assert_snapshot!(said.join("\n"));
    }
}
