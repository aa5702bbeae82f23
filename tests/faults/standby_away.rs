//! A standby is away that Postgres waits for before it sends a change (`synchronized_standby_slots`). From Postgres 17 on, whatever
//! version the suite runs on.

use super::failover::Pair;
use crate::support::eventually::eventually;
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::signal::{Signal, send};

/// A router that would read in bulk what it is a byte behind.
fn settings(pair: &Pair) -> Settings {
    pair.settings.clone().set("postgres.catch_up", "auto").set("postgres.catch_up_lag", "1")
}

/// Waits for the reason with this in it, while Kafka gets nothing beyond `count` events, and sees that it is shown everywhere.
async fn stands_still(pair: &Pair, router: &mut Router, count: usize, why: &str) {
    eventually(&format!("it says that {why}"), async || {
        let sent = pair.kafka.count(&pair.outbox.name).await.unwrap();
        assert_eq!(sent, count, "Kafka has what the standby has not, {why}");
        router.assert_running();
        router.status()?["reason"].as_str()?.contains(why).then_some(())
    })
    .await;
    let reason =
        "Postgres withholds changes until the standbys of synchronized_standby_slots have confirmed them: ";
    let reason = format!("{reason}{why}");
    let status = router.status().unwrap();
    assert_eq!((&status["state"], &status["peer"]), (&"reconnecting".into(), &"postgres".into()));
    let (code, text) = router.get("/readyz").unwrap();
    assert!(code == 503 && text.contains(&reason), "{code} {text}");
    router.logs(&reason).await;
}

fn bulk_reads(router: &Router) -> u64 {
    router.status().unwrap()["totals"]["bites"].as_u64().unwrap()
}

#[tokio::test]
async fn failover_standby_that_is_away_keeps_events_out_of_kafka_and_it_is_said_why() {
    let pair = Pair::new().await;
    pair.router_waits_for_the_standby().await;
    let (outbox, kafka) = (&pair.outbox, &pair.kafka);
    let mut router = Router::active(&settings(&pair)).await;
    outbox.insert_numbers("order", "a", 1..11).await;
    outbox.all_confirmed().await;

    // it follows, and does not get on
    let receiver = "SELECT pid FROM pg_stat_wal_receiver";
    let receiver = pair.standby.superuser().await.query_one(receiver).await.unwrap().unwrap();
    let receiver = receiver.parse().unwrap();
    assert!(send(Signal::Stop, receiver));
    outbox.insert_numbers("order", "a", 11..311).await;
    stands_still(&pair, &mut router, 10, "the standby that reads the slot standby is behind").await;
    assert!(send(Signal::Continue, receiver));
    router.ready().await;
    kafka.holds(&outbox.name, 310).await;
    router.logs("Postgres sends changes again").await;

    // it is gone
    pair.cut_off().await;
    outbox.insert_numbers("order", "a", 311..611).await;
    stands_still(&pair, &mut router, 310, "no standby reads the slot standby").await;
    let said = "bulk reads would send what the standbys of synchronized_standby_slots have not confirmed";
    router.logs(said).await;
    let again = Router::start(&settings(&pair));
    router.stop().await;
    let mut router = again;
    stands_still(&pair, &mut router, 310, "no standby reads the slot standby").await;
    let listen = format!("127.0.0.1:{}", router.admin_port().unwrap());
    let status = settings(&pair).set("admin.listen", listen).run(&["status", "--json"]);
    assert!(status.code == 1 && status.out.contains("no standby reads the slot standby"), "{status:?}");

    // for good
    outbox.execute("SELECT pg_drop_replication_slot('standby')").await;
    stands_still(&pair, &mut router, 310, "the slot standby does not exist").await;
    assert_eq!((bulk_reads(&router), router.log().matches(said).count()), (0, 1), "{}", router.log());

    // given up while the router runs, which may then read in bulk
    pair.primary.configure(&[("synchronized_standby_slots", "")]).await;
    kafka.holds(&outbox.name, 610).await;
    router.ready().await;
    outbox.all_confirmed().await;
    router.stop().await;
}

/// The other way round: the setting comes into force while bulk reads are read.
#[tokio::test]
async fn failover_standby_that_is_waited_for_ends_the_bulk_reads_of_a_running_router() {
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
    let slow = settings(&pair).set("delivery.window.records", 20).set("kafka.'linger.ms'", 20);
    let mut router = Router::active(&slow).await;
    // Postgres does not wait yet
    router.shows("it reads in bulk", |status| (status["in_bites"] == true).then_some(())).await;
    kafka.holds(&outbox.name, 100).await;
    pair.router_waits_for_the_standby().await;
    // what was there before may be sent, and not what comes now
    outbox.insert_numbers("order", "b", 1..11).await;
    router
        .shows("it says why nothing comes", |status| {
            status["reason"].as_str()?.contains("no standby reads the slot standby").then_some(())
        })
        .await;
    let (sent, taken) = (kafka.count(&outbox.name).await.unwrap(), bulk_reads(&router));
    assert!(sent <= 15_000, "{sent}");
    outbox.insert_numbers("order", "b", 11..21).await;
    stands_still(&pair, &mut router, sent, "no standby reads the slot standby").await;
    assert_eq!(bulk_reads(&router), taken);

    pair.primary.configure(&[("synchronized_standby_slots", "")]).await;
    kafka.holds(&outbox.name, 15_020).await;
    outbox.all_confirmed().await;
    router.stop().await;
}

/// A slot without `failover` is not held back, whatever the setting says.
#[tokio::test]
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
