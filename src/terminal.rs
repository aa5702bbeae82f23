//! Output to terminals, pipes and files.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::error::{Error, ErrorCode};

/// Whether colours are wanted on this stream: it is a terminal, and `NO_COLOR` is unset or empty
/// (<https://no-color.org>).
pub fn colours(stream: &impl IsTerminal) -> bool {
    allowed(stream.is_terminal(), std::env::var_os("NO_COLOR").as_deref())
}

fn allowed(terminal: bool, no_color: Option<&OsStr>) -> bool {
    terminal && no_color.is_none_or(OsStr::is_empty)
}

/// Makes a text from outside safe for a terminal: control characters are escaped, and lines after the first are indented, so
/// that none looks like a line of the router.
pub fn harmless(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    let mut characters = text.trim_end_matches('\n').chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\n' => {
                shown.push('\n');
                if characters.peek().is_some_and(|next| *next != ' ') {
                    shown.push_str("    ");
                }
            }
            '\t' => shown.push('\t'),
            _ if character.is_control() => shown.extend(character.escape_default()),
            _ => shown.push(character),
        }
    }
    shown.into()
}

/// A value from outside on one line, with control characters escaped.
pub fn on_one_line(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { shown.extend(c.escape_debug()) } else { shown.push(c) }
    }
    shown
}

/// The beginning of a text that has more than `limit` characters, or all of it.
pub fn shortened(text: &str, limit: usize) -> Cow<'_, str> {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()).into(),
        None => text.into(),
    }
}

/// Writes `text` to standard output. A reader that closes the pipe early, as `head` does, is not an error.
///
/// # Errors
/// It cannot be written, for instance to a full disk.
pub fn print(text: &str) -> Result<(), Error> {
    print_to_reader(text).map(drop)
}

/// The same; returns whether somebody still reads, for a command that would go on for ever.
///
/// # Errors
/// As [`print()`].
pub fn print_to_reader(text: &str) -> Result<bool, Error> {
    write_to(&mut io::stdout().lock(), text)
}

/// Writes `value` to standard output as JSON.
///
/// # Errors
/// As [`print()`].
pub fn print_json(value: &(impl Serialize + ?Sized)) -> Result<(), Error> {
    print(&in_json(value)?)
}

/// `value` as [`print_json()`] prints it.
///
/// # Errors
/// It cannot be written as JSON.
pub fn in_json(value: &(impl Serialize + ?Sized)) -> Result<String, Error> {
    Ok(json(serde_json::to_string_pretty(value))? + "\n")
}

/// The same on one line, for commands whose output is a line for each object.
///
/// # Errors
/// As [`print()`].
pub fn print_json_line(value: &(impl Serialize + ?Sized)) -> Result<(), Error> {
    print(&(json(serde_json::to_string(value))? + "\n"))
}

fn json(written: serde_json::Result<String>) -> Result<String, Error> {
    written.map_err(|error| {
        Error::usage(
            ErrorCode::InputOutput,
            format!("The result cannot be written as JSON: {error}"),
            "Omit --json",
        )
    })
}

fn write_to(out: &mut impl Write, text: &str) -> Result<bool, Error> {
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Converts the result of a write to standard output: whether it has a reader.
///
/// # Errors
/// The write failed, except because the reader closed the pipe.
pub fn written(result: io::Result<()>) -> Result<bool, Error> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Error::usage(
            ErrorCode::InputOutput,
            format!("Cannot write to standard output: {error}"),
            "Check where it is redirected to",
        )),
        result => Ok(result.is_ok()),
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

    #[test]
    fn what_would_act_on_a_terminal_is_escaped_and_later_lines_are_indented() {
        for (text, expected) in [
            ("plain: é", "plain: é"),
            ("two\nlines\n", "two\n    lines"),
            ("a list:\n  of ours", "a list:\n  of ours"),
            ("\u{1b}[2J\rforged\u{9b}\u{7f}\0", "\\u{1b}[2J\\rforged\\u{9b}\\u{7f}\\u{0}"),
        ] {
            assert_eq!(harmless(text), expected);
        }
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
        assert!(matches!(write_to(&mut Broken(io::ErrorKind::BrokenPipe), "x"), Ok(false)));
        assert!(write_to(&mut Broken(io::ErrorKind::StorageFull), "x").is_err());
    }
}
