//! Messages as the server writes them, for tests.

use super::Value;

/// Writes messages as the server would, field by field.
pub(crate) struct Wire(pub(crate) Vec<u8>);

impl Wire {
    pub(crate) fn of(tag: u8) -> Self {
        Wire(vec![tag])
    }
    pub(crate) fn u8(mut self, n: u8) -> Self {
        self.0.push(n);
        self
    }
    pub(crate) fn i16(mut self, n: i16) -> Self {
        self.0.extend(n.to_be_bytes());
        self
    }
    pub(crate) fn u32(mut self, n: u32) -> Self {
        self.0.extend(n.to_be_bytes());
        self
    }
    pub(crate) fn u64(mut self, n: u64) -> Self {
        self.0.extend(n.to_be_bytes());
        self
    }
    pub(crate) fn string(mut self, text: &str) -> Self {
        self.0.extend(text.as_bytes());
        self.u8(0)
    }
    pub(crate) fn value(self, value: &Owned) -> Self {
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
    pub(crate) fn tuple(self, values: &[Owned]) -> Self {
        values.iter().fold(self.i16(values.len() as i16), Wire::value)
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Owned {
    Null,
    Toast,
    Text(Vec<u8>),
    Binary(Vec<u8>),
}

impl Owned {
    pub(crate) fn borrowed(&self) -> Value<'_> {
        match self {
            Owned::Null => Value::Null,
            Owned::Toast => Value::UnchangedToast,
            Owned::Text(bytes) => Value::Text(bytes),
            Owned::Binary(bytes) => Value::Binary(bytes),
        }
    }
}

/// A Relation message of `schema.name` with columns of the given names and types.
pub(crate) fn relation(id: u32, table: (&str, &str), columns: &[(&str, u32)]) -> Vec<u8> {
    let head = Wire::of(b'R').u32(id).string(table.0).string(table.1).u8(b'd').i16(columns.len() as i16);
    columns.iter().fold(head, |wire, (name, oid)| wire.u8(0).string(name).u32(*oid).u32(u32::MAX)).0
}

/// An Insert message; `None` is NULL.
pub(crate) fn insert(relation: u32, values: &[Option<&str>]) -> Vec<u8> {
    let owned = |value: &Option<&str>| value.map_or(Owned::Null, |text| Owned::Text(text.into()));
    Wire::of(b'I').u32(relation).u8(b'N').tuple(&values.iter().map(owned).collect::<Vec<_>>()).0
}
