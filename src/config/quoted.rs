//! Strings in TOML.

use super::substitute::escape;

/// The text as a TOML string that is read as the same text.
pub(super) fn quoted(text: &str) -> String {
    quoted_as_is(&escape(text))
}

/// The same for a key or a template, in which nothing must be escaped for variables.
pub(super) fn quoted_as_is(text: &str) -> String {
    toml::Value::from(text).to_string()
}
