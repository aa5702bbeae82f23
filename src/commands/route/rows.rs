//! Where the rows of a dry run come from.

use std::io::BufRead;

use super::DryRun;
use crate::cli::RouteArgs;
use crate::commands::connect;
use crate::commands::init::columns_query;
use crate::config::{Config, TableName};
use crate::error::Error;
use crate::outbox::{ColumnType, Field};
use crate::postgres::connect::{Startup, VALUE_TEXT};
use crate::postgres::pgoutput::Oid;
use crate::postgres::quoting::{self, literal};
use crate::postgres::server_error::QueryError;
use crate::postgres::session::Session;

/// How many rows of a table are read without `--limit`.
const ROWS_OF_A_TABLE: u32 = 10;

/// The last rows of each table, or those with one id.
pub(super) async fn of_tables(config: &Config, args: &RouteArgs, dry: &mut DryRun) -> Result<(), Error> {
    if config.outbox.tables.is_empty() {
        return Err(Error::usage(
            "There is no outbox table to read rows of",
            "Give JSON objects, as messages hold them, on standard input: --stdin",
        ));
    }
    let name = format!("{} route", config.name);
    let startup = Startup { application_name: &name, settings: &VALUE_TEXT, ..Startup::default() };
    let mut session = connect(config, &startup).await?;
    for table in &config.outbox.tables {
        of_table(&mut session, config, args, table, dry).await?;
    }
    session.close().await;
    Ok(())
}

async fn of_table(
    session: &mut Session,
    config: &Config,
    args: &RouteArgs,
    table: &TableName,
    dry: &mut DryRun,
) -> Result<(), Error> {
    let rows = session.query(&columns_query(config, table)).await?;
    // what is not published is not in the stream either
    let columns: Vec<(String, ColumnType)> = rows
        .iter()
        .filter(|row| row.get(4) == Some("t"))
        .filter_map(|row| {
            let id = Oid(row.get(6)?.parse().ok()?);
            let of = match row.get(7) {
                Some(name) => ColumnType::own(id, name),
                None => ColumnType::built_in(id, row.get(5)?.parse().ok()?),
            };
            Some((row.get(0)?.to_owned(), of))
        })
        .collect();
    if columns.is_empty() {
        return Err(Error::refused(
            format!("the outbox table {table} does not exist in this database"),
            "Correct `[outbox] table` or the database in `[postgres] url`, or run `outbox-router init`",
        ));
    }
    let rows = session.query(&select(config, args, table, &columns)).await.map_err(refused)?;
    let mut row_memory = dry.outbox.owned_row(table);
    for (number, row) in rows.iter().enumerate() {
        let values = columns
            .iter()
            .enumerate()
            .map(|(index, (column, of))| (column.as_str(), *of, row.get(index + 1)));
        let xid = row.get(0).and_then(|xid| xid.parse().ok()).unwrap_or(0);
        let read = dry.outbox.read_row(&mut row_memory, values);
        dry.event(&read, xid, number as u64 + 1);
    }
    Ok(())
}

/// The newest first, as far as the table tells.
fn select(config: &Config, args: &RouteArgs, table: &TableName, columns: &[(String, ColumnType)]) -> String {
    let names: Vec<String> = columns.iter().map(|(column, _)| quoting::name(column)).collect();
    let wanted = match &args.id {
        Some(id) => format!(" WHERE {}::text = {}", quoting::name(&config.outbox.columns.id), literal(id)),
        None => String::new(),
    };
    let created_at = Field::CreatedAt.column(&config.outbox.columns);
    let order = match created_at.filter(|name| columns.iter().any(|(column, _)| column == name)) {
        Some(name) => format!(" ORDER BY {} DESC NULLS LAST", quoting::name(name)),
        None => String::new(),
    };
    format!(
        "SELECT xmin::text, {} FROM {}{wanted}{order} LIMIT {}",
        names.join(", "),
        quoting::table(table),
        args.limit.unwrap_or(ROWS_OF_A_TABLE)
    )
}

fn refused(error: QueryError) -> Error {
    error.or_remedy(
        "Reading rows takes the SELECT privilege, which the router itself does not need: connect as a role that has it, \
         or give rows as JSON on standard input: --stdin"
            .to_owned(),
    )
}

/// A JSON object on each line, with members named like the columns. Without a limit all of them are read.
pub(super) fn of_lines(
    input: impl BufRead,
    config: &Config,
    limit: Option<u32>,
    dry: &mut DryRun,
) -> Result<(), Error> {
    let source = config.outbox.tables.first().cloned();
    let source =
        source.unwrap_or_else(|| TableName { schema: "message".to_owned(), name: "stdin".to_owned() });
    let mut row = dry.outbox.owned_row(&source);
    let mut number = 0;
    for line in input.lines() {
        let line = line.map_err(|error| {
            Error::usage(
                format!("Cannot read standard input: {error}"),
                "Give one JSON object on each line, as UTF-8",
            )
        })?;
        if line.trim().is_empty() {
            continue;
        }
        if limit.is_some_and(|limit| number >= u64::from(limit)) {
            break;
        }
        number += 1;
        let read = dry.outbox.read_json(&mut row, line.as_bytes());
        dry.event(&read, 0, number);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::route::show::Outcome;
    use crate::config::minimal_with;

    /// The ids of what came of the lines.
    fn ids(input: &[u8], limit: Option<u32>) -> Vec<String> {
        of(input, limit).into_iter().map(|(id, _)| id).collect()
    }

    /// The id of each row, and the reason if it was refused.
    fn of(input: &[u8], limit: Option<u32>) -> Vec<(String, String)> {
        let config = minimal_with("");
        let mut dry = DryRun::new(&config).unwrap();
        of_lines(input, &config, limit, &mut dry).unwrap();
        let shown = dry.shown.into_iter().map(|shown| match shown.outcome {
            Outcome::Refused { reason } => (shown.id, reason),
            _ => (shown.id, String::new()),
        });
        shown.collect()
    }

    #[test]
    fn all_lines_are_read_unless_there_is_a_limit() {
        let lines: String = (1..=25)
            .map(|id| {
                format!("{{\"id\": \"{id}\", \"aggregate_type\": \"order\", \"aggregate_id\": \"7\"}}\n")
            })
            .collect();
        assert_eq!(ids(lines.as_bytes(), None).len(), 25);
        assert_eq!(ids(lines.as_bytes(), Some(2)), ["1", "2"]);
    }
}
