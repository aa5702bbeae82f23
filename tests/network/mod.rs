//! The network breaks on either side, in every way that a proxy can break it. The router detects it and logs it once, and when
//! the network is back, no event is missing or out of order.
//!
//! Each case prints how long the router took to detect the fault, and how long after the return events flowed again. No test
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
use crate::support::router::{Router, waits};

/// Waits until the router logs, after `mark`, that it is cut off from `peer` because of `reason`, and reports it in state and
/// readiness.
async fn detected(case: &str, since: Instant, router: &mut Router, mark: usize, peer: &str, reason: &str) {
    let warning = eventually(&format!("{case}: the log has {reason:?}"), async || {
        router.assert_running();
        warnings(router, mark, reason).into_iter().next()
    })
    .await;
    println!("network: {case}: known after {:.1} s: {warning}", since.elapsed().as_secs_f64());
    router
        .shows(&format!("{case}: cut off from {peer}, and not ready"), |status| {
            let cut_off = waits(status) && status["peer"] == peer;
            (cut_off && status["ready"] == false && status["healthy"] == true).then_some(())
        })
        .await;
    let (status, body) = router.get_now("/readyz").await;
    assert!(status == 503 && body.contains(peer), "{case}: {status} {body}");
}

/// The warnings with this text after `mark` in the log.
fn warnings(router: &Router, mark: usize, text: &str) -> Vec<String> {
    let log = router.log();
    let lines = log[mark..].lines().filter(|line| line.contains("WARN") && line.contains(text));
    lines.map(|line| line.split_once("WARN ").unwrap().1.to_owned()).collect()
}

/// Waits until a further event arrives.
async fn events_again(case: &str, since: Instant, outbox: &Outbox, kafka: &Kafka) {
    let before = kafka.count(&outbox.name).await.unwrap();
    kafka.holds(&outbox.name, before + 1).await;
    println!("network: {case}: events again {:.1} s after its return", since.elapsed().as_secs_f64());
}

/// Inserts a row that is larger than the buffers and other messages, so that a cut after fewer bytes falls into it.
async fn insert_large(outbox: &Outbox, aggregate_id: &str) {
    let payload = serde_json::json!({ "n": 1, "text": "x".repeat(600_000) }).to_string();
    outbox.insert("order", aggregate_id, &payload).await;
}
