//! The network breaks, on either side, in every way that a proxy can make it: what is lost is found out, said once, and
//! nothing of it is missing or out of order when the network is back.
//!
//! Each case prints how long it took until the router knew, and until events flowed again after the return. No test
//! depends on these figures; docs/network.md quotes them.

mod commands;
mod figures;
mod kafka_side;
mod name_server;
mod namespace;
mod postgres_side;

use std::time::Instant;

use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::router::Router;

/// Waits until the router says, behind `mark` in its log, that it is cut off from `peer` because of `reason`, and shows it
/// in state and readiness.
async fn found_out(case: &str, since: Instant, router: &mut Router, mark: usize, peer: &str, reason: &str) {
    let said = eventually(&format!("{case}: the log says {reason:?}"), async || {
        router.assert_running();
        warnings(router, mark, reason).into_iter().next()
    })
    .await;
    println!("network: {case}: known after {:.1} s: {said}", since.elapsed().as_secs_f64());
    router
        .shows(&format!("{case}: cut off from {peer}, and not ready"), |status| {
            let cut_off = status["state"] == "reconnecting" && status["peer"] == peer;
            (cut_off && status["ready"] == false && status["healthy"] == true).then_some(())
        })
        .await;
    let (status, body) = router.get("/readyz").unwrap();
    assert!(status == 503 && body.contains(peer), "{case}: {status} {body}");
}

/// The warnings with this text behind `mark` in the log.
fn warnings(router: &Router, mark: usize, text: &str) -> Vec<String> {
    let log = router.log();
    let behind = log[mark..].lines().filter(|line| line.contains("WARN") && line.contains(text));
    behind.map(|line| line.split_once("WARN ").unwrap().1.to_owned()).collect()
}

/// Waits until events arrive that were not there, which says that all goes on.
async fn events_again(case: &str, since: Instant, outbox: &Outbox, kafka: &Kafka) {
    let before = kafka.count(&outbox.name).await.unwrap();
    kafka.holds(&outbox.name, before + 1).await;
    println!("network: {case}: events again {:.1} s after its return", since.elapsed().as_secs_f64());
}

/// A row of more bytes than any frame or buffer that a cut is not meant for.
async fn insert_large(outbox: &Outbox, aggregate_id: &str) {
    let payload = serde_json::json!({ "n": 1, "text": "x".repeat(600_000) }).to_string();
    outbox.insert("order", aggregate_id, &payload).await;
}
