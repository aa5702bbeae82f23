//! `[source]`: whether the router reads the log or polls the table, and what polling needs in the table.

use std::fmt::{self, Write};
use std::ops::Range;
use std::time::Duration;

use super::identifiers::check_name;
use super::quoted::quoted;
use super::raw::{RawColumns, RawConfig, RawSource, RawStatus, Value};
use super::read::{Reader, is_off};
use super::units::format_duration;
use super::{Config, DeliveryMode, Outbox, Route};

/// The shortest lease: Kafka needs seconds to elect another leader of a partition.
const MIN_LEASE: Duration = Duration::from_secs(10);

/// `[source] mode = "poll"`: the rows of the table are read and marked; there is no replication slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Polling {
    /// `lease`: how long a router that has claimed rows keeps others from sending them. Default 30 s.
    pub lease: Duration,
    /// `notify`: whether a trigger on the table wakes routers. Default false.
    pub notify: bool,
    /// `[outbox] columns`: the columns that only polling needs.
    pub columns: StatusColumns,
    /// `[outbox] status`: the values of the column `status`.
    pub status: StatusValues,
}

/// The names of the columns in which polling keeps the state of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusColumns {
    /// A number that grows with each insert: the order of the events.
    pub position: String,
    /// One of the [`StatusValues`].
    pub status: String,
    /// How often a router has tried to send the event.
    pub attempts: String,
    /// How often the event was refused, by routing or by a broker.
    pub refusals: String,
    /// Before this time the event is not tried again.
    pub next_attempt_at: String,
    /// When a broker had acknowledged the event.
    pub published_at: String,
    /// Why the event was refused last.
    pub last_error: String,
}

/// The values of the column `status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusValues {
    /// It waits to be published.
    pub new: String,
    /// A broker has acknowledged it.
    pub published: String,
    /// It was refused too often, and a person has to decide.
    pub failed: String,
}

impl StatusColumns {
    /// Their keys in `[outbox] columns`, which are the default names too.
    pub const KEYS: [&'static str; 7] =
        ["position", "status", "attempts", "refusals", "next_attempt_at", "published_at", "last_error"];

    /// Each key with the column's name.
    pub fn by_key(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let StatusColumns { position, status, attempts, refusals, next_attempt_at, published_at, last_error } =
            self;
        let names = [position, status, attempts, refusals, next_attempt_at, published_at, last_error];
        Self::KEYS.into_iter().zip(names.map(String::as_str))
    }
}

/// How the outbox is read.
const MODES: [(&str, bool); 2] = [("log", false), ("poll", true)];

/// Keys that a polling router refuses and that are set: each with its place, and why it is refused.
pub(super) type Refused = Vec<(&'static str, Range<usize>, &'static str)>;

/// `None`: the router reads the log.
pub(super) fn polling(
    reader: &mut Reader<'_>,
    source: RawSource,
    columns: &mut RawColumns,
    status: RawStatus,
) -> Option<Polling> {
    let taken = [
        columns.position.take(),
        columns.status.take(),
        columns.attempts.take(),
        columns.refusals.take(),
        columns.next_attempt_at.take(),
        columns.published_at.take(),
        columns.last_error.take(),
    ];
    let named = StatusColumns::KEYS.into_iter().zip(taken);
    let polls = reader.choice_or("source.mode", source.mode, &MODES, false);
    if !polls {
        let columns = named.map(|(key, value)| (format!("outbox.columns.{key}"), value));
        let others = [
            ("source.lease", source.lease),
            ("source.notify", source.notify),
            ("outbox.status.new", status.new),
            ("outbox.status.published", status.published),
            ("outbox.status.failed", status.failed),
        ];
        for (key, value) in columns.chain(others.map(|(key, value)| (key.to_owned(), value))) {
            if let Some(value) = value {
                let what = "only a router that polls uses it";
                reader.problem(&value.span(), &key, what, "Set `[source] mode = \"poll\"`, or remove it");
            }
        }
        return None;
    }
    let lease = reader.duration("source.lease", source.lease, MIN_LEASE);
    let notify = reader.switch("source.notify", source.notify).unwrap_or_default();
    let mut names = named.map(|(key, value)| {
        let name = reader.checked(&format!("outbox.columns.{key}"), value, check_name);
        name.unwrap_or_else(|| key.to_owned())
    });
    let mut next = || names.next().unwrap_or_default();
    let columns = StatusColumns {
        position: next(),
        status: next(),
        attempts: next(),
        refusals: next(),
        next_attempt_at: next(),
        published_at: next(),
        last_error: next(),
    };
    drop(names);
    Some(Polling {
        lease: lease.unwrap_or(Duration::from_secs(30)),
        notify,
        columns,
        status: status_values(reader, status),
    })
}

fn status_values(reader: &mut Reader<'_>, raw: RawStatus) -> StatusValues {
    let place = raw.failed.as_ref().or(raw.published.as_ref()).or(raw.new.as_ref()).map(toml::Spanned::span);
    let mut value = |key: &str, value: Value, default: &str| {
        let legal = |text: &str| match text.is_empty() || text.contains('\0') {
            true => Err("it is empty, or contains a zero byte".to_owned()),
            false => Ok(()),
        };
        reader.checked(&format!("outbox.status.{key}"), value, legal).unwrap_or_else(|| default.to_owned())
    };
    let values = StatusValues {
        new: value("new", raw.new, "NEW"),
        published: value("published", raw.published, "PUBLISHED"),
        failed: value("failed", raw.failed, "FAILED"),
    };
    let StatusValues { new, published, failed } = &values;
    if let (Some(span), true) = (place, new == published || new == failed || published == failed) {
        reader.problem(&span, "outbox.status", "two of its values are equal", "Give each its own value");
    }
    values
}

/// Where the keys that a polling router refuses are set.
pub(super) fn refused_keys(raw: &RawConfig) -> Refused {
    let (postgres, bookmarks, shards) = (&raw.postgres.0, &raw.bookmarks.0, &raw.shards.0);
    const SLOT: &str = "a router that polls has no replication slot";
    const TABLE: &str = "a router that polls reads rows of a table, and no log";
    const LETTERS: &str =
        "a router that polls leaves events that cannot be sent in the table, where their status tells";
    const SHARDS: &str =
        "routers that poll share the table without shards: start several with this configuration";
    let keys: [(&'static str, &Value, &'static str); 16] = [
        ("postgres.slot", &postgres.slot, SLOT),
        ("postgres.publication", &postgres.publication, SLOT),
        ("postgres.wal_sender_timeout", &postgres.wal_sender_timeout, SLOT),
        ("postgres.catch_up", &postgres.catch_up, SLOT),
        ("postgres.catch_up_lag", &postgres.catch_up_lag, SLOT),
        ("outbox.on_update", &raw.outbox.0.on_update, TABLE),
        ("outbox.message_prefix", &raw.outbox.0.message_prefix, TABLE),
        (
            "delivery.positions_topic",
            &raw.delivery.0.positions_topic,
            "a router that polls has no position: each row has a status",
        ),
        ("bookmarks.every", &bookmarks.every, SLOT),
        ("bookmarks.keep", &bookmarks.keep, SLOT),
        ("bookmarks.max_retained_wal", &bookmarks.max_retained_wal, SLOT),
        ("heartbeat.interval", &raw.heartbeat.0.interval, TABLE),
        ("dead_letters.policy", &raw.dead_letters.0.policy, LETTERS),
        ("dead_letters.max_aggregates", &raw.dead_letters.0.max_aggregates, LETTERS),
        ("shards.count", &shards.count, SHARDS),
        ("shards.only", &shards.only, SHARDS),
    ];
    let set = keys.into_iter().filter_map(|(key, value, why)| {
        let value = value.as_ref().filter(|value| !is_off(value.get_ref()))?;
        Some((key, value.span(), why))
    });
    set.collect()
}

/// Refuses what a polling router cannot do.
pub(super) fn check(
    reader: &mut Reader<'_>,
    refused: Refused,
    outbox: &Outbox,
    route: &Route,
    mode: (DeliveryMode, Option<Range<usize>>),
) {
    for (key, span, why) in refused {
        reader.problem(&span, key, why, "Remove it, or set `[source] mode = \"log\"`");
    }
    if let (DeliveryMode::ExactlyOnce, Some(span)) = mode {
        let what = "\"exactly-once\" commits the position together with the events, and a router that polls has no position";
        reader.problem(&span, "delivery.mode", what, "Remove it, or set `[source] mode = \"log\"`");
    }
    if outbox.tables.len() > 1 {
        let what = "a router that polls reads one table";
        reader.unlocated("outbox.table", what, "Name one, and run a router for each table");
    }
    if let Some(value) = route.value_of_the_log() {
        let what = format!("the value source.{} is known only from the log", value.key());
        let remedy = "Use a column of the table, or set `[source] mode = \"log\"`";
        reader.unlocated("route", &what, remedy);
    }
}

pub(super) fn write_toml(config: &Config, out: &mut String) -> fmt::Result {
    writeln!(out, "\n[source]")?;
    let Some(Polling { lease, notify, .. }) = &config.polling else { return writeln!(out, "mode = \"log\"") };
    writeln!(out, "mode = \"poll\"")?;
    writeln!(out, "lease = {}", quoted(&format_duration(*lease)))?;
    writeln!(out, "notify = {notify}")
}

/// The columns, under the header of their table.
pub(super) fn write_columns(polling: &Polling, out: &mut String) -> fmt::Result {
    for (key, column) in polling.columns.by_key() {
        writeln!(out, "{key} = {}", quoted(column))?;
    }
    let StatusValues { new, published, failed } = &polling.status;
    writeln!(out, "\n[outbox.status]")?;
    writeln!(out, "new = {}", quoted(new))?;
    writeln!(out, "published = {}", quoted(published))?;
    writeln!(out, "failed = {}", quoted(failed))
}
