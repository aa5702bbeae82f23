//! Rows of an archive file.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use pg_logical::quoting::literal;
use pg_logical::session::{Row, Session};

use super::{Asked, Filter, Found, Rows, Wanted};
use crate::archive::contents::Contents;
use crate::archive::rows::FileRows;
use crate::archive::{Column, on_a_thread};
use crate::commands::replay::arguments::{readable, verify};
use crate::config::{Config, TableName};
use crate::error::{Error, ErrorCode};
use crate::outbox::Field;
use crate::postgres::rows::layout::TableLayout;
use crate::postgres::rows::order::{Order, order};
use crate::postgres::rows::{read_only, text_array};
use crate::replay::Conversion;

/// The name of a file, whatever the working directory of the next command is.
pub(super) fn absolute(path: &Path) -> Result<String, Error> {
    let absolute = std::path::absolute(path).ok().and_then(|path| path.to_str().map(str::to_owned));
    absolute.ok_or_else(|| {
        Error::usage(
            ErrorCode::CommandLine,
            format!("--from {}: the path is not UTF-8", path.display()),
            "Give its folders and the file names in UTF-8",
        )
    })
}

/// Reads and verifies the whole file, if one is named.
pub(super) async fn read(path: Option<&str>) -> Result<Option<Contents>, Error> {
    let Some(path) = path.map(str::to_owned) else { return Ok(None) };
    on_a_thread(move || Contents::read(Path::new(&path))).await.map(Some)
}

/// Identifies the contents, because places in the file order rows of one time.
pub(super) fn order_by(contents: &Contents) -> String {
    format!("file {}", contents.checksum())
}

pub(super) async fn find(
    session: &mut Session,
    config: &Config,
    for_rows: &Config,
    contents: Contents,
    wanted: &Wanted<'_>,
) -> Result<Found, Error> {
    let impossible = |what: String, remedy: &str| Error::refused(ErrorCode::ReplayImpossible, what, remedy);
    let Wanted { outbox, since, selection, asked, .. } = wanted;
    let place = selection.file.clone().unwrap_or_default();
    if let Some(other) = contents.other_table(&outbox.to_string()) {
        return Err(impossible(
            format!("{place} has rows of {other}, and not of {outbox}"),
            "Name another file, or use the configuration of that table",
        ));
    }
    // another prune may have appended rows meanwhile
    let contents = match asked {
        Asked::Now(_) => Some(contents.complete()?),
        Asked::Before(request) => contents.up_to(request.order_by.strip_prefix("file ").unwrap_or_default()),
    };
    let contents = contents.ok_or_else(|| {
        impossible(
            format!("{place} is not the file that it was when the replay was begun"),
            "Bring that file back, or begin another replay",
        )
    })?;
    let layout = TableLayout::existing(session, outbox).await?;
    let created_at = layout.time_column(&config.outbox).map_err(|why| impossible(why, "Name one"))?;
    let columns = Conversion::columns(for_rows, &layout);
    check_columns(session, config, &contents, outbox, &columns).await?;
    let mut filters = Vec::new();
    for Filter { column, option, values } in wanted.filters(config)? {
        verify(session, outbox, &column, option, values).await?;
        let values = as_printed(session, outbox, &column, values).await?;
        filters.push((column, values));
    }
    let until = wanted.until(&layout, created_at);
    let discarded = config
        .polling
        .as_ref()
        .map(|polling| (polling.columns.published_at.clone(), polling.columns.last_error.clone()));
    let order = order(session, &config.outbox, config.polling.as_ref(), &layout, outbox, created_at).await;
    let Order { of_insert, tie, .. } = order.map_err(readable)?;
    let rows = FileRows {
        contents: Arc::new(contents),
        created_at: created_at.to_owned(),
        tie,
        columns,
        filters,
        since: *since,
        until,
        discarded,
    };
    Ok(Found {
        layout,
        place,
        rows: Rows::File(rows),
        horizon: String::new(),
        not_delivered: 0,
        of_insert,
        until,
    })
}

/// Refuses rows that the configuration does not fit, as after a change of the table. Columns that were added since are NULL.
async fn check_columns(
    session: &mut Session,
    config: &Config,
    contents: &Contents,
    outbox: &TableName,
    columns: &[String],
) -> Result<(), Error> {
    let now = types(session, outbox).await?;
    let mapping = &config.outbox.columns;
    let needed = [Field::Id, Field::AggregateType, Field::AggregateId, Field::Payload, Field::CreatedAt];
    let needed: Vec<&str> = needed.iter().filter_map(|field| field.column(mapping)).collect();
    let mut checked: Option<&[Column]> = None;
    for batch in contents.batches() {
        if checked == Some(&batch.columns) {
            continue;
        }
        checked = Some(&batch.columns);
        let types: HashMap<&str, &str> =
            batch.columns.iter().map(|column| (column.name.as_str(), column.type_name.as_str())).collect();
        for name in columns {
            let problem = match (types.get(name.as_str()), now.get(name)) {
                (None, _) if needed.contains(&name.as_str()) => "was not there".to_owned(),
                (Some(before), Some(now)) if before != now => {
                    format!("had the type {before} and has {now} now")
                }
                _ => continue,
            };
            return Err(Error::refused(
                ErrorCode::ReplayImpossible,
                format!("when the rows were archived, the column {name} of {outbox} {problem}"),
                "Use a table with the old columns and a configuration for it",
            ));
        }
    }
    Ok(())
}

/// The types of the columns of a table, as prune writes them.
async fn types(session: &mut Session, table: &TableName) -> Result<HashMap<String, String>, Error> {
    let sql = format!(
        "SELECT a.attname, format_type(a.atttypid, NULL) FROM pg_attribute a WHERE a.attrelid = {}::regclass \
         AND a.attnum > 0 AND NOT a.attisdropped",
        literal(&table.in_sql())
    );
    let rows = session.query(&read_only(&sql)).await.map_err(readable)?;
    let of = |row: &Row| Some((row.get(0)?.to_owned(), row.get(1)?.to_owned()));
    Ok(rows.iter().filter_map(of).collect())
}

/// The values as Postgres prints those of the column, such as a UUID in lower case. Those that a cast to its type would cut off are none.
async fn as_printed(
    session: &mut Session,
    table: &TableName,
    column: &str,
    values: &[String],
) -> Result<Vec<String>, Error> {
    let sql = format!(
        "SELECT format_type(a.atttypid, a.atttypmod), format_type(a.atttypid, -1) FROM pg_attribute a WHERE a.attrelid = {}::regclass \
         AND a.attname = {}",
        literal(&table.in_sql()),
        literal(column)
    );
    let types = session.query(&read_only(&sql)).await.map_err(readable)?;
    let of = |index: usize| types.first().and_then(|row: &Row| row.get(index)).unwrap_or("text");
    let (limited, unlimited) = (of(0), of(1));
    let sql = format!(
        "SELECT v::{limited} FROM unnest({}) v WHERE v::{limited} = v::{unlimited}",
        text_array(values)
    );
    let rows = session.query(&read_only(&sql)).await.map_err(readable)?;
    Ok(rows.iter().filter_map(|row| row.get(0).map(str::to_owned)).collect())
}
