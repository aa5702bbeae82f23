//! `inbox show`: everything about an event, including its payload.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use comfy_table::Cell;
use pg_logical::session::Session;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::cli::inbox::EventArgs;
use crate::commands::table::{TableStyle, bold, trimmed};
use crate::error::Error;
use crate::json::Bytes;
use crate::postgres::inbox::events::{self, Decision, Details, InboxEvent};
use crate::terminal::{self, on_one_line};

#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    event: &'a InboxEvent,
    sequence: &'a Option<String>,
    payload: Option<Bytes<'static>>,
    result: Option<Box<RawValue>>,
    decisions: &'a [Decision],
}

pub(super) async fn show(session: &mut Session, wanted: &EventArgs, json: bool) -> Result<(), Error> {
    let found = events::with_id(session, &wanted.id, wanted.consumer.as_deref()).await?;
    if found.is_empty() {
        return Err(super::decide::unknown(wanted));
    }
    let mut known = Vec::new();
    for event in found {
        let details = events::details(session, &event).await?;
        known.push((event, details));
    }
    if json {
        let shown: Vec<Shown> = known.iter().map(|(event, details)| as_json(event, details)).collect();
        return terminal::print_json(&shown);
    }
    let style = TableStyle::for_stdout();
    let shown: Vec<String> = known.iter().map(|(event, details)| render(event, details, &style)).collect();
    terminal::print(&shown.join("\n"))
}

/// What was put.
fn payload(details: &Details) -> Option<Vec<u8>> {
    STANDARD.decode(details.payload.as_deref()?).ok()
}

fn as_json<'a>(event: &'a InboxEvent, details: &'a Details) -> Shown<'a> {
    Shown {
        event,
        sequence: &details.sequence,
        payload: payload(details).map(|bytes| Bytes::of(&bytes).into_owned()),
        result: details.result.clone().and_then(|json| RawValue::from_string(json).ok()),
        decisions: &details.decisions,
    }
}

fn render(event: &InboxEvent, details: &Details, style: &TableStyle) -> String {
    let mut table = style.table();
    let mut line = |name: &str, value: Option<&str>| {
        if let Some(value) = value {
            table.add_row([bold(name), Cell::new(on_one_line(value))]);
        }
    };
    line("consumer", Some(&event.consumer));
    line("id", Some(&event.id));
    line("state", Some(&event.state));
    line("since", event.since.as_deref());
    line("until", event.until.as_deref());
    line("attempts", event.attempts.map(|attempts| attempts.to_string()).as_deref());
    line("aggregate", event.aggregate.as_deref());
    line("sequence", details.sequence.as_deref());
    line("error", event.error.as_deref());
    for Decision { at, by, action, reason } in &details.decisions {
        let why = reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
        line(action, Some(&format!("{at} by {by}{why}")));
    }
    // long values on one line, so that they can be copied
    let mut text = trimmed(&table);
    for (name, value) in [
        ("payload", payload(details).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())),
        ("result", details.result.clone()),
    ] {
        if let Some(value) = value {
            text.push_str(&format!("  {name}  {}\n", on_one_line(&value)));
        }
    }
    text
}
