//! Where the rows of a dry run come from.

use std::io::BufRead;

use pg_logical::QueryError;
use pg_logical::connect::{Startup, VALUE_TEXT};
use pg_logical::quoting;
use pg_logical::quoting::literal;
use pg_logical::session::Session;
use tokio_postgres::error::SqlState;

use super::DryRun;
use crate::advice::OrRemedy;
use crate::cli::PreviewArgs;
use crate::commands::columns::{Column, columns, find};
use crate::commands::connect;
use crate::config::{Config, TableName};
use crate::error::{Error, ErrorCode};
use crate::outbox::{Field, OutboxError, named_by};

/// The class of SQLSTATEs for invalid values: 22P02 is a text that is not a UUID, for example.
const DATA_EXCEPTION: &str = "22";

/// How many rows of a table are read without `--limit`.
const ROWS_OF_A_TABLE: u32 = 10;

/// The last rows of each table, or those with one id.
pub(super) async fn of_tables(config: &Config, args: &PreviewArgs, dry: &mut DryRun) -> Result<(), Error> {
    if config.outbox.tables.is_empty() {
        return Err(Error::usage(
            ErrorCode::CommandLine,
            "No outbox table is configured to read rows from",
            "Give events as JSON objects, as in messages, on standard input: --stdin",
        ));
    }
    let startup = Startup { settings: &VALUE_TEXT, ..Startup::default() };
    let mut session = connect(config, "route", startup).await?;
    for table in &config.outbox.tables {
        of_table(&mut session, config, args, table, dry).await?;
    }
    session.close().await;
    Ok(())
}

/// The last rows of one table, or those with one id.
pub(in crate::commands) async fn of_table(
    session: &mut Session,
    config: &Config,
    args: &PreviewArgs,
    table: &TableName,
    dry: &mut DryRun,
) -> Result<(), Error> {
    // the stream does not contain unpublished columns
    let mut columns = columns(session, config, table).await?;
    columns.retain(|column| column.sent);
    if columns.is_empty() {
        return Err(Error::refused(
            ErrorCode::TableMissing,
            format!("the outbox table {table} does not exist in this database"),
            "Correct `[outbox] table` or the database in `[postgres] url`, or run `outbox-router init`",
        ));
    }
    // the query may scan the whole table
    session.set_answer_timeout(None);
    let rows = session
        .query(&select(config, args, table, &columns))
        .await
        .map_err(|error| refused(error, config, args))?;
    let mut row_memory = dry.outbox.owned_row(table);
    for (number, row) in (1..).zip(&rows) {
        let values =
            (1..).zip(&columns).map(|(index, column)| (column.name.as_str(), column.read_as, row.get(index)));
        let xid = row.get(0).and_then(|xid| xid.parse().ok()).unwrap_or(0);
        match dry.outbox.read_row(&mut row_memory, values) {
            Ok(event) => dry.event(&event, xid, number),
            Err(error) => dry.unreadable(number, error.to_string()),
        }
    }
    Ok(())
}

/// The newest rows first: by `created_at`, or else by the transactions that wrote them.
fn select(config: &Config, args: &PreviewArgs, table: &TableName, columns: &[Column]) -> String {
    let names: Vec<String> = columns.iter().map(|column| quoting::identifier(&column.name)).collect();
    let wanted = match &args.id {
        // Postgres converts the text to the column's type, so any spelling of a UUID is found
        Some(id) => format!(" WHERE {} = {}", quoting::identifier(&config.outbox.columns.id), literal(id)),
        None => String::new(),
    };
    let created_at = Field::CreatedAt.column(&config.outbox.columns);
    let order = match created_at.filter(|name| find(columns, name).is_some()) {
        Some(name) => format!(" ORDER BY {} DESC NULLS LAST", quoting::identifier(name)),
        None => " ORDER BY pg_catalog.age(xmin), ctid DESC".to_owned(),
    };
    format!(
        "SELECT xmin::text, {} FROM {}{wanted}{order} LIMIT {}",
        names.join(", "),
        table.in_sql(),
        args.limit.unwrap_or(ROWS_OF_A_TABLE)
    )
}

fn refused(error: QueryError, config: &Config, args: &PreviewArgs) -> Error {
    let not_of_the_type = error.code().is_some_and(|code| code.code().starts_with(DATA_EXCEPTION));
    if let (true, Some(_)) = (not_of_the_type, &args.id) {
        let column = &config.outbox.columns.id;
        return Error::usage(
            ErrorCode::CommandLine,
            format!("--id is not a valid value of the column {column:?}"),
            "Write it as Postgres prints it",
        );
    }
    if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        return error.or_remedy(
            "Give the connection of a role with the SELECT privilege, which the router itself does not need, with --url, or give rows \
             as JSON on standard input: --stdin",
        );
    }
    error.or_remedy(
        "Correct `[outbox] table`, which must be an ordinary or partitioned table, or `[outbox] columns`, or give rows as JSON on \
         standard input: --stdin",
    )
}

/// One JSON object a line, with members named like the columns. Without a limit, all lines are read.
pub(in crate::commands) fn of_lines(
    input: impl BufRead,
    config: &Config,
    limit: Option<u32>,
    dry: &mut DryRun,
) -> Result<(), Error> {
    let source = config.outbox.tables.first().cloned();
    let source =
        source.unwrap_or_else(|| TableName { schema: "message".to_owned(), name: "stdin".to_owned() });
    let mut row = dry.outbox.owned_row(&source);
    let mut read = 0;
    // unlike lines(), split() continues after a line that is not UTF-8
    for (number, line) in (1..).zip(input.split(b'\n')) {
        let line = line.map_err(|error| {
            Error::usage(
                ErrorCode::InputOutput,
                format!("Cannot read standard input: {error}"),
                "Give one JSON object on each line",
            )
        })?;
        if line.trim_ascii().is_empty() {
            continue;
        }
        if limit.is_some_and(|limit| read >= u64::from(limit)) {
            break;
        }
        read += 1;
        if let Err(error) = std::str::from_utf8(&line) {
            dry.unreadable(number, format!("the line is not UTF-8 (at byte {})", error.valid_up_to() + 1));
            continue;
        }
        match dry.outbox.read_json(&mut row, &line) {
            Ok(event) => dry.event(&event, 0, read),
            Err(error) => dry.unreadable(number, fault_of_line(&error)),
        }
    }
    Ok(())
}

/// The error for a line, which unlike a message has no prefix to name.
fn fault_of_line(error: &OutboxError) -> String {
    match error {
        OutboxError::Message { at, .. } => {
            format!("the line is not a JSON object of an event (at byte {at})")
        }
        OutboxError::MissingMember { member, key, .. } => {
            format!("the line has no member {member:?}, which {}", named_by(key))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::route::show::Outcome;
    use crate::config::minimal_with;

    /// The ids of the resulting events.
    fn ids(input: &[u8], limit: Option<u32>) -> Vec<String> {
        of("", input, limit).into_iter().map(|(id, _)| id).collect()
    }

    /// The id of each row, and the reason if it was refused.
    fn of(more: &str, input: &[u8], limit: Option<u32>) -> Vec<(String, String)> {
        let config = minimal_with(more);
        let mut dry = DryRun::new(&config).unwrap();
        of_lines(input, &config, limit, &mut dry).unwrap();
        let shown = dry.shown.into_iter().map(|shown| match shown.outcome {
            Outcome::Refused { reason, .. } => (shown.id, reason),
            _ => (shown.id, String::new()),
        });
        shown.collect()
    }

    #[test]
    fn all_lines_are_read_unless_there_is_a_limit() {
        let lines: String = (1..=25)
            .map(|id| {
                format!(
                    "{{\"id\": \"{id}\", \"aggregate_type\": \"order\", \"aggregate_id\": \"7\", \
                     \"event_type\": \"made\", \"payload\": null}}\n"
                )
            })
            .collect();
        assert_eq!(ids(lines.as_bytes(), None).len(), 25);
        assert_eq!(ids(lines.as_bytes(), Some(2)), ["1", "2"]);
    }

    #[test]
    fn a_row_is_called_by_the_number_of_its_line() {
        let refused = of("", b"\n{\"id\": \"1\"}\r\n \nno json\n", None);
        let [missing, none] = refused.as_slice() else { panic!("{refused:?}") };
        assert_eq!(missing.0, "row 2");
        let named = "which `[outbox] columns` names as `aggregate_type`";
        assert_eq!(missing.1, format!("the line has no member \"aggregate_type\", {named}"));
        assert_eq!(none.0, "row 4");
        assert_eq!(none.1, "the line is not a JSON object of an event (at byte 2)");
    }

    #[test]
    fn a_line_that_is_not_utf8_is_one_refused_row() {
        let event = b"{\"id\": \"e\", \"aggregate_type\": \"order\", \"aggregate_id\": \"7\", \"event_type\": \"made\", \"payload\": 1}\n";
        let shown = of("", &[b"{\"id\": \"\xff\"}\n", &event[..]].concat(), None);
        let refused = ("row 1".to_owned(), "the line is not UTF-8 (at byte 9)".to_owned());
        assert_eq!(shown, [refused, ("e".to_owned(), String::new())]);
    }
}
