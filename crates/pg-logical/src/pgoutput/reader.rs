//! A cursor over one message that never reads past its end.

use std::fmt;

use super::DecodeError;
use crate::lsn::Lsn;
use crate::redacted::Redacted;

/// The unread rest of one message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Redacted(self.rest).fmt(f)
    }
}

impl<'a> Reader<'a> {
    #[inline]
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// The next `N` bytes, by reference: the compiler would pack a small value into the `Result` with the error and unpack it
    /// again.
    #[inline]
    pub(super) fn array<const N: usize>(&mut self, field: &'static str) -> Result<&'a [u8; N], DecodeError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Truncated(field))?;
        self.rest = rest;
        Ok(head)
    }

    #[inline]
    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.array::<1>(field).map(|[byte]| *byte)
    }

    #[inline]
    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(*self.array(field)?))
    }

    #[inline]
    pub(super) fn i32(&mut self, field: &'static str) -> Result<i32, DecodeError> {
        Ok(i32::from_be_bytes(*self.array(field)?))
    }

    #[inline]
    pub(super) fn i64(&mut self, field: &'static str) -> Result<i64, DecodeError> {
        Ok(i64::from_be_bytes(*self.array(field)?))
    }

    #[inline]
    pub(super) fn lsn(&mut self, field: &'static str) -> Result<Lsn, DecodeError> {
        Ok(Lsn(u64::from_be_bytes(*self.array(field)?)))
    }

    /// A count that Postgres sends as a signed 16-bit number.
    #[inline]
    pub(super) fn count16(&mut self, field: &'static str) -> Result<usize, DecodeError> {
        let count = i16::from_be_bytes(*self.array(field)?);
        usize::try_from(count).map_err(|_| DecodeError::Invalid(field))
    }

    /// A count or length that Postgres sends as a signed 32-bit number.
    #[inline]
    pub(super) fn count32(&mut self, field: &'static str) -> Result<usize, DecodeError> {
        let count = i32::from_be_bytes(*self.array(field)?);
        usize::try_from(count).map_err(|_| DecodeError::Invalid(field))
    }

    #[inline]
    pub(super) fn bytes(&mut self, count: usize, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.rest.split_at_checked(count).ok_or(DecodeError::Truncated(field))?;
        self.rest = rest;
        Ok(head)
    }

    /// A string that ends in a zero byte.
    pub(super) fn string(&mut self, field: &'static str) -> Result<&'a str, DecodeError> {
        let end = memchr::memchr(0, self.rest).ok_or(DecodeError::Truncated(field))?;
        let text = self.bytes(end, field)?;
        self.u8(field)?;
        std::str::from_utf8(text).map_err(|_| DecodeError::Invalid(field))
    }

    /// Checks that nothing follows the last field.
    #[inline]
    pub(super) fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::TrailingBytes(self.rest.len())) }
    }
}
