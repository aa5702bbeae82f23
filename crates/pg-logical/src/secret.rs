//! A string that `Debug` does not show.

use std::fmt;

/// What stands for a secret where a configuration is shown.
pub const REDACTED: &str = "****";

/// A password or another value that must not reach a log, an error or a screen.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

impl Secret {
    /// Keeps `value` from `Debug`.
    pub fn new(value: impl Into<String>) -> Self {
        Secret(value.into())
    }

    /// The value itself, for the one place that hands it to a server.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<redacted>")
    }
}
