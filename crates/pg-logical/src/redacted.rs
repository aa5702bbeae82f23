//! A wrapper whose `Debug` shows only the number of bytes.

use std::fmt;

/// Bytes that may be a payload, and so must not appear in a log, an error or a panic message.
#[derive(Clone, Copy)]
pub struct Redacted<'a>(pub &'a [u8]);

impl fmt::Debug for Redacted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} bytes>", self.0.len())
    }
}
