//! `dead-letters retry` and `discard`: select events, ask for confirmation, and mark them.

use pg_logical::quoting::literal;
use pg_logical::session::{Row, Session};

use super::list::{Listed, render};
use super::{condition, rows, verify_choice};
use crate::advice::OrRemedy;
use crate::cli::dead_letters::DecideArgs;
use crate::commands::confirm_by_count;
use crate::commands::table::TableStyle;
use crate::config::Config;
use crate::dead_letters::Decision;
use crate::error::{Error, with_config_file};
use crate::postgres::dead_letters::sql::{self, table_remedy};
use crate::quantity::counted;
use crate::terminal;
use crate::unsendable::Reason;

/// How many events are listed before the confirmation.
const SHOWN: u32 = 20;

pub(super) async fn decide(
    config: &Config,
    session: &mut Session,
    decision: Decision,
    args: &DecideArgs,
    ask: bool,
) -> Result<(), Error> {
    let DecideArgs { choose, dry_run, json, .. } = args;
    verify_choice(args)?;
    let selected = condition(choose);
    // an event that is parked behind another is sent automatically after it
    let condition = match decision {
        Decision::Retry => format!("({selected}) AND d.reason <> {}", literal(Reason::Behind.name())),
        Decision::Discard => selected.clone(),
    };
    let counts = session.query(&sql::count_with_keys(&config.name, &condition)).await;
    let counts = counts.map_err(|error| error.or_remedy(table_remedy(&config.postgres.conninfo)))?;
    let counts = counts.first();
    let (matching, aggregates) = (number(counts, 0), number(counts, 1));
    if matching == 0 {
        let found = session.query(&sql::count(&config.name, &selected)).await?;
        let behind = if number(found.first(), 0) > 0 {
            "The selected events wait behind an earlier event of their aggregate, and are sent when that event is sent or \
             discarded. `outbox-router dead-letters list --aggregate ID` shows it.\n"
        } else {
            "No such event is parked.\n"
        };
        return terminal::print(&if *json { "[]\n".to_owned() } else { with_config_file(behind) });
    }
    // mark only the events that were shown and counted, not those parked since
    let text = |n: usize| counts.and_then(|row| row.get(n)).unwrap_or_default();
    let condition = sql::is_one_of(text(2), text(3));
    if *dry_run || ask {
        let limit = (!(*dry_run && *json)).then_some(SHOWN);
        let shown = rows(config, session, &condition, limit).await?;
        let listed: Vec<Listed> = shown.iter().map(Listed::of).collect();
        if *dry_run && *json {
            return terminal::print_json(&listed);
        }
        terminal::print(&render(&listed, matching, aggregates, &TableStyle::for_stdout()))?;
        if *dry_run || !confirm_by_count("They will never be sent. ", matching as u64)? {
            return Ok(());
        }
    }
    let marked = session.query(&sql::mark(&config.name, &condition, decision, *json)).await;
    let marked = marked.map_err(|error| error.or_remedy(table_remedy(&config.postgres.conninfo)))?;
    if *json {
        let marked =
            marked.iter().map(|row| sql::waiting(&config.name, row)).collect::<Result<Vec<_>, _>>()?;
        let listed: Vec<Listed> = marked.iter().map(Listed::of).collect();
        return terminal::print_json(&listed);
    }
    let events = counted(number(marked.first(), 0), "event");
    let what = match decision {
        Decision::Retry => format!("{events} will be tried again, followed by the events parked behind."),
        Decision::Discard => format!("{events} will be discarded."),
    };
    terminal::print(&format!(
        "{what} A running router does this within a second, otherwise the next start does; `list` shows the events that are left.\n"
    ))
}

fn number(row: Option<&Row>, column: usize) -> usize {
    row.and_then(|row| row.get(column)?.parse().ok()).unwrap_or(0)
}
