//! `dead-letters show`: everything about the selected events, including payloads.

use comfy_table::{Attribute, Cell};
use pg_logical::session::Session;
use serde::Serialize;

use super::list::Listed;
use super::{condition, rows};
use crate::cli::ChooseArgs;
use crate::commands::Verdict;
use crate::commands::status::table::{Look, trimmed};
use crate::config::Config;
use crate::dead_letters::OriginalEvent;
use crate::error::Error;
use crate::postgres::dead_letters::sql::Waiting;
use crate::terminal;

/// How many are shown at most.
const MOST: u32 = 100;

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
) -> Result<Verdict, Error> {
    let rows = rows(config, session, &condition(choose), Some(MOST)).await?;
    let text = if json {
        let shown: Vec<Shown<'_>> = rows
            .iter()
            .map(|row| Shown {
                listed: Listed::of(row),
                source: &row.letter.source,
                event: &row.letter.original,
            })
            .collect();
        // cannot fail: texts and numbers only
        serde_json::to_string_pretty(&shown).unwrap_or_default() + "\n"
    } else if rows.is_empty() {
        "No such event is parked.\n".to_owned()
    } else {
        rows.iter().map(|row| render(row, &Look::of_stdout())).collect::<Vec<_>>().join("\n")
    };
    terminal::print(&text)?;
    Ok(Verdict::Fine)
}

fn render(row: &Waiting, look: &Look) -> String {
    let mut table = look.table();
    let mut line = |name: &str, value: &str| {
        table.add_row([Cell::new(name).add_attribute(Attribute::Bold), Cell::new(on_one_line(value))]);
    };
    let letter = &row.letter;
    line("position", &letter.key.to_string());
    line("reason", letter.reason.name());
    line("detail", &letter.detail);
    line("decision", row.decision.map_or("none", |decision| decision.name()));
    line("attempts", &row.attempts.to_string());
    line("written to", &letter.source);
    if let Some(mark) = &letter.replay {
        line("asked for again", mark);
    }
    trimmed(&table) + &format_original(&letter.original)
}

/// Each value on one line, however long: a value with inserted line breaks could not be copied, and wrapping long values is
/// slow.
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

/// Values written by an application must not control the terminal.
fn on_one_line(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_debug().collect() } else { vec![c] }).collect()
}
