//! Writes messages as the server does, for tests and for programs that simulate a server.

use std::fmt;

use super::Value;

/// Writes messages as the server would, field by field.
pub struct Wire(
    /// What has been written.
    pub Vec<u8>,
);

impl Wire {
    /// A message of this type.
    pub fn of(tag: u8) -> Self {
        Wire(vec![tag])
    }

    /// A byte.
    pub fn u8(mut self, n: u8) -> Self {
        self.0.push(n);
        self
    }

    /// A 16-bit number.
    pub fn i16(mut self, n: i16) -> Self {
        self.0.extend(n.to_be_bytes());
        self
    }

    /// A 32-bit number.
    pub fn u32(mut self, n: u32) -> Self {
        self.0.extend(n.to_be_bytes());
        self
    }

    /// A 64-bit number, such as an LSN.
    pub fn u64(mut self, n: u64) -> Self {
        self.0.extend(n.to_be_bytes());
        self
    }

    /// A string with its terminating zero byte.
    pub fn string(mut self, text: &str) -> Self {
        self.0.extend(text.as_bytes());
        self.u8(0)
    }

    /// A value of a row.
    pub fn value(self, value: &Owned) -> Self {
        let sized = |wire: Wire, tag, bytes: &[u8]| {
            let mut wire = wire.u8(tag).u32(bytes.len() as u32);
            wire.0.extend(bytes);
            wire
        };
        match value {
            Owned::Null => self.u8(b'n'),
            Owned::Toast => self.u8(b'u'),
            Owned::Text(bytes) => sized(self, b't', bytes),
            Owned::Binary(bytes) => sized(self, b'b', bytes),
        }
    }

    /// A row.
    pub fn tuple(self, values: &[Owned]) -> Self {
        values.iter().fold(self.i16(values.len() as i16), Wire::value)
    }
}

/// A value that owns its bytes.
#[derive(Clone)]
pub enum Owned {
    /// [`Value::Null`]
    Null,
    /// [`Value::UnchangedToast`]
    Toast,
    /// [`Value::Text`]
    Text(Vec<u8>),
    /// [`Value::Binary`]
    Binary(Vec<u8>),
}

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.borrowed().fmt(f)
    }
}

impl Owned {
    /// The same value as the decoder returns it.
    pub fn borrowed(&self) -> Value<'_> {
        match self {
            Owned::Null => Value::Null,
            Owned::Toast => Value::UnchangedToast,
            Owned::Text(bytes) => Value::Text(bytes),
            Owned::Binary(bytes) => Value::Binary(bytes),
        }
    }
}

/// A Relation message of `schema.name` with columns of the given names and types.
pub fn relation(id: u32, table: (&str, &str), columns: &[(&str, u32)]) -> Vec<u8> {
    let head = Wire::of(b'R').u32(id).string(table.0).string(table.1).u8(b'd').i16(columns.len() as i16);
    columns.iter().fold(head, |wire, (name, oid)| wire.u8(0).string(name).u32(*oid).u32(u32::MAX)).0
}

/// An Insert message; `None` is NULL.
pub fn insert(relation: u32, values: &[Option<&str>]) -> Vec<u8> {
    let owned = |value: &Option<&str>| value.map_or(Owned::Null, |text| Owned::Text(text.into()));
    Wire::of(b'I').u32(relation).u8(b'N').tuple(&values.iter().map(owned).collect::<Vec<_>>()).0
}
