//! `inbox list`: one line for each event that is not processed.

use pg_logical::session::Session;

use crate::commands::table::{TableStyle, trimmed};
use crate::error::Error;
use crate::postgres::inbox::events::{self, InboxEvent};
use crate::quantity::counted;
use crate::terminal::{self, on_one_line, shortened};

/// How much of an error is shown.
const ERROR_SHOWN: usize = 60;

pub(super) async fn list(
    session: &mut Session,
    consumer: Option<&str>,
    state: Option<&str>,
    limit: u32,
    json: bool,
) -> Result<(), Error> {
    let listed = events::unprocessed(session, consumer, state, limit).await?;
    if json {
        return terminal::print_json(&listed);
    }
    let more = if listed.len() == limit as usize { "; there may be more (--limit)" } else { "" };
    terminal::print(&render(&listed, listed.len(), more, &TableStyle::for_stdout()))
}

/// One line for each event, and how many there are.
pub(super) fn render(listed: &[InboxEvent], all: usize, more: &str, style: &TableStyle) -> String {
    if listed.is_empty() {
        return "No events.\n".to_owned();
    }
    let headings = ["consumer", "id", "state", "since", "until", "attempts", "aggregate", "error"];
    let mut table = style.table_with_headings(headings);
    let text = |value: &Option<String>| value.as_deref().map(on_one_line).unwrap_or_default();
    for event in listed {
        table.add_row([
            on_one_line(&event.consumer),
            on_one_line(&event.id),
            event.state.clone(),
            text(&event.since),
            text(&event.until),
            event.attempts.map(|attempts| attempts.to_string()).unwrap_or_default(),
            text(&event.aggregate),
            shortened(&text(&event.error), ERROR_SHOWN).into_owned(),
        ]);
    }
    format!("{}\n{}{more}\n", trimmed(&table), counted(all, "event"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        let event = |id: &str, state: &str| InboxEvent {
            consumer: "shipping".into(),
            id: id.into(),
            state: state.into(),
            since: Some("2026-01-31T23:59:59.123Z".into()),
            until: None,
            attempts: None,
            aggregate: None,
            error: None,
        };
        let failed = InboxEvent {
            attempts: Some(8),
            aggregate: Some("order-1".into()),
            error: Some(format!("no route\n\u{1b}[31m{}", "x".repeat(100))),
            ..event("3f1c", "failed")
        };
        let until = Some("2026-02-01T00:00:59.123Z".into());
        let leased = InboxEvent { until, ..event("a\tb", "leased") };
        let style = TableStyle { colours: false, width: None };
        let table = render(&[failed, leased], 5, "", &style);
        insta::assert_snapshot!(format!("{table}---\n{}", render(&[], 0, "", &style)));
    }
}
