//! What the server has left of a session that is over: which still holds the slot's lock when the router tries again.

use serde_json::Value;

use crate::support::eventually::eventually;
use crate::support::outbox::Outbox;
use crate::support::private_kafka::PrivateKafka;
use crate::support::proxy::{Network, Proxy};
use crate::support::router::Router;
use crate::support::settings::Settings;

/// Waits until the process holds the lock of the slot, and returns it.
async fn holder(outbox: &Outbox, other_than: i32) -> i32 {
    eventually("another server process holds the slot's lock", async || {
        outbox.lock_holder().await.filter(|pid| *pid != other_than)
    })
    .await
}

/// Waits until another server process has asked for the lock a few times, and returns it.
async fn asks_in_vain(outbox: &Outbox, holder: i32) -> i32 {
    let asks = format!(
        "SELECT pid, query_start::text FROM pg_stat_activity \
         WHERE application_name = '{0}.{0}' AND pid <> {holder} AND query ILIKE '%advisory%'",
        outbox.name
    );
    let mut last = (0, String::new());
    for _ in 0..3 {
        last = eventually("another attempt asks for the lock", async || {
            let row = outbox.query(&asks).await.into_iter().next()?;
            Some((row.get(0), row.get(1))).filter(|now| *now != last)
        })
        .await;
    }
    last.0
}

#[tokio::test]
async fn left_behind_session_does_not_hide_why_the_last_attempt_failed() {
    let (outbox, broker) = (Outbox::new().await, PrivateKafka::start(&[]).await);
    let (kafka, proxy) = (broker.client(), Proxy::to(outbox.address()));
    let settings = Settings::new(&outbox, &kafka).reached_at(&outbox, &proxy.address());
    let mut router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    outbox.all_confirmed().await;
    broker.freeze();
    proxy.set(Network::CLIENTS_STAY);
    let first = outbox.active_pid().await;
    outbox.execute(&format!("SELECT pg_terminate_backend({first})")).await;
    let attempt = holder(&outbox, first).await;
    let no_broker = |status: &Value| {
        let kafka = status["state"] == "reconnecting" && status["peer"] == "kafka";
        (kafka && status["ready"] == false).then_some(())
    };
    router.shows("no broker answers", no_broker).await;
    let next = asks_in_vain(&outbox, attempt).await;
    let status = router.status().unwrap();
    assert!(no_broker(&status).is_some(), "it waits for itself: {status}");
    proxy.set(Network::OPEN);
    assert_eq!(holder(&outbox, attempt).await, next);
    let status = router.status().unwrap();
    assert!(no_broker(&status).is_some(), "it has the lock, and waits for Kafka: {status}");
    broker.thaw();
    outbox.insert_numbers("order", "a", 4..7).await;
    outbox.all_confirmed().await;
    let log = router.stop().await.log;
    assert!(!log.contains("waiting for the slot"), "{log}");
}
