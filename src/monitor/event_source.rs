//! Where the delivered events were read.

use super::report::SourceReport;

/// What a session reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventSource {
    /// The write-ahead log.
    Log,
    /// The outbox table, which is polled.
    Table,
    /// The rows from before the slot.
    Backfill,
}

impl EventSource {
    const ALL: [EventSource; 3] = [EventSource::Log, EventSource::Table, EventSource::Backfill];

    fn name(self) -> &'static str {
        match self {
            EventSource::Log => "log",
            EventSource::Table => "table",
            EventSource::Backfill => "backfill",
        }
    }
}

/// The events of the sessions so far. A session reads one source.
#[derive(Debug, Default)]
pub(super) struct EventSources {
    ended: [u64; 3],
    /// What the current session reads, and how many events had been delivered before it.
    current: Option<(EventSource, u64)>,
}

impl EventSources {
    /// A session begins after so many events.
    pub(super) fn session_begins(&mut self, source: EventSource, delivered: u64) {
        self.ended = self.events(delivered);
        self.current = Some((source, delivered));
    }

    /// In the order of [`EventSource::ALL`].
    fn events(&self, delivered: u64) -> [u64; 3] {
        let mut events = self.ended;
        for (source, events) in EventSource::ALL.into_iter().zip(&mut events) {
            if let Some((current, before)) = self.current
                && current == source
            {
                *events += delivered.saturating_sub(before);
            }
        }
        events
    }

    pub(super) fn report(&self, delivered: u64) -> Vec<SourceReport> {
        let of =
            |(source, events): (EventSource, u64)| SourceReport { source: source.name().to_owned(), events };
        EventSource::ALL.into_iter().zip(self.events(delivered)).map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Monitor, Monitors};
    use super::*;

    #[test]
    fn each_session_adds_to_its_source() {
        let (monitor, _) = Monitor::for_test("r");
        let topic = monitor.topic_counters("orders");
        for (source, events) in [(EventSource::Backfill, 5), (EventSource::Log, 2), (EventSource::Log, 1)] {
            monitor.reads_from(source);
            topic.delivered(events, 10);
        }
        let of = |source: &str, events| SourceReport { source: source.to_owned(), events };
        assert_eq!(monitor.snapshot().sources, [of("log", 3), of("table", 0), of("backfill", 5)]);
        let metrics = Monitors::from(monitor).render_metrics();
        assert!(metrics.contains("outbox_router_source_events_total{source=\"backfill\"} 5"), "{metrics}");
    }
}
