//! Rows that a source passes on, each as a transaction of one change.

use std::collections::VecDeque;

use pg_logical::pgoutput::Message;
use pg_logical::{Lsn, Oid};

use crate::error::{Error, Peer};
use crate::pipeline::Change;
use crate::postgres::rows::TableRow;
use crate::postgres::rows::layout::write_insert;
use crate::progress::{Landmark, Partial, Position};
use crate::relay::Read;

/// Rows that are not consumed yet, each with what the source has to know about it.
pub(super) struct Rows<T> {
    table: Oid,
    /// Messages about the table that are still to be read.
    definitions: VecDeque<Vec<u8>>,
    queue: VecDeque<(TableRow, T)>,
    /// How many bytes of values they have.
    bytes: usize,
    /// What is read next of the first row.
    stage: Stage,
    /// The Insert message of the first row.
    insert: Vec<u8>,
    /// The number of the first row.
    number: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begin,
    Change,
    Commit,
}

impl<T> Rows<T> {
    /// `definitions`: the messages that describe the table. The first row has the number `before`, of rows that earlier sessions sent.
    pub(super) fn new(table: Oid, definitions: Vec<Vec<u8>>, before: u64) -> Self {
        Rows {
            table,
            definitions: definitions.into(),
            queue: VecDeque::new(),
            bytes: 0,
            stage: Stage::Begin,
            insert: Vec::new(),
            number: before,
        }
    }

    pub(super) fn extend(&mut self, rows: impl Iterator<Item = (TableRow, T)>) {
        let before = self.queue.len();
        self.queue.extend(rows);
        self.bytes += self.queue.range(before..).map(|(row, _)| row.bytes()).sum::<usize>();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// How many bytes of values they have.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// If a row begins next: what the source knows about it.
    pub(super) fn beginning(&self) -> Option<&T> {
        let begins = self.definitions.is_empty() && self.stage == Stage::Begin;
        self.queue.front().filter(|_| begins).map(|(_, known)| known)
    }

    pub(super) fn next(&mut self) -> Result<Read<'_>, Error> {
        if let Some(message) = self.definitions.front() {
            let message = Message::decode(message).map_err(|error| unreadable(&error))?;
            return Ok(Read::Other { message, already_delivered: false });
        }
        let Some((row, _)) = self.queue.front() else { return Ok(Read::Nothing) };
        match self.stage {
            Stage::Begin => Ok(Read::Begin(landmark(self.number, row))),
            Stage::Change => {
                write_insert(&mut self.insert, self.table, &row.values);
                let message = Message::decode(&self.insert).map_err(|error| unreadable(&error))?;
                Ok(match message {
                    Message::Insert(insert) => Read::Change(Change::Row(insert)),
                    message => Read::Other { message, already_delivered: false },
                })
            }
            Stage::Commit => Ok(Read::Commit(end_of(self.number))),
        }
    }

    /// Marks the last item as processed. Returns what is known about the row if that was its last item.
    pub(super) fn consume(&mut self) -> Option<T> {
        if self.definitions.pop_front().is_some() {
            return None;
        }
        self.stage = match self.stage {
            Stage::Begin => Stage::Change,
            Stage::Change => Stage::Commit,
            Stage::Commit => {
                self.number += 1;
                self.stage = Stage::Begin;
                let (row, known) = self.queue.pop_front()?;
                self.bytes -= row.bytes();
                return Some(known);
            }
        };
        None
    }

    /// As [`crate::relay::Source::look_ahead`].
    pub(super) fn look_ahead(&self, see: &mut dyn FnMut(Read<'_>) -> bool) {
        let mut insert = Vec::new();
        for (number, (row, _)) in (self.number..).zip(&self.queue).skip(1) {
            write_insert(&mut insert, self.table, &row.values);
            let Ok(Message::Insert(change)) = Message::decode(&insert) else { return };
            if !see(Read::Begin(landmark(number, row))) || !see(Read::Change(Change::Row(change))) {
                return;
            }
        }
    }
}

/// The place of the first `rows` of a session, which stands for a position in the log.
pub fn place_of_first(rows: u64) -> Partial {
    Partial { final_lsn: commit_of(rows.saturating_sub(1)), changes: 1 }
}

/// How many rows of a session lie before or at this place.
pub fn rows_up_to(place: Partial) -> u64 {
    place.final_lsn.0 / 2
}

/// The position behind so many rows.
pub fn position_after(rows: u64) -> Position {
    Position { flush: Lsn(commit_of(rows).0.saturating_sub(1)), partial: None }
}

/// How many rows lie before this position.
pub(super) fn rows_before(position: Position) -> u64 {
    position.flush.0.saturating_sub(1) / 2 + u64::from(position.partial.is_some())
}

/// In place of the LSN of a commit record: that of the row with this number.
fn commit_of(number: u64) -> Lsn {
    Lsn(number.saturating_mul(2).saturating_add(2))
}

/// In place of its end.
fn end_of(number: u64) -> Lsn {
    Lsn(commit_of(number).0.saturating_add(1))
}

fn landmark(number: u64, row: &TableRow) -> Landmark {
    Landmark { final_lsn: commit_of(number), xid: 0, commit_time: row.inserted }
}

/// The message was written by this program.
fn unreadable(error: &pg_logical::pgoutput::DecodeError) -> Error {
    Error::transient(Peer::Postgres, format!("a row cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pg_logical::PgTimestamp;

    fn rows(count: usize) -> Rows<usize> {
        let mut rows = Rows::new(Oid(7), Vec::new(), 0);
        let row = |number: usize| {
            (TableRow { inserted: PgTimestamp(0), values: vec![Some(number.to_string())] }, number)
        };
        rows.extend((0..count).map(row));
        rows
    }

    #[test]
    fn each_row_is_a_transaction_of_one_change() {
        let mut rows = rows(2);
        let mut read = Vec::new();
        loop {
            read.push(match rows.next().unwrap() {
                Read::Begin(landmark) => format!("begin {}", landmark.final_lsn),
                Read::Change(_) => "change".to_owned(),
                Read::Commit(end) => format!("commit {end}"),
                _ => break,
            });
            rows.consume();
        }
        assert_eq!(read, ["begin 0/2", "change", "commit 0/3", "begin 0/4", "change", "commit 0/5"]);
    }

    #[test]
    fn places_tell_how_many_rows_are_before_them() {
        for number in 0..5 {
            assert_eq!(rows_up_to(place_of_first(number + 1)), number + 1);
            assert_eq!(position_after(number + 1), Position { flush: end_of(number), partial: None });
            assert_eq!(rows_before(position_after(number)), number);
            let inside = Position { partial: Some(place_of_first(number + 1)), ..position_after(number) };
            assert_eq!(rows_before(inside), number + 1);
        }
        assert_eq!(rows_before(Position::default()), 0);
    }

    #[test]
    fn a_row_is_given_back_once_it_is_consumed() {
        let mut rows = rows(2);
        assert_eq!(rows.beginning(), Some(&0));
        assert_eq!(rows.consume(), None);
        assert_eq!(rows.beginning(), None);
        assert_eq!((rows.consume(), rows.consume()), (None, Some(0)));
        assert_eq!((rows.beginning(), rows.len(), rows.bytes()), (Some(&1), 1, 1));
        for _ in 0..3 {
            rows.consume();
        }
        assert_eq!((rows.beginning(), rows.len(), rows.bytes()), (None, 0, 0));
    }
}
