//! The status of a running router includes parked events that it did not park itself.

use std::time::Duration;

use serde_json::Value;
use tokio_postgres::Client;

use super::{MODES, Setup, large};
use crate::bulk_reads::{PG_HBA, backlog, is_reading_in_bulk, is_streaming, slow, took_bulk_reads};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::succeeded;
use crate::support::postgres::PrivatePostgres;
use crate::support::private_kafka::PrivateKafka;
use crate::support::router::Router;
use crate::support::settings::Settings;

/// The value of a gauge of `/metrics`.
fn gauge(router: &Router, name: &str) -> Option<String> {
    let (_, page) = router.get("/metrics")?;
    page.lines().find_map(|line| line.strip_prefix(&format!("outbox_router_{name} ")).map(str::to_owned))
}

/// Waits until `/status` and `/metrics` show these numbers of parked events and aggregates. An event that is read again counts twice
/// until Postgres says that its row exists.
async fn shows(router: &mut Router, events: u64, aggregates: u64) {
    let what = format!("{events} events of {aggregates} aggregates are shown as parked");
    router
        .shows(&what, |status| {
            let shown = &status["dead_letters"];
            (shown["events"] == events && shown["aggregates"] == aggregates).then_some(())
        })
        .await;
    let expected = [events, aggregates].map(|number| Some(number.to_string()));
    eventually(&format!("{what} in /metrics"), async || {
        let found = ["dead_letters", "dead_letters_aggregates"].map(|name| gauge(router, name));
        (found == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn dead_letters_of_an_earlier_process_are_shown() {
    for mode in MODES {
        let setup = Setup::new(mode).await;
        let router = Router::active(&setup.settings).await;
        setup.poison("a", 1).await;
        setup.outbox.insert_numbers("order", "a", 2..5).await;
        setup.parks(4).await;
        router.stop().await;
        let mut router = Router::active(&setup.settings).await;
        shows(&mut router, 4, 1).await;
        router.stop().await;
    }
}

#[tokio::test]
async fn dead_letters_that_are_gone_when_a_session_starts_are_no_longer_shown() {
    for mode in MODES {
        let setup = Setup::new(mode).await;
        let mut router = Router::active(&setup.settings).await;
        setup.poison("a", 1).await;
        setup.outbox.insert_numbers("order", "a", 2..5).await;
        setup.parks(4).await;
        shows(&mut router, 4, 1).await;
        // otherwise the events would be repeated and parked again
        setup.outbox.all_confirmed().await;
        setup.outbox.execute("DELETE FROM outbox_router.dead_letters").await;
        let end = format!("SELECT pg_terminate_backend({}, 60000)", setup.outbox.active_pid().await);
        setup.outbox.execute(&end).await;
        shows(&mut router, 0, 0).await;
        router.stop().await;
    }
}

/// The two routers, the active one first.
async fn active_and_waiting(one: Router, other: Router) -> (Router, Router) {
    let first = eventually("one router is active, and the other one waits", async || {
        match (one.status()?["state"].as_str()?, other.status()?["state"].as_str()?) {
            ("active", "waiting") => Some(true),
            ("waiting", "active") => Some(false),
            _ => None,
        }
    })
    .await;
    if first { (one, other) } else { (other, one) }
}

#[tokio::test]
async fn dead_letters_are_shown_by_a_standby_and_after_a_takeover() {
    for mode in MODES {
        let setup = Setup::new(mode).await;
        let mut active = Router::active(&setup.settings).await;
        setup.poison("a", 1).await;
        setup.outbox.insert_numbers("order", "a", 2..5).await;
        setup.parks(4).await;
        let mut waiting = Router::active(&setup.settings).await;
        shows(&mut waiting, 4, 1).await;
        // like parked events, the slot is state outside the process
        let slot = waiting
            .shows("the standby shows the slot's state in Postgres", |status| {
                status["slot"]["retained_bytes"].as_u64().map(|_| status["slot"].clone())
            })
            .await;
        assert_eq!(slot["wal_status"], "reserved", "{mode}");
        // the active router loses its session
        let end = format!("SELECT pg_terminate_backend({}, 60000)", setup.outbox.active_pid().await);
        setup.outbox.execute(&end).await;
        let lost = |status: &Value| (status["reconnects"]["postgres"].as_u64()? >= 1).then_some(());
        active.shows("it has reconnected", lost).await;
        let (mut active, mut waiting) = active_and_waiting(active, waiting).await;
        shows(&mut active, 4, 1).await;
        setup.dead_letters(&["discard", "--all", "--yes"]);
        setup.parks(0).await;
        shows(&mut active, 0, 0).await;
        shows(&mut waiting, 0, 0).await;
        // a former active router must not show its old position or records in flight
        waiting
            .shows("the standby shows no position", |status| {
                let (positions, in_flight) = (&status["positions"], &status["in_flight"]);
                let none = positions["flushed"].is_null() && positions["confirmed"].is_null();
                (none && status["lag"]["bytes"].is_null() && in_flight["records"] == 0).then_some(())
            })
            .await;
        // the standby takes over while an event is parked
        setup.poison("b", 1).await;
        setup.parks(1).await;
        active.kill();
        waiting.shows("it has taken over", |status| (status["state"] == "active").then_some(())).await;
        shows(&mut waiting, 1, 1).await;
        waiting.stop().await;
    }
}

/// At startup the router connects to Postgres before Kafka.
#[tokio::test]
async fn dead_letters_and_the_slot_are_shown_while_no_broker_can_be_reached() {
    let setup = Setup::new(MODES[1]).await;
    let router = Router::active(&setup.settings).await;
    setup.poison("a", 1).await;
    setup.outbox.insert_numbers("order", "a", 2..5).await;
    setup.parks(4).await;
    router.stop().await;
    let unreachable = setup.settings.clone().set("kafka.'bootstrap.servers'", "127.0.0.1:1");
    let mut router = Router::start(&unreachable);
    shows(&mut router, 4, 1).await;
    let slot = router.status().unwrap()["slot"].clone();
    assert!(slot["wal_status"] == "reserved" && slot["retained_bytes"].is_u64(), "{slot}");
    assert_eq!(gauge(&router, "slot_wal_status{wal_status=\"reserved\"}").as_deref(), Some("1"));
    assert_eq!(router.get_now("/readyz").await.0, 503);
    router.stop().await;
}

/// A router that reads in bulk even at a small lag, on a server where nobody else writes. Aggregate `a` has 31 parked events,
/// which can be sent by now. Aggregate `c` has two, for which the tests decide nothing.
async fn parked_before_a_switch(server: &PrivatePostgres, mode: &str) -> (Setup, Router) {
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let topic = outbox.topic("large");
    kafka.create_topic(&topic, 1, &[("max.message.bytes", "2000")]).await;
    let settings = Settings::new(&outbox, &kafka)
        .set("delivery.mode", mode)
        .set("dead_letters.policy", "park")
        .set("postgres.catch_up_lag", "1");
    outbox.create_dead_letters_table().await;
    let setup = Setup { outbox, kafka, settings: slow(settings) };
    let router = Router::active(&setup.settings).await;
    for (aggregate, count) in [("a", 31), ("c", 2)] {
        setup.outbox.insert("large", aggregate, &large(1)).await;
        setup.outbox.insert_numbers("large", aggregate, 2..count + 1).await;
    }
    setup.parks(33).await;
    setup.outbox.all_confirmed().await;
    setup.kafka.alter_topic(&topic, &[("max.message.bytes", "100000")]).await;
    (setup, router)
}

/// Locks one row in the middle of `a` against deletion, so that the router can carry out a decision only up to there.
async fn lock_middle_row(setup: &Setup) -> Client {
    let client = setup.outbox.client().await;
    client
        .batch_execute(
            "BEGIN; SELECT FROM outbox_router.dead_letters WHERE aggregate_id = 'a' ORDER BY final_lsn, change \
             OFFSET 15 LIMIT 1 FOR KEY SHARE",
        )
        .await
        .unwrap();
    client
}

async fn decide(setup: &Setup, decision: &str) {
    let mut arguments = vec!["dead-letters", decision, "--aggregate", "a"];
    if decision == "discard" {
        arguments.push("--yes");
    }
    succeeded(setup.settings.run_async(&arguments).await, &[]);
}

async fn deletion_is_blocked(setup: &Setup) {
    let waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' \
                 AND application_name LIKE '% dead letters'";
    eventually("the deletion of a row is blocked", async || setup.outbox.query(waits).await.pop()).await;
}

/// Waits until only the events of `c` are parked, and asserts that consumers have seen the retried events in order.
async fn decision_is_complete(setup: &Setup, router: &mut Router, decision: &str) {
    setup.parks(2).await;
    setup.outbox.all_confirmed().await;
    is_streaming(router).await;
    shows(router, 2, 1).await;
    let sent = if decision == "retry" { (1..=31).collect() } else { Vec::new() };
    let mut seen = setup.seen("a").await;
    // in at-least-once, events that were sent but not yet deleted are repeated when a session ends
    seen.dedup();
    let mut first = seen.clone();
    let mut known = std::collections::BTreeSet::new();
    first.retain(|n| known.insert(*n));
    assert_eq!(first, sent, "{decision}: {seen:?}");
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn dead_letters_are_shown_when_bulk_reads_begin_during_a_retry_or_discard() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    for mode in MODES {
        for decision in ["retry", "discard"] {
            let (setup, mut router) = parked_before_a_switch(&server, mode).await;
            shows(&mut router, 33, 2).await;
            is_streaming(&mut router).await;
            let lock = lock_middle_row(&setup).await;
            decide(&setup, decision).await;
            deletion_is_blocked(&setup).await;
            backlog(&setup.outbox, 200).await;
            eventually("the router reads in bulk, or its next session waits for the row", async || {
                let waits = router.log().contains("the parked events cannot be read");
                (waits || router.status()?["reading_in_bulk"] == true).then_some(())
            })
            .await;
            lock.batch_execute("COMMIT").await.unwrap();
            took_bulk_reads(&mut router, 1).await;
            decision_is_complete(&setup, &mut router, decision).await;
            router.stop().await;
        }
    }
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn dead_letters_are_shown_when_bulk_reads_end_during_a_retry_or_discard() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    for mode in MODES {
        for decision in ["retry", "discard"] {
            let (setup, mut router) = parked_before_a_switch(&server, mode).await;
            backlog(&setup.outbox, 200).await;
            is_reading_in_bulk(&mut router).await;
            shows(&mut router, 33, 2).await;
            let lock = lock_middle_row(&setup).await;
            decide(&setup, decision).await;
            is_streaming(&mut router).await;
            deletion_is_blocked(&setup).await;
            lock.batch_execute("COMMIT").await.unwrap();
            decision_is_complete(&setup, &mut router, decision).await;
            router.stop().await;
        }
    }
}

/// No event of the stream waits and the position advances. Only the retry of the parked event waits.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn dead_letters_that_wait_for_a_frozen_broker_are_explained() {
    let broker = PrivateKafka::start(&[]).await;
    let mut setup = Setup::on_broker("at-least-once", &broker).await;
    // no checkpoint waits for the broker either
    setup.settings = setup.settings.clone().set("delivery.positions_topic", "");
    let mut router = Router::active(&setup.settings).await;
    setup.outbox.insert_numbers("order", "a", 1..2).await;
    let id = setup.poison("a", 2).await;
    setup.outbox.insert_numbers("order", "a", 3..4).await;
    setup.parks(2).await;
    setup.outbox.all_confirmed().await;
    broker.freeze();
    setup.dead_letters(&["discard", "--id", &id, "--yes"]);
    setup.parks(1).await;
    let other_writes = async {
        loop {
            setup.outbox.execute("SELECT pg_logical_emit_message(true, 'of another', 'message')").await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let reason = tokio::select! {
        reason = router.shows("a reason", |status| status["reason"].as_str().map(str::to_owned)) => reason,
        never = other_writes => never,
    };
    assert!(reason.contains("a broker does not answer"), "{reason}");
    broker.thaw();
    setup.parks(0).await;
    router.ready().await;
    setup.sees("a", vec![1, 3]).await;
    router.stop().await;
}
