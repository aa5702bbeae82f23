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

/// Waits until another server process has asked for the lock a few times.
async fn asks_in_vain(outbox: &Outbox, holder: i32) {
    let asks = format!(
        "SELECT pid, query_start::text FROM pg_stat_activity \
         WHERE application_name = '{0}.{0}' AND pid <> {holder} AND query ILIKE '%advisory%'",
        outbox.name
    );
    let mut last = (0_i32, String::new());
    for _ in 0..3 {
        last = eventually("another attempt asks for the lock", async || {
            let row = outbox.query(&asks).await.into_iter().next()?;
            Some((row.get(0), row.get(1))).filter(|now| *now != last)
        })
        .await;
    }
}

/// The seconds of the day at which a line was logged.
fn logged_at(line: &str) -> f64 {
    let time = line.split(['T', 'Z']).nth(1).unwrap();
    time.split(':').fold(0.0, |sum, part| sum * 60.0 + part.parse::<f64>().unwrap())
}

/// The router may report after five seconds that it waits for its own last session. On a busy machine the test may look later than
/// that.
fn never_told_too_early(log: &str) {
    let mut failed = None;
    for line in log.lines() {
        if line.contains("not connected") {
            failed = Some(logged_at(line));
        } else if line.contains("waiting for the slot") {
            let after = (logged_at(line) - failed.unwrap()).rem_euclid(86_400.0);
            assert!(after >= 5.0, "told after {after} seconds: {log}");
        }
    }
}

/// Whether the router says that Kafka is away.
fn no_broker(status: &Value) -> Option<()> {
    let kafka = status["state"] == "reconnecting" && status["peer"] == "kafka";
    (kafka && status["ready"] == false).then_some(())
}

/// Asserts that the router says so at once, unless it has already reported the wait.
async fn says_no_broker(router: &mut Router, why: &str) {
    let status = router.status().unwrap();
    if no_broker(&status).is_none() {
        eprintln!("{why}: {status}");
        router.logs("waiting for the slot").await;
    }
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
    router.shows("no broker answers", no_broker).await;
    asks_in_vain(&outbox, attempt).await;
    says_no_broker(&mut router, "it waits for itself").await;
    proxy.set(Network::OPEN);
    holder(&outbox, attempt).await;
    says_no_broker(&mut router, "it has the lock, and waits for Kafka").await;
    router.shows("no broker answers", no_broker).await;
    broker.thaw();
    outbox.insert_numbers("order", "a", 4..7).await;
    outbox.all_confirmed().await;
    never_told_too_early(&router.stop().await.log);
}
