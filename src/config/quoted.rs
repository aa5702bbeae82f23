//! Texts as TOML has them.

/// In quotes, with what needs it escaped.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}
