//! Routers that are killed while events are parked and sent again.

use rand::Rng;

use super::{MODES, Setting};
use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::router::Router;
use crate::support::seed;

const AGGREGATES: u32 = 8;
const EACH: u32 = 60;
const KILLS: usize = 10;

/// Waits until the topic has as many records as wanted, or all that is written so far is sent or parked: a router that
/// has nothing left to do would be waited for in vain.
async fn sent_or_all_done(setting: &Setting, wanted: usize) {
    let (kafka, outbox) = (&setting.kafka, &setting.outbox);
    eventually("something more is sent, or all is sent or parked", async || {
        if kafka.count(&outbox.name).await.ok()? >= wanted {
            return Some(());
        }
        let sql = "SELECT (SELECT count(*) FROM outbox) - (SELECT count(*) FROM outbox_router.dead_letters)";
        let to_send: i64 = outbox.query(sql).await[0].get(0);
        // records and not offsets, which transactions use up too
        let sent = kafka.committed(&outbox.name).await.ok()?.len();
        (sent as i64 >= to_send).then_some(())
    })
    .await;
}

/// Every event is delivered in the end, in the order of its aggregate, and nothing is left in the table.
async fn killed(mode: &str) {
    let mut random = seed::random();
    let mut setting = Setting::new(mode).await;
    // a limit of the router's own: it is raised by another configuration
    let strict = setting.settings.clone().set("kafka.'message.max.bytes'", 2_000);
    setting.settings = strict.clone();
    let large: Vec<(u32, u32)> =
        (0..20).map(|_| (random.random_range(0..AGGREGATES), random.random_range(1..=EACH))).collect();
    let (name, kafka, outbox) = (setting.outbox.name.clone(), &setting.kafka, &setting.outbox);
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
            // now and then with a configuration that can send everything, so that parked events are on their way out
            let lenient = round % 2 == 1;
            let settings = if lenient {
                strict.clone().set("kafka.'message.max.bytes'", 1_000_000)
            } else {
                strict.clone()
            };
            let router = Router::start(&settings);
            let ran = settings.run(&["dead-letters", "retry", "--all"]);
            assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
            let wanted = seen + random.random_range(1..30);
            sent_or_all_done(&setting, wanted).await;
            router.kill();
            seen = kafka.count(&name).await.unwrap();
        }
    };
    tokio::join!(write, kill);
    let settings = strict.set("kafka.'message.max.bytes'", 1_000_000);
    let mut router = Router::active(&settings).await;
    setting.outbox.all_confirmed().await;
    setting.settings = settings;
    eventually("nothing is parked any more", async || {
        setting.dead_letters(&["retry", "--all"]);
        router.assert_running();
        let rows = setting.outbox.query("SELECT count(*) FROM outbox_router.dead_letters").await;
        (rows[0].get::<_, i64>(0) == 0).then_some(())
    })
    .await;
    router.stop().await;
    let repeats = if mode == "exactly-once" { Repeats::Never } else { Repeats::Restarts(2 * KILLS) };
    same(&setting.outbox, &setting.kafka.committed(&setting.outbox.name).await.unwrap(), repeats).await;
}

#[tokio::test]
async fn dead_letters_under_sigkill_lose_nothing_and_keep_order_at_least_once() {
    killed(MODES[0]).await;
}

#[tokio::test]
async fn dead_letters_under_sigkill_are_seen_once_and_in_order_exactly_once() {
    killed(MODES[1]).await;
}

/// What belongs to no aggregate is held up by nothing, and is parked and sent again by itself.
#[tokio::test]
async fn dead_letters_without_an_aggregate_are_seen_once_under_sigkill_exactly_once() {
    const EVENTS: u64 = 200;
    let mut random = seed::random();
    let setting = Setting::new(MODES[1]).await;
    let strict = setting.settings.clone().set("kafka.'message.max.bytes'", 2_000);
    let lenient = strict.clone().set("kafka.'message.max.bytes'", 1_000_000);
    let (name, kafka, outbox) = (&setting.outbox.name, &setting.kafka, &setting.outbox);
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
            sent_or_all_done(&setting, wanted).await;
            router.kill();
        }
    };
    tokio::join!(write, kill);
    let router = Router::active(&lenient).await;
    outbox.all_confirmed().await;
    eventually("nothing is parked any more", async || {
        assert_eq!(strict.run(&["dead-letters", "retry", "--all"]).code, 0);
        let rows = outbox.query("SELECT count(*) FROM outbox_router.dead_letters").await;
        (rows[0].get::<_, i64>(0) == 0).then_some(())
    })
    .await;
    router.stop().await;
    let records = kafka.committed(name).await.unwrap();
    let mut seen: Vec<u64> = records.iter().map(|record| record.number()).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..EVENTS).collect::<Vec<_>>());
}
