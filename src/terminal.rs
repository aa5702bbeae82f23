//! What differs between a terminal, a pipe and a file.

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};

use crate::error::Error;

/// Whether colours are wanted on this stream: it is a terminal, and `NO_COLOR` is unset or empty
/// (<https://no-color.org>).
pub fn colours(stream: &impl IsTerminal) -> bool {
    allowed(stream.is_terminal(), std::env::var_os("NO_COLOR").as_deref())
}

fn allowed(terminal: bool, no_color: Option<&OsStr>) -> bool {
    terminal && no_color.is_none_or(OsStr::is_empty)
}

/// Writes `text` to standard output. A reader that has seen enough, as `head` does, is no error.
///
/// # Errors
/// It cannot be written, for instance to a full disk.
pub fn print(text: &str) -> Result<(), Error> {
    write_to(&mut io::stdout().lock(), text)
}

fn write_to(out: &mut impl Write, text: &str) -> Result<(), Error> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::usage(format!("Cannot write to standard output: {error}"), "Look at where it leads"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_only_on_a_terminal_and_not_against_the_users_wish() {
        assert!(allowed(true, None));
        assert!(allowed(true, Some(OsStr::new(""))));
        assert!(!allowed(true, Some(OsStr::new("1"))));
        assert!(!allowed(false, None));
    }

    struct Broken(io::ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_pipe_is_no_error_and_a_full_disk_is() {
        assert!(write_to(&mut Broken(io::ErrorKind::BrokenPipe), "x").is_ok());
        assert!(write_to(&mut Broken(io::ErrorKind::StorageFull), "x").is_err());
    }
}
