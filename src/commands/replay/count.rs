//! What a replay would send: every row is read and routed, and nothing is sent.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::ProgressBar;
use pg_logical::PgTimestamp;
use pg_logical::pgoutput::Message;
use pg_logical::session::Session;
use serde::Serialize;

use super::selected::{MANY, Selected};
use crate::cli::replay::ReplayArgs;
use crate::commands::table::TableStyle;
use crate::commands::{Completion, confirm_by_count};
use crate::config::Config;
use crate::error::{Error, ErrorCode};
use crate::pipeline::Change;
use crate::postgres::replays::{Request, lease};
use crate::postgres::rows::layout::write_insert;
use crate::quantity::{self, counted};
use crate::routing::Routed;
use crate::sink::leave_out::LeftOut;
use crate::terminal;
use crate::utc::Utc;

/// What would be sent.
#[derive(Debug, Default)]
pub(super) struct Counted {
    pub(super) rows: u64,
    pub(super) events: u64,
    /// Keys, values and headers.
    pub(super) bytes: u64,
    topics: BTreeMap<String, (u64, u64)>,
    /// Rows for which a rule makes no record.
    dropped: u64,
    left_out: LeftOut,
    /// The times of the first and the last insert, in microseconds since 1970.
    times: Option<(i64, i64)>,
}

/// The output of `--json` with `--dry-run`.
#[derive(Serialize)]
struct Shown<'a> {
    table: String,
    events: u64,
    bytes: u64,
    topics: BTreeMap<&'a str, u64>,
    dropped: u64,
    cannot_be_sent: u64,
    oldest: Option<String>,
    newest: Option<String>,
    not_delivered: u64,
    omitted: &'a [String],
}

impl Counted {
    /// What is stored about the replay.
    pub(super) fn request(&self, selected: &Selected, rate: Option<f64>) -> Request {
        Request {
            outbox: selected.outbox.in_sql(),
            since: selected.since,
            until: selected.until,
            selection: selected.selection.clone(),
            topic: selected.topic.clone(),
            rate,
            mark: selected.conversion.mark.clone(),
            horizon: selected.horizon.clone(),
            order_by: selected.order_by(),
            rows: self.rows,
            events: self.events,
            bytes: self.bytes,
        }
    }
}

/// Reads the rows.
pub(super) async fn count(config: &Config, selected: &Selected, quiet: bool) -> Result<Counted, Error> {
    let mut found = Counted::default();
    let mut pipeline = selected.conversion.pipeline();
    for definition in selected.conversion.definitions() {
        if let Ok(message) = Message::decode(&definition) {
            pipeline.metadata(&message, false)?;
        }
    }
    let bar = ProgressBar::new_spinner().with_message("counting");
    let bar = Some(bar).filter(|_| io::stderr().is_terminal() && !quiet);
    let mut pages = selected.pages(config, None).await?;
    let mut insert = Vec::new();
    while let Some(page) = pages.next().await? {
        for (row, cursor) in page {
            write_insert(&mut insert, selected.conversion.layout.oid(), &row.values);
            let Ok(Message::Insert(change)) = Message::decode(&insert) else { continue };
            found.rows += 1;
            let Some(output) = pipeline.process(Change::Row(change), 1)? else { continue };
            match &output.routed {
                Ok(Routed::Record(record)) => {
                    let bytes = record.size() as u64;
                    found.events += 1;
                    found.bytes += bytes;
                    match found.topics.get_mut(record.topic) {
                        Some(topic) => *topic = (topic.0 + 1, topic.1 + bytes),
                        None => drop(found.topics.insert(record.topic.to_owned(), (1, bytes))),
                    }
                    let (first, last) = found.times.unwrap_or((cursor.micros, cursor.micros));
                    found.times = Some((first.min(cursor.micros), last.max(cursor.micros)));
                }
                Ok(Routed::Dropped) => found.dropped += 1,
                Err(why) => found.left_out.add(output.event.row.printable_id(), why.with_reason()),
            }
        }
        if let Some(bar) = &bar {
            bar.set_message(format!("counting: {}", counted(found.events, "event")));
            bar.tick();
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(found)
}

/// How a command ends that sends nothing.
pub(super) fn completion(counted: &Counted) -> Completion {
    match (counted.events, counted.left_out.count()) {
        (0, 1..) => Completion::ProblemsFound,
        _ => Completion::Success,
    }
}

/// Shows what would be sent, and asks whether to. Refuses more than is allowed.
pub(super) async fn confirmed(
    session: &mut Session,
    config: &Config,
    selected: &Selected,
    counted: &Counted,
    args: &ReplayArgs,
) -> Result<bool, Error> {
    check_limits(session, config, counted, args).await?;
    if args.json && (args.dry_run || counted.events == 0) {
        let utc = |micros| Utc(micros).to_string();
        terminal::print_json(&Shown {
            table: selected.place.clone(),
            events: counted.events,
            bytes: counted.bytes,
            topics: counted.topics.iter().map(|(name, (events, _))| (name.as_str(), *events)).collect(),
            dropped: counted.dropped,
            cannot_be_sent: counted.left_out.count(),
            oldest: counted.times.map(|(oldest, _)| utc(oldest)),
            newest: counted.times.map(|(_, newest)| utc(newest)),
            not_delivered: selected.not_delivered,
            omitted: &selected.omitted,
        })?;
        return Ok(false);
    }
    if !args.json {
        terminal::print(&described(
            selected,
            counted,
            PgTimestamp::now().unix_micros(),
            &TableStyle::for_stdout(),
        ))?;
    }
    if args.dry_run || counted.events == 0 {
        return Ok(false);
    }
    if args.yes {
        return Ok(true);
    }
    confirm_by_count("", counted.events)
}

/// Refuses more events than the arguments and the configuration allow.
pub(super) async fn check_limits(
    session: &mut Session,
    config: &Config,
    counted: &Counted,
    args: &ReplayArgs,
) -> Result<(), Error> {
    let events = counted.events;
    let too_many = |limit: u64, of: &str, remedy: &str| {
        let what = format!("{events} events match, and {of} allows {limit}. Nothing was sent");
        Err(Error::usage(ErrorCode::ReplayTooLarge, what, remedy))
    };
    if let Some(max) = args.max.filter(|max| events > *max) {
        return too_many(max, "--max", "Select fewer, or raise --max");
    }
    let limits = &config.replay;
    if let Some(max) = limits.max_events.filter(|max| events > *max) {
        return too_many(max, "`[replay] max_events`", "Select fewer, or have the limit raised");
    }
    if let Some(max) = limits.max_events_per_day {
        let earlier = lease::of_last_day(session, &config.name).await?;
        if events.saturating_add(earlier) > max {
            let of = format!("after {earlier} within a day, `[replay] max_events_per_day`");
            return too_many(max, &of, "Select fewer, wait, or have the limit raised");
        }
    }
    Ok(())
}

/// What follows a count that stopped at [`MANY`].
fn or_more(rows: u64) -> &'static str {
    if rows >= MANY { " or more" } else { "" }
}

fn described(selected: &Selected, found: &Counted, now: i64, style: &TableStyle) -> String {
    let Some((oldest, newest)) = found.times else {
        let (dropped, left_out, later) = (found.dropped, found.left_out.count(), selected.not_delivered);
        return format!(
            "No event matches in {} that can be sent: {dropped} are dropped by rules, {left_out} cannot be sent, and {later}{} may not have \
             been delivered yet.\n",
            selected.place,
            or_more(later)
        );
    };
    let age = Duration::from_micros(u64::try_from(now.saturating_sub(oldest)).unwrap_or_default());
    let mut text = format!(
        "{} of {}, {}, inserted from {} to {}. The oldest is {} old: consumers that remember ids for a shorter time process it again.\n\n",
        counted(found.events, "event"),
        selected.place,
        quantity::bytes(found.bytes),
        Utc(oldest),
        Utc(newest),
        quantity::time(age)
    );
    let mut table = style.table_with_headings(["topic", "events", "size"]);
    for (topic, (events, bytes)) in &found.topics {
        table.add_row([topic.clone(), events.to_string(), quantity::bytes(*bytes)]);
    }
    text += &table.trim_fmt();
    text += "\n\n";
    if let Some((id, why)) = found.left_out.first() {
        text += &format!(
            "{} cannot be sent and will be left out; the first is {id}: {why}.\n",
            counted(found.left_out.count(), "event")
        );
    }
    if !selected.of_insert {
        text += "The time of a row is not a timestamptz filled by clock_timestamp(): events of transactions that waited for each other may be out of order.\n";
    }
    if found.dropped > 0 {
        text += &format!("{} match a rule that drops them.\n", counted(found.dropped, "row"));
    }
    if !selected.omitted.is_empty() {
        text += &format!("Left out, because only the log has the values: {}.\n", selected.omitted.join(", "));
    }
    let later = match selected.not_delivered {
        0 => String::new(),
        rows => {
            format!(
                " {}{} may not have been delivered yet, and will be left to the router.",
                counted(rows, "row"),
                or_more(rows)
            )
        }
    };
    text += &format!("The records carry outbox-router-replay: {}.{later}\n", selected.conversion.mark);
    text
}
