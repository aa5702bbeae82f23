//! The messages of the `pgoutput` plugin, protocol version 1: bytes in, borrowed messages out.
//!
//! ```text
//!   Begin  (Relation | Type | Origin | Insert | Update | Delete | Truncate | Message)*  Commit
//! ```
//!
//! With version 1 only committed transactions arrive, one after the other in commit order. A [`Relation`] describes a
//! table before its first change on a connection and after each change of its definition. The formats are those of the
//! Postgres manual, "Logical Replication Message Formats". Decoding checks the whole message and copies nothing.

mod reader;
mod relation;
#[cfg(test)]
mod tests;
mod tuple;
pub mod wire;

pub use relation::{Column, Relation};
pub use tuple::{Tuple, Value};

use std::fmt;

use crate::lsn::Lsn;
use crate::redacted::Redacted;
use crate::timestamp::PgTimestamp;
use reader::Reader;

/// An object identifier of the catalogues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Oid(pub u32);

/// The bytes are not a message of this protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message ends inside a field.
    #[error("the message ends inside the {0}")]
    Truncated(&'static str),
    /// A field has an impossible value.
    #[error("the {0} is not valid")]
    Invalid(&'static str),
    /// Bytes follow the last field.
    #[error("{0} bytes follow the end of the message")]
    TrailingBytes(usize),
    /// The first byte is not a message type of protocol version 1.
    #[error("the message type {0:#04x} does not exist in protocol version 1")]
    UnknownMessage(u8),
}

/// One message of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// A transaction starts.
    Begin(Begin),
    /// It is complete.
    Commit(Commit),
    /// The transaction came from another server, through a replication origin.
    Origin(Origin<'a>),
    /// A table's definition.
    Relation(Relation<'a>),
    /// The name of a user-defined type.
    Type(TypeName<'a>),
    /// A new row.
    Insert(Insert<'a>),
    /// A changed row.
    Update(Update<'a>),
    /// A deleted row.
    Delete(Delete<'a>),
    /// Truncated tables.
    Truncate(Truncate<'a>),
    /// A message from `pg_logical_emit_message`.
    Logical(LogicalMessage<'a>),
}

/// The start of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// The LSN of its commit record. The `commit_lsn` of the Commit is the same.
    pub final_lsn: Lsn,
    /// When it committed.
    pub commit_time: PgTimestamp,
    /// Its transaction id.
    pub xid: u32,
}

/// The end of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// The LSN of the commit record.
    pub commit_lsn: Lsn,
    /// The end of the commit record: the position to confirm.
    pub end_lsn: Lsn,
    /// When it committed.
    pub commit_time: PgTimestamp,
}

/// The server where a transaction was first committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin<'a> {
    /// Its commit position on that server.
    pub commit_lsn: Lsn,
    /// The replication origin's name.
    pub name: &'a str,
}

/// A type's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeName<'a> {
    /// Its OID.
    pub id: Oid,
    /// The schema; empty for `pg_catalog`.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
}

/// A new row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Insert<'a> {
    /// The table.
    pub relation: Oid,
    /// The row.
    pub new: Tuple<'a>,
}

/// A changed row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Update<'a> {
    /// The table.
    pub relation: Oid,
    /// The row before, or its key.
    pub old: Option<OldRow<'a>>,
    /// The row after.
    pub new: Tuple<'a>,
}

/// A deleted row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delete<'a> {
    /// The table.
    pub relation: Oid,
    /// The row, or its key.
    pub old: OldRow<'a>,
}

/// An old row, as far as the replica identity includes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldRow<'a> {
    /// The columns of the replica identity's index.
    Key(Tuple<'a>),
    /// The complete row (`REPLICA IDENTITY FULL`).
    Full(Tuple<'a>),
}

/// Truncated tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncate<'a> {
    /// `TRUNCATE ... CASCADE`
    pub cascade: bool,
    /// `TRUNCATE ... RESTART IDENTITY`
    pub restart_identity: bool,
    relations: Reader<'a>,
    count: usize,
}

impl<'a> Truncate<'a> {
    /// The tables.
    pub fn relations(&self) -> impl Iterator<Item = Oid> + use<'a> {
        let mut reader = self.relations;
        (0..self.count).map_while(move |_| reader.u32("relation id").ok().map(Oid))
    }
}

/// A message from `pg_logical_emit_message`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LogicalMessage<'a> {
    /// Whether it is part of the transaction.
    pub transactional: bool,
    /// Its position in the log.
    pub lsn: Lsn,
    /// Its prefix.
    pub prefix: &'a str,
    /// Its content.
    pub content: &'a [u8],
}

impl fmt::Debug for LogicalMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogicalMessage")
            .field("transactional", &self.transactional)
            .field("lsn", &self.lsn)
            .field("prefix", &self.prefix)
            .field("content", &Redacted(self.content))
            .finish()
    }
}

impl<'a> Message<'a> {
    /// Decodes one message, the payload of one XLogData.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let message = match reader.u8("message type")? {
            b'B' => Message::Begin(Begin {
                final_lsn: reader.lsn("final LSN")?,
                commit_time: PgTimestamp(reader.i64("commit time")?),
                xid: reader.u32("transaction id")?,
            }),
            b'C' => {
                reader.u8("commit flags")?;
                Message::Commit(Commit {
                    commit_lsn: reader.lsn("commit LSN")?,
                    end_lsn: reader.lsn("end LSN")?,
                    commit_time: PgTimestamp(reader.i64("commit time")?),
                })
            }
            b'O' => Message::Origin(Origin {
                commit_lsn: reader.lsn("origin LSN")?,
                name: reader.string("origin name")?,
            }),
            b'R' => Message::Relation(Relation::decode(&mut reader)?),
            b'Y' => Message::Type(TypeName {
                id: Oid(reader.u32("type id")?),
                namespace: reader.string("type namespace")?,
                name: reader.string("type name")?,
            }),
            b'I' => {
                let relation = Oid(reader.u32("relation id")?);
                new_row_follows(reader.u8("kind of row")?)?;
                Message::Insert(Insert { relation, new: Tuple::decode(&mut reader)? })
            }
            b'U' => Message::Update(decode_update(&mut reader)?),
            b'D' => {
                let relation = Oid(reader.u32("relation id")?);
                let kind = reader.u8("kind of row")?;
                let old = decode_old_row(kind, &mut reader)?.ok_or(DecodeError::Invalid("kind of row"))?;
                Message::Delete(Delete { relation, old })
            }
            b'T' => Message::Truncate(decode_truncate(&mut reader)?),
            b'M' => {
                let flags = reader.u8("message flags")?;
                let lsn = reader.lsn("message LSN")?;
                let prefix = reader.string("message prefix")?;
                let length = reader.count32("message length")?;
                let content = reader.bytes(length, "message content")?;
                Message::Logical(LogicalMessage { transactional: flags & 1 == 1, lsn, prefix, content })
            }
            other => return Err(DecodeError::UnknownMessage(other)),
        };
        reader.finish()?;
        Ok(message)
    }
}

fn new_row_follows(kind: u8) -> Result<(), DecodeError> {
    if kind == b'N' { Ok(()) } else { Err(DecodeError::Invalid("kind of row")) }
}

fn decode_old_row<'a>(kind: u8, reader: &mut Reader<'a>) -> Result<Option<OldRow<'a>>, DecodeError> {
    match kind {
        b'K' => Ok(Some(OldRow::Key(Tuple::decode(reader)?))),
        b'O' => Ok(Some(OldRow::Full(Tuple::decode(reader)?))),
        _ => Ok(None),
    }
}

fn decode_update<'a>(reader: &mut Reader<'a>) -> Result<Update<'a>, DecodeError> {
    let relation = Oid(reader.u32("relation id")?);
    let mut kind = reader.u8("kind of row")?;
    let old = decode_old_row(kind, reader)?;
    if old.is_some() {
        kind = reader.u8("kind of row")?;
    }
    new_row_follows(kind)?;
    Ok(Update { relation, old, new: Tuple::decode(reader)? })
}

fn decode_truncate<'a>(reader: &mut Reader<'a>) -> Result<Truncate<'a>, DecodeError> {
    let count = reader.count32("number of relations")?;
    let flags = reader.u8("truncate flags")?;
    let relations = *reader;
    let length = count.checked_mul(4).ok_or(DecodeError::Invalid("number of relations"))?;
    reader.bytes(length, "relation ids")?;
    Ok(Truncate { cascade: flags & 1 != 0, restart_identity: flags & 2 != 0, relations, count })
}
