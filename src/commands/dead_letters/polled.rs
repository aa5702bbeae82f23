//! `dead-letters` for a router that polls: the rows of the outbox that were refused, and those behind them.

use comfy_table::Cell;
use pg_logical::connect::Startup;
use pg_logical::session::{Row, Session};
use serde::Serialize;

use super::list::{on_terminal, total};
use super::verify_choice;
use crate::advice::OrRemedy;
use crate::cli::dead_letters::{ChooseArgs, DeadLettersCommand, DecideArgs};
use crate::commands::table::{TableStyle, bold, trimmed};
use crate::commands::{confirm_by_count, connect};
use crate::config::{Config, Polling};
use crate::dead_letters::Decision;
use crate::error::{Error, ErrorCode, Remedy, Step};
use crate::postgres::administrator::init_remedy;
use crate::postgres::polling::refused::RefusedRows;
use crate::quantity::counted;
use crate::terminal::{self, on_one_line};
use crate::unsendable::Reason;

/// How many rows are listed before the confirmation, and shown in full.
const SHOWN: u32 = 20;
const SHOWN_IN_FULL: u32 = 100;

/// One row. The members are keys of the JSON that commands print.
#[derive(Debug, Serialize)]
struct Listed {
    position: String,
    id: Option<String>,
    aggregate_type: Option<String>,
    aggregate_id: Option<String>,
    event_type: Option<String>,
    /// `failed`, or `waiting` for its next attempt, or `behind` such a row.
    state: String,
    refusals: u64,
    attempts: u64,
    /// Null if there is none.
    next_attempt_at: Option<String>,
    /// The kind of the last refusal; null if there was none.
    reason: Option<String>,
    detail: Option<String>,
    /// The columns of the row, for `show`.
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<serde_json::Value>,
}

impl Listed {
    fn of(row: &Row) -> Self {
        let text = |n: usize| row.get(n).map(str::to_owned);
        let number = |n: usize| row.get(n).and_then(|text| text.parse().ok()).unwrap_or_default();
        let error = text(9);
        let known = error.as_deref().and_then(|error| error.split_once(": "));
        let known = known.filter(|(kind, _)| Reason::ALL.iter().any(|reason| reason.name() == *kind));
        Listed {
            position: text(0).unwrap_or_default(),
            id: text(1),
            aggregate_type: text(2),
            aggregate_id: text(3),
            event_type: text(4),
            state: text(5).unwrap_or_default(),
            refusals: number(6),
            attempts: number(7),
            next_attempt_at: text(8),
            reason: known.map(|(kind, _)| kind.to_owned()),
            detail: known.map(|(_, detail)| detail.to_owned()).or(error),
            event: row.get(10).and_then(|event| serde_json::from_str(event).ok()),
        }
    }
}

/// Runs the subcommand.
pub(super) async fn run(
    config: &Config,
    polling: &Polling,
    command: &DeadLettersCommand,
) -> Result<(), Error> {
    let Some(rows) = RefusedRows::of(&config.outbox, polling) else { return Ok(()) };
    let mut session = connect(config, "dead-letters", Startup::default()).await?;
    let done = match command {
        DeadLettersCommand::List { choose, limit, json } => {
            list(config, &rows, &mut session, choose, *limit, *json).await
        }
        DeadLettersCommand::Show { choose, json } => show(config, &rows, &mut session, choose, *json).await,
        DeadLettersCommand::Retry(args) => {
            decide(config, &rows, &mut session, Decision::Retry, args, false).await
        }
        DeadLettersCommand::Discard { decide: args, yes } => {
            decide(config, &rows, &mut session, Decision::Discard, args, !yes).await
        }
    };
    session.close().await;
    done
}

fn condition(rows: &RefusedRows, choose: &ChooseArgs) -> String {
    rows.condition(choose.id.as_deref(), choose.aggregate.as_deref(), choose.reason)
}

async fn query(config: &Config, session: &mut Session, sql: &str) -> Result<Vec<Row>, Error> {
    let rows = session.query(sql).await;
    rows.map_err(|error| error.or_remedy(init_remedy("Grant the privileges", &config.postgres.conninfo)))
}

/// The number of rows, and of their aggregates.
async fn count(
    config: &Config,
    rows: &RefusedRows,
    session: &mut Session,
    condition: &str,
) -> Result<(usize, usize), Error> {
    let counts = query(config, session, &rows.count(condition)).await?;
    let number = |n: usize| counts.first().and_then(|row| row.get(n)?.parse().ok()).unwrap_or(0);
    Ok((number(0), number(1)))
}

async fn list(
    config: &Config,
    rows: &RefusedRows,
    session: &mut Session,
    choose: &ChooseArgs,
    limit: u32,
    json: bool,
) -> Result<(), Error> {
    let condition = condition(rows, choose);
    let found = query(config, session, &rows.select(&condition, Some(limit), false)).await?;
    let listed: Vec<Listed> = found.iter().map(Listed::of).collect();
    if json {
        return terminal::print_json(&listed);
    }
    let (all, aggregates) = count(config, rows, session, &condition).await?;
    terminal::print(&render(&listed, all, aggregates, &TableStyle::for_stdout()))
}

async fn show(
    config: &Config,
    rows: &RefusedRows,
    session: &mut Session,
    choose: &ChooseArgs,
    json: bool,
) -> Result<(), Error> {
    let condition = condition(rows, choose);
    let found = query(config, session, &rows.select(&condition, Some(SHOWN_IN_FULL), true)).await?;
    let listed: Vec<Listed> = found.iter().map(Listed::of).collect();
    if listed.is_empty() {
        refuse_unknown(choose)?;
    }
    if json {
        return terminal::print_json(&listed);
    }
    let style = TableStyle::for_stdout();
    let texts: Vec<String> = listed.iter().map(|row| in_full(row, &style)).collect();
    terminal::print(&if texts.is_empty() { NONE.to_owned() } else { texts.join("\n") })
}

const NONE: &str = "No row was refused, or waits behind one that was.\n";

/// Refuses an id or an aggregate that nothing is known of.
fn refuse_unknown(choose: &ChooseArgs) -> Result<(), Error> {
    if choose.id.is_none() && choose.aggregate.is_none() {
        return Ok(());
    }
    Err(Error::refused(
        ErrorCode::DeadLetterUnknown,
        "no such row was refused, or waits behind one that was",
        Remedy::steps([Step::new(
            "Compare with the rows that were; one that was published meanwhile is no longer among them",
        )
        .typing("outbox-router dead-letters list")]),
    ))
}

async fn decide(
    config: &Config,
    rows: &RefusedRows,
    session: &mut Session,
    decision: Decision,
    args: &DecideArgs,
    ask: bool,
) -> Result<(), Error> {
    let DecideArgs { choose, dry_run, json, .. } = args;
    verify_choice(args)?;
    // a row behind another is sent after it
    let condition = match decision {
        Decision::Retry => format!("({}) AND {}", condition(rows, choose), rows.was_refused()),
        Decision::Discard => condition(rows, choose),
    };
    let found = query(config, session, &rows.select(&condition, None, false)).await?;
    let listed: Vec<Listed> = found.iter().map(Listed::of).collect();
    if listed.is_empty() {
        refuse_unknown(choose)?;
        return terminal::print(if *json { "[]\n" } else { NONE });
    }
    if *dry_run && *json {
        return terminal::print_json(&listed);
    }
    let (all, aggregates) = count(config, rows, session, &condition).await?;
    if *dry_run || ask {
        let shown = listed.get(..SHOWN as usize).unwrap_or(&listed);
        terminal::print(&render(shown, all, aggregates, &TableStyle::for_stdout()))?;
        if *dry_run || !confirm_by_count("They will never be sent. ", listed.len() as u64)? {
            return Ok(());
        }
    }
    // only the rows that were shown and counted
    let positions: Vec<&str> = listed.iter().map(|row| row.position.as_str()).collect();
    query(config, session, &rows.decide(&positions, decision)).await?;
    if *json {
        return terminal::print_json(&listed);
    }
    let events = counted(listed.len(), "event");
    terminal::print(&match decision {
        Decision::Retry => format!("{events} will be tried again, followed by those behind.\n"),
        Decision::Discard => format!("{events} will not be sent; later ones of their aggregates will.\n"),
    })
}

fn render(listed: &[Listed], all: usize, aggregates: usize, style: &TableStyle) -> String {
    if listed.is_empty() {
        return NONE.to_owned();
    }
    let mut table = style.table_with_headings([
        "position",
        "id",
        "aggregate",
        "type",
        "state",
        "refusals",
        "next attempt",
        "reason",
    ]);
    for row in listed {
        table.add_row([
            row.position.clone(),
            on_terminal(&row.id),
            on_terminal(&row.aggregate_id),
            on_terminal(&row.event_type),
            row.state.clone(),
            row.refusals.to_string(),
            row.next_attempt_at.clone().unwrap_or_default(),
            row.reason.clone().unwrap_or_default(),
        ]);
    }
    format!("{}\n{}", trimmed(&table), total(all, aggregates, listed.len()))
}

fn in_full(row: &Listed, style: &TableStyle) -> String {
    let mut table = style.table();
    let mut line = |name: &str, value: &str| {
        table.add_row([bold(name), Cell::new(on_one_line(value))]);
    };
    line("position", &row.position);
    line("state", &row.state);
    line("refusals", &row.refusals.to_string());
    line("attempts", &row.attempts.to_string());
    line("next attempt", row.next_attempt_at.as_deref().unwrap_or("none"));
    line("reason", row.reason.as_deref().unwrap_or("none"));
    line("detail", row.detail.as_deref().unwrap_or("none"));
    let mut text = trimmed(&table);
    let columns = row.event.as_ref().and_then(serde_json::Value::as_object);
    for (name, value) in columns.into_iter().flatten() {
        let value = match value {
            serde_json::Value::String(text) => text.clone(),
            serde_json::Value::Null => "NULL".to_owned(),
            other => other.to_string(),
        };
        text += &format!("  {}  {}\n", on_one_line(name), on_one_line(&value));
    }
    text
}
