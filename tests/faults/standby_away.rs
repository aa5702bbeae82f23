//! A standby is away whose confirmation Postgres requires before it sends a change (`synchronized_standby_slots`). These tests
//! use Postgres 17 or later, whatever version the suite runs on.

use super::failover::Pair;
use crate::bulk_reads::{is_reading_in_bulk, slow};
use crate::commands::check::Found;
use crate::support::eventually::eventually;
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::signal::{Signal, send};

/// Settings of a router that reads in bulk even if it is only one byte behind.
fn settings(pair: &Pair) -> Settings {
    pair.settings.clone().set("postgres.catch_up_lag", "1")
}

/// Waits until the router gives the reason `why` everywhere, and asserts that Kafka has no more than `count` events meanwhile.
async fn is_blocked(pair: &Pair, router: &mut Router, count: usize, why: &str) {
    eventually(&format!("the status says that {why}"), async || {
        let sent = pair.kafka.count(&pair.outbox.name).await.unwrap();
        assert_eq!(sent, count, "Kafka has events that the standby has not: {why}");
        router.assert_running();
        router.status()?["reason"].as_str()?.contains(why).then_some(())
    })
    .await;
    let reason =
        "Postgres withholds changes until the standbys of synchronized_standby_slots have confirmed them: ";
    let reason = format!("{reason}{why}");
    let errors = Found::with(&pair.settings).await.errors();
    assert!(errors.contains("OBR-1106"), "check finds it too: {errors}");
    let status = router.status().unwrap();
    assert_eq!((&status["state"], &status["peer"]), (&"stalled".into(), &"postgres".into()));
    let (code, text) = router.get_now("/readyz").await;
    assert!(code == 503 && text.contains(&reason), "{code} {text}");
    router.logs(&reason).await;
}

fn bulk_reads(router: &Router) -> u64 {
    router.status().unwrap()["totals"]["bulk_reads"].as_u64().unwrap()
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn failover_standby_that_is_away_blocks_events_and_status_says_why() {
    let pair = Pair::new().await;
    pair.router_waits_for_the_standby().await;
    let (outbox, kafka) = (&pair.outbox, &pair.kafka);
    let mut router = Router::active(&settings(&pair)).await;
    outbox.insert_numbers("order", "a", 1..11).await;
    outbox.all_confirmed().await;

    // the standby is connected, but makes no progress
    let receiver = "SELECT pid FROM pg_stat_wal_receiver";
    let receiver = pair.standby.superuser().await.query_one(receiver).await.unwrap().unwrap();
    let receiver = receiver.parse().unwrap();
    assert!(send(Signal::Stop, receiver));
    outbox.insert_numbers("order", "a", 11..311).await;
    is_blocked(&pair, &mut router, 10, "the standby that reads the slot standby is behind").await;
    assert!(send(Signal::Continue, receiver));
    router.ready().await;
    kafka.holds(&outbox.name, 310).await;
    router.logs("Postgres sends changes again").await;

    // the standby is disconnected
    pair.cut_off().await;
    outbox.insert_numbers("order", "a", 311..611).await;
    is_blocked(&pair, &mut router, 310, "no standby reads the slot standby").await;
    let said = "bulk reads would send what the standbys of synchronized_standby_slots have not confirmed";
    router.logs(said).await;
    let restarted = Router::start(&settings(&pair));
    router.stop().await;
    let mut router = restarted;
    is_blocked(&pair, &mut router, 310, "no standby reads the slot standby").await;
    let listen = format!("127.0.0.1:{}", router.admin_port().unwrap());
    let status = settings(&pair).set("admin.listen", listen).run(&["status", "--json"]);
    assert!(status.code == 1 && status.out.contains("no standby reads the slot standby"), "{status:?}");

    // the standby's slot is dropped
    outbox.execute("SELECT pg_drop_replication_slot('standby')").await;
    is_blocked(&pair, &mut router, 310, "the slot standby does not exist").await;
    assert_eq!((bulk_reads(&router), router.log().matches(said).count()), (0, 1), "{}", router.log());

    // once Postgres no longer waits for the standby, the running router may read in bulk
    pair.primary.configure(&[("synchronized_standby_slots", "")]).await;
    kafka.holds(&outbox.name, 610).await;
    router.ready().await;
    outbox.all_confirmed().await;
    router.stop().await;
}

/// An alert on `lag_seconds` detects events that wait for the standby, although none of them was read.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn failover_standby_that_is_away_counts_as_lag() {
    let pair = Pair::new().await;
    let (outbox, kafka) = (&pair.outbox, &pair.kafka);
    pair.router_waits_for_the_standby().await;
    let mut router = Router::active(&pair.settings).await;
    outbox.insert_numbers("order", "a", 1..11).await;
    outbox.all_confirmed().await;
    pair.cut_off().await;
    outbox.insert_numbers("order", "a", 11..21).await;
    is_blocked(&pair, &mut router, 10, "no standby reads the slot standby").await;
    // the server's keepalives name what it has sent, so a single look may find the right number by chance
    router
        .shows("the lag grows", |status| {
            assert!(status["lag"]["bytes"].as_u64().unwrap() > 0, "{status}");
            (status["lag"]["seconds"].as_f64()? > 8.0).then_some(())
        })
        .await;

    pair.primary.configure(&[("synchronized_standby_slots", "")]).await;
    kafka.holds(&outbox.name, 20).await;
    router.shows("there is no lag", |status| (status["lag"]["seconds"].as_f64()? == 0.0).then_some(())).await;
    router.stop().await;
}

/// The setting takes effect while the router reads in bulk.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn failover_standby_that_becomes_required_ends_bulk_reads() {
    let pair = Pair::new().await;
    let (outbox, kafka) = (&pair.outbox, &pair.kafka);
    pair.cut_off().await;
    outbox
        .execute(
            "DO $$ BEGIN FOR t IN 0..1499 LOOP INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
             SELECT 'order', 'a', jsonb_build_object('n', t * 10 + i, 'text', repeat('x', 100)) \
             FROM generate_series(1, 10) i; COMMIT; END LOOP; END $$",
        )
        .await;
    let slow = slow(settings(&pair));
    let mut router = Router::active(&slow).await;
    // Postgres does not wait for the standby yet
    is_reading_in_bulk(&mut router).await;
    kafka.holds(&outbox.name, 100).await;
    pair.router_waits_for_the_standby().await;
    // earlier events may still be sent, but not these
    outbox.insert_numbers("order", "b", 1..11).await;
    router
        .shows("the status says why no event arrives", |status| {
            status["reason"].as_str()?.contains("no standby reads the slot standby").then_some(())
        })
        .await;
    let (sent, taken) = (kafka.count(&outbox.name).await.unwrap(), bulk_reads(&router));
    assert!(sent <= 15_000, "{sent}");
    outbox.insert_numbers("order", "b", 11..21).await;
    is_blocked(&pair, &mut router, sent, "no standby reads the slot standby").await;
    assert_eq!(bulk_reads(&router), taken);

    pair.primary.configure(&[("synchronized_standby_slots", "")]).await;
    kafka.holds(&outbox.name, 15_020).await;
    outbox.all_confirmed().await;
    router.stop().await;
}

/// Postgres does not hold back a slot without `failover`, whatever the setting says.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn failover_standby_that_is_away_does_not_concern_other_slots() {
    let pair = Pair::new().await;
    let (outbox, kafka) = (&pair.outbox, &pair.kafka);
    pair.router_waits_for_the_standby().await;
    pair.cut_off().await;
    outbox
        .execute(&format!(
            "SELECT pg_drop_replication_slot('{0}'); SELECT pg_create_logical_replication_slot('{0}', 'pgoutput')",
            outbox.name
        ))
        .await;
    outbox.insert_numbers("order", "a", 1..11).await;
    let router = Router::active(&settings(&pair)).await;
    kafka.holds(&outbox.name, 10).await;
    outbox.all_confirmed().await;
    assert!(bulk_reads(&router) > 0, "{}", router.log());
    router.stop().await;
}
