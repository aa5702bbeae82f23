//! A small buffer on the stack for formatting numbers.

use std::fmt;

/// Short ASCII text.
pub(crate) struct Scratch {
    bytes: [u8; 64],
    length: usize,
}

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch { bytes: [0; 64], length: 0 }
    }

    pub(crate) fn as_str(&self) -> &str {
        self.bytes.get(..self.length).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    }
}

impl fmt::Write for Scratch {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.length..self.length + text.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.length += text.len();
        Ok(())
    }
}
