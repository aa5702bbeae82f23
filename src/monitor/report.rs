//! The status report: what `/status` and `outbox-router status --json` show.

use crate::error::ErrorCode;
use serde::{Deserialize, Serialize};

use super::state::StateKind;
use crate::postgres::slot_headroom::Level;

/// The router at one moment. The names of its fields are stable; fields may be added.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StatusReport {
    /// The router's `name`.
    pub name: String,
    /// The version of the program.
    pub version: String,
    /// What the router is doing.
    pub state: StateKind,
    /// `postgres` or `kafka`, if the state is about a connection.
    pub peer: Option<String>,
    /// The code of the refusal, if a person has to act.
    pub code: Option<ErrorCode>,
    /// Why it is in this state, if there is a reason.
    pub reason: Option<String>,
    /// Since when it has been in this state, RFC 3339.
    pub since: String,
    /// What `/readyz` answers.
    pub ready: bool,
    /// What `/healthz` answers.
    pub healthy: bool,
    /// How long ago the main loop ran its last iteration, in seconds.
    pub last_turn_seconds: f64,
    /// Positions in the write-ahead log.
    pub positions: Positions,
    /// How far behind the router is.
    pub lag: Lag,
    /// Whether the slot is read in bulk, because it lags.
    #[serde(default)]
    pub reading_in_bulk: bool,
    /// The records in flight.
    pub in_flight: InFlight,
    /// The replication slot as Postgres describes it.
    pub slot: Slot,
    /// The copies of the slot that the router can go back to.
    #[serde(default)]
    pub bookmarks: BookmarksReport,
    /// The heartbeat; null if it is switched off.
    #[serde(default)]
    pub heartbeat: Option<Heartbeat>,
    /// The table of a router that polls; null if it reads the log, or before the first count.
    #[serde(default)]
    pub polling: Option<Polling>,
    /// What was deleted because of `[retention]`; null if `keep` is off.
    #[serde(default)]
    pub retention: Option<Retention>,
    /// The outbox tables whose partitions the router creates.
    #[serde(default)]
    pub partitions: Vec<PartitionsReport>,
    /// Parked events.
    #[serde(default)]
    pub dead_letters: DeadLetters,
    /// Counts since the process started.
    pub totals: Totals,
    /// The events that the broker acknowledged, by what they were read from.
    #[serde(default)]
    pub sources: Vec<SourceReport>,
    /// The topics with the most events, most first.
    pub topics: Vec<TopicReport>,
    /// How often a lost connection was restored.
    pub reconnects: Reconnects,
    /// The last problem, even if it is solved.
    pub last_problem: Option<Problem>,
    /// Each shard that runs in this process, if there are several. The fields above are then their sum, or those of the worst
    /// shard.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<StatusReport>,
}

/// Positions in the write-ahead log, in Postgres's own form `16/B374D848`; null while unknown.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Positions {
    /// The end of the server's log, according to its last message.
    pub server_wal_end: Option<String>,
    /// Everything up to here has been received.
    pub received: Option<String>,
    /// Everything up to here is acknowledged by the broker.
    pub flushed: Option<String>,
    /// The position of the last checkpoint in the positions topic.
    #[serde(default)]
    pub remembered: Option<String>,
    /// Why checkpoints cannot be written now; null if they can. Until then no later position is confirmed to Postgres.
    #[serde(default)]
    pub not_remembered: Option<String>,
    /// The position that was last confirmed to Postgres, which may remove the log before it.
    pub confirmed: Option<String>,
}

/// How far behind the router is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Lag {
    /// Bytes of log between the flushed position and the server's end; null until the stream has started.
    pub bytes: Option<u64>,
    /// The age of the oldest unacknowledged commit, 0 if there is none.
    pub seconds: f64,
}

/// The records in flight: sent and not yet acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InFlight {
    /// How many.
    pub records: u64,
    /// Their bytes of keys, values and headers.
    pub bytes: u64,
}

/// The replication slot according to `pg_replication_slots`; null until the first check.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Slot {
    /// When Postgres was asked, RFC 3339. While it cannot be reached, slot and lag in bytes are as they were then.
    #[serde(default)]
    pub at: Option<String>,
    /// How many bytes of log the slot retains.
    pub retained_bytes: Option<u64>,
    /// `wal_status`: `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// How many bytes of log may be written before the slot may be lost; null: no limit is set.
    #[serde(default)]
    pub safe_wal_bytes: Option<u64>,
    /// How long that lasts at the present rate, in seconds; null while it does not decrease.
    #[serde(default)]
    pub safe_wal_seconds: Option<f64>,
    /// The slot headroom that follows from these: `ample`, `extended`, `short` or `unreserved`.
    #[serde(default)]
    pub room: Level,
    /// The open transaction that makes the slot retain log, if it is neither the router nor Kafka.
    #[serde(default)]
    pub held_by: Option<String>,
}

/// How many bookmarks there are; 0 before the first look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BookmarksReport {
    /// How many the router can go back to.
    pub usable: u64,
    /// How many Postgres has invalidated.
    pub lost: u64,
}

/// The heartbeat: a logical message that the router writes to the log and receives in its stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// How often one is written, in seconds.
    pub interval_seconds: f64,
    /// The time from writing the last one that came back to its arrival; null until one has come back.
    pub lag_seconds: Option<f64>,
    /// How long ago that one was written; until one has come back, how long the heartbeat has been enabled.
    pub age_seconds: f64,
    /// Why heartbeats cannot be written; null if they can.
    pub problem: Option<String>,
}

/// The rows of a table that is polled, counted every few seconds. A count of 10,000 stands for that or more.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Polling {
    /// How long ago rows were claimed, or none were found.
    pub poll_age_seconds: f64,
    /// Rows that are due, including those in flight.
    pub rows_due: u64,
    /// The age of the oldest of them; 0 if there is none, or if the table has no such time.
    pub oldest_due_seconds: f64,
    /// Rows that were refused and are tried again, and those that wait behind them.
    #[serde(default)]
    pub rows_refused: u64,
    /// Rows that were refused too often.
    pub rows_failed: u64,
}

/// Old rows that were deleted (`[retention]`), counted since the process started.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Retention {
    /// Whether a prune has ended without a problem.
    pub complete: bool,
    /// How long ago the last one did; before the first, how long ago the process started.
    pub age_seconds: f64,
    /// Rows of outboxes that were deleted or archived.
    pub pruned: u64,
    /// Rows of the archive that were deleted.
    pub pruned_archived: u64,
    /// Old rows that had to stay the last time, because it is not certain that they are delivered, or they are parked, failed, or part of
    /// a replay; 10,000 stands for that or more.
    pub kept: u64,
    /// Why rows could not be deleted the last time; null if they could.
    pub problem: Option<String>,
}

/// The partitions of an outbox for which `init --partitioned` was run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PartitionsReport {
    /// The outbox table.
    pub table: String,
    /// How many partitions begin after now.
    pub ahead: u64,
    /// How many rows the default partition has; 10,000 stands for that or more.
    pub in_default: u64,
}

/// Parked events (`[dead_letters]`): those that are parked now, and counts since the process started.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DeadLetters {
    /// Aggregates whose events are parked.
    pub aggregates: u64,
    /// Their events, and those without an aggregate.
    pub events: u64,
    /// Events that were parked, by reason.
    pub parked: Vec<ParkedCount>,
    /// Parked events that were sent.
    pub retried: u64,
    /// Parked events that were discarded.
    pub discarded: u64,
}

/// How many events were parked for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkedCount {
    /// The reason in a word.
    pub reason: String,
    /// How many.
    pub events: u64,
}

/// Counts since the process started.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Events that the broker acknowledged.
    pub events: u64,
    /// Their bytes of keys, values and headers.
    pub bytes: u64,
    /// Events dropped by a rule, or because no rule matches them.
    pub events_dropped: u64,
    /// Events with a NULL aggregate id, which have no key and so no order.
    pub keyless_events: u64,
    /// Members of the headers column left out because their name is that of one of the router's own headers.
    pub headers_dropped: u64,
    /// Timestamps that the topic would have refused, replaced by the commit time.
    pub timestamps_replaced: u64,
    /// Times that a topic was found to have more partitions than before, so that keys moved.
    #[serde(default)]
    pub partitions_grown: u64,
    /// Bulk reads of a slot that lagged.
    #[serde(default)]
    pub bulk_reads: u64,
    /// Events sent although their payload violates their contract.
    #[serde(default)]
    pub contract_violations: u64,
    /// Changes in the stream that are not events: of other tables, updates, deletes.
    pub ignored_changes: u64,
}

/// What was read from one source and delivered since the process started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceReport {
    /// `log`, `table` (polled), or `backfill`: rows from before the slot.
    pub source: String,
    /// Events that the broker acknowledged.
    pub events: u64,
}

/// What was delivered to one topic since the process started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicReport {
    /// The topic, or `other` for all beyond the first thousand.
    pub topic: String,
    /// Events that the broker acknowledged.
    pub events: u64,
    /// Their bytes of keys, values and headers.
    pub bytes: u64,
}

/// How often a lost connection was restored.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Reconnects {
    /// To Postgres.
    pub postgres: u64,
    /// To Kafka.
    pub kafka: u64,
}

/// A problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// When, RFC 3339.
    pub at: String,
    /// What, as one sentence.
    pub what: String,
}
