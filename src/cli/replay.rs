//! `replay`

use std::path::PathBuf;

use clap::Args;

use super::UrlArgs;
use super::prune::archive_file;

pub(super) const HELP: &str = "\
Counts the rows that match every filter, asks, and sends them in the order of their inserts, with the header outbox-router-replay. It runs \
next to the router, and leaves to it what is not delivered yet. `slot reset` sends again what is neither in the table nor archived.

A time is in UTC, as \"2026-11-21 14:05\", or how long ago, as 2h. Filters take several values with commas between them.

Exit codes:
  0  everything was sent, or shown
  1  it was interrupted, an event cannot be sent, or a server refuses or cannot be reached
  2  usage or configuration, or more events than allowed

Examples:
  outbox-router replay --since 2h --type OrderPlaced --dry-run
  outbox-router replay --aggregate order-4711,order-4712 --topic repair
  outbox-router replay --from old.jsonl.zst --since 2026-11-20 --until 2026-11-21 --rate 1000/s
  outbox-router replay --resume 7";

/// Where rows are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// In the outbox table.
    Outbox,
    /// In the table of `archive` in `[retention]`.
    Archive,
    /// In a file that `prune` has written.
    File(PathBuf),
}

/// `replay`
#[derive(Debug, Clone, Args)]
pub struct ReplayArgs {
    /// Only rows inserted at this time or later
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,

    /// Only rows inserted before this time [default: now]
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,

    /// Only events of these types
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    pub types: Vec<String>,

    /// Only events of these aggregates
    #[arg(long = "aggregate", value_name = "ID", value_delimiter = ',')]
    pub aggregates: Vec<String>,

    /// Only events of aggregates of these types
    #[arg(long = "aggregate-type", value_name = "TYPE", value_delimiter = ',')]
    pub aggregate_types: Vec<String>,

    /// Only the events with these ids
    #[arg(long = "id", value_name = "ID", value_delimiter = ',')]
    pub ids: Vec<String>,

    /// Where the rows are; `prune` archives them
    #[arg(long, default_value = "outbox", value_name = "outbox|archive|FILE", value_parser = origin)]
    pub from: Origin,

    /// Send them to this topic instead of their own
    #[arg(long)]
    pub topic: Option<String>,

    /// At most so many events a second: 1000/s [default: no limit]
    #[arg(long, value_name = "N/s", value_parser = rate)]
    pub rate: Option<f64>,

    /// Refuse if more events match
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max: Option<u64>,

    /// Continue an interrupted replay
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["since", "until", "types", "aggregates", "aggregate_types", "ids",
        "from", "topic", "max", "list", "dry_run", "table"])]
    pub resume: Option<u64>,

    /// Show all replays
    #[arg(long, conflicts_with_all = ["since", "until", "types", "aggregates", "aggregate_types", "ids", "from", "topic", "rate",
        "max", "dry_run", "yes", "table"])]
    pub list: bool,

    /// The table, if `[outbox] table` names several
    #[arg(long)]
    pub table: Option<String>,

    /// Only show what would be sent
    #[arg(long)]
    pub dry_run: bool,

    /// Do not ask for confirmation
    #[arg(long, conflicts_with = "dry_run")]
    pub yes: bool,

    /// Print JSON; needs --dry-run, --yes, --resume or --list
    #[arg(long)]
    pub json: bool,

    /// How to connect.
    #[command(flatten)]
    pub connection: UrlArgs,
}

fn origin(text: &str) -> Result<Origin, String> {
    match text {
        "outbox" => Ok(Origin::Outbox),
        "archive" => Ok(Origin::Archive),
        file => archive_file(file)
            .map(Origin::File)
            .map_err(|why| format!("expected outbox, archive or a file: {why}")),
    }
}

/// `1000/s`, or `1000`, which is the same.
fn rate(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    match number.parse::<f64>() {
        Ok(rate) if (0.001..=10_000_000.0).contains(&rate) => Ok(rate),
        _ => Err("expected events a second, such as 1000/s, from 0.001/s to 10000000/s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_of_events_a_second() {
        for (text, expected) in [("1000/s", Some(1000.0)), ("0.5", Some(0.5))] {
            assert_eq!(rate(text).ok(), expected, "{text}");
        }
        for text in ["0", "-1/s", "1000/m", "NaN", "inf", "", "1e9"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }
}
