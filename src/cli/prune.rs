//! `prune`

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::UrlArgs;
use crate::archive::SUFFIX;
use crate::config::{TableName, parse_duration, parse_table};

pub(super) const HELP: &str = "\
It deletes rows in batches, the oldest first. If `archive` in [retention] names a table, they go there in the same transaction; with \
--archive they are on the disk, as lines of JSON, before they are deleted. A row is \
deleted only if the confirmed position of every slot of the router is past it (with polling: if its status is published), and never if it \
is parked or failed. Applications go on meanwhile. Deletes produce no events.

A partition of a table made with init --partitioned is dropped once its last day is old and nobody needs its rows, or, with an archive or a \
trigger for deletes, once it is empty.

A business key (idempotency_key) may be used again once its row is deleted, and `replay` no longer finds the row.

Exit codes:
  0  nothing is left to delete, or it was shown
  1  it was interrupted, or a server refuses or cannot be reached
  2  usage or configuration

Examples:
  outbox-router prune --older-than 30d --dry-run
  outbox-router prune --older-than 30d
  outbox-router prune --older-than 30d --archive /backup/outbox.jsonl.zst";

/// `prune`
#[derive(Debug, Clone, Args)]
pub struct PruneArgs {
    /// Only rows that were inserted so long ago, as 30d. Less than 7d needs --force
    #[arg(long, value_name = "TIME", value_parser = age)]
    pub older_than: Duration,

    /// Only rows of this outbox table [default: all that are configured]
    #[arg(long, value_parser = parse_table)]
    pub table: Option<TableName>,

    /// Write them to this file, or append them to it
    #[arg(long, value_name = "FILE.jsonl.zst", value_parser = archive_file)]
    pub archive: Option<PathBuf>,

    /// How many rows are deleted in one transaction
    #[arg(long, value_name = "ROWS", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub batch: u32,

    /// Also if they are younger than 7 days
    #[arg(long)]
    pub force: bool,

    /// Show how many rows would be deleted, and delete none
    #[arg(long)]
    pub dry_run: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// How to connect.
    #[command(flatten)]
    pub connection: UrlArgs,
}

/// The name of an archive file.
pub(super) fn archive_file(text: &str) -> Result<PathBuf, String> {
    match text.strip_suffix(SUFFIX) {
        Some(name) if !name.is_empty() && !name.ends_with('/') => Ok(text.into()),
        _ => Err(format!(
            "its name has to end with {SUFFIX}; the table of an archive is configured under [retention]"
        )),
    }
}

/// The highest age, in days.
const LONGEST: u64 = 36_500;

fn age(text: &str) -> Result<Duration, String> {
    let age = parse_duration(text).filter(|age| age.as_secs() <= LONGEST * 86_400);
    age.ok_or_else(|| format!("expected a time, such as 30d or 12h, of at most {LONGEST}d"))
}
