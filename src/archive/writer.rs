//! Appends rows to a file. Each batch is synced before it counts.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::contents::Contents;
use super::entry::{self, Entry, hexadecimal};
use super::{Batch, unusable};
use crate::error::Error;
use crate::postgres::prunes::{DeletedRows, Store};

/// How hard zstd tries: its default.
const LEVEL: i32 = 3;

const REMEDY: &str = "Correct that, and run prune with the same --archive again";

/// A file that this process has locked.
#[derive(Debug)]
pub struct Writer {
    file: File,
    path: PathBuf,
    /// The table, as in the configuration.
    table: String,
    end: End,
    /// Where it was before the last batch.
    before: End,
    /// Whether part of an entry may be behind the last complete one.
    broken: bool,
}

/// The end of what is written.
#[derive(Debug, Clone)]
struct End {
    /// In bytes.
    length: u64,
    rows: u64,
    /// The checksum of the last description.
    checksum: String,
    /// Whether the last entry is an end.
    ended: bool,
}

impl Writer {
    /// Opens a file for rows of a table; if there is one, it is continued, and an incomplete entry is cut off.
    ///
    /// # Errors
    /// It cannot be written, is something else, was altered, or has rows of another table.
    pub fn open(path: &Path, table: &str) -> Result<Self, Error> {
        let cannot = |error: io::Error| cannot_write(path, &error);
        if path.metadata().is_ok_and(|known| !known.is_file()) {
            return Err(unusable(path, "it is not a regular file", "Name another file"));
        }
        let mut options = OpenOptions::new();
        // rows may be personal data
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path).map_err(cannot)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                return Err(unusable(path, "another process is writing it", "Wait until it has ended"));
            }
            // a second prune of the same table is kept out in any case
            Err(error) => tracing::warn!("{} cannot be locked: {error}", path.display()),
            Ok(()) => {}
        }
        let contents = verified(path, table)?;
        if contents.length == 0 {
            // otherwise a crash may take the name of the file away
            let real = path.canonicalize().map_err(cannot)?;
            let folder = real.parent().unwrap_or(Path::new("/"));
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(cannot)?;
        }
        let ended = contents.is_complete();
        let Contents { rows, checksum, length, incomplete, .. } = contents;
        if incomplete > 0 {
            tracing::warn!("cut off {incomplete} bytes of an incomplete batch in {}", path.display());
            file.set_len(length).map_err(cannot)?;
        }
        if !ended && rows > 0 {
            tracing::info!("continuing {} after {rows} rows of a prune that was killed", path.display());
        }
        let end = End { length, rows, checksum, ended };
        let (path, table) = (path.to_owned(), table.to_owned());
        Ok(Writer { file, path, table, before: end.clone(), end, broken: false })
    }

    /// Writes the end.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(mut self) -> Result<(), Error> {
        if self.broken || self.end.ended { Ok(()) } else { self.append(&Entry::End(self.end.rows), &[]) }
    }

    /// Appends an entry, and returns when it is on the disk.
    fn append(&mut self, entry: &Entry, data: &[u8]) -> Result<(), Error> {
        let mut bytes = Vec::with_capacity(data.len() + 4096);
        let checksum = entry::write(&mut bytes, &self.end.checksum, entry);
        bytes.extend(data);
        if let Err(error) = self.write(&bytes) {
            self.cut_off(self.end.length);
            return Err(cannot_write(&self.path, &error));
        }
        self.end.length += bytes.len() as u64;
        self.end.checksum = checksum;
        self.end.ended = matches!(entry, Entry::End(_));
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (here, there) = (self.file.metadata()?, self.path.metadata()?);
        if (here.dev(), here.ino()) != (there.dev(), there.ino()) || here.len() != self.end.length {
            return Err(io::Error::other("somebody has removed or changed it meanwhile"));
        }
        self.file.seek(SeekFrom::Start(self.end.length))?;
        self.file.write_all(bytes)?;
        self.file.sync_data()
    }

    /// Cuts off what is behind `length`. If that fails, the next prune does it.
    fn cut_off(&mut self, length: u64) {
        self.broken |= self.file.set_len(length).is_err();
    }
}

impl Store for Writer {
    /// Blocks the thread: a prune does nothing else meanwhile.
    fn add(&mut self, rows: DeletedRows<'_>) -> Result<(), Error> {
        let is_row = |line: &str| serde_json::from_str::<HashMap<String, &RawValue>>(line).is_ok();
        let columns = serde_json::from_str(rows.columns);
        let complete = rows.lines.lines().count() as u64 == rows.count && rows.lines.lines().all(is_row);
        let Some(columns) = columns.ok().filter(|_| complete) else {
            let what = format!("Postgres has not returned {} rows in JSON", rows.count);
            return Err(unusable(&self.path, what, "Report this as a bug"));
        };
        let compressed = zstd::bulk::compress(rows.lines.as_bytes(), LEVEL)
            .map_err(|error| cannot_write(&self.path, &error))?;
        let entry = Entry::Rows(Batch {
            table: self.table.clone(),
            columns,
            rows: rows.count,
            first: rows.times.0,
            last: rows.times.1,
            bytes: compressed.len() as u64,
            sha256: hexadecimal(Sha256::new().chain_update(&compressed)),
        });
        self.before = self.end.clone();
        self.append(&entry, &compressed)?;
        self.end.rows += rows.count;
        Ok(())
    }

    fn undo(&mut self) {
        self.cut_off(self.before.length);
        self.end = self.before.clone();
    }
}

/// Reads and verifies a file for rows of a table.
///
/// # Errors
/// It cannot be read, is something else, was altered, or has rows of another table.
pub fn verified(path: &Path, table: &str) -> Result<Contents, Error> {
    let contents = Contents::read(path)?;
    if let Some(other) = contents.other_table(table) {
        let why = format!("it has rows of {other}, and not of {table}");
        return Err(unusable(path, why, "Name a file for each table"));
    }
    Ok(contents)
}

fn cannot_write(path: &Path, error: &io::Error) -> Error {
    unusable(path, format!("it cannot be written: {error}"), REMEDY)
}
