//! What `/metrics` shows. Reading it asks nothing of the database.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::metrics::Label;
use axum::Router;
use axum::routing::get;

use crate::admin::metrics_page;
use crate::metrics::consumer as metrics;
use crate::metrics::{Metric, Samples};
use crate::postgres::inbox::{Deleted, InboxNumbers, Status};

/// The last numbers; clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Numbers(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// Whether the database answered last time.
    up: bool,
    /// As it answered last.
    status: Option<Status>,
    deleted: Deleted,
    errors: u64,
}

/// `/metrics`, and a page that names it.
pub(super) fn pages(numbers: &Numbers) -> Router {
    let numbers = numbers.clone();
    let index =
        concat!("outbox-router maintain ", env!("CARGO_PKG_VERSION"), "\n\n/metrics  for Prometheus\n");
    Router::new()
        .route("/", get(async move || index))
        .route("/metrics", get(async move || metrics_page(numbers.render())))
}

impl Numbers {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counted(&self, deleted: Deleted, status: Status) {
        let mut inner = self.lock();
        inner.up = true;
        inner.status = Some(status);
        inner.deleted.events += deleted.events;
        inner.deleted.keys += deleted.keys;
    }

    pub(super) fn failed(&self) {
        let mut inner = self.lock();
        inner.up = false;
        inner.errors += 1;
    }

    fn render(&self) -> String {
        let inner = self.lock();
        let samples = Samples::of(metrics::ALL);
        samples.gauge(&metrics::UP, Vec::new()).set(f64::from(u8::from(inner.up)));
        samples.counter(&metrics::ERRORS_TOTAL, Vec::new()).absolute(inner.errors);
        for (what, deleted) in [("events", inner.deleted.events), ("keys", inner.deleted.keys)] {
            samples.counter(&metrics::DELETED_TOTAL, label(&metrics::DELETED_TOTAL, what)).absolute(deleted);
        }
        // The database counts on while this process is away. A zero before the first answer would look like a reset.
        if let Some(Status { consumers, counters }) = &inner.status {
            let count = |metric: &Metric, counted: &BTreeMap<&'static str, u64>| {
                for (outcome, count) in counted {
                    samples.counter(metric, label(metric, outcome)).absolute(*count);
                }
            };
            count(&metrics::CLAIMS_TOTAL, &counters.claims);
            count(&metrics::QUEUE_EVENTS_TOTAL, &counters.queue);
            count(&metrics::REQUESTS_TOTAL, &counters.requests);
            samples
                .counter(&metrics::SEQUENCES_SKIPPED_TOTAL, Vec::new())
                .absolute(counters.sequences_skipped);
            // old numbers of events would hide that nobody knows the present ones
            for of in consumers.iter().filter(|_| inner.up) {
                fill_gauges(&samples, of);
            }
        }
        samples.render()
    }
}

fn fill_gauges(samples: &Samples, of: &InboxNumbers) {
    for (metric, value) in [
        (&metrics::WAITING, of.waiting as f64),
        (&metrics::FAILED, of.failed as f64),
        (&metrics::LEASED, of.leased as f64),
        (&metrics::EXPIRED_LEASES, of.expired as f64),
        (&metrics::OLDEST_UNPROCESSED_SECONDS, of.oldest_unprocessed_seconds),
    ] {
        samples.gauge(metric, label(metric, &of.consumer)).set(value);
    }
}

/// The only label of the metric with this value.
fn label(metric: &Metric, value: &str) -> Vec<Label> {
    metric.labels.iter().map(|name| Label::new(*name, value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::inbox::{CLAIMS, Counters, QUEUE, REQUESTS};

    fn status() -> Status {
        let zeros = |outcomes: &[&'static str]| outcomes.iter().map(|outcome| (*outcome, 0)).collect();
        let shipping = InboxNumbers {
            consumer: "ship\"ping".into(),
            waiting: 2,
            failed: 1,
            leased: 3,
            expired: 0,
            oldest_unprocessed_seconds: 301.5,
        };
        let counters = Counters {
            claims: zeros(&CLAIMS),
            queue: zeros(&QUEUE),
            sequences_skipped: 0,
            requests: zeros(&REQUESTS),
        };
        Status { consumers: vec![shipping], counters }
    }

    #[test]
    fn every_outcome_is_there_before_it_happens() {
        let numbers = Numbers::default();
        let before = numbers.render();
        assert!(before.contains("outbox_consumer_up 0\n"), "{before}");
        assert!(!before.contains("claims_total{"), "it would look like a reset: {before}");
        numbers.counted(Deleted { events: 7, keys: 0 }, status());
        numbers.counted(Deleted { events: 1, keys: 0 }, status());
        // the exporter keeps no order
        let text = numbers.render();
        let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        lines.sort_unstable();
        insta::assert_snapshot!(lines.join("\n").trim_start());
    }

    #[test]
    fn while_the_database_is_away_its_counters_stay_and_its_gauges_go() {
        let numbers = Numbers::default();
        numbers.counted(Deleted::default(), status());
        numbers.failed();
        let text = numbers.render();
        for line in ["outbox_consumer_up 0\n", "claims_total{outcome=\"busy\"} 0\n", "errors_total 1\n"] {
            assert!(text.contains(line), "no {line} in {text}");
        }
        assert!(!text.contains("ping\""), "{text}");
    }
}
