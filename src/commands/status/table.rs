//! The status report as a table.

use std::time::Duration;

use comfy_table::{Cell, Color, Table};

use crate::commands::table::{TableStyle, align_right, bold, trimmed};
use crate::error::with_config_file;
use crate::monitor::{Heartbeat, PartitionsReport, Polling, Retention, StateKind, StatusReport, TopicReport};
use crate::quantity::{bytes, counted, time};
use crate::terminal;

/// Two tables: the router and, if there are any, its topics.
pub(super) fn render(report: &StatusReport, style: &TableStyle) -> String {
    let mut table = style.table();
    for (name, value) in lines(report) {
        let mut cell = Cell::new(terminal::harmless(&value));
        if name == "state" {
            cell = cell.fg(colour(report.state));
        }
        table.add_row([bold(name), cell]);
    }
    let mut text = trimmed(&table);
    if !report.shards.is_empty() {
        text.push('\n');
        text += &trimmed(&shards(&report.shards, style));
    }
    if !report.topics.is_empty() {
        text.push('\n');
        text += &trimmed(&topics(&report.topics, style));
    }
    text
}

fn shards(shards: &[StatusReport], style: &TableStyle) -> Table {
    let mut table = style.table_with_headings(["shard", "state", "lag", "events", "parked", "acknowledged"]);
    for shard in shards {
        let lag = format!("{:.1} s, {}", shard.lag.seconds, bytes(shard.lag.bytes.unwrap_or_default()));
        table.add_row([
            Cell::new(&shard.name),
            Cell::new(shard.state.label()).fg(colour(shard.state)),
            Cell::new(lag),
            Cell::new(shard.totals.events),
            Cell::new(shard.dead_letters.events),
            Cell::new(shard.positions.flushed.as_deref().unwrap_or("unknown")),
        ]);
    }
    align_right(&mut table, &[2, 3, 4]);
    table
}

fn lines(report: &StatusReport) -> Vec<(&'static str, String)> {
    let position = |position: &Option<String>| position.clone().unwrap_or_else(|| "unknown".to_owned());
    let mut lines =
        vec![("router", format!("{}, version {}", report.name, report.version)), ("state", state(report))];
    if !report.healthy {
        lines.push(("main loop", format!("stuck for {:.0} s", report.last_turn_seconds)));
    }
    let at = as_of(report);
    let behind = report.lag.bytes.map(|behind| format!(", {} of log{at}", bytes(behind))).unwrap_or_default();
    let how = if report.reading_in_bulk { ", read in bulk" } else { "" };
    lines.push(("lag", format!("{:.1} s{behind}{how}", report.lag.seconds)));
    lines.push((
        "in flight",
        format!("{} records, {}", report.in_flight.records, bytes(report.in_flight.bytes)),
    ));
    let positions = &report.positions;
    // a router that polls has no positions in the log
    let reads_log = report.polling.is_none();
    if reads_log {
        lines.push(("acknowledged", position(&positions.flushed)));
    }
    if let Some(reason) = &positions.not_remembered {
        lines.push(("positions topic", format!("not written, so nothing is confirmed: {reason}")));
    }
    if reads_log {
        lines.push(("confirmed", position(&positions.confirmed)));
        lines.push(("end of log", position(&positions.server_wal_end)));
    }
    if let Some(retained) = report.slot.retained_bytes {
        let status = report.slot.wal_status.as_deref().unwrap_or("wal_status unknown");
        let left = report.slot.safe_wal_bytes.map(|left| format!(", lost after {} more", bytes(left)));
        let lasts = report.slot.safe_wal_seconds.map(|seconds| {
            let lasts = Duration::try_from_secs_f64(seconds).unwrap_or_default();
            format!(", in about {} at the present rate", time(lasts))
        });
        lines.push((
            "slot",
            format!(
                "{status}, retains {}{}{}{at}",
                bytes(retained),
                left.unwrap_or_default(),
                lasts.unwrap_or_default()
            ),
        ));
        if let Some(held_by) = &report.slot.held_by {
            lines.push(("slot held by", held_by.clone()));
        }
    } else if let Some(status) = &report.slot.wal_status {
        lines.push(("slot", format!("{status}{at}")));
    }
    if let Some(heartbeat) = &report.heartbeat {
        lines.push(("heartbeat", heartbeat_line(heartbeat)));
    }
    if let Some(retention) = &report.retention {
        lines.push(("retention", retention_line(retention)));
    }
    for of_table in &report.partitions {
        lines.push(("partitions", partitions_line(of_table)));
    }
    if let Some(polling) = &report.polling {
        lines.push(("table", polling_line(polling)));
    }
    let parked = &report.dead_letters;
    if parked.events > 0 {
        lines.push((
            "parked",
            format!(
                "{} of {}: {}",
                counted(parked.events, "event"),
                counted(parked.aggregates, "aggregate"),
                with_config_file("outbox-router dead-letters list")
            ),
        ));
    }
    lines.push((
        "delivered",
        format!("{}, {}", counted(report.totals.events, "event"), bytes(report.totals.bytes)),
    ));
    lines.push((
        "reconnects",
        format!("{} to Postgres, {} to Kafka", report.reconnects.postgres, report.reconnects.kafka),
    ));
    let noticed = noticed(report);
    if !noticed.is_empty() {
        lines.push(("noticed", noticed));
    }
    if let Some(problem) = &report.last_problem {
        lines.push(("last problem", format!("{} {}", problem.at, problem.what)));
    }
    lines
}

/// When Postgres last answered, if the router is not connected to it now.
fn as_of(report: &StatusReport) -> String {
    let connected = matches!(
        report.state,
        StateKind::Active | StateKind::Stalled | StateKind::Waiting | StateKind::Stopping
    );
    match &report.slot.at {
        Some(at) if !connected => format!(", as of {at}"),
        _ => String::new(),
    }
}

fn state(report: &StatusReport) -> String {
    let mut text = format!("{} since {}", report.state.label(), report.since);
    if let Some(peer) = &report.peer {
        text = format!("{} to {peer} since {}", report.state.label(), report.since);
    }
    let text = report.code.map_or(text.clone(), |code| format!("{text}: {code}"));
    match &report.reason {
        Some(reason) => format!("{text}: {reason}"),
        None => text,
    }
}

fn heartbeat_line(heartbeat: &Heartbeat) -> String {
    let age = heartbeat.age_seconds;
    let text = match heartbeat.lag_seconds {
        Some(lag) => format!("took {:.0} ms, the last one {age:.1} s ago", lag * 1e3),
        None => format!("none has come back for {age:.1} s"),
    };
    match &heartbeat.problem {
        Some(problem) => format!("{text}; cannot be written: {problem}"),
        None => text,
    }
}

fn retention_line(retention: &Retention) -> String {
    let Retention { complete, age_seconds, pruned, pruned_archived, kept, problem } = retention;
    let age = time(Duration::from_secs_f64(*age_seconds));
    let mut parts = vec![match complete {
        true => format!("complete {age} ago"),
        false => "not complete yet".to_owned(),
    }];
    parts.push(format!("{} deleted or archived", counted(*pruned, "row")));
    if *pruned_archived > 0 {
        parts.push(format!("{pruned_archived} deleted from the archive"));
    }
    if *kept > 0 {
        parts.push(format!("{} that may not be deleted yet", counted(*kept, "old row")));
    }
    let text = parts.join(", ");
    match problem {
        Some(problem) => format!("{text}; {problem}"),
        None => text,
    }
}

fn partitions_line(partitions: &PartitionsReport) -> String {
    let PartitionsReport { table, ahead, in_default } = partitions;
    format!("{ahead} ahead of {table}, {} in the default partition", counted(*in_default, "row"))
}

fn polling_line(polling: &Polling) -> String {
    format!("polled {:.1} s ago, {}", polling.poll_age_seconds, rows_line(polling))
}

/// The rows of a table that is polled.
pub(super) fn rows_line(polling: &Polling) -> String {
    let Polling { rows_due, oldest_due_seconds: oldest, rows_refused, rows_failed, .. } = polling;
    let due = match rows_due {
        0 => "no row is due".to_owned(),
        due => format!("{} due, the oldest for {oldest:.1} s", counted(*due, "row")),
    };
    let mut line = due;
    if *rows_refused > 0 {
        line += &format!("; {} refused or waiting behind one", counted(*rows_refused, "row"));
    }
    if *rows_failed > 0 {
        line += &format!("; {} failed", counted(*rows_failed, "row"));
    }
    if rows_refused + rows_failed > 0 {
        line += &format!(": {}", with_config_file("outbox-router dead-letters list"));
    }
    line
}

/// Counts that should be zero.
fn noticed(report: &StatusReport) -> String {
    let totals = &report.totals;
    let counts = [
        (totals.events_dropped, "events dropped by rules"),
        (totals.keyless_events, "events without an aggregate id"),
        (totals.headers_dropped, "headers dropped"),
        (totals.timestamps_replaced, "timestamps replaced"),
        (totals.partitions_grown, "topics that got more partitions"),
        (totals.contract_violations, "events that violate their contract"),
        (totals.ignored_changes, "changes that are not events"),
    ];
    let noticed = counts.iter().filter(|(count, _)| *count > 0);
    noticed.map(|(count, what)| format!("{what}: {count}")).collect::<Vec<_>>().join(", ")
}

fn topics(topics: &[TopicReport], style: &TableStyle) -> Table {
    let mut table = style.table_with_headings(["topic", "events", "size"]);
    for topic in topics {
        table.add_row([topic.topic.clone(), topic.events.to_string(), bytes(topic.bytes)]);
    }
    align_right(&mut table, &[1, 2]);
    table
}

fn colour(state: StateKind) -> Color {
    match state {
        StateKind::Active | StateKind::Waiting | StateKind::Ended => Color::Green,
        StateKind::Starting
        | StateKind::Connecting
        | StateKind::Reconnecting
        | StateKind::Stalled
        | StateKind::Stopping => Color::Yellow,
        StateKind::Refused => Color::Red,
    }
}
