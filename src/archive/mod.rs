//! Files with old rows, which `prune` writes and `replay` reads.
//!
//! A file is a sequence of entries. Each begins with a skippable frame of zstd (RFC 8878) that describes it; if it is one of rows, a frame
//! with a JSON object on a line for each row follows. `zstd -dc` therefore prints the rows and nothing else. Descriptions are chained by
//! their checksums, so that a missing or altered entry is noticed. Every prune appends entries of rows, and an end.

pub mod contents;
mod entry;
pub mod rows;
#[cfg(test)]
mod tests;
pub mod writer;

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorCode};

/// How the names of such files end.
pub const SUFFIX: &str = ".jsonl.zst";

/// A column of an outbox when its rows were archived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type, as in SQL.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Whether its values are JSON, and not strings.
    pub json: bool,
}

/// The description of rows that were deleted in one transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The outbox table.
    pub table: String,
    /// Its columns.
    pub columns: Vec<Column>,
    /// How many rows there are, in the order of their inserts.
    pub rows: u64,
    /// The times of the first and the last insert, in microseconds since 1970. `None`: no row has a finite one.
    pub first: Option<i64>,
    /// As for `first`.
    pub last: Option<i64>,
    /// How many bytes of compressed rows follow.
    pub bytes: u64,
    /// Their SHA-256, in hexadecimal digits.
    pub sha256: String,
}

/// Does work with a file that takes long on a thread of its own.
///
/// # Errors
/// Those of the work.
pub async fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        Err(Error::refused(ErrorCode::Bug, error.to_string(), "Report this as a bug"))
    })
}

fn cannot_read(path: &Path, error: &std::io::Error) -> Error {
    unusable(path, format!("it cannot be read: {error}"), "Correct that, or name another file")
}

/// The file cannot be used.
fn unusable(path: &Path, why: impl std::fmt::Display, remedy: &str) -> Error {
    Error::refused(ErrorCode::ArchiveUnusable, format!("the archive {}: {why}", path.display()), remedy)
}
