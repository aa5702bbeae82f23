//! Reads and verifies the entries of a file.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::entry::{self, Entry, HEAD};
use super::{Batch, cannot_read, unusable};
use crate::error::Error;

/// How much of an incomplete entry is read, in bytes.
const LONGEST: usize = 64 << 20;

/// Where rows are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The offset of the compressed rows, in bytes.
    offset: u64,
    pub(super) batch: Batch,
}

impl Place {
    /// The offset behind the rows.
    pub(super) fn end(&self) -> u64 {
        self.offset.saturating_add(self.batch.bytes)
    }
}

/// The end of a prune.
#[derive(Debug, Clone, PartialEq, Eq)]
struct End {
    /// The checksum of its description, which depends on all that is before it.
    checksum: String,
    /// How many entries of rows are before it.
    places: usize,
}

/// A verified file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    pub(super) path: PathBuf,
    pub(super) places: Vec<Place>,
    ends: Vec<End>,
    pub(super) rows: u64,
    /// The checksum of the last description.
    pub(super) checksum: String,
    /// The length of the complete entries, in bytes.
    pub(super) length: u64,
    /// How many bytes of an incomplete entry are behind them.
    pub(super) incomplete: u64,
}

impl Contents {
    /// Reads a file, which may end anywhere.
    ///
    /// # Errors
    /// It cannot be read, is something else, or was altered.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let cannot = |error: io::Error| cannot_read(path, &error);
        let file = File::open(path).map_err(cannot)?;
        let metadata = file.metadata().map_err(cannot)?;
        if !metadata.is_file() {
            return Err(unusable(path, "it is not a regular file", "Name another file"));
        }
        let mut contents = Contents {
            path: path.to_owned(),
            places: Vec::new(),
            ends: Vec::new(),
            rows: 0,
            checksum: String::new(),
            length: 0,
            incomplete: 0,
        };
        while contents.next(&file, metadata.len())? {}
        contents.incomplete = metadata.len().saturating_sub(contents.length);
        let mut rest = vec![0; usize::try_from(contents.incomplete).unwrap_or(usize::MAX).min(LONGEST)];
        file.read_exact_at(&mut rest, contents.length).map_err(cannot)?;
        // a few bytes could be those of any file
        let known = contents.length > 0 || rest.is_empty() || rest.len() >= entry::RECOGNIZED;
        if known && entry::may_be_incomplete(&rest) { Ok(contents) } else { Err(contents.altered()) }
    }

    /// Reads the entry behind the last one. Returns whether it is complete.
    fn next(&mut self, file: &File, end: u64) -> Result<bool, Error> {
        let mut head = [0; HEAD];
        let content = self.length.saturating_add(HEAD as u64);
        if !self.fill(file, &mut head, self.length)? {
            return Ok(false);
        }
        let length = entry::length(head).ok_or_else(|| self.altered())?;
        let mut description = vec![0; length as usize];
        if !self.fill(file, &mut description, content)? {
            return Ok(false);
        }
        let (checksum, entry) = entry::read(&description, &self.checksum).ok_or_else(|| self.altered())?;
        let behind = content + u64::from(length);
        match entry {
            Entry::Rows(batch) => {
                let place = Place { offset: behind, batch };
                if place.end() > end {
                    return Ok(false);
                }
                let found = sha256(file, place.offset, place.batch.bytes);
                if found.map_err(|error| cannot_read(&self.path, &error))? != place.batch.sha256 {
                    return Err(self.altered());
                }
                self.rows = self.rows.saturating_add(place.batch.rows);
                self.length = place.end();
                self.places.push(place);
            }
            Entry::End(rows) if rows == self.rows => {
                self.ends.push(End { checksum: checksum.clone(), places: self.places.len() });
                self.length = behind;
            }
            Entry::End(_) => return Err(self.altered()),
        }
        self.checksum = checksum;
        Ok(true)
    }

    /// Fills the buffer from an offset; `false`: the file ends before.
    fn fill(&self, file: &File, buffer: &mut [u8], offset: u64) -> Result<bool, Error> {
        match file.read_exact_at(buffer, offset) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(cannot_read(&self.path, &error)),
        }
    }

    fn altered(&self) -> Error {
        match self.length {
            0 => unusable(
                &self.path,
                "prune has not written it, or it was altered at its beginning",
                "Name another file, or use an intact copy. If a prune was killed before it had moved a row, delete it",
            ),
            at => unusable(
                &self.path,
                format!("it was altered after byte {at}"),
                // rows are deleted only once they are on the disk
                &format!(
                    "Use an intact copy. If the machine crashed during a prune, and only then: truncate -s {at} {}",
                    self.path.display()
                ),
            ),
        }
    }

    /// Whether the last entry is an end, and nothing is behind it.
    pub fn is_complete(&self) -> bool {
        self.incomplete == 0 && self.ends.last().is_some_and(|end| end.checksum == self.checksum)
    }

    /// Refuses a file whose last entry is not an end.
    ///
    /// # Errors
    /// It is not.
    pub fn complete(self) -> Result<Self, Error> {
        if self.is_complete() {
            return Ok(self);
        }
        Err(unusable(
            &self.path,
            "its end is missing: it is truncated, or its prune was killed or still runs",
            "If it was killed, run `outbox-router prune` with the same --archive again, which completes the file; otherwise use an intact copy",
        ))
    }

    /// The rows up to the end of a prune, whose description has this checksum. `None`: there is no such end.
    pub fn up_to(mut self, checksum: &str) -> Option<Self> {
        let end = self.ends.iter().find(|end| end.checksum == checksum)?;
        self.places.truncate(end.places);
        self.checksum = end.checksum.clone();
        Some(self)
    }

    /// The checksum of all that is read.
    pub fn checksum(&self) -> &str {
        &self.checksum
    }

    /// The descriptions of the rows.
    pub fn batches(&self) -> impl Iterator<Item = &Batch> {
        self.places.iter().map(|place| &place.batch)
    }

    /// The table of some of the rows, if they are not all of this one.
    pub fn other_table(&self, table: &str) -> Option<&str> {
        self.batches().map(|batch| batch.table.as_str()).find(|other| *other != table)
    }

    /// The lines of these rows.
    pub(super) fn lines(&self, file: &File, place: &Place) -> Result<String, Error> {
        let length = usize::try_from(place.batch.bytes).unwrap_or(usize::MAX);
        let mut compressed = vec![0; length];
        let read = self.fill(file, &mut compressed, place.offset)?;
        let same = read && entry::hexadecimal(Sha256::new().chain_update(&compressed)) == place.batch.sha256;
        let lines = Some(compressed).filter(|_| same);
        let lines = lines.and_then(|lines| zstd::decode_all(lines.as_slice()).ok());
        let lines = lines.and_then(|lines| String::from_utf8(lines).ok());
        let lines = lines.filter(|lines| lines.lines().count() as u64 == place.batch.rows);
        lines.ok_or_else(|| {
            unusable(&self.path, "it was altered meanwhile", "Use an intact copy, and run replay again")
        })
    }
}

/// The checksum of a part of the file.
fn sha256(file: &File, offset: u64, length: u64) -> io::Result<String> {
    let mut checksum = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    let (mut at, end) = (offset, offset.saturating_add(length));
    while at < end {
        let part = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
        let part = buffer.get_mut(..part).unwrap_or_default();
        file.read_exact_at(part, at)?;
        checksum.update(&*part);
        at += part.len() as u64;
    }
    Ok(entry::hexadecimal(checksum))
}
