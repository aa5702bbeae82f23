//! Combines the monitors of the shards of one process.

use std::collections::BTreeMap;

use pg_logical::Lsn;

use super::exposition;
use super::report::{
    BookmarksReport, DeadLetters, Heartbeat, InFlight, Lag, ParkedCount, Positions, Reconnects, Slot,
    SourceReport, StatusReport, Totals,
};
use super::topics::keep_busiest;
use super::{Monitor, Probe, TopicReport};

/// One monitor, or those of the shards.
#[derive(Debug, Clone)]
pub struct Monitors {
    name: String,
    each: Vec<Monitor>,
}

impl From<Monitor> for Monitors {
    fn from(monitor: Monitor) -> Self {
        Monitors { name: monitor.0.name.clone(), each: vec![monitor] }
    }
}

impl Monitors {
    /// The monitors of the shards of the router `name`.
    pub fn for_shards(name: &str, each: Vec<Monitor>) -> Self {
        Monitors { name: name.to_owned(), each }
    }

    /// As [`Monitor::health`], for all shards.
    pub fn health(&self) -> Probe {
        self.probe(Monitor::health)
    }

    /// As [`Monitor::readiness`], for all shards.
    pub fn readiness(&self) -> Probe {
        self.probe(Monitor::readiness)
    }

    fn probe(&self, one: impl Fn(&Monitor) -> Probe) -> Probe {
        let probes: Vec<Probe> = self.each.iter().map(one).collect();
        let ok = probes.iter().all(|probe| probe.ok);
        if let [first, others @ ..] = probes.as_slice()
            && others.iter().all(|other| other.text == first.text)
        {
            return Probe { ok, text: first.text.clone() };
        }
        let named =
            self.each.iter().zip(&probes).map(|(each, probe)| format!("{} {}", each.0.name, probe.text));
        Probe { ok, text: named.collect::<Vec<_>>().join("; ") }
    }

    /// The status report of one router, or the sum of all shards with the report of each.
    pub fn snapshot(&self) -> StatusReport {
        match self.each.as_slice() {
            [only] => only.snapshot(),
            each => {
                let whole: Vec<StatusReport> = each.iter().map(Monitor::report).collect();
                let shards = each.iter().map(Monitor::snapshot).collect();
                StatusReport { shards, ..sum(&self.name, &whole) }
            }
        }
    }

    /// The metrics in Prometheus's text format, those of shards with the label `shard`.
    pub fn render_metrics(&self) -> String {
        exposition::render(&self.each)
    }
}

/// Adds up the counts of all shards. All other fields are those of the shard that needs most attention.
fn sum(name: &str, shards: &[StatusReport]) -> StatusReport {
    let worst = shards.iter().min_by_key(|shard| shard.state).cloned().unwrap_or_default();
    let total = |count: fn(&StatusReport) -> u64| shards.iter().map(count).sum();
    StatusReport {
        name: name.to_owned(),
        code: worst.code,
        reason: worst.reason.map(|reason| format!("{}: {reason}", worst.name)),
        ready: shards.iter().all(|shard| shard.ready),
        healthy: shards.iter().all(|shard| shard.healthy),
        last_turn_seconds: greatest(shards.iter().map(|shard| shard.last_turn_seconds)).unwrap_or(0.0),
        positions: positions(shards),
        lag: Lag {
            bytes: shards.iter().filter_map(|shard| shard.lag.bytes).max(),
            seconds: greatest(shards.iter().map(|shard| shard.lag.seconds)).unwrap_or(0.0),
        },
        reading_in_bulk: shards.iter().any(|shard| shard.reading_in_bulk),
        in_flight: InFlight {
            records: total(|shard| shard.in_flight.records),
            bytes: total(|shard| shard.in_flight.bytes),
        },
        slot: slot(shards),
        bookmarks: BookmarksReport {
            usable: total(|shard| shard.bookmarks.usable),
            lost: total(|shard| shard.bookmarks.lost),
        },
        heartbeat: heartbeat(shards),
        retention: shards.iter().find_map(|shard| shard.retention.clone()),
        partitions: shards.iter().flat_map(|shard| shard.partitions.clone()).collect(),
        dead_letters: dead_letters(shards),
        totals: Totals {
            events: total(|shard| shard.totals.events),
            bytes: total(|shard| shard.totals.bytes),
            events_dropped: total(|shard| shard.totals.events_dropped),
            keyless_events: total(|shard| shard.totals.keyless_events),
            headers_dropped: total(|shard| shard.totals.headers_dropped),
            timestamps_replaced: total(|shard| shard.totals.timestamps_replaced),
            partitions_grown: total(|shard| shard.totals.partitions_grown),
            bulk_reads: total(|shard| shard.totals.bulk_reads),
            contract_violations: total(|shard| shard.totals.contract_violations),
            ignored_changes: total(|shard| shard.totals.ignored_changes),
        },
        sources: sources(shards),
        topics: topics(shards),
        reconnects: Reconnects {
            postgres: total(|shard| shard.reconnects.postgres),
            kafka: total(|shard| shard.reconnects.kafka),
        },
        last_problem: shards
            .iter()
            .filter_map(|shard| shard.last_problem.clone())
            // RFC 3339 in UTC sorts by time
            .max_by(|one, other| one.at.cmp(&other.at)),
        ..worst
    }
}

/// Every shard reports every source.
fn sources(shards: &[StatusReport]) -> Vec<SourceReport> {
    let mut all: Vec<SourceReport> = Vec::new();
    for source in shards.iter().flat_map(|shard| &shard.sources) {
        match all.iter_mut().find(|known| known.source == source.source) {
            Some(known) => known.events += source.events,
            None => all.push(source.clone()),
        }
    }
    all
}

fn greatest(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    numbers.max_by(f64::total_cmp)
}

/// The lowest of each position, which all shards have reached, and the highest end of the server's log.
fn positions(shards: &[StatusReport]) -> Positions {
    let all = |position: fn(&Positions) -> &Option<String>| -> Vec<Lsn> {
        shards.iter().filter_map(|shard| position(&shard.positions).as_ref()?.parse().ok()).collect()
    };
    let least = |position: fn(&Positions) -> &Option<String>| {
        let known = all(position);
        // an unknown position may be lower than the others
        let all_known = known.len() == shards.len();
        known.into_iter().min().filter(|_| all_known).map(|lsn| lsn.to_string())
    };
    Positions {
        server_wal_end: all(|of| &of.server_wal_end).into_iter().max().map(|lsn| lsn.to_string()),
        received: least(|of| &of.received),
        flushed: least(|of| &of.flushed),
        remembered: least(|of| &of.remembered),
        not_remembered: shards.iter().find_map(|shard| shard.positions.not_remembered.clone()),
        confirmed: least(|of| &of.confirmed),
    }
}

/// The worst value of each field over all slots.
fn slot(shards: &[StatusReport]) -> Slot {
    let slots = || shards.iter().map(|shard| &shard.slot);
    let severity = |status: &String| exposition::WAL_STATUSES.iter().position(|known| known == status);
    Slot {
        at: slots().filter_map(|slot| slot.at.clone()).min(),
        retained_bytes: slots().filter_map(|slot| slot.retained_bytes).max(),
        wal_status: slots().filter_map(|slot| slot.wal_status.clone()).max_by_key(severity),
        safe_wal_bytes: slots().filter_map(|slot| slot.safe_wal_bytes).min(),
        safe_wal_seconds: slots().filter_map(|slot| slot.safe_wal_seconds).min_by(f64::total_cmp),
        room: slots().map(|slot| slot.room).max().unwrap_or_default(),
        held_by: slots().find_map(|slot| slot.held_by.clone()),
    }
}

/// The shard's heartbeat with the greatest age.
fn heartbeat(shards: &[StatusReport]) -> Option<Heartbeat> {
    let beats = shards.iter().filter_map(|shard| shard.heartbeat.clone());
    beats.max_by(|one, other| one.age_seconds.total_cmp(&other.age_seconds))
}

fn dead_letters(shards: &[StatusReport]) -> DeadLetters {
    let mut all = DeadLetters::default();
    for one in shards.iter().map(|shard| &shard.dead_letters) {
        all.aggregates += one.aggregates;
        all.events += one.events;
        all.retried += one.retried;
        all.discarded += one.discarded;
        for ParkedCount { reason, events } in &one.parked {
            match all.parked.iter_mut().find(|known| known.reason == *reason) {
                Some(known) => known.events += events,
                None => all.parked.push(ParkedCount { reason: reason.clone(), events: *events }),
            }
        }
    }
    all
}

/// The topics of all shards with the most events, most first.
fn topics(shards: &[StatusReport]) -> Vec<TopicReport> {
    let mut all: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for topic in shards.iter().flat_map(|shard| &shard.topics) {
        let (events, bytes) = all.entry(&topic.topic).or_default();
        *events += topic.events;
        *bytes += topic.bytes;
    }
    let report =
        |(topic, (events, bytes)): (&str, (u64, u64))| TopicReport { topic: topic.to_owned(), events, bytes };
    let mut topics: Vec<TopicReport> = all.into_iter().map(report).collect();
    keep_busiest(&mut topics);
    topics
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{ErrorCode, Peer};
    use crate::monitor::{State, StateKind};

    fn two() -> (Monitors, Vec<Monitor>) {
        let each = vec![Monitor::for_shard("shop/0", Some(0)), Monitor::for_shard("shop/1", Some(1))];
        (Monitors::for_shards("shop", each.clone()), each)
    }

    #[test]
    fn counts_are_added_up_and_the_worst_state_is_shown() {
        let (all, each) = two();
        each[0].state(State::Active);
        each[0].topic_counters("a").delivered(3, 30);
        each[1].state(State::Reconnecting {
            peer: Peer::Kafka,
            code: None,
            reason: "all brokers are down".to_owned(),
        });
        each[1].topic_counters("a").delivered(4, 40);
        each[1].topic_counters("b").delivered(5, 50);
        each[0].flushed(Lsn(7));
        each[0].server_wal_end(Lsn(9));
        let report = all.snapshot();
        assert_eq!(
            (report.name.as_str(), report.state, report.ready),
            ("shop", StateKind::Reconnecting, false)
        );
        assert_eq!(report.reason.as_deref(), Some("shop/1: all brokers are down"));
        assert_eq!((report.totals.events, report.totals.bytes), (12, 120));
        assert_eq!(report.topics[0], TopicReport { topic: "a".to_owned(), events: 7, bytes: 70 });
        assert_eq!(report.positions.flushed, None, "that of the other shard is unknown");
        each[1].flushed(Lsn(5));
        assert_eq!(all.snapshot().positions.flushed.as_deref(), Some("0/5"));
        assert_eq!(all.snapshot().positions.server_wal_end.as_deref(), Some("0/9"));
        assert_eq!(report.shards.len(), 2);
    }

    #[test]
    fn all_shards_must_be_ready() {
        let (all, each) = two();
        each.iter().for_each(|monitor| monitor.state(State::Active));
        assert_eq!(all.readiness(), Probe { ok: true, text: "active".to_owned() });
        each[1].state(State::Refused { code: ErrorCode::SlotMissing, reason: "slot s is gone".to_owned() });
        let text = "shop/0 active; shop/1 refused: OBR-3001: slot s is gone".to_owned();
        assert_eq!(all.readiness(), Probe { ok: false, text });
    }

    #[test]
    fn a_shard_that_is_done_decides_nothing() {
        let (all, each) = two();
        each[0].ended();
        each[0].main_loop_ended();
        for (state, ok) in [
            (State::Starting, false),
            (State::Connecting { peer: Peer::Kafka }, false),
            (State::Waiting { reason: "a lock".to_owned() }, true),
            (State::Active, true),
            (State::Reconnecting { peer: Peer::Kafka, code: None, reason: "down".to_owned() }, false),
            (State::Stopping, false),
            (State::Ended, true),
        ] {
            each[1].state(state.clone());
            let report = all.snapshot();
            assert_eq!((all.readiness().ok, report.ready, report.state), (ok, ok, state.kind()), "{state}");
        }
    }

    #[test]
    fn each_metric_has_one_heading_and_the_samples_of_every_shard() {
        let (all, each) = two();
        each[0].topic_counters("a").delivered(3, 30);
        each[1].commit_to_ack(0.001, 2);
        let text = all.render_metrics();
        for metric in crate::metrics::ALL {
            let heading = format!("# TYPE {} ", metric.name);
            assert!(text.matches(&heading).count() <= 1, "{text}");
        }
        assert!(text.contains("outbox_router_events_total{shard=\"0\",topic=\"a\"} 3\n"), "{text}");
        assert!(text.contains("outbox_router_in_flight_records{shard=\"0\"} 0\n"), "{text}");
        assert!(text.contains("outbox_router_in_flight_records{shard=\"1\"} 0\n"), "{text}");
        assert!(text.contains("outbox_router_commit_to_ack_seconds_count{shard=\"1\"} 2\n"), "{text}");
    }
}
