//! The definition of a table, valid from its place in the stream onwards.

use super::reader::Reader;
use super::{DecodeError, Oid};

/// A table's name and columns. Postgres sends it before the first change of the table on a connection, and again
/// after each change of its definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relation<'a> {
    /// The table's OID, by which changes refer to it.
    pub id: Oid,
    /// The schema; empty for `pg_catalog`.
    pub namespace: &'a str,
    /// The table's name within it.
    pub name: &'a str,
    /// `relreplident` of `pg_class`.
    pub replica_identity: u8,
    columns: Reader<'a>,
    count: usize,
}

/// One column of a [`Relation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column<'a> {
    /// Whether the column is part of the replica identity's key.
    pub key: bool,
    /// Its name.
    pub name: &'a str,
    /// Its type's OID.
    pub type_id: Oid,
    /// `atttypmod`; -1 for none.
    pub type_modifier: i32,
}

impl<'a> Relation<'a> {
    pub(super) fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let id = Oid(reader.u32("relation id")?);
        let namespace = reader.string("relation namespace")?;
        let name = reader.string("relation name")?;
        let replica_identity = reader.u8("replica identity")?;
        let count = reader.count16("number of columns")?;
        let columns = *reader;
        for _ in 0..count {
            Column::decode(reader)?;
        }
        Ok(Relation { id, namespace, name, replica_identity, columns, count })
    }

    /// The columns, in the order of the values in tuples.
    pub fn columns(&self) -> impl Iterator<Item = Column<'a>> + use<'a> {
        let mut reader = self.columns;
        // cannot fail: decode() has checked all of them
        (0..self.count).map_while(move |_| Column::decode(&mut reader).ok())
    }
}

impl<'a> Column<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Column {
            key: reader.u8("column flags")? & 1 == 1,
            name: reader.string("column name")?,
            type_id: Oid(reader.u32("column type")?),
            type_modifier: reader.i32("column type modifier")?,
        })
    }
}
