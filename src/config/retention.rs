//! `[retention]`: what becomes of rows that nobody needs any more.

use std::fmt::{self, Write};
use std::time::Duration;

use super::identifiers::{format_table, parse_table};
use super::quoted::quoted;
use super::raw::{RawRetention, Value};
use super::read::{Reader, is_off};
use super::units::format_duration;
use super::{Config, Outbox, TableName};

/// Rows that are younger may be needed for a replay.
pub const SHORTEST_KEEP: Duration = Duration::from_secs(7 * 86_400);

/// A hundred years.
const LONGEST_KEEP: Duration = Duration::from_secs(36_500 * 86_400);

/// `[retention]`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Retention {
    /// `keep`: how long `run` keeps delivered rows. `None`: it deletes none.
    pub keep: Option<Duration>,
    /// `archive`: the table that rows are moved to. `None`: they are deleted.
    pub archive: Option<TableName>,
    /// `keep_archived`: how old rows of the archive become. `None`: they stay.
    pub keep_archived: Option<Duration>,
}

pub(super) fn retention(reader: &mut Reader<'_>, raw: RawRetention, outbox: &Outbox) -> Retention {
    let is_set = |value: &Value| value.as_ref().is_some_and(|value| !is_off(value.get_ref()));
    let (has_keep, has_archive) = (is_set(&raw.keep), is_set(&raw.archive));
    let mut age = |key: &str, value: Value| {
        let value = value.filter(|value| !is_off(value.get_ref()))?;
        let span = value.span();
        let age = reader.duration_within(key, Some(value), SHORTEST_KEEP..=LONGEST_KEEP)?;
        Some((age, span))
    };
    let keep = age("retention.keep", raw.keep);
    let keep_archived = age("retention.keep_archived", raw.keep_archived);
    let archive = archive(reader, raw.archive, outbox);
    if let Some((_, span)) = &keep {
        let problem = match &outbox.columns.created_at {
            None => Some((
                "`[outbox.columns] created_at` is false, and without a time nobody knows which rows are old",
                "Remove it, or name the column with the time of the insert",
            )),
            Some(_) if outbox.tables.is_empty() => {
                Some(("no outbox table is configured", "Remove it, or name one as `[outbox] table`"))
            }
            Some(_) => None,
        };
        if let Some((what, remedy)) = problem {
            reader.problem(span, "retention.keep", what, remedy);
        }
    }
    if let Some((archived, span)) = &keep_archived {
        let what = match &keep {
            _ if !has_keep => Some("it needs `keep`"),
            _ if !has_archive => Some("it needs `archive`"),
            Some((keep, _)) if archived <= keep => {
                Some("it is not longer than `keep`, and both count from the insert")
            }
            _ => None,
        };
        if let Some(what) = what {
            let remedy = "Remove it, or set `keep`, `archive`, and a longer time here";
            reader.problem(span, "retention.keep_archived", what, remedy);
        }
    }
    let [keep, keep_archived] = [keep, keep_archived].map(|age| age.map(|(age, _)| age));
    Retention { keep, archive, keep_archived }
}

fn archive(reader: &mut Reader<'_>, value: Value, outbox: &Outbox) -> Option<TableName> {
    let named = reader.text_or_off("retention.archive", value).flatten()?;
    let archive = match parse_table(&named.text) {
        Err(what) => Err((what, "Write it as schema.name")),
        Ok(table) if outbox.tables.contains(&table) => {
            Err(("it is the outbox table itself".to_owned(), "Name another table"))
        }
        Ok(_) if outbox.tables.len() > 1 => {
            Err(("there are several outbox tables".to_owned(), "Remove it, or configure one table"))
        }
        Ok(table) => Ok(table),
    };
    archive.map_err(|(what, remedy)| reader.problem(&named.span, "retention.archive", what, remedy)).ok()
}

pub(super) fn write_toml(config: &Config, out: &mut String) -> fmt::Result {
    let Retention { keep, archive, keep_archived } = &config.retention;
    if config.retention == Retention::default() {
        return Ok(());
    }
    writeln!(out, "\n[retention]")?;
    if let Some(keep) = keep {
        writeln!(out, "keep = {}", quoted(&format_duration(*keep)))?;
    }
    if let Some(archive) = archive {
        writeln!(out, "archive = {}", quoted(&format_table(archive)))?;
    }
    if let Some(keep) = keep_archived {
        writeln!(out, "keep_archived = {}", quoted(&format_duration(*keep)))?;
    }
    Ok(())
}
