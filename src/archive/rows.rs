//! Reads rows of a file in the order of their inserts. Entries are merged, because a row that was locked during a prune is in the file
//! behind later ones.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use pg_logical::PgTimestamp;
use serde_json::value::RawValue;

use super::contents::Contents;
use super::{Batch, cannot_read, unusable};
use crate::error::Error;
use crate::outbox::Cursor;
use crate::postgres::rows::TableRow;
use crate::postgres::rows::pages::{Page, Pages};
use crate::postgres::rows::reader::Found;
use crate::routing::timestamp::parse_micros;

/// How many rows a page has.
const PAGE_ROWS: usize = 2_000;

/// How many bytes their lines have.
const PAGE_BYTES: usize = 4 << 20;

/// So many bytes of entries are kept in memory; the others are read again when their turn comes.
const MAX_OPEN_BYTES: usize = 32 << 20;

const INTACT: &str = "Use an intact copy of the file";

/// Which rows of a file are read.
#[derive(Debug, Clone)]
pub struct FileRows {
    /// The file.
    pub contents: Arc<Contents>,
    /// The column with the time of the insert.
    pub created_at: String,
    /// The column with a number or an id that tells the order of rows of the same time; without it, it is that of the file.
    pub tie: Option<String>,
    /// The columns to read.
    pub columns: Vec<String>,
    /// Columns, each with the values that it may have, as Postgres prints them.
    pub filters: Vec<(String, Vec<String>)>,
    /// The earliest time of an insert, in microseconds since 1970; `None`: the first row.
    pub since: Option<i64>,
    /// The time before which the inserts were.
    pub until: i64,
    /// Two columns: if the first is null and the second is not, somebody has discarded the row, and it is left out.
    pub discarded: Option<(String, String)>,
}

impl FileRows {
    /// The rows behind `after`, read on a thread of their own.
    ///
    /// # Errors
    /// The file cannot be opened, or the cursor is not one of its rows.
    pub fn pages(&self, after: Option<&Cursor>) -> Result<Pages, Error> {
        let mut merge = Merge::new(self.clone(), after)?;
        Ok(Pages::from_thread(move || merge.next_page()))
    }
}

/// The place of a row in the order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// Its time, in microseconds since 1970.
    micros: i64,
    /// The length and the text of what orders rows of the same time: numbers and ids of one length are compared that way.
    tie: (usize, String),
    entry: usize,
    line: usize,
}

impl Key {
    /// The one of a cursor, which [`Key::cursor`] has made.
    fn of(cursor: &Cursor) -> Option<Self> {
        let [tie, entry, line] = cursor.ties.as_slice() else { return None };
        let tie = (tie.len(), tie.clone());
        Some(Key { micros: cursor.micros, tie, entry: entry.parse().ok()?, line: line.parse().ok()? })
    }

    fn cursor(self, created_at: String) -> Cursor {
        let ties = vec![self.tie.1, self.entry.to_string(), self.line.to_string()];
        Cursor { micros: self.micros, created_at, ties }
    }
}

/// An entry whose rows are read.
struct Open {
    lines: String,
    /// Those that match and are left, each with the place of its line.
    left: VecDeque<(Key, Range<usize>)>,
}

/// A row as it is written: the texts of its values by their columns.
type Values<'a> = HashMap<String, &'a RawValue>;

pub(super) struct Merge {
    rows: FileRows,
    file: File,
    /// The row after which to begin.
    after: Option<Key>,
    /// The next row of each entry, or a key before it.
    next: BinaryHeap<Reverse<Key>>,
    open: HashMap<usize, Open>,
}

impl Merge {
    pub(super) fn new(rows: FileRows, after: Option<&Cursor>) -> Result<Self, Error> {
        let path = &rows.contents.path;
        let file = File::open(path).map_err(|error| cannot_read(path, &error))?;
        let unknown =
            || unusable(path, "it has no such row as the replay has sent last", "Begin another replay");
        let after = after.map(|cursor| Key::of(cursor).ok_or_else(unknown)).transpose()?;
        let next = rows.contents.places.iter().enumerate().filter_map(|(entry, place)| {
            let (first, last) = place.batch.first.zip(place.batch.last)?;
            let wanted = first < rows.until
                && rows.since.is_none_or(|since| last >= since)
                && after.as_ref().is_none_or(|after| last >= after.micros);
            wanted.then(|| Reverse(Key { micros: first, tie: (0, String::new()), entry, line: 0 }))
        });
        let next = next.collect();
        Ok(Merge { rows, file, after, next, open: HashMap::new() })
    }

    /// The next rows; `None` at the end.
    pub(super) fn next_page(&mut self) -> Page {
        let (mut page, mut bytes) = (Vec::new(), 0);
        while page.len() < PAGE_ROWS && bytes < PAGE_BYTES {
            let Some(Reverse(key)) = self.next.pop() else { break };
            let entry = key.entry;
            match self.open.get_mut(&entry) {
                None => {
                    let opened = self.read(&key)?;
                    self.keep(entry, opened);
                }
                Some(open) => {
                    if let Some((key, line)) = open.left.pop_front() {
                        bytes += line.len();
                        let found = found(&self.rows, open.lines.get(line).unwrap_or_default(), key);
                        page.push(found.ok_or_else(|| self.invalid())?);
                    }
                    match self.open.get(&entry).and_then(|open| open.left.front()) {
                        Some((key, _)) => self.next.push(Reverse(key.clone())),
                        None => drop(self.open.remove(&entry)),
                    }
                }
            }
        }
        Ok(Some(page).filter(|page| !page.is_empty()))
    }

    fn invalid(&self) -> Error {
        unusable(&self.rows.contents.path, "a line is not a row in JSON", INTACT)
    }

    /// Reads the rows of an entry that match, from a key on.
    fn read(&self, from: &Key) -> Result<Open, Error> {
        let contents = &self.rows.contents;
        let Some(place) = contents.places.get(from.entry) else {
            return Ok(Open { lines: String::new(), left: VecDeque::new() });
        };
        let lines = contents.lines(&self.file, place)?;
        let (mut left, mut begin) = (Vec::new(), 0);
        for (number, line) in lines.split_inclusive('\n').enumerate() {
            let range = begin..begin + line.len();
            begin = range.end;
            let values: Values<'_> = serde_json::from_str(line).map_err(|_| self.invalid())?;
            if let Some((micros, tie)) = self.matching(&place.batch, &values) {
                let key = Key { micros, tie: (tie.len(), tie), entry: from.entry, line: number };
                if key >= *from && self.after.as_ref().is_none_or(|after| key > *after) {
                    left.push((key, range));
                }
            }
        }
        left.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        Ok(Open { lines, left: left.into() })
    }

    /// What orders a row, if it matches.
    fn matching(&self, batch: &Batch, values: &Values<'_>) -> Option<(i64, String)> {
        let FileRows { created_at, tie, filters, since, until, discarded, .. } = &self.rows;
        let text = |column: &str| text(batch, values, column);
        // those without a finite time cannot be selected
        let micros = parse_micros(text(created_at)?.as_bytes())?;
        let in_time = since.is_none_or(|since| micros >= since) && micros < *until;
        let is_discarded =
            discarded.as_ref().is_some_and(|(at, why)| text(at).is_none() && text(why).is_some());
        let matches = |(column, wanted): &(String, Vec<String>)| {
            text(column).is_some_and(|value| wanted.contains(&value))
        };
        let tie = tie.as_ref().and_then(|column| text(column)).unwrap_or_default();
        (in_time && !is_discarded && filters.iter().all(matches)).then_some((micros, tie))
    }

    /// Keeps the rows of an entry, and forgets those that are wanted last if there are many.
    fn keep(&mut self, entry: usize, opened: Open) {
        let Some((key, _)) = opened.left.front() else { return };
        self.next.push(Reverse(key.clone()));
        self.open.insert(entry, opened);
        while self.open.len() > 1
            && self.open.values().map(|open| open.lines.len()).sum::<usize>() > MAX_OPEN_BYTES
        {
            let keys = self.open.values().filter_map(|open| open.left.front().map(|(key, _)| key));
            let Some(last) = keys.max().map(|key| key.entry) else { return };
            self.open.remove(&last);
        }
    }
}

fn found(rows: &FileRows, line: &str, key: Key) -> Option<Found> {
    let batch = &rows.contents.places.get(key.entry)?.batch;
    let values: Values<'_> = serde_json::from_str(line).ok()?;
    let created_at = text(batch, &values, &rows.created_at)?;
    let inserted = PgTimestamp::from_unix_micros(key.micros);
    let values = rows.columns.iter().map(|column| text(batch, &values, column)).collect();
    Some((TableRow { inserted, values }, key.cursor(created_at)))
}

/// A value as Postgres has printed it; `None`: it is null, or the table had no such column.
fn text(batch: &Batch, values: &Values<'_>, column: &str) -> Option<String> {
    let value = values.get(column)?.get();
    let is_json = batch.columns.iter().any(|described| described.json && described.name == column);
    if is_json { Some(value.to_owned()) } else { serde_json::from_str(value).ok() }
}
