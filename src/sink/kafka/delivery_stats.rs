//! Counts delivered records and measures their age.

use pg_logical::PgTimestamp;

use crate::monitor::{Monitor, TopicCounters};
use crate::relay::InFlight;

/// Delivered records that are not in the metrics yet, grouped into runs of one topic and commit time: records of one
/// transaction usually arrive together.
#[derive(Debug, Default)]
pub(super) struct DeliveryStats {
    runs: Vec<Run>,
    records: usize,
}

#[derive(Debug, PartialEq, Eq)]
struct Run {
    topic: usize,
    commit_time: PgTimestamp,
    records: u64,
    bytes: u64,
}

impl DeliveryStats {
    pub(super) fn add(&mut self, record: InFlight) {
        let InFlight { bytes, commit_time, target: topic, .. } = record;
        let bytes = bytes as u64;
        self.records += 1;
        match self.runs.last_mut().filter(|run| run.topic == topic && run.commit_time == commit_time) {
            Some(run) => {
                run.records += 1;
                run.bytes += bytes;
            }
            None => self.runs.push(Run { topic, commit_time, records: 1, bytes }),
        }
    }

    pub(super) fn records(&self) -> usize {
        self.records
    }

    pub(super) fn bytes(&self) -> usize {
        usize::try_from(self.runs.iter().map(|run| run.bytes).sum::<u64>()).unwrap_or(usize::MAX)
    }

    /// The commit time of the oldest, approximately: records are delivered nearly in that order.
    pub(super) fn oldest(&self) -> Option<PgTimestamp> {
        self.runs.first().map(|run| run.commit_time)
    }

    /// Adds them to the metrics, as delivered at `now`.
    pub(super) fn count(&mut self, counters: &[TopicCounters], monitor: &Monitor, now: PgTimestamp) {
        self.records = 0;
        for Run { topic, commit_time, records, bytes } in self.runs.drain(..) {
            if let Some(counters) = counters.get(topic) {
                counters.delivered(records, bytes);
            }
            // the clocks of two machines may differ
            let micros = now.0.saturating_sub(commit_time.0).max(0);
            monitor.commit_to_ack(micros as f64 / 1e6, usize::try_from(records).unwrap_or(usize::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_one_transaction_and_topic_are_one_run() {
        let record =
            |topic, time| InFlight { bytes: 10, memory: 99, commit_time: PgTimestamp(time), target: topic };
        let mut stats = DeliveryStats::default();
        for (topic, time) in [(0, 1), (0, 1), (1, 1), (1, 2), (1, 2)] {
            stats.add(record(topic, time));
        }
        let runs: Vec<_> =
            stats.runs.iter().map(|run| (run.topic, run.commit_time.0, run.records, run.bytes)).collect();
        assert_eq!(runs, [(0, 1, 2, 20), (1, 1, 1, 10), (1, 2, 2, 20)]);
        assert_eq!((stats.records(), stats.bytes(), stats.oldest()), (5, 50, Some(PgTimestamp(1))));
        let (monitor, _) = Monitor::for_test("shop");
        stats.count(&[monitor.topic_counters("a"), monitor.topic_counters("b")], &monitor, PgTimestamp(3));
        assert_eq!((stats.records(), stats.oldest()), (0, None));
    }
}
