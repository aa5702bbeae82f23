//! The values of one row. Functions that run for each value are marked `#[inline]`, because the caller is in another crate:
//! without it, the calls took a tenth of all instructions from bytes to an event.

use std::{fmt, iter};

use super::DecodeError;
use super::reader::Reader;
use crate::redacted::Redacted;

/// A row: its values in the order of the relation's columns, still in the receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple<'a> {
    values: Reader<'a>,
    count: usize,
}

/// One value of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// SQL NULL.
    Null,
    /// A TOASTed value that did not change; its bytes are not sent.
    UnchangedToast,
    /// The output of the type's output function, in the client encoding.
    Text(&'a [u8]),
    /// The output of the type's send function (option `binary`).
    Binary(&'a [u8]),
}

impl<'a> Tuple<'a> {
    pub(super) fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let count = reader.count16("number of values")?;
        let values = *reader;
        // a local copy: a reader behind a reference would be written back to memory after each value
        let mut rest = values;
        for _ in 0..count {
            Value::decode(&mut rest)?;
        }
        *reader = rest;
        Ok(Tuple { values, count })
    }

    /// How many values the row has.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the row has no values.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Removes the first column's value from the row and returns it.
    #[inline]
    pub fn take_first(&mut self) -> Option<Value<'a>> {
        self.count = self.count.checked_sub(1)?;
        // cannot fail: decode() has checked all of them
        Value::decode(&mut self.values).ok()
    }

    /// The values from the first column to the last.
    #[inline]
    pub fn values(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let mut rest = *self;
        iter::from_fn(move || rest.take_first())
    }
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("Null"),
            Value::UnchangedToast => f.write_str("UnchangedToast"),
            Value::Text(text) => f.debug_tuple("Text").field(&Redacted(text)).finish(),
            Value::Binary(bytes) => f.debug_tuple("Binary").field(&Redacted(bytes)).finish(),
        }
    }
}

impl<'a> Value<'a> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.array("kind of value")? {
            b"n" => Ok(Value::Null),
            b"u" => Ok(Value::UnchangedToast),
            b"t" => Ok(Value::Text(sized(reader)?)),
            b"b" => Ok(Value::Binary(sized(reader)?)),
            _ => Err(DecodeError::Invalid("kind of value")),
        }
    }
}

#[inline]
fn sized<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], DecodeError> {
    let length = reader.count32("length of value")?;
    reader.bytes(length, "value")
}
