//! Latencies from the return of the writer's COMMIT until the consumer received the record, both by this machine's clock.
//!
//! Postgres shows a commit to the router a little before it answers the writer. A record that arrives before that answer counts
//! as 0.

use std::collections::HashMap;
use std::time::Instant;

use crate::stage::consumer::Received;
use crate::stage::figures::Latency;
use crate::writers::Written;

/// A period in which events had to wait for the router to restart or for their topic to be created.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pause {
    pub(crate) from: Instant,
    pub(crate) until: Instant,
}

/// The latencies of all events, and of those that no pause delayed. The latter exclude events in flight when a pause began or
/// committed before it ended, but not those queued behind them.
pub(crate) fn latencies(written: &Written, records: &[Received], pauses: &[Pause]) -> (Latency, Latency) {
    let mut first: HashMap<&str, Instant> = HashMap::new();
    for record in records {
        let Some(id) = record.id() else { continue };
        first.entry(id).and_modify(|at| *at = record.arrived.min(*at)).or_insert(record.arrived);
    }
    let mut all = Vec::new();
    let mut steady = Vec::new();
    for (id, committed) in &written.committed {
        let Some(arrived) = first.get(id.as_str()) else { continue };
        let took = arrived.saturating_duration_since(*committed);
        all.push(took);
        if pauses.iter().all(|pause| *arrived < pause.from || *committed > pause.until) {
            steady.push(took);
        }
    }
    (Latency::of(all), Latency::of(steady))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn record(id: &str, arrived: Instant) -> Received {
        Received {
            topic: String::new(),
            partition: 0,
            offset: 0,
            key: None,
            value: None,
            headers: vec![("id".to_owned(), Some(id.as_bytes().to_vec()))],
            arrived,
        }
    }

    #[test]
    fn events_delayed_by_a_pause_count_only_in_the_first_figure() {
        let start = Instant::now();
        let at = |milliseconds| start + ms(milliseconds);
        let pauses = [Pause { from: at(0), until: at(5) }, Pause { from: at(100), until: at(200) }];
        let mut written = Written::default();
        let mut records = Vec::new();
        // in the first pause; between the two; in flight when the second begins; within it; afterwards
        let events = [("a", 1, 30), ("b", 10, 12), ("c", 99, 203), ("d", 150, 204), ("e", 201, 206)];
        for (id, committed, arrived) in events {
            written.committed.insert(id.to_owned(), at(committed));
            records.push(record(id, at(arrived)));
        }
        let (all, steady) = latencies(&written, &records, &pauses);
        assert_eq!((all.events, all.longest), (5, ms(104)));
        assert_eq!((steady.events, steady.p50, steady.longest), (2, ms(2), ms(5)));
    }

    #[test]
    fn first_arrival_counts_and_negative_latency_is_zero() {
        let start = Instant::now() + ms(1000);
        let mut written = Written::default();
        written.committed.insert("a".to_owned(), start);
        written.committed.insert("never-arrived".to_owned(), start);
        let records = [record("a", start + ms(9)), record("a", start - ms(1)), record("a", start + ms(5))];
        let (all, _) = latencies(&written, &records, &[]);
        assert_eq!(all, Latency { events: 1, ..Latency::default() });
    }
}
