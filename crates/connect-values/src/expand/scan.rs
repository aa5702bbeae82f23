//! Parses JSON into a tree like Jackson's default parser, borrowing from the text.
//!
//! serde_json cannot be used: the type of a number depends on its digits, and Jackson accepts half a surrogate pair, ignores
//! text after the first value, and has limits of its own.

use std::borrow::Cow;

use super::members::Members;
use crate::json::{write_escaped, write_unit};

/// Jackson's `StreamReadConstraints`.
const MAX_DEPTH: usize = 1_000;
const MAX_NUMBER_LENGTH: usize = 1_000;
const MAX_NAME_LENGTH: usize = 50_000;
const MAX_STRING_LENGTH: usize = 20_000_000;

/// A JSON value.
#[derive(Debug)]
pub(super) enum Node<'a> {
    Null,
    Boolean(bool),
    /// Fits 32 bits.
    Int(&'a str),
    /// Fits 64 bits, but not 32.
    Long(&'a str),
    /// An integer of more than 64 bits.
    BigInteger,
    Double(f64),
    String(Quoted<'a>),
    Array(Vec<Node<'a>>),
    /// Members by name as Jackson writes it, without quotation marks. Of duplicate names, the last value replaces the first, at
    /// the place of the first.
    Object(Members<'a, Node<'a>>),
}

/// The content of a string as written in the text, without its quotation marks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quoted<'a> {
    raw: &'a str,
    /// Whether Jackson writes it unchanged.
    plain: bool,
}

/// The first value of a text. `None` if Jackson refuses it.
pub(super) fn document(text: &str) -> Option<Node<'_>> {
    let mut scanner = Scanner { text, at: 0 };
    scanner.value(0)
}

impl<'a> Quoted<'a> {
    /// The string as Jackson writes it, without quotation marks.
    pub(super) fn write(&self, into: &mut String) {
        if self.plain {
            into.push_str(self.raw);
            return;
        }
        let mut rest = self.raw;
        while let Some((before, from)) = rest.split_once('\\') {
            write_escaped(before, into);
            let mut characters = from.chars();
            match characters.next() {
                Some('u') => {
                    let (digits, after) =
                        from.get(1..).and_then(|hex| hex.split_at_checked(4)).unwrap_or_default();
                    write_unit(u16::from_str_radix(digits, 16).unwrap_or_default(), into);
                    rest = after;
                    continue;
                }
                Some('/') => into.push('/'),
                Some(escaped) => into.extend(['\\', escaped]),
                None => {}
            }
            rest = characters.as_str();
        }
        write_escaped(rest, into);
    }

    fn name(self) -> Cow<'a, str> {
        if self.plain {
            return Cow::Borrowed(self.raw);
        }
        let mut name = String::new();
        self.write(&mut name);
        Cow::Owned(name)
    }

    /// Whether it has at most `limit` UTF-16 units.
    fn fits(&self, limit: usize) -> bool {
        if self.raw.len() <= limit {
            return true;
        }
        let mut units = 0;
        let mut characters = self.raw.chars();
        while let Some(character) = characters.next() {
            units += character.len_utf16();
            if character == '\\' && characters.next() == Some('u') {
                characters.nth(3);
            }
        }
        units <= limit
    }
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let here = self.peek() == Some(byte);
        self.at += usize::from(here);
        here
    }

    /// The next byte that is not white space.
    fn token(&mut self) -> Option<u8> {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        self.peek()
    }

    fn value(&mut self, depth: usize) -> Option<Node<'a>> {
        match self.token()? {
            b'{' => {
                let mut members = Members::new();
                self.list(depth + 1, b'}', |scanner| scanner.member(depth + 1, &mut members))?;
                Some(Node::Object(members))
            }
            b'[' => {
                let mut elements = Vec::new();
                self.list(depth + 1, b']', |scanner| {
                    scanner.value(depth + 1).map(|value| elements.push(value))
                })?;
                Some(Node::Array(elements))
            }
            b'"' => {
                let string = self.string()?;
                string.fits(MAX_STRING_LENGTH).then_some(Node::String(string))
            }
            b't' => self.word("true", Node::Boolean(true)),
            b'f' => self.word("false", Node::Boolean(false)),
            b'n' => self.word("null", Node::Null),
            _ => self.number(),
        }
    }

    fn word(&mut self, word: &str, node: Node<'a>) -> Option<Node<'a>> {
        self.text.get(self.at..)?.starts_with(word).then(|| {
            self.at += word.len();
            node
        })
    }

    /// Reads items separated by commas, up to the closing bracket. The opening one is the next byte.
    fn list(
        &mut self,
        depth: usize,
        close: u8,
        mut read_one: impl FnMut(&mut Self) -> Option<()>,
    ) -> Option<()> {
        self.at += 1;
        if depth > MAX_DEPTH {
            return None;
        }
        if self.token()? == close {
            self.at += 1;
            return Some(());
        }
        loop {
            read_one(self)?;
            let after = self.token()?;
            self.at += 1;
            if after == close {
                return Some(());
            }
            if after != b',' {
                return None;
            }
        }
    }

    fn member(&mut self, depth: usize, members: &mut Members<'a, Node<'a>>) -> Option<()> {
        if self.token()? != b'"' {
            return None;
        }
        let name = self.string()?;
        if !name.fits(MAX_NAME_LENGTH) || self.token()? != b':' {
            return None;
        }
        self.at += 1;
        members.insert(name.name(), self.value(depth)?);
        Some(())
    }

    fn string(&mut self) -> Option<Quoted<'a>> {
        self.at += 1;
        let start = self.at;
        let mut plain = true;
        loop {
            match self.peek()? {
                b'"' => break,
                b'\\' => {
                    plain = false;
                    self.at += 1;
                    match self.peek()? {
                        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {}
                        b'u' => {
                            let digits = self.text.as_bytes().get(self.at + 1..self.at + 5)?;
                            if !digits.iter().all(u8::is_ascii_hexdigit) {
                                return None;
                            }
                            self.at += 4;
                        }
                        _ => return None,
                    }
                }
                0..0x20 => return None,
                0xf0.. => plain = false,
                _ => {}
            }
            self.at += 1;
        }
        let raw = self.text.get(start..self.at)?;
        self.at += 1;
        Some(Quoted { raw, plain })
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        self.at - start
    }

    fn number(&mut self) -> Option<Node<'a>> {
        let start = self.at;
        let negative = self.take(b'-');
        // no digit may follow a leading zero, so 01 fails as a missing comma
        let mut length = if self.take(b'0') { 1 } else { self.digits() };
        let mut integer = true;
        if length == 0 {
            return None;
        }
        if self.take(b'.') {
            integer = false;
            let fraction = self.digits();
            length += fraction;
            if fraction == 0 {
                return None;
            }
        }
        if self.take(b'e') || self.take(b'E') {
            integer = false;
            let _ = self.take(b'+') || self.take(b'-');
            let exponent = self.digits();
            length += exponent;
            if exponent == 0 {
                return None;
            }
        }
        if length > MAX_NUMBER_LENGTH {
            return None;
        }
        let raw = self.text.get(start..self.at)?;
        if !integer {
            return raw.parse().ok().map(Node::Double);
        }
        Some(match raw.parse::<i64>() {
            Ok(0) if negative => Node::Int("0"),
            Ok(number) if i32::try_from(number).is_ok() => Node::Int(raw),
            Ok(_) => Node::Long(raw),
            Err(_) => Node::BigInteger,
        })
    }
}
