//! `[retention]`: what becomes of rows that nobody needs any more.

use std::fmt::{self, Write};

use super::identifiers::{format_table, parse_table};
use super::quoted::quoted;
use super::raw::RawRetention;
use super::read::Reader;
use super::{Config, Outbox, TableName};

/// `[retention]`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Retention {
    /// `archive`: the table that `prune` moves rows to. `None`: it deletes them.
    pub archive: Option<TableName>,
}

pub(super) fn retention(reader: &mut Reader<'_>, raw: RawRetention, outbox: &Outbox) -> Retention {
    let Some(named) = reader.text_or_off("retention.archive", raw.archive).flatten() else {
        return Retention::default();
    };
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
    match archive {
        Ok(archive) => Retention { archive: Some(archive) },
        Err((what, remedy)) => {
            reader.problem(&named.span, "retention.archive", what, remedy);
            Retention::default()
        }
    }
}

pub(super) fn write_toml(config: &Config, out: &mut String) -> fmt::Result {
    let Some(archive) = &config.retention.archive else { return Ok(()) };
    writeln!(out, "\n[retention]")?;
    writeln!(out, "archive = {}", quoted(&format_table(archive)))
}
