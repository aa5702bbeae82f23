//! What a running router shows of parked events that it did not park itself.

use std::time::Duration;

use serde_json::Value;
use tokio_postgres::Client;

use super::{MODES, Setting, large};
use crate::bulk_reads::{PG_HBA, backlog, slow, streams, took_bulk_reads};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::postgres::PrivatePostgres;
use crate::support::private_kafka::PrivateKafka;
use crate::support::router::Router;
use crate::support::settings::Settings;

/// The text of a gauge on `/metrics`.
fn gauge(router: &Router, name: &str) -> Option<String> {
    let (_, page) = router.get("/metrics")?;
    page.lines().find_map(|line| line.strip_prefix(&format!("outbox_router_{name} ")).map(str::to_owned))
}

/// Waits until `/status` shows so many events and aggregates, which `outbox-router status` prints, and the same on `/metrics`.
async fn shows(router: &mut Router, events: u64, aggregates: u64) {
    let what = format!("{events} events of {aggregates} aggregates are shown as parked");
    router
        .shows(&what, |status| {
            let shown = &status["dead_letters"];
            (shown["events"] == events && shown["aggregates"] == aggregates).then_some(())
        })
        .await;
    assert_eq!(gauge(router, "dead_letters"), Some(events.to_string()));
    assert_eq!(gauge(router, "dead_letters_aggregates"), Some(aggregates.to_string()));
}

#[tokio::test]
async fn dead_letters_of_an_earlier_process_are_shown() {
    for mode in MODES {
        let setting = Setting::new(mode).await;
        let router = Router::active(&setting.settings).await;
        setting.poison("a", 1).await;
        setting.outbox.insert_numbers("order", "a", 2..5).await;
        setting.parks(4).await;
        router.stop().await;
        let mut router = Router::active(&setting.settings).await;
        shows(&mut router, 4, 1).await;
        router.stop().await;
    }
}

#[tokio::test]
async fn dead_letters_that_are_gone_when_a_session_starts_are_no_longer_shown() {
    for mode in MODES {
        let setting = Setting::new(mode).await;
        let mut router = Router::active(&setting.settings).await;
        setting.poison("a", 1).await;
        setting.outbox.insert_numbers("order", "a", 2..5).await;
        setting.parks(4).await;
        shows(&mut router, 4, 1).await;
        // or the events would come again, and be parked again
        setting.outbox.all_confirmed().await;
        setting.outbox.execute("DELETE FROM outbox_router.dead_letters").await;
        let end = format!("SELECT pg_terminate_backend({}, 60000)", setting.outbox.active_pid().await);
        setting.outbox.execute(&end).await;
        shows(&mut router, 0, 0).await;
        router.stop().await;
    }
}

/// Which of the two is active, and which waits.
async fn active_and_waiting(one: Router, other: Router) -> (Router, Router) {
    let first = eventually("one is active, and the other waits", async || {
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
async fn dead_letters_are_shown_by_a_router_that_waits_and_by_one_that_has_taken_over() {
    for mode in MODES {
        let setting = Setting::new(mode).await;
        let mut active = Router::active(&setting.settings).await;
        setting.poison("a", 1).await;
        setting.outbox.insert_numbers("order", "a", 2..5).await;
        setting.parks(4).await;
        let mut waiting = Router::active(&setting.settings).await;
        shows(&mut waiting, 4, 1).await;
        // the slot is kept outside of the process, too
        let slot = waiting
            .shows("the slot as Postgres describes it", |status| {
                status["slot"]["retained_bytes"].as_u64().map(|_| status["slot"].clone())
            })
            .await;
        assert_eq!(slot["wal_status"], "reserved", "{mode}");
        // the active one loses its session
        let end = format!("SELECT pg_terminate_backend({}, 60000)", setting.outbox.active_pid().await);
        setting.outbox.execute(&end).await;
        let lost = |status: &Value| (status["reconnects"]["postgres"] == 1).then_some(());
        active.shows("it has noticed that", lost).await;
        let (mut active, mut waiting) = active_and_waiting(active, waiting).await;
        shows(&mut active, 4, 1).await;
        setting.dead_letters(&["discard", "--all", "--yes"]);
        setting.parks(0).await;
        shows(&mut active, 0, 0).await;
        shows(&mut waiting, 0, 0).await;
        // what it knew of the position is history, and nothing of its own is under way
        waiting
            .shows("it claims no position", |status| {
                let (positions, in_flight) = (&status["positions"], &status["in_flight"]);
                let none = positions["flushed"].is_null() && positions["confirmed"].is_null();
                (none && status["lag"]["bytes"].is_null() && in_flight["records"] == 0).then_some(())
            })
            .await;
        // another takes over while there are some
        setting.poison("b", 1).await;
        setting.parks(1).await;
        active.kill();
        waiting.shows("it has taken over", |status| (status["state"] == "active").then_some(())).await;
        shows(&mut waiting, 1, 1).await;
        waiting.stop().await;
    }
}

/// A start reaches Postgres before Kafka.
#[tokio::test]
async fn dead_letters_and_the_slot_are_shown_while_no_broker_can_be_reached() {
    let setting = Setting::new(MODES[1]).await;
    let router = Router::active(&setting.settings).await;
    setting.poison("a", 1).await;
    setting.outbox.insert_numbers("order", "a", 2..5).await;
    setting.parks(4).await;
    router.stop().await;
    let away = setting.settings.clone().set("kafka.'bootstrap.servers'", "127.0.0.1:1");
    let mut router = Router::start(&away);
    shows(&mut router, 4, 1).await;
    let slot = router.status().unwrap()["slot"].clone();
    assert!(slot["wal_status"] == "reserved" && slot["retained_bytes"].is_u64(), "{slot}");
    assert_eq!(gauge(&router, "slot_wal_status{wal_status=\"reserved\"}").as_deref(), Some("1"));
    assert_eq!(router.get("/readyz").unwrap().0, 503);
    router.stop().await;
}

/// A slot of little log that is read in bulk, on a server where nobody else writes; and aggregate `a` with 31 parked events of which
/// all may be sent since, and `c` with two that nobody decides.
async fn parked_before_a_switch(server: &PrivatePostgres, mode: &str) -> (Setting, Router) {
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let topic = outbox.topic("large");
    kafka.create_topic(&topic, 1, &[("max.message.bytes", "2000")]).await;
    let settings = Settings::new(&outbox, &kafka)
        .set("delivery.mode", mode)
        .set("dead_letters.policy", "park")
        .set("postgres.catch_up", "auto")
        .set("postgres.catch_up_lag", "1");
    let table = include_str!("../../migrations/V2__dead_letters.sql");
    outbox.execute(&format!("CREATE SCHEMA IF NOT EXISTS outbox_router; {table}")).await;
    let setting = Setting { outbox, kafka, settings: slow(settings) };
    let router = Router::active(&setting.settings).await;
    for (aggregate, count) in [("a", 31), ("c", 2)] {
        setting.outbox.insert("large", aggregate, &large(1)).await;
        setting.outbox.insert_numbers("large", aggregate, 2..count + 1).await;
    }
    setting.parks(33).await;
    setting.outbox.all_confirmed().await;
    setting.kafka.alter_topic(&topic, &[("max.message.bytes", "100000")]).await;
    (setting, router)
}

/// Keeps one row in the middle of `a` from being taken out, so that what is decided stays half done.
async fn half_way(setting: &Setting) -> Client {
    let client = setting.outbox.client().await;
    client
        .batch_execute(
            "BEGIN; SELECT FROM outbox_router.dead_letters WHERE aggregate_id = 'a' ORDER BY final_lsn, change \
             OFFSET 15 LIMIT 1 FOR KEY SHARE",
        )
        .await
        .unwrap();
    client
}

async fn decides(setting: &Setting, decision: &str) {
    let mut arguments = vec!["dead-letters", decision, "--aggregate", "a"];
    if decision == "discard" {
        arguments.push("--yes");
    }
    let ran = setting.settings.run_beside(&arguments).await;
    assert_eq!(ran.code, 0, "{ran:?}");
}

async fn is_half_done(setting: &Setting) {
    let waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' \
                 AND application_name LIKE '% dead letters'";
    eventually("a row cannot be taken out", async || setting.outbox.query(waits).await.pop()).await;
}

/// In the end only the events of `c` are left, and consumers have seen what was sent, in order.
async fn is_done(setting: &Setting, router: &mut Router, decision: &str) {
    setting.parks(2).await;
    setting.outbox.all_confirmed().await;
    streams(router).await;
    shows(router, 2, 1).await;
    let sent = if decision == "retry" { (1..=31).collect() } else { Vec::new() };
    let mut seen = setting.seen("a").await;
    // in at-least-once what was sent and not taken out comes again when a session ends
    seen.dedup();
    let mut first = seen.clone();
    let mut known = std::collections::BTreeSet::new();
    first.retain(|n| known.insert(*n));
    assert_eq!(first, sent, "{decision}: {seen:?}");
}

#[tokio::test]
async fn dead_letters_are_shown_when_bulk_reads_begin_while_they_are_sent_or_thrown_away() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    for mode in MODES {
        for decision in ["retry", "discard"] {
            let (setting, mut router) = parked_before_a_switch(&server, mode).await;
            shows(&mut router, 33, 2).await;
            streams(&mut router).await;
            let lock = half_way(&setting).await;
            decides(&setting, decision).await;
            is_half_done(&setting).await;
            backlog(&setting.outbox, 200).await;
            eventually("it reads in bulk, or the next session waits for the row", async || {
                let waits = router.log().contains("the parked events cannot be read");
                (waits || router.status()?["in_bites"] == true).then_some(())
            })
            .await;
            lock.batch_execute("COMMIT").await.unwrap();
            took_bulk_reads(&mut router, 1).await;
            is_done(&setting, &mut router, decision).await;
            router.stop().await;
        }
    }
}

#[tokio::test]
async fn dead_letters_are_shown_when_bulk_reads_end_while_they_are_sent_or_thrown_away() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    for mode in MODES {
        for decision in ["retry", "discard"] {
            let (setting, mut router) = parked_before_a_switch(&server, mode).await;
            backlog(&setting.outbox, 200).await;
            router.shows("it reads in bulk", |status| (status["in_bites"] == true).then_some(())).await;
            shows(&mut router, 33, 2).await;
            let lock = half_way(&setting).await;
            decides(&setting, decision).await;
            streams(&mut router).await;
            is_half_done(&setting).await;
            lock.batch_execute("COMMIT").await.unwrap();
            is_done(&setting, &mut router, decision).await;
            router.stop().await;
        }
    }
}

/// No event of the stream waits, and the position goes on; only the parked one that is sent again waits.
#[tokio::test]
async fn dead_letters_that_are_sent_again_to_a_frozen_broker_are_explained() {
    let broker = PrivateKafka::start(&[]).await;
    let mut setting = Setting::on_broker("at-least-once", &broker).await;
    // the broker is not asked for a checkpoint either
    setting.settings = setting.settings.clone().set("delivery.positions_topic", "");
    let mut router = Router::active(&setting.settings).await;
    setting.outbox.insert_numbers("order", "a", 1..2).await;
    let id = setting.poison("a", 2).await;
    setting.outbox.insert_numbers("order", "a", 3..4).await;
    setting.parks(2).await;
    setting.outbox.all_confirmed().await;
    broker.freeze();
    setting.dead_letters(&["discard", "--id", &id, "--yes"]);
    setting.parks(1).await;
    let others = async {
        loop {
            setting.outbox.execute("SELECT pg_logical_emit_message(true, 'of another', 'message')").await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let reason = tokio::select! {
        reason = router.shows("a reason", |status| status["reason"].as_str().map(str::to_owned)) => reason,
        never = others => never,
    };
    assert!(reason.contains("a broker does not answer"), "{reason}");
    broker.thaw();
    setting.parks(0).await;
    router.ready().await;
    setting.sees("a", vec![1, 3]).await;
    router.stop().await;
}
