//! The metrics: names, kinds, units and help texts. Names follow semantic versioning.
//!
//! The monitor stores the values of a router, and `maintain` those of a consumer. `Samples` renders them.

pub(crate) mod histogram;

use ::metrics::{Counter, Gauge, Key, KeyName, Label, Level, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only increases, starting at zero with the process.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts values in buckets.
    Histogram,
}

/// The label with the number of the shard.
pub(crate) const SHARD: &str = "shard";

/// One metric, without its label values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// The full name.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// The unit of its values; `None` if they have none.
    pub unit: Option<Unit>,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// The text of its `# HELP` line.
    pub help: &'static str,
}

macro_rules! metrics {
    ($prefix:literal; $($id:ident = $kind:ident $name:literal $labels:expr, $unit:expr, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $id: Metric = Metric {
                name: concat!($prefix, $name),
                kind: Kind::$kind,
                unit: $unit,
                labels: &$labels,
                help: $help,
            };
        )*

        /// Every metric.
        pub const ALL: &[Metric] = &[$($id),*];
    };
}

// after the macro, which it uses
pub mod consumer;

/// Values of metrics, which the exporter renders. It is not the global recorder, so that two routers in one process, and two tests,
/// do not share counters.
pub(crate) struct Samples(PrometheusRecorder);

impl Samples {
    /// Describes these metrics, except histograms, which are rendered without the exporter.
    pub(crate) fn of(metrics: &[Metric]) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        for metric in metrics {
            let name = KeyName::from_const_str(metric.name);
            let help = SharedString::const_str(metric.help);
            match metric.kind {
                Kind::Counter => recorder.describe_counter(name, metric.unit, help),
                Kind::Gauge => recorder.describe_gauge(name, metric.unit, help),
                Kind::Histogram => {}
            }
        }
        Samples(recorder)
    }

    pub(crate) fn counter(&self, metric: &Metric, labels: Vec<Label>) -> Counter {
        self.0.register_counter(&Key::from_parts(metric.name, labels), &METADATA)
    }

    pub(crate) fn gauge(&self, metric: &Metric, labels: Vec<Label>) -> Gauge {
        self.0.register_gauge(&Key::from_parts(metric.name, labels), &METADATA)
    }

    /// Everything in Prometheus's text format.
    pub(crate) fn render(&self) -> String {
        self.0.handle().render()
    }
}

/// The exporter does not use it.
static METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, None);

metrics! {
    "outbox_router_";
    EVENTS_TOTAL = Counter "events_total" ["topic"], Some(Unit::Count),
        "Events that the broker acknowledged, by topic; topics beyond the first 1,000 under `other`.";
    BYTES_TOTAL = Counter "bytes_total" ["topic"], Some(Unit::Bytes),
        "Bytes of keys, values and headers of the events that the broker acknowledged, by topic.";
    SOURCE_EVENTS_TOTAL = Counter "source_events_total" ["source"], Some(Unit::Count),
        "Events that the broker acknowledged, by what they were read from: log, table (polled), or backfill (rows from before the slot).";
    LAG_SECONDS = Gauge "lag_seconds" [], Some(Unit::Seconds),
        "Age of the oldest commit that is not fully acknowledged, or how long Postgres has had log that it has not sent; 0 if there is neither.";
    LAG_BYTES = Gauge "lag_bytes" [], Some(Unit::Bytes),
        "Write-ahead log between the acknowledged position and the end of the server's log; 0 until the stream has started.";
    IN_FLIGHT_RECORDS = Gauge "in_flight_records" [], Some(Unit::Count),
        "Records sent to the broker and not yet acknowledged.";
    IN_FLIGHT_BYTES = Gauge "in_flight_bytes" [], Some(Unit::Bytes),
        "Estimated memory of the records in flight: keys, values, headers and an overhead for each.";
    COMMIT_TO_ACK_SECONDS = Histogram "commit_to_ack_seconds" [], Some(Unit::Seconds),
        "Time from an event's commit in Postgres to its acknowledgement by the broker.";
    RECONNECTS_TOTAL = Counter "reconnects_total" ["peer"], Some(Unit::Count),
        "Sessions that failed, or failed to open, and were tried again, by the peer that failed: postgres or kafka.";
    STATE = Gauge "state" ["state"], None,
        "1 for the current state of the router, 0 for the others.";
    SLOT_RETAINED_BYTES = Gauge "slot_retained_bytes" [], Some(Unit::Bytes),
        "Write-ahead log that the replication slot retains; 0 until the first check.";
    HEARTBEAT_LAG_SECONDS = Gauge "heartbeat_lag_seconds" [], Some(Unit::Seconds),
        "Time from the writing of the last heartbeat that came back to its arrival in the stream; only with a heartbeat.";
    HEARTBEAT_AGE_SECONDS = Gauge "heartbeat_age_seconds" [], Some(Unit::Seconds),
        "Time since the writing of the last heartbeat that came back; only with a heartbeat.";
    POLL_AGE_SECONDS = Gauge "poll_age_seconds" [], Some(Unit::Seconds),
        "Time since rows were claimed or none were found; only when the table is polled.";
    ROWS_DUE = Gauge "rows_due" [], Some(Unit::Count),
        "Rows of the outbox that are due, including those in flight; 10,000 stands for that or more; only when the table is polled.";
    ROWS_DUE_AGE_SECONDS = Gauge "rows_due_age_seconds" [], Some(Unit::Seconds),
        "Age of the oldest row that is due; only when the table is polled.";
    ROWS_REFUSED = Gauge "rows_refused" [], Some(Unit::Count),
        "Rows that were refused and are tried again, and those that wait behind them; 10,000 stands for that or more; only when the table is polled.";
    ROWS_FAILED = Gauge "rows_failed" [], Some(Unit::Count),
        "Rows that were refused too often and wait for a decision; 10,000 stands for that or more; only when the table is polled.";
    PRUNED_ROWS_TOTAL = Counter "pruned_rows_total" ["table"], Some(Unit::Count),
        "Old rows that were deleted, or moved from the outbox to the archive, by table: outbox or archive; only with `retention.keep`.";
    RETENTION_AGE_SECONDS = Gauge "retention_age_seconds" [], Some(Unit::Seconds),
        "Time since old rows were last deleted without a problem, or since the start; only with `retention.keep`.";
    RETENTION_FAILING = Gauge "retention_failing" [], None,
        "1 if old rows could not be deleted the last time, otherwise 0; only with `retention.keep`.";
    RETENTION_ROWS_KEPT = Gauge "retention_rows_kept" [], Some(Unit::Count),
        "Old rows that had to stay, as if they were not delivered; 10,000 stands for that or more; only with `retention.keep`.";
    PARTITIONS_AHEAD = Gauge "partitions_ahead" ["table"], Some(Unit::Count),
        "Partitions of the outbox that begin after now, by outbox table; only after `init --partitioned`.";
    PARTITION_DEFAULT_ROWS = Gauge "partition_default_rows" ["table"], Some(Unit::Count),
        "Rows in the default partition of the outbox, by outbox table; 10,000 stands for that or more; only after `init --partitioned`.";
    SLOT_SAFE_WAL_BYTES = Gauge "slot_safe_wal_bytes" [], Some(Unit::Bytes),
        "Write-ahead log that may be written before the replication slot may be lost; only if there is a limit.";
    SLOT_SAFE_WAL_SECONDS = Gauge "slot_safe_wal_seconds" [], Some(Unit::Seconds),
        "Time until slot_safe_wal_bytes is used up at the rate of the last minute; only while it decreases.";
    SLOT_WAL_STATUS = Gauge "slot_wal_status" ["wal_status"], None,
        "1 for the replication slot's current wal_status, 0 for the others: reserved, extended, unreserved, lost.";
    BOOKMARKS = Gauge "bookmarks" ["state"], Some(Unit::Count),
        "Copies of the replication slot that the router can go back to (usable), and those that Postgres has invalidated (lost).";
    EVENTS_DROPPED_TOTAL = Counter "events_dropped_total" [], Some(Unit::Count),
        "Events dropped by a rule, or because no rule matches them.";
    KEYLESS_EVENTS_TOTAL = Counter "keyless_events_total" [], Some(Unit::Count),
        "Events with a NULL aggregate id: sent without a key, so without order.";
    HEADERS_DROPPED_TOTAL = Counter "headers_dropped_total" [], Some(Unit::Count),
        "Members of the headers column left out because their name is that of one of the router's own headers.";
    TIMESTAMPS_REPLACED_TOTAL = Counter "timestamps_replaced_total" [], Some(Unit::Count),
        "Timestamps outside the topic's bounds, replaced by the commit time or the current time.";
    PARTITIONS_GROWN_TOTAL = Counter "partitions_grown_total" [], Some(Unit::Count),
        "Times that a topic was found to have more partitions than before, so that keys moved.";
    BULK_READS_TOTAL = Counter "bulk_reads_total" [], Some(Unit::Count),
        "Bulk reads of a lagging slot.";
    CONTRACT_VIOLATIONS_TOTAL = Counter "contract_violations_total" [], Some(Unit::Count),
        "Events sent although their payload violates their contract.";
    DEAD_LETTERS = Gauge "dead_letters" [], Some(Unit::Count),
        "Events that are parked now.";
    DEAD_LETTERS_AGGREGATES = Gauge "dead_letters_aggregates" [], Some(Unit::Count),
        "Aggregates that have parked events now.";
    EVENTS_PARKED_TOTAL = Counter "events_parked_total" ["reason"], Some(Unit::Count),
        "Events that were parked, by reason; `behind`: because of an earlier one of their aggregate, or because they were read again.";
    DEAD_LETTERS_RETRIED_TOTAL = Counter "dead_letters_retried_total" [], Some(Unit::Count),
        "Records of parked events that were acknowledged; in exactly-once before the commit of their transaction.";
    DEAD_LETTERS_DISCARDED_TOTAL = Counter "dead_letters_discarded_total" [], Some(Unit::Count),
        "Parked events that were discarded by `dead-letters discard`.";
    IGNORED_CHANGES_TOTAL = Counter "ignored_changes_total" [], Some(Unit::Count),
        "Changes in the stream that are not events: of other tables, or not inserts.";
    BUILD_INFO = Gauge "build_info" ["version"], None,
        "Always 1, with the version of the program as a label.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rules_of_prometheus() {
        for metric in ALL.iter().chain(consumer::ALL) {
            let valid = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(metric.name.chars().all(valid), "{}", metric.name);
            assert_eq!(metric.name.ends_with("_total"), metric.kind == Kind::Counter, "{}", metric.name);
            assert!(metric.help.ends_with('.'), "{}", metric.name);
        }
    }

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<_> =
            ALL.iter().chain(consumer::ALL).map(|metric| metric.name).collect();
        assert_eq!(names.len(), ALL.len() + consumer::ALL.len());
    }

    #[test]
    fn alerts_are_about_metrics_that_exist() {
        let of_routers = include_str!("../../packaging/prometheus/router-alerts.yml");
        let of_consumers = include_str!("../../packaging/prometheus/consumer-alerts.yml");
        let named = |rules: &'static str, prefix: &'static str| {
            let words = rules.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            words.filter(move |word| word.starts_with(prefix)).collect::<Vec<_>>()
        };
        let (routers, consumers) =
            (named(of_routers, "outbox_router_"), named(of_consumers, "outbox_consumer_"));
        assert!(routers.len() > 9 && consumers.len() > 4, "{routers:?} {consumers:?}");
        // the consumer's crate counts this one in the application
        let known = |name: &&&str| {
            **name == "outbox_consumer_fail_open_total"
                || ALL.iter().chain(consumer::ALL).any(|metric| metric.name == **name)
        };
        let unknown: Vec<_> = routers.iter().chain(&consumers).filter(|name| !known(name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
