//! `dead-letters show`: everything about the selected events, including payloads.

use comfy_table::Cell;
use pg_logical::session::Session;
use serde::Serialize;

use super::list::Listed;
use super::{condition, rows};
use crate::cli::dead_letters::ChooseArgs;
use crate::commands::table::{TableStyle, bold, trimmed};
use crate::config::Config;
use crate::dead_letters::OriginalEvent;
use crate::error::Error;
use crate::postgres::dead_letters::sql::Waiting;
use crate::terminal::{self, on_one_line};

/// The largest number of events that are shown.
const LIMIT: u32 = 100;

#[derive(Debug, Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    listed: Listed,
    source: &'a str,
    /// The event as it was written: the row's columns, or the content of the message.
    event: &'a OriginalEvent,
}

pub(super) async fn show(
    config: &Config,
    session: &mut Session,
    choose: &ChooseArgs,
    json: bool,
) -> Result<(), Error> {
    let rows = rows(config, session, &condition(choose), Some(LIMIT)).await?;
    if json {
        let shown = rows.iter().map(|row| Shown {
            listed: Listed::of(row),
            source: &row.letter.source,
            event: &row.letter.original,
        });
        return terminal::print_json(&shown.collect::<Vec<_>>());
    }
    if rows.is_empty() {
        return terminal::print("No such event is parked.\n");
    }
    terminal::print(
        &rows.iter().map(|row| render(row, &TableStyle::for_stdout())).collect::<Vec<_>>().join("\n"),
    )
}

fn render(row: &Waiting, style: &TableStyle) -> String {
    let mut table = style.table();
    let mut line = |name: &str, value: &str| {
        table.add_row([bold(name), Cell::new(on_one_line(value))]);
    };
    let letter = &row.letter;
    line("position", &letter.key.to_string());
    line("reason", letter.reason.name());
    line("detail", &letter.detail);
    line("decision", row.decision.map_or("none", |decision| decision.name()));
    line("attempts", &row.attempts.to_string());
    line("written to", &letter.source);
    if let Some(mark) = &letter.replay {
        line("replay", mark);
    }
    trimmed(&table) + &format_original(&letter.original)
}

/// Prints each value on one line, so that it can be copied. Wrapping long values would also be slow.
fn format_original(original: &OriginalEvent) -> String {
    let values: Vec<(&str, &str)> = match original {
        OriginalEvent::Columns(columns) => columns
            .iter()
            .map(|column| (column.name.as_str(), column.value.as_deref().unwrap_or("NULL")))
            .collect(),
        OriginalEvent::Message(content) => vec![("message", content)],
    };
    let width = values.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
    values
        .iter()
        .map(|(name, value)| format!("  {:width$}  {}\n", on_one_line(name), on_one_line(value)))
        .collect()
}
