//! Bulk reads: the changes of a slot, many at a time by COPY. A walsender sends each message with a system call of its own;
//! COPY sends the same bytes of pgoutput in full buffers.
//!
//! A bulk read consumes a temporary copy of the slot, which ends with the session. So the next one can be requested before
//! this one has been processed, and the slot itself advances afterwards.
//!
//! This module writes statements and decodes rows; it sends and receives nothing. Formats: Postgres manual, "Replication
//! Management Functions", and "COPY", "Binary Format".

use std::time::Duration;

use crate::Lsn;
use crate::quoting::{identifier, literal};

/// The functions that the reader's role must be allowed to call, including those that move the slot. Every role is allowed
/// to by default.
pub const FUNCTIONS: [&str; 4] = [
    "pg_catalog.pg_copy_logical_replication_slot(name, name, boolean)",
    "pg_catalog.pg_drop_replication_slot(name)",
    "pg_catalog.pg_logical_slot_get_binary_changes(name, pg_lsn, integer, text[])",
    "pg_catalog.pg_replication_slot_advance(name, pg_lsn)",
];

/// The start of a binary COPY; flags and the length of a header extension follow.
const SIGNATURE: &[u8; 11] = b"PGCOPY\n\xff\r\n\0";

/// How much a bulk read returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// It ends at the first record of the log that ends here or later. A transaction that is committed after that is not returned.
    pub upto: Lsn,
    /// It ends with the transaction in which it reaches this many rows, each a message of pgoutput.
    pub rows: u32,
}

/// A statement that reads in bulk, followed by [`position_query`] for the copy of the slot.
pub fn read_query(copy: &str, publication: &str, messages: bool, extent: Extent) -> String {
    let Extent { upto, rows } = extent;
    format!(
        "COPY (SELECT lsn, data FROM pg_catalog.pg_logical_slot_get_binary_changes({}, '{upto}', {rows}, \
         'proto_version', '1', 'publication_names', {}{})) TO STDOUT (FORMAT binary); {}",
        literal(copy),
        literal(&identifier(publication)),
        if messages { ", 'messages', 'true'" } else { "" },
        position_query(copy)
    )
}

/// A query for a slot's position and the server's sort memory: `confirmed_flush_lsn`, `restart_lsn`, `work_mem` in bytes.
pub fn position_query(slot: &str) -> String {
    format!(
        "SELECT s.confirmed_flush_lsn, s.restart_lsn, \
         pg_catalog.pg_size_bytes(pg_catalog.current_setting('work_mem')) \
         FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = {}",
        literal(slot)
    )
}

/// Makes the server notice a reader that is gone or has stopped while a statement runs, as soon as a walsender would. The
/// settings last for the rest of the session.
pub fn prepare(timeout: Duration) -> String {
    let millis = timeout.as_millis();
    format!(
        "SET tcp_user_timeout = {millis}; SELECT pg_catalog.set_config('client_connection_check_interval', '1s', false) \
         WHERE pg_catalog.version() LIKE '%linux%'"
    )
}

/// Run before the stream is started: `tcp_user_timeout` would end the connection of a reader that pauses for longer.
pub const BEFORE_STREAMING: &str = "SET tcp_user_timeout = 0";

/// One part of a COPY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A message of pgoutput, and its position in the log.
    Row {
        /// From the column `lsn`.
        lsn: Lsn,
        /// From the column `data`.
        data: &'a [u8],
    },
    /// The end of the rows.
    End,
}

/// The bytes are not such a COPY.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a row of the COPY cannot be read")]
pub struct Malformed;

/// Decodes the body of one CopyData, which contains one row; the `first` one also has the header.
pub fn decode(body: &[u8], first: bool) -> Result<Piece<'_>, Malformed> {
    let body = if first { strip_header(body).ok_or(Malformed)? } else { body };
    let (count, rest) = body.split_first_chunk::<2>().ok_or(Malformed)?;
    match i16::from_be_bytes(*count) {
        -1 if rest.is_empty() => Ok(Piece::End),
        2 => row(rest).ok_or(Malformed),
        _ => Err(Malformed),
    }
}

fn strip_header(body: &[u8]) -> Option<&[u8]> {
    let rest = body.strip_prefix(SIGNATURE)?;
    let (_flags, rest) = rest.split_first_chunk::<4>()?;
    let (extension, rest) = rest.split_first_chunk::<4>()?;
    rest.get(usize::try_from(u32::from_be_bytes(*extension)).ok()?..)
}

fn row(body: &[u8]) -> Option<Piece<'_>> {
    let (length, rest) = body.split_first_chunk::<4>()?;
    let (lsn, rest) = rest.split_first_chunk::<8>()?;
    let (data_length, data) = rest.split_first_chunk::<4>()?;
    let whole = u32::from_be_bytes(*length) == 8
        && usize::try_from(u32::from_be_bytes(*data_length)).is_ok_and(|length| length == data.len());
    whole.then(|| Piece::Row { lsn: Lsn(u64::from_be_bytes(*lsn)), data })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

    fn row_of(lsn: u64, data: &[u8]) -> Vec<u8> {
        let length = u32::try_from(data.len()).unwrap();
        [&2i16.to_be_bytes()[..], &8u32.to_be_bytes(), &lsn.to_be_bytes(), &length.to_be_bytes(), data]
            .concat()
    }

    #[test]
    fn a_row_is_decoded_with_and_without_the_header() {
        let row = row_of(0x10, b"B...");
        let expected = Ok(Piece::Row { lsn: Lsn(0x10), data: b"B..." });
        assert_eq!(decode(&row, false), expected);
        assert_eq!(decode(&[HEADER, &row].concat(), true), expected);
        let mut extended = HEADER[..HEADER.len() - 4].to_vec();
        extended.extend([0, 0, 0, 2, 7, 7]);
        assert_eq!(decode(&[&extended[..], &row].concat(), true), expected);
    }

    #[test]
    fn the_end_of_an_empty_copy_has_the_header() {
        assert_eq!(decode(&(-1i16).to_be_bytes(), false), Ok(Piece::End));
        assert_eq!(decode(&[HEADER, &[255, 255]].concat(), true), Ok(Piece::End));
    }

    #[test]
    fn malformed_rows_are_refused() {
        let row = row_of(1, b"data");
        for length in 0..row.len() {
            assert_eq!(decode(&row[..length], false), Err(Malformed), "{length}");
        }
        assert_eq!(decode(&row, true), Err(Malformed), "without a header");
        let mut null = row.clone();
        null[2..6].fill(0xff);
        assert_eq!(decode(&null, false), Err(Malformed));
        let mut three = row.clone();
        three[1] = 3;
        assert_eq!(decode(&three, false), Err(Malformed));
        assert_eq!(decode(&[row, vec![0]].concat(), false), Err(Malformed));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), first: bool) {
            let _ = decode(&bytes, first);
        }
    }

    #[test]
    fn names_are_quoted_as_literals() {
        let extent = Extent { upto: Lsn(0x1_0000_0000), rows: 50 };
        let statements = read_query("s'lot", "pub\"'lication", true, extent);
        let (copy, look) = statements.split_once("; ").unwrap();
        assert_eq!(
            copy,
            "COPY (SELECT lsn, data FROM pg_catalog.pg_logical_slot_get_binary_changes('s''lot', '1/0', 50, \
             'proto_version', '1', 'publication_names', '\"pub\"\"''lication\"', 'messages', 'true')) \
             TO STDOUT (FORMAT binary)"
        );
        assert!(look.ends_with("WHERE s.slot_name = 's''lot'"), "{look}");
    }
}
