//! `inbox status`: how many events are in which state, and what the functions counted.

use std::collections::BTreeMap;
use std::time::Duration;

use comfy_table::Cell;
use pg_logical::session::Session;
use serde::Serialize;

use crate::commands::table::{TableStyle, align_right, bold, trimmed};
use crate::error::Error;
use crate::postgres::inbox::Status;
use crate::quantity;
use crate::terminal::{self, on_one_line};

/// The members are keys of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    status: &'a Status,
    /// Of all requests; null before the first.
    replay_ratio: Option<f64>,
    mismatch_ratio: Option<f64>,
}

pub(super) async fn status(session: &mut Session, json: bool) -> Result<(), Error> {
    let status = Status::query(session).await?;
    if json {
        let ratio = |outcome| ratio(&status.counters.requests, outcome);
        let (replay_ratio, mismatch_ratio) = (ratio("replay"), ratio("mismatch"));
        return terminal::print_json(&Report { status: &status, replay_ratio, mismatch_ratio });
    }
    terminal::print(&render(&status, &TableStyle::for_stdout()))
}

fn ratio(counted: &BTreeMap<&'static str, u64>, outcome: &str) -> Option<f64> {
    let all: u64 = counted.values().sum();
    let one = counted.get(outcome).copied().unwrap_or(0);
    (all > 0).then(|| one as f64 / all as f64)
}

fn render(status: &Status, style: &TableStyle) -> String {
    let mut text = String::new();
    if status.consumers.is_empty() {
        text.push_str("No consumer has called the inbox.\n");
    } else {
        let headings = ["consumer", "waiting", "failed", "leased", "expired", "oldest"];
        let mut table = style.table_with_headings(headings);
        for of in &status.consumers {
            let oldest = Duration::try_from_secs_f64(of.oldest_unprocessed_seconds).unwrap_or_default();
            table.add_row([
                on_one_line(&of.consumer),
                of.waiting.to_string(),
                of.failed.to_string(),
                of.leased.to_string(),
                of.expired.to_string(),
                if of.waiting + of.expired > 0 { quantity::time(oldest) } else { String::new() },
            ]);
        }
        align_right(&mut table, &[1, 2, 3, 4, 5]);
        text.push_str(&trimmed(&table));
    }
    let counters = &status.counters;
    let line = |counted: &BTreeMap<&'static str, u64>| {
        counted.iter().map(|(outcome, count)| format!("{outcome} {count}")).collect::<Vec<_>>().join(", ")
    };
    let mut table = style.table();
    for (name, value) in [
        ("claims", line(&counters.claims)),
        ("queue", line(&counters.queue)),
        ("stale sequences", counters.sequences_skipped.to_string()),
        ("requests", line(&counters.requests)),
    ] {
        table.add_row([bold(name), Cell::new(value)]);
    }
    text + "\n" + &trimmed(&table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::inbox::{CLAIMS, Counters, InboxNumbers, QUEUE, REQUESTS};

    #[test]
    fn the_tables() {
        let counted = |outcomes: &[&'static str]| outcomes.iter().copied().zip(0..).collect();
        let counters = Counters {
            claims: counted(&CLAIMS),
            queue: counted(&QUEUE),
            sequences_skipped: 3,
            requests: counted(&REQUESTS),
        };
        let shipping = InboxNumbers {
            consumer: "shipping".into(),
            waiting: 1200,
            failed: 1,
            leased: 0,
            expired: 0,
            oldest_unprocessed_seconds: 300.5,
        };
        let billing = InboxNumbers { consumer: "billing".into(), waiting: 0, ..shipping.clone() };
        let status = Status { consumers: vec![billing, shipping], counters: counters.clone() };
        let style = TableStyle { colours: false, width: None };
        let none = Status { consumers: Vec::new(), counters };
        insta::assert_snapshot!(format!("{}---\n{}", render(&status, &style), render(&none, &style)));
        assert_eq!(ratio(&status.counters.requests, "mismatch"), Some(0.2));
        assert_eq!(ratio(&BTreeMap::new(), "mismatch"), None);
    }
}
