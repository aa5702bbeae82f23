//! The server process of a lost session still holds the slot's lock when the router connects again.

use serde_json::Value;

use crate::support::eventually::eventually;
use crate::support::outbox::Outbox;
use crate::support::private_kafka::PrivateKafka;
use crate::support::proxy::{Network, Proxy};
use crate::support::router::{Router, waits};
use crate::support::settings::Settings;

/// Waits until other server processes than the holder have tried to take the lock a few times.
async fn lock_is_refused(outbox: &Outbox, holder: i32) {
    let attempts = format!(
        "SELECT pid, query_start::text FROM pg_stat_activity \
         WHERE application_name = '{0}.{0}' AND pid <> {holder} AND query ILIKE '%advisory%'",
        outbox.name
    );
    let mut last = (0_i32, String::new());
    for _ in 0..3 {
        last = eventually("another attempt tries to take the lock", async || {
            let row = outbox.query(&attempts).await.into_iter().next()?;
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

/// Only after five seconds may the router report that it waits for its own last session. This checks the times in the log,
/// because on a busy machine the test itself may look too late.
fn wait_is_not_reported_too_early(log: &str) {
    let mut failed = None;
    for line in log.lines() {
        if line.contains("connection failed") {
            failed = Some(logged_at(line));
        } else if line.contains("waiting for the slot") {
            let after = (logged_at(line) - failed.unwrap()).rem_euclid(86_400.0);
            assert!(after >= 5.0, "reported after {after} seconds: {log}");
        }
    }
}

/// Whether the status says that Kafka cannot be reached.
fn no_broker(status: &Value) -> Option<()> {
    let kafka = waits(status) && status["peer"] == "kafka";
    (kafka && status["ready"] == false).then_some(())
}

/// Asserts that the status says so now, unless the router has already reported that it waits for the slot.
async fn says_no_broker(router: &mut Router, why: &str) {
    let status = router.status().unwrap();
    if no_broker(&status).is_none() {
        eprintln!("{why}: {status}");
        router.logs("waiting for the slot").await;
    }
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn stale_session_does_not_hide_why_the_last_attempt_failed() {
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
    let attempt = outbox.locked_by_other_than(first).await;
    router.shows("no broker answers", no_broker).await;
    lock_is_refused(&outbox, attempt).await;
    says_no_broker(&mut router, "the router waits for its own last session").await;
    proxy.set(Network::OPEN);
    outbox.locked_by_other_than(attempt).await;
    says_no_broker(&mut router, "the router has the lock and waits for Kafka").await;
    router.shows("no broker answers", no_broker).await;
    broker.thaw();
    outbox.insert_numbers("order", "a", 4..7).await;
    outbox.all_confirmed().await;
    wait_is_not_reported_too_early(&router.stop().await.log);
}
