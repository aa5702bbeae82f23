use super::*;
use crate::error::{ErrorCode, Peer};

fn metrics_of(monitor: &Monitor) -> String {
    Monitors::from(monitor.clone()).render_metrics()
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn ready_only_when_active_or_waiting() {
    let (monitor, _) = Monitor::for_test("shop.outbox_router");
    let reason = || "slot outbox_router is active for PID 41".to_owned();
    for (state, ok, text) in [
        (State::Starting, false, "starting"),
        (State::Connecting { peer: Peer::Postgres }, false, "connecting to postgres"),
        (State::Active, true, "active"),
        (State::Waiting { reason: reason() }, true, "waiting: slot outbox_router is active for PID 41"),
        (
            State::Reconnecting { peer: Peer::Kafka, code: None, reason: "all brokers are down".to_owned() },
            false,
            "reconnecting to kafka: all brokers are down",
        ),
        (State::Stopping, false, "stopping"),
        (State::Ended, true, "ended"),
        (
            State::Refused { code: ErrorCode::SlotMissing, reason: "slot is gone".to_owned() },
            false,
            "refused: OBR-3001: slot is gone",
        ),
    ] {
        monitor.state(state);
        assert_eq!(monitor.readiness(), Probe { ok, text: text.to_owned() });
    }
}

#[test]
fn healthy_while_the_main_loop_runs_whatever_the_state() {
    let (monitor, clock) = Monitor::for_test("r");
    monitor.state(State::Reconnecting { peer: Peer::Kafka, code: None, reason: "down".to_owned() });
    clock.advance(secs(10));
    assert!(monitor.health().ok);
    clock.advance(secs(1));
    let stuck = Probe { ok: false, text: "the main loop has been stuck for 11 s".to_owned() };
    assert_eq!(monitor.health(), stuck);
    monitor.main_loop_ran();
    assert!(monitor.health().ok);
}

#[test]
fn a_main_loop_that_has_ended_is_not_stuck() {
    let (ended, clock) = Monitor::for_test("shop/0");
    let (running, _) = Monitor::for_test("shop/1");
    ended.main_loop_ended();
    clock.advance(secs(60));
    assert!(ended.snapshot().healthy);
    assert!(Monitors::for_shards("shop", vec![ended, running]).health().ok);
}

#[test]
fn a_new_reason_for_the_same_state_keeps_its_since() {
    let (monitor, clock) = Monitor::for_test("r");
    let down =
        |reason: &str| State::Reconnecting { peer: Peer::Postgres, code: None, reason: reason.to_owned() };
    clock.advance(secs(5));
    monitor.state(down("connection reset"));
    clock.advance(secs(60));
    monitor.state(down("connection refused"));
    let report = monitor.snapshot();
    assert_eq!(
        (report.since.as_str(), report.reason.as_deref()),
        ("2026-01-01T00:00:05.000Z", Some("connection refused"))
    );
    monitor.state(State::Reconnecting { peer: Peer::Kafka, code: None, reason: "down".to_owned() });
    assert_eq!(monitor.snapshot().since, "2026-01-01T00:01:05.000Z");
}

#[test]
fn lag_in_seconds_is_the_age_of_the_oldest_unacknowledged_commit() {
    let (monitor, clock) = Monitor::for_test("r");
    assert_eq!(monitor.snapshot().lag.seconds, 0.0);
    monitor.oldest_unacknowledged(Some(clock.now()));
    clock.advance(Duration::from_millis(2_500));
    assert_eq!(monitor.snapshot().lag.seconds, 2.5);
    monitor.oldest_unacknowledged(Some(PgTimestamp(clock.now().0 + 1_000_000)));
    assert_eq!(monitor.snapshot().lag.seconds, 0.0, "the database's clock is ahead");
    monitor.oldest_unacknowledged(None);
    assert_eq!(monitor.snapshot().lag.seconds, 0.0);
}

#[test]
fn lag_in_bytes_is_unknown_until_the_stream_has_started() {
    let (monitor, _) = Monitor::for_test("r");
    monitor.server_wal_end(Lsn(0x500));
    assert_eq!(monitor.snapshot().lag.bytes, None);
    monitor.flushed(Lsn(0x400));
    assert_eq!(monitor.snapshot().lag.bytes, Some(0x100));
    monitor.flushed(Lsn(0x600));
    assert_eq!(monitor.snapshot().lag.bytes, Some(0));
}

#[test]
fn the_report_names_the_busiest_topics() {
    let (monitor, _) = Monitor::for_test("r");
    for n in 0..TOPICS_REPORTED as u64 + 5 {
        monitor.topic_counters(&format!("t{n:02}")).delivered(n, 1);
    }
    let report = monitor.snapshot();
    assert_eq!(report.topics.len(), TOPICS_REPORTED);
    assert_eq!(report.topics[0].topic, "t24");
    assert_eq!(report.totals.events, (0..25).sum::<u64>(), "totals count all of them");
}

/// A router that is sending events.
pub(crate) fn busy() -> (Monitor, Arc<TestClock>) {
    let (monitor, clock) = Monitor::for_test("shop.outbox_router");
    monitor.state(State::Connecting { peer: Peer::Postgres });
    clock.advance(secs(1));
    monitor.last_problem("postgres: connection refused at db:5432");
    monitor.state(State::Active);
    monitor.counts().reconnected(Peer::Postgres);
    monitor.server_wal_end(Lsn(0x16_B374_D848));
    monitor.received(Lsn(0x16_B374_D000));
    monitor.flushed(Lsn(0x16_B374_0000));
    monitor.confirmed(Lsn(0x16_B370_0000));
    monitor.in_flight(512, 163_840);
    monitor.oldest_unacknowledged(Some(clock.now()));
    monitor.topic_counters("outbox.event.order").delivered(1_000, 300_000);
    monitor.topic_counters("outbox.event.customer").delivered(70, 7_000);
    monitor.commit_to_ack(0.0007, 1_000);
    monitor.commit_to_ack(0.02, 70);
    monitor.counts().keyless_events.add(1);
    monitor.counts().headers_dropped.add(2);
    monitor.counts().timestamps_replaced.add(3);
    monitor.counts().ignored_changes.add(4);
    let first =
        ["order/A.json", "order/A.json", "order/B.json"].map(|contract| monitor.contract_violated(contract));
    assert_eq!(first, [true, false, true]);
    monitor.heartbeat_enabled(secs(10));
    monitor.heartbeat_received(clock.now(), Duration::from_millis(3));
    monitor.slot(Slot {
        at: None,
        retained_bytes: Some(1 << 24),
        wal_status: Some("reserved".to_owned()),
        safe_wal_bytes: Some(1 << 26),
        safe_wal_seconds: Some(720.5),
        room: Level::Ample,
        held_by: Some("the prepared transaction tx1 (database shop, role app)".to_owned()),
    });
    monitor.main_loop_ran();
    clock.advance(Duration::from_millis(250));
    (monitor, clock)
}

#[test]
fn the_report_as_json() {
    let report = StatusReport { version: "1.2.3".to_owned(), ..busy().0.snapshot() };
    insta::assert_snapshot!(serde_json::to_string_pretty(&report).unwrap());
}

#[test]
fn the_report_deserializes_from_its_json() {
    let report = busy().0.snapshot();
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<StatusReport>(&json).unwrap(), report);
}

#[test]
fn rows_that_are_due_grow_older() {
    let (monitor, clock) = Monitor::for_test("r");
    assert_eq!(monitor.snapshot().polling, None);
    let polled = clock.now();
    let oldest = PgTimestamp(polled.0 - 2_000_000);
    monitor.counted_rows(CountedRows { due: 3, oldest: Some(oldest), failed: 1, refused: 2, polled });
    clock.advance(secs(5));
    let expected = Polling {
        poll_age_seconds: 5.0,
        rows_due: 3,
        oldest_due_seconds: 7.0,
        rows_refused: 2,
        rows_failed: 1,
    };
    assert_eq!(monitor.snapshot().polling, Some(expected));
    assert!(metrics_of(&monitor).contains("outbox_router_rows_due_age_seconds 7"));
}

#[test]
fn old_rows_that_were_deleted_are_counted() {
    let (monitor, clock) = Monitor::for_test("r");
    monitor.pruned(1, false);
    assert_eq!(monitor.snapshot().retention, None);
    monitor.retention_enabled();
    monitor.pruned(5, false);
    monitor.pruned(2, true);
    clock.advance(secs(60));
    monitor.prune_ended(Err("no".to_owned()));
    let found = monitor.snapshot().retention.unwrap();
    let failed = Retention {
        age_seconds: 60.0,
        pruned: 5,
        pruned_archived: 2,
        problem: Some("no".to_owned()),
        ..Retention::default()
    };
    assert_eq!(found, failed);
    assert!(metrics_of(&monitor).contains("outbox_router_retention_failing 1"));
    monitor.prune_ended(Ok(7));
    clock.advance(secs(3));
    let done = Retention { complete: true, age_seconds: 3.0, kept: 7, problem: None, ..failed };
    assert_eq!(monitor.snapshot().retention, Some(done));
    assert!(metrics_of(&monitor).contains("outbox_router_retention_rows_kept 7"));
    assert!(metrics_of(&monitor).contains("outbox_router_pruned_rows_total{table=\"archive\"} 2"));
}

/// Nobody may be able to count them again.
#[test]
fn partitions_ahead_become_fewer_with_time() {
    let (monitor, clock) = Monitor::for_test("r");
    let after = |seconds: i64| PgTimestamp(clock.now().0 + seconds * 1_000_000);
    let begins = vec![after(-10), after(10), after(20)];
    monitor.counted_partitions("public.outbox".to_owned(), CountedPartitions { begins, in_default: 4 });
    let expected = |ahead| vec![PartitionsReport { table: "public.outbox".to_owned(), ahead, in_default: 4 }];
    assert_eq!(monitor.snapshot().partitions, expected(2));
    clock.advance(secs(15));
    assert_eq!(monitor.snapshot().partitions, expected(1));
    assert!(metrics_of(&monitor).contains("outbox_router_partitions_ahead{table=\"public.outbox\"} 1"));
}

#[test]
fn every_metric_is_present_from_the_start_with_its_help() {
    // metrics by topic appear with the first topic, those of the heartbeat with the first that comes back, those of polling with the
    // first count, those of retention if it is configured, those of partitions with the first count, those of a limit if there is one
    let (monitor, clock) = Monitor::for_test("r");
    monitor.slot(Slot { safe_wal_bytes: Some(1), safe_wal_seconds: Some(1.0), ..Slot::default() });
    monitor.retention_enabled();
    monitor.counted_partitions("public.outbox".to_owned(), CountedPartitions::default());
    monitor.counted_rows(CountedRows { due: 1, oldest: None, failed: 0, refused: 0, polled: clock.now() });
    monitor.topic_counters("t");
    monitor.heartbeat_enabled(secs(1));
    monitor.heartbeat_received(clock.now(), secs(0));
    let text = metrics_of(&monitor);
    for metric in crate::metrics::ALL {
        let kind = format!("{:?}", metric.kind).to_lowercase();
        assert!(text.contains(&format!("# HELP {} {}", metric.name, metric.help)), "{}\n{text}", metric.name);
        assert!(text.contains(&format!("# TYPE {} {kind}", metric.name)), "{}\n{text}", metric.name);
    }
}

#[test]
fn the_metrics_as_text() {
    // the exporter's hash maps have no order
    let text = metrics_of(&busy().0);
    let mut lines: Vec<&str> =
        text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    lines.sort_unstable();
    insta::assert_snapshot!(lines.join("\n").replace(env!("CARGO_PKG_VERSION"), "<version>"));
}

#[test]
fn no_metric_is_infinite_where_there_is_no_limit() {
    let limits: [fn(&mut Slot); 3] = [
        |slot| slot.safe_wal_bytes = None,
        |slot| slot.safe_wal_seconds = None,
        |slot| (slot.safe_wal_bytes, slot.safe_wal_seconds) = (None, None),
    ];
    for without in limits {
        let (monitor, _) = busy();
        let mut slot = monitor.snapshot().slot;
        without(&mut slot);
        monitor.slot(slot.clone());
        let text = metrics_of(&monitor);
        let has = |name: &str| text.lines().any(|line| line.starts_with(name));
        assert_eq!(has("outbox_router_slot_safe_wal_bytes "), slot.safe_wal_bytes.is_some());
        assert_eq!(has("outbox_router_slot_safe_wal_seconds "), slot.safe_wal_seconds.is_some());
        let infinite = |line: &&str| line.ends_with("Inf") || line.ends_with("NaN");
        assert_eq!(text.lines().find(infinite), None);
    }
}

#[test]
fn metrics_show_current_values() {
    let (monitor, _) = Monitor::for_test("r");
    let counters = monitor.topic_counters("t");
    counters.delivered(1, 1);
    monitor.in_flight(5, 50);
    metrics_of(&monitor);
    counters.delivered(2, 1);
    monitor.in_flight(0, 0);
    monitor.state(State::Stopping);
    let text = metrics_of(&monitor);
    for line in [
        "outbox_router_events_total{topic=\"t\"} 3",
        "outbox_router_in_flight_records 0",
        "outbox_router_state{state=\"stopping\"} 1",
        "outbox_router_state{state=\"starting\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn topics_beyond_a_thousand_are_counted_as_other() {
    let (monitor, _) = Monitor::for_test("r");
    for n in 0..TOPIC_LIMIT + 3 {
        monitor.topic_counters(&format!("t{n}")).delivered(1, 2);
    }
    let text = metrics_of(&monitor);
    let topics = text.lines().filter(|line| line.starts_with("outbox_router_events_total{"));
    assert_eq!(topics.count(), TOPIC_LIMIT + 1);
    assert!(text.contains("outbox_router_events_total{topic=\"other\"} 3\n"));
    assert!(text.contains("outbox_router_bytes_total{topic=\"other\"} 6\n"));
}

#[test]
fn two_monitors_do_not_share_counters() {
    let (one, _) = Monitor::for_test("one");
    let (two, _) = Monitor::for_test("two");
    one.counts().keyless_events.add(7);
    assert!(metrics_of(&one).contains("outbox_router_keyless_events_total 7\n"));
    assert!(metrics_of(&two).contains("outbox_router_keyless_events_total 0\n"));
}

#[test]
fn a_router_without_a_session_shows_no_outdated_numbers() {
    let (monitor, clock) = Monitor::for_test("r");
    monitor.server_wal_end(Lsn(9));
    monitor.flushed(Lsn(7));
    monitor.confirmed(Lsn(5));
    monitor.in_flight(3, 300);
    monitor.set_bulk_reading(true);
    monitor.oldest_unacknowledged(Some(clock.now()));
    clock.advance(secs(2));
    monitor.session_ended();
    let report = monitor.snapshot();
    assert_eq!((report.in_flight.records, report.in_flight.bytes, report.reading_in_bulk), (0, 0, false));
    // the next session resumes there, and unacknowledged commits get older
    assert_eq!((report.lag.bytes, report.lag.seconds), (Some(2), 2.0));
    monitor.became_standby();
    let report = monitor.snapshot();
    assert_eq!((report.lag.bytes, report.lag.seconds), (None, 0.0));
    let positions = report.positions;
    assert!(
        positions.flushed.is_none() && positions.confirmed.is_none() && positions.server_wal_end.is_none()
    );
}
