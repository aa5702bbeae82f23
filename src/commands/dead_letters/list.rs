//! `dead-letters list`: one line for each parked event.

use pg_logical::connect::Startup;
use pg_logical::session::Session;
use serde::Serialize;

use super::{condition, rows};
use crate::cli::dead_letters::ChooseArgs;
use crate::commands::connect;
use crate::commands::table::{TableStyle, trimmed};
use crate::config::Config;
use crate::error::Error;
use crate::outbox::printable;
use crate::postgres::dead_letters::sql::{self, Waiting};
use crate::quantity::counted;
use crate::terminal;
use crate::utc::Utc;

/// One parked event. The members are keys of the JSON that commands print.
#[derive(Debug, Serialize)]
pub(super) struct Listed {
    /// The commit's LSN, and the number of the change within its transaction.
    position: String,
    committed_at: String,
    id: Option<String>,
    aggregate_type: Option<String>,
    aggregate_id: Option<String>,
    event_type: Option<String>,
    reason: &'static str,
    detail: String,
    /// `retry` or `discard`; null if no decision was made.
    decision: Option<&'static str>,
    /// How many retries failed.
    attempts: u64,
    /// The replay mark of the `slot reset` that sent it again; null if it was not sent again.
    replay: Option<String>,
}

impl Listed {
    pub(super) fn of(waiting: &Waiting) -> Self {
        let letter = &waiting.letter;
        Listed {
            position: letter.key.to_string(),
            committed_at: Utc(letter.commit_time.unix_micros()).to_string(),
            id: letter.event_id.clone(),
            aggregate_type: letter.aggregate_type.clone(),
            aggregate_id: letter.aggregate_id.clone(),
            event_type: letter.event_type.clone(),
            reason: letter.reason.name(),
            detail: letter.detail.clone(),
            decision: waiting.decision.map(|decision| decision.name()),
            attempts: waiting.attempts,
            replay: letter.replay.clone(),
        }
    }
}

pub(super) async fn list(
    config: &Config,
    session: &mut Session,
    choose: &ChooseArgs,
    limit: u32,
    json: bool,
) -> Result<(), Error> {
    let condition = condition(choose);
    let listed: Vec<Listed> =
        rows(config, session, &condition, Some(limit)).await?.iter().map(Listed::of).collect();
    if json {
        return terminal::print_json(&listed);
    }
    let (all, aggregates) = count(config, session, &condition).await?;
    terminal::print(&render(&listed, all, aggregates, &TableStyle::for_stdout()))
}

/// Says that the router parks no events.
pub(super) fn nothing(json: bool) -> Result<(), Error> {
    if json {
        return terminal::print_json(&[(); 0]);
    }
    terminal::print(
        "No events are parked: with `[dead_letters] policy = \"stop\"` the router stops at an event that cannot be sent.\n",
    )
}

/// The number of events, and of their aggregates.
async fn count(config: &Config, session: &mut Session, condition: &str) -> Result<(usize, usize), Error> {
    let counted = session.query(&sql::count_both(&config.name, condition)).await?;
    let count = |n: usize| counted.first().and_then(|row| row.get(n)?.parse().ok()).unwrap_or(0);
    Ok((count(0), count(1)))
}

/// Prints the totals of all shards.
pub(super) async fn sum(shards: &[Config], choose: &ChooseArgs) -> Result<(), Error> {
    let Some(first) = shards.first() else { return Ok(()) };
    let mut session = connect(first, "dead-letters", Startup::default()).await?;
    let (mut all, mut aggregates) = (0, 0);
    for shard in shards {
        let (events, of) = count(shard, &mut session, &condition(choose)).await?;
        all += events;
        aggregates += of;
    }
    session.close().await;
    let (events, aggregates) = (counted(all, "event"), counted(aggregates, "aggregate"));
    terminal::print(&format!("{} shards: {events} of {aggregates}\n", shards.len()))
}

/// One line for each event, and the total.
pub(super) fn render(listed: &[Listed], all: usize, aggregates: usize, style: &TableStyle) -> String {
    if listed.is_empty() {
        return "No events are parked.\n".to_owned();
    }
    let mut table =
        style.table_with_headings(["position", "committed", "id", "aggregate", "type", "reason", "decision"]);
    for row in listed {
        table.add_row([
            row.position.clone(),
            row.committed_at.clone(),
            on_terminal(&row.id),
            on_terminal(&row.aggregate_id),
            on_terminal(&row.event_type),
            row.reason.to_owned(),
            row.decision.unwrap_or_default().to_owned(),
        ]);
    }
    format!("{}\n{}", trimmed(&table), total(all, aggregates, listed.len()))
}

/// A value for the terminal, which control characters must not reach.
pub(super) fn on_terminal(value: &Option<String>) -> String {
    value.as_ref().map_or_else(|| "NULL".to_owned(), |text| printable(text.as_bytes()))
}

/// The last line of a list: how many events there are, and of how many aggregates.
pub(super) fn total(all: usize, aggregates: usize, shown: usize) -> String {
    let more = if all > shown { format!(", of which {shown} are shown (--limit)") } else { String::new() };
    format!("{} of {}{more}\n", counted(all, "event"), counted(aggregates, "aggregate"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_letters::{Column, DeadLetter, Decision, Key, OriginalEvent};
    use crate::unsendable::Reason;
    use pg_logical::Lsn;
    use pg_logical::PgTimestamp;

    fn waiting(change: u64, reason: Reason, decision: Option<Decision>) -> Waiting {
        let letter = DeadLetter {
            key: Key { final_lsn: Lsn(0x16_B374_D848), change },
            xid: 7,
            commit_time: PgTimestamp(0),
            source: "public.outbox".into(),
            event_id: Some(format!("e{change}")),
            aggregate_type: Some("order".into()),
            aggregate_id: (change != 3).then(|| "order-1\u{1b}[31m".into()),
            event_type: Some("OrderPlaced".into()),
            reason,
            detail: "it is too large. Raise the limit".into(),
            original: OriginalEvent::Columns(vec![Column {
                name: "id".into(),
                type_id: 25,
                modifier: -1,
                type_name: None,
                value: Some("e1".into()),
            }]),
            replay: None,
        };
        Waiting { letter, decision, attempts: change }
    }

    #[test]
    fn the_table_and_the_json() {
        let rows = [
            waiting(1, Reason::TooLarge, Some(Decision::Retry)),
            waiting(2, Reason::Behind, None),
            waiting(3, Reason::Unroutable, Some(Decision::Discard)),
        ];
        let listed: Vec<Listed> = rows.iter().map(Listed::of).collect();
        let style = TableStyle { colours: false, width: None };
        let table = render(&listed, 5, 1, &style);
        let none = render(&[], 0, 0, &style);
        let json = serde_json::to_string_pretty(&listed[..1]).unwrap();
        insta::assert_snapshot!(format!("{table}---\n{none}---\n{json}"));
    }
}
