//! The text of a `bytea` (Postgres manual, "bytea Hex Format").

/// How much memory is retained after a large value.
pub(super) const RETAINED: usize = 1 << 20;

/// Decodes `\x0aff`; `None` if the text has another form.
pub(super) fn decode(text: &[u8], into: &mut Vec<u8>) -> Option<()> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.strip_prefix(b"\\x")?.as_chunks::<2>();
    into.clear();
    into.shrink_to(RETAINED);
    for [high, low] in pairs {
        into.push(digit(high)? << 4 | digit(low)?);
    }
    rest.is_empty().then_some(())
}
