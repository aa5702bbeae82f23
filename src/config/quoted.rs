//! Strings in TOML.

/// Quotes a text, with escapes where needed.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}
