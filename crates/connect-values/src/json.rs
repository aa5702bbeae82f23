//! Strings and bytes in JSON, as Jackson writes them.

use crate::binary;

/// Writes a JSON string as Jackson does: it escapes only where JSON requires it, and writes characters beyond the basic plane
/// (such as emoji) as two `\uXXXX`.
pub fn write_json_string(text: &str, into: &mut String) {
    into.reserve(text.len() + 2);
    into.push('"');
    write_escaped(text, into);
    into.push('"');
}

/// Writes bytes as a JSON string, in standard base64 with padding, as Jackson does.
pub fn write_json_bytes(bytes: &[u8], into: &mut String) {
    into.push('"');
    binary::write_base64(bytes, into);
    into.push('"');
}

/// The same without the quotation marks.
pub(crate) fn write_escaped(text: &str, into: &mut String) {
    let mut rest = text;
    while let Some(plain) = rest.bytes().position(needs_escape) {
        let (before, from) = rest.split_at_checked(plain).unwrap_or((rest, ""));
        into.push_str(before);
        let mut characters = from.chars();
        if let Some(character) = characters.next() {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                write_unit(*unit, into);
            }
        }
        rest = characters.as_str();
    }
    into.push_str(rest);
}

/// Whether Jackson escapes the character that begins with this byte.
pub(crate) fn needs_escape(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\' || byte >= 0xf0
}

/// Writes one UTF-16 unit of a string, which may be half a surrogate pair.
pub(crate) fn write_unit(unit: u16, into: &mut String) {
    let short = match unit {
        0x08 => "\\b",
        0x09 => "\\t",
        0x0a => "\\n",
        0x0c => "\\f",
        0x0d => "\\r",
        0x22 => "\\\"",
        0x5c => "\\\\",
        0..0x20 | 0xd800..=0xdfff => {
            into.push_str("\\u");
            for shift in [12, 8, 4, 0] {
                let digit = char::from_digit(u32::from(unit >> shift & 0xf), 16).unwrap_or('0');
                into.push(digit.to_ascii_uppercase());
            }
            return;
        }
        _ => {
            into.extend(char::from_u32(u32::from(unit)));
            return;
        }
    };
    into.push_str(short);
}
