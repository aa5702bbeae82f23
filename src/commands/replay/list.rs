//! `replay --list`

use serde::Serialize;

use crate::commands::table::TableStyle;
use crate::error::Error;
use crate::postgres::replays::{Replay, Selection};
use crate::terminal::{self, on_one_line};
use crate::utc::Utc;

/// A replay in the output of `--json`.
#[derive(Serialize)]
struct Listed<'a> {
    replay: u64,
    requested_at: String,
    requested_by: &'a str,
    table: &'a str,
    since: Option<String>,
    until: String,
    #[serde(flatten)]
    selection: &'a Selection,
    topic: Option<&'a str>,
    rows: u64,
    rows_done: u64,
    left_out: u64,
    state: &'static str,
    events: u64,
    bytes: u64,
    finished_at: Option<String>,
}

pub(super) fn show(replays: &[Replay], json: bool) -> Result<(), Error> {
    let utc = |micros: i64| Utc(micros).to_string();
    if json {
        let listed: Vec<Listed<'_>> = replays
            .iter()
            .map(|replay| Listed {
                replay: replay.id,
                requested_at: utc(replay.requested_at),
                requested_by: &replay.requested_by,
                table: &replay.request.outbox,
                since: replay.request.since.map(utc),
                until: utc(replay.request.until),
                selection: &replay.request.selection,
                topic: replay.request.topic.as_deref(),
                rows: replay.request.rows,
                events: replay.request.events,
                bytes: replay.request.bytes,
                rows_done: replay.done.rows,
                left_out: replay.done.left_out,
                state: state(replay),
                finished_at: replay.finished_at.map(utc),
            })
            .collect();
        return terminal::print_json(&listed);
    }
    if replays.is_empty() {
        return terminal::print("Nothing was replayed.\n");
    }
    let mut table = TableStyle::for_stdout().table_with_headings([
        "replay",
        "requested",
        "by",
        "which rows",
        "done",
        "state",
    ]);
    for replay in replays {
        table.add_row([
            replay.id.to_string(),
            utc(replay.requested_at),
            on_one_line(&replay.requested_by),
            filter(replay),
            format!("{} of {}", replay.done.rows, replay.request.rows),
            state(replay).to_owned(),
        ]);
    }
    terminal::print(&format!("{}\n", table.trim_fmt()))
}

/// What has become of it.
fn state(replay: &Replay) -> &'static str {
    match (replay.finished_at, replay.runs) {
        (Some(_), _) => "complete",
        (None, true) => "running",
        (None, false) => "interrupted",
    }
}

/// The filter, as on the command line.
fn filter(replay: &Replay) -> String {
    let Selection { types, aggregates, aggregate_types, ids, archive, file } = &replay.request.selection;
    let mut parts = Vec::new();
    parts.extend(replay.request.since.map(|since| format!("--since {}", Utc(since))));
    parts.push(format!("--until {}", Utc(replay.request.until)));
    let lists =
        [("type", types), ("aggregate", aggregates), ("aggregate-type", aggregate_types), ("id", ids)];
    for (option, values) in lists {
        if !values.is_empty() {
            parts.push(format!("--{option} {}", on_one_line(&values.join(","))));
        }
    }
    parts.extend(archive.as_ref().map(|_| "--from archive".to_owned()));
    parts.extend(file.as_ref().map(|file| format!("--from {}", on_one_line(file))));
    parts.extend(replay.request.topic.as_ref().map(|topic| format!("--topic {topic}")));
    parts.join(" ")
}
