//! `[bookmarks]`: the bookmarks that the router makes by itself.

use std::fmt::{self, Write};
use std::time::Duration;

use super::Config;
use super::quoted::quoted;
use super::raw::RawBookmarks;
use super::read::Reader;
use super::units::{format_duration, format_size};

/// The shortest interval; shorter ones would keep Postgres busy copying slots.
const MIN_INTERVAL: Duration = Duration::from_secs(10);

/// The default of `keep`.
const DEFAULT_KEEP: usize = 24;

/// How often bookmarks are made, and how many and how much log they may retain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bookmarks {
    /// `every`
    pub every: Duration,
    /// `keep`: how many are kept; the oldest is dropped first. Default 24.
    pub keep: usize,
    /// `max_retained_wal`: bytes of log that the oldest may retain before it is dropped. `None`: no limit.
    pub max_retained_wal: Option<u64>,
}

/// `None`: the router makes no bookmarks.
pub(super) fn bookmarks(reader: &mut Reader<'_>, raw: RawBookmarks) -> Option<Bookmarks> {
    let every = reader.duration_or_off("bookmarks.every", raw.every, MIN_INTERVAL);
    let keep = reader.integer("bookmarks.keep", raw.keep, 1..=1_000);
    let max_retained_wal = reader.size_or_off("bookmarks.max_retained_wal", raw.max_retained_wal);
    Some(Bookmarks {
        every: every?,
        keep: keep.and_then(|keep| usize::try_from(keep).ok()).unwrap_or(DEFAULT_KEEP),
        max_retained_wal: max_retained_wal.map(|bytes| bytes as u64),
    })
}

pub(super) fn write_toml(config: &Config, out: &mut String) -> fmt::Result {
    writeln!(out, "\n[bookmarks]")?;
    let Some(bookmarks) = &config.bookmarks else { return writeln!(out, "every = false") };
    writeln!(out, "every = {}", quoted(&format_duration(bookmarks.every)))?;
    writeln!(out, "keep = {}", bookmarks.keep)?;
    match bookmarks.max_retained_wal {
        Some(bytes) => writeln!(out, "max_retained_wal = {}", quoted(&format_size(bytes))),
        None => writeln!(out, "max_retained_wal = false"),
    }
}
