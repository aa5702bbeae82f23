//! `[bookmarks]`: positions to go back to, which the router saves by itself.

use std::fmt::{self, Write};
use std::time::Duration;

use toml::Spanned;

use super::Config;
use super::quoted::quoted;
use super::raw::{Node, RawBookmarks};
use super::read::Reader;
use super::units::{format_duration, format_size};

/// Anything more frequent would keep Postgres busy with slots.
const LEAST: Duration = Duration::from_secs(10);

/// How many bookmarks are kept by default.
const KEEP: usize = 24;

/// How often bookmarks are made, and what they may cost.
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
    let every = reader.duration_or_off("bookmarks.every", raw.every, LEAST);
    let keep = reader.integer("bookmarks.keep", raw.keep, 1..=1_000);
    let max_retained_wal = match raw.max_retained_wal.as_ref().map(Spanned::get_ref) {
        Some(Node::Boolean(false)) => None,
        _ => reader.size("bookmarks.max_retained_wal", raw.max_retained_wal),
    };
    Some(Bookmarks {
        every: every?,
        keep: keep.and_then(|keep| usize::try_from(keep).ok()).unwrap_or(KEEP),
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
