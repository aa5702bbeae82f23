//! A histogram with fixed buckets.
//!
//! The exporter's own histogram stores every value until it is scraped, which at 100,000 events a second takes more memory than
//! the rest of the router. This one counts in place, and a thousand equal values cost as much as one.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Metric, SHARD};

/// The upper bounds in seconds, from half a millisecond, in which no broker answers, to a minute.
pub(crate) const BOUNDS: [f64; 16] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Counts of durations by bucket.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// The counts of values above the previous bound and up to this one.
    buckets: [AtomicU64; BOUNDS.len()],
    beyond: AtomicU64,
    sum_micros: AtomicU64,
}

impl Histogram {
    /// Adds `count` durations of `seconds`. Negative durations, from clocks that disagree, count as 0.
    pub(crate) fn record(&self, seconds: f64, count: u64) {
        let bucket = BOUNDS.iter().zip(&self.buckets).find(|(bound, _)| seconds <= **bound);
        bucket.map_or(&self.beyond, |(_, bucket)| bucket).fetch_add(count, Relaxed);
        // the cast turns negative numbers and NaN into 0
        let micros = (seconds * 1e6) as u64;
        self.sum_micros.fetch_add(micros.saturating_mul(count), Relaxed);
    }

    /// Appends the samples in Prometheus's text format, with the shard's number as a label if there are shards.
    fn append_samples(&self, name: &str, shard: Option<u32>, text: &mut String) {
        let shard = shard.map(|number| format!("{SHARD}=\"{number}\""));
        let first = shard.as_ref().map(|label| format!("{label},")).unwrap_or_default();
        let alone = shard.map(|label| format!("{{{label}}}")).unwrap_or_default();
        let mut count = 0;
        for (bound, bucket) in BOUNDS.iter().zip(&self.buckets) {
            count += bucket.load(Relaxed);
            // writing to a String does not fail
            let _ = writeln!(text, "{name}_bucket{{{first}le=\"{bound}\"}} {count}");
        }
        count += self.beyond.load(Relaxed);
        let sum = self.sum_micros.load(Relaxed) as f64 / 1e6;
        let _ = writeln!(
            text,
            "{name}_bucket{{{first}le=\"+Inf\"}} {count}\n{name}_sum{alone} {sum}\n{name}_count{alone} {count}"
        );
    }
}

/// The histograms of one metric in Prometheus's text format, each with the number of its shard.
pub(crate) fn render<'h>(
    metric: &Metric,
    histograms: impl Iterator<Item = (Option<u32>, &'h Histogram)>,
) -> String {
    let name = metric.name;
    let mut text = format!("# HELP {name} {}\n# TYPE {name} histogram\n", metric.help);
    for (shard, histogram) in histograms {
        histogram.append_samples(name, shard, &mut text);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::COMMIT_TO_ACK_SECONDS;

    #[test]
    fn counts_are_cumulative_and_a_bound_belongs_to_its_bucket() {
        let histogram = Histogram::default();
        histogram.record(0.0005, 2);
        histogram.record(0.000_501, 1);
        histogram.record(-3.0, 1);
        histogram.record(45.0, 1);
        histogram.record(61.0, 1);
        insta::assert_snapshot!(render(&COMMIT_TO_ACK_SECONDS, [(None, &histogram)].into_iter()));
    }

    #[test]
    fn bounds_grow() {
        assert!(BOUNDS.is_sorted());
    }
}
