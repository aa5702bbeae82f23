//! Renders the monitors' numbers in Prometheus's text format.

use ::metrics::{Counter, Gauge, Label};

use super::Monitor;
use super::report::StatusReport;
use super::state::StateKind;
use crate::metrics::{self, Metric, SHARD, histogram};

/// The values of `pg_replication_slots.wal_status`, the worst last.
pub(crate) const WAL_STATUSES: [&str; 4] = ["reserved", "extended", "unreserved", "lost"];

/// All metrics of these monitors as text.
pub(super) fn render(monitors: &[Monitor]) -> String {
    let all = metrics::Samples::of(metrics::ALL);
    for monitor in monitors {
        let samples = Samples { all: &all, shard: monitor.0.shard };
        let report = monitor.report();
        samples.fill_counters(&report);
        samples.fill_gauges(&report);
    }
    let histograms = monitors.iter().map(|monitor| (monitor.0.shard, &monitor.0.commit_to_ack));
    all.render() + &histogram::render(&metrics::COMMIT_TO_ACK_SECONDS, histograms)
}

/// The samples of one monitor.
struct Samples<'a> {
    all: &'a metrics::Samples,
    /// A label on every metric.
    shard: Option<u32>,
}

impl Samples<'_> {
    fn fill_counters(&self, report: &StatusReport) {
        for topic in &report.topics {
            self.counter(&metrics::EVENTS_TOTAL, Some(&topic.topic)).absolute(topic.events);
            self.counter(&metrics::BYTES_TOTAL, Some(&topic.topic)).absolute(topic.bytes);
        }
        for source in &report.sources {
            self.counter(&metrics::SOURCE_EVENTS_TOTAL, Some(&source.source)).absolute(source.events);
        }
        let reconnects = &report.reconnects;
        self.counter(&metrics::RECONNECTS_TOTAL, Some("postgres")).absolute(reconnects.postgres);
        self.counter(&metrics::RECONNECTS_TOTAL, Some("kafka")).absolute(reconnects.kafka);
        let totals = &report.totals;
        self.counter(&metrics::EVENTS_DROPPED_TOTAL, None).absolute(totals.events_dropped);
        self.counter(&metrics::KEYLESS_EVENTS_TOTAL, None).absolute(totals.keyless_events);
        self.counter(&metrics::HEADERS_DROPPED_TOTAL, None).absolute(totals.headers_dropped);
        self.counter(&metrics::TIMESTAMPS_REPLACED_TOTAL, None).absolute(totals.timestamps_replaced);
        self.counter(&metrics::PARTITIONS_GROWN_TOTAL, None).absolute(totals.partitions_grown);
        self.counter(&metrics::BULK_READS_TOTAL, None).absolute(totals.bulk_reads);
        self.counter(&metrics::CONTRACT_VIOLATIONS_TOTAL, None).absolute(totals.contract_violations);
        self.counter(&metrics::IGNORED_CHANGES_TOTAL, None).absolute(totals.ignored_changes);
        if let Some(retention) = &report.retention {
            self.counter(&metrics::PRUNED_ROWS_TOTAL, Some("outbox")).absolute(retention.pruned);
            self.counter(&metrics::PRUNED_ROWS_TOTAL, Some("archive")).absolute(retention.pruned_archived);
        }
        let dead_letters = &report.dead_letters;
        for parked in &dead_letters.parked {
            self.counter(&metrics::EVENTS_PARKED_TOTAL, Some(&parked.reason)).absolute(parked.events);
        }
        self.counter(&metrics::DEAD_LETTERS_RETRIED_TOTAL, None).absolute(dead_letters.retried);
        self.counter(&metrics::DEAD_LETTERS_DISCARDED_TOTAL, None).absolute(dead_letters.discarded);
    }

    fn fill_gauges(&self, report: &StatusReport) {
        self.gauge(&metrics::LAG_SECONDS, None).set(report.lag.seconds);
        self.gauge(&metrics::LAG_BYTES, None).set(report.lag.bytes.unwrap_or(0) as f64);
        self.gauge(&metrics::IN_FLIGHT_RECORDS, None).set(report.in_flight.records as f64);
        self.gauge(&metrics::DEAD_LETTERS, None).set(report.dead_letters.events as f64);
        self.gauge(&metrics::DEAD_LETTERS_AGGREGATES, None).set(report.dead_letters.aggregates as f64);
        self.gauge(&metrics::IN_FLIGHT_BYTES, None).set(report.in_flight.bytes as f64);
        self.gauge(&metrics::SLOT_RETAINED_BYTES, None).set(report.slot.retained_bytes.unwrap_or(0) as f64);
        if let Some(heartbeat) = &report.heartbeat {
            self.gauge(&metrics::HEARTBEAT_AGE_SECONDS, None).set(heartbeat.age_seconds);
            if let Some(lag) = heartbeat.lag_seconds {
                self.gauge(&metrics::HEARTBEAT_LAG_SECONDS, None).set(lag);
            }
        }
        if let Some(polling) = &report.polling {
            self.gauge(&metrics::POLL_AGE_SECONDS, None).set(polling.poll_age_seconds);
            self.gauge(&metrics::ROWS_DUE, None).set(polling.rows_due as f64);
            self.gauge(&metrics::ROWS_DUE_AGE_SECONDS, None).set(polling.oldest_due_seconds);
            self.gauge(&metrics::ROWS_REFUSED, None).set(polling.rows_refused as f64);
            self.gauge(&metrics::ROWS_FAILED, None).set(polling.rows_failed as f64);
        }
        if let Some(retention) = &report.retention {
            self.gauge(&metrics::RETENTION_AGE_SECONDS, None).set(retention.age_seconds);
            self.gauge(&metrics::RETENTION_FAILING, None)
                .set(f64::from(u8::from(retention.problem.is_some())));
            self.gauge(&metrics::RETENTION_ROWS_KEPT, None).set(retention.kept as f64);
        }
        for of_table in &report.partitions {
            self.gauge(&metrics::PARTITIONS_AHEAD, Some(&of_table.table)).set(of_table.ahead as f64);
            self.gauge(&metrics::PARTITION_DEFAULT_ROWS, Some(&of_table.table))
                .set(of_table.in_default as f64);
        }
        // without a limit there is no sample: some collectors refuse infinity
        if let Some(bytes) = report.slot.safe_wal_bytes {
            self.gauge(&metrics::SLOT_SAFE_WAL_BYTES, None).set(bytes as f64);
        }
        if let Some(seconds) = report.slot.safe_wal_seconds {
            self.gauge(&metrics::SLOT_SAFE_WAL_SECONDS, None).set(seconds);
        }
        for status in WAL_STATUSES {
            let current = report.slot.wal_status.as_deref() == Some(status);
            self.gauge(&metrics::SLOT_WAL_STATUS, Some(status)).set(f64::from(u8::from(current)));
        }
        for (state, count) in [("usable", report.bookmarks.usable), ("lost", report.bookmarks.lost)] {
            self.gauge(&metrics::BOOKMARKS, Some(state)).set(count as f64);
        }
        for kind in StateKind::ALL {
            let current = kind == report.state;
            self.gauge(&metrics::STATE, Some(kind.label())).set(f64::from(u8::from(current)));
        }
        self.gauge(&metrics::BUILD_INFO, Some(&report.version)).set(1.0);
    }

    fn counter(&self, metric: &Metric, label: Option<&str>) -> Counter {
        self.all.counter(metric, self.labels(metric, label))
    }

    fn gauge(&self, metric: &Metric, label: Option<&str>) -> Gauge {
        self.all.gauge(metric, self.labels(metric, label))
    }

    /// A metric has at most one label besides the shard.
    fn labels(&self, metric: &Metric, value: Option<&str>) -> Vec<Label> {
        let own = metric.labels.iter().zip(value).map(|(name, value)| Label::new(*name, value.to_owned()));
        let shard = self.shard.iter().map(|number| Label::new(SHARD, number.to_string()));
        shard.chain(own).collect()
    }
}
