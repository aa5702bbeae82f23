//! Routers are killed while they park and retry events.

use rand::Rng;

use super::{MODES, Setup};
use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::place::succeeded;
use crate::support::router::Router;
use crate::support::seed;

const AGGREGATES: u32 = 8;
const EACH: u32 = 60;
const KILLS: usize = 10;

/// Waits until the topic has this many records, or all events so far are sent or parked and the router has nothing left to do.
async fn sent_or_idle(setup: &Setup, wanted: usize) {
    let (kafka, outbox) = (&setup.kafka, &setup.outbox);
    eventually("more records are sent, or all events are sent or parked", async || {
        if kafka.count(&outbox.name).await.ok()? >= wanted {
            return Some(());
        }
        let sql = "SELECT (SELECT count(*) FROM outbox) - (SELECT count(*) FROM outbox_router.dead_letters)";
        let to_send: i64 = outbox.query(sql).await[0].get(0);
        // records, not offsets, because the markers of transactions take offsets too
        let sent = kafka.committed(&outbox.name).await.ok()?.len();
        (sent as i64 >= to_send).then_some(())
    })
    .await;
}

/// Asserts that in the end every event is delivered in the order of its aggregate, and none is parked.
async fn killed(mode: &str) {
    let mut random = seed::random();
    let mut setup = Setup::new(mode).await;
    // a limit of the router's configuration
    let strict = setup.settings.clone().set("kafka.'message.max.bytes'", 2_000);
    setup.settings = strict.clone();
    let large: Vec<(u32, u32)> =
        (0..20).map(|_| (random.random_range(0..AGGREGATES), random.random_range(1..=EACH))).collect();
    let (name, kafka, outbox) = (setup.outbox.name.clone(), &setup.kafka, &setup.outbox);
    let write = async {
        for n in 1..=EACH {
            for aggregate in 0..AGGREGATES {
                let text = if large.contains(&(aggregate, n)) { "x".repeat(3_000) } else { String::new() };
                let payload = format!("{{\"n\": {n}, \"text\": \"{text}\"}}");
                outbox.insert("order", &format!("a{aggregate}"), &payload).await;
            }
        }
    };
    let kill = async {
        let mut seen = 0;
        for round in 0..KILLS {
            // every second router can send all events, so that parked ones are being sent when it is killed
            let lenient = round % 2 == 1;
            let settings = if lenient {
                strict.clone().set("kafka.'message.max.bytes'", 1_000_000)
            } else {
                strict.clone()
            };
            let router = Router::start(&settings);
            succeeded(settings.run(&["dead-letters", "retry", "--all"]), &[]);
            let wanted = seen + random.random_range(1..30);
            sent_or_idle(&setup, wanted).await;
            router.kill();
            seen = kafka.count(&name).await.unwrap();
        }
    };
    tokio::join!(write, kill);
    let settings = strict.set("kafka.'message.max.bytes'", 1_000_000);
    let mut router = Router::active(&settings).await;
    setup.outbox.all_confirmed().await;
    setup.settings = settings;
    eventually("no event is parked", async || {
        setup.dead_letters(&["retry", "--all"]);
        router.assert_running();
        (setup.parked().await == 0).then_some(())
    })
    .await;
    router.stop().await;
    let repeats = if mode == "exactly-once" { Repeats::Never } else { Repeats::Restarts(2 * KILLS) };
    same(&setup.outbox, &setup.kafka.committed(&setup.outbox.name).await.unwrap(), repeats).await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn dead_letters_under_sigkill_lose_nothing_and_keep_order_at_least_once() {
    killed(MODES[0]).await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn dead_letters_under_sigkill_are_seen_once_and_in_order_exactly_once() {
    killed(MODES[1]).await;
}

/// Events without an aggregate wait for no other event, and are parked and retried one by one.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn dead_letters_without_an_aggregate_are_seen_once_under_sigkill_exactly_once() {
    const EVENTS: u64 = 200;
    let mut random = seed::random();
    let setup = Setup::new(MODES[1]).await;
    let strict = setup.settings.clone().set("kafka.'message.max.bytes'", 2_000);
    let lenient = strict.clone().set("kafka.'message.max.bytes'", 1_000_000);
    let (name, kafka, outbox) = (&setup.outbox.name, &setup.kafka, &setup.outbox);
    let write = async {
        for n in 0..EVENTS {
            let sql = format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', NULL, \
                 jsonb_build_object('n', {n}, 'text', CASE WHEN {n} % 3 = 0 THEN repeat('x', 3000) END))"
            );
            outbox.execute(&sql).await;
        }
    };
    let kill = async {
        for round in 0..KILLS {
            let router = Router::start(if round % 2 == 1 { &lenient } else { &strict });
            assert_eq!(strict.run(&["dead-letters", "retry", "--all"]).code, 0);
            let seen = kafka.count(name).await.unwrap_or_default();
            let wanted = seen + random.random_range(1..20);
            sent_or_idle(&setup, wanted).await;
            router.kill();
        }
    };
    tokio::join!(write, kill);
    let router = Router::active(&lenient).await;
    outbox.all_confirmed().await;
    eventually("no event is parked", async || {
        assert_eq!(strict.run(&["dead-letters", "retry", "--all"]).code, 0);
        (setup.parked().await == 0).then_some(())
    })
    .await;
    router.stop().await;
    let records = kafka.committed(name).await.unwrap();
    let mut seen: Vec<u64> = records.iter().map(|record| record.number()).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..EVENTS).collect::<Vec<_>>());
}
