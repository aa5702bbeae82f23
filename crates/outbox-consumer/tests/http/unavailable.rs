//! A store that is not there, or does not do it.

use metrics_exporter_prometheus::PrometheusBuilder;
use outbox_consumer::idempotency::IdempotencyLayer;

use crate::server::{Answer, Server};

fn refused(answer: &Answer) {
    answer.problem(503);
    assert!(answer.retry_after().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_store_no_request_runs() {
    let server = Server::start("", |layer| layer).await;
    server.take_store_away(true);
    refused(&server.post("/ok", "k", "e").await);
    assert_eq!(server.runs(), 0);
    server.take_store_away(false);
    assert_eq!(server.post("/ok", "k", "e").await.status, 201);
}

// on one thread, so that the recorder is that of this test
#[tokio::test]
async fn fail_open_runs_requests_without_a_key_and_counts_them() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let server = Server::start("", IdempotencyLayer::fail_open).await;
    let counted =
        |line: &str| assert!(metrics.render().lines().any(|known| known == line), "{}", metrics.render());
    counted("outbox_consumer_fail_open_total 0");
    for outcome in
        ["new", "replay", "mismatch", "in_progress", "expired", "invalid", "unavailable", "fail_open"]
    {
        counted(&format!("outbox_consumer_requests_total{{outcome=\"{outcome}\"}} 0"));
    }
    server.take_store_away(true);
    for effects in 1..=2 {
        let answer = server.post("/ok", "k", "e").await;
        assert_eq!((answer.status, answer.replayed()), (201, false));
        assert_eq!(server.database.effects("e").await, effects);
    }
    server.take_store_away(false);
    server.post("/ok", "k", "e").await;
    server.post("/ok", "k", "e").await;
    server.post("/ok", "k", "other").await;
    server.post("/ok", "", "e").await;
    counted("outbox_consumer_fail_open_total 2");
    for (outcome, count) in [("fail_open", 2), ("new", 1), ("replay", 1), ("mismatch", 1), ("invalid", 1)] {
        counted(&format!("outbox_consumer_requests_total{{outcome=\"{outcome}\"}} {count}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fail_open_does_not_run_beside_a_lock() {
    let server = Server::start("&options=-c%20lock_timeout%3D100", IdempotencyLayer::fail_open).await;
    let admin = server.database.session().await;
    admin.ok("BEGIN; LOCK TABLE outbox_router.idempotency_keys IN EXCLUSIVE MODE").await;
    let answer = server.post("/ok", "k", "e").await;
    answer.problem(409);
    assert!(answer.retry_after().is_some());
    assert_eq!(server.runs(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn fail_open_does_not_run_after_a_cancelled_statement() {
    let server = Server::start("&options=-c%20statement_timeout%3D100", IdempotencyLayer::fail_open).await;
    let admin = server.database.session().await;
    admin.ok("BEGIN; LOCK TABLE outbox_router.idempotency_keys IN EXCLUSIVE MODE").await;
    refused(&server.post("/ok", "k", "e").await);
    assert_eq!(server.runs(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn fail_open_does_not_run_without_the_functions() {
    let server = Server::start("", IdempotencyLayer::fail_open).await;
    server.database.session().await.ok("DROP SCHEMA outbox_router CASCADE").await;
    refused(&server.post("/ok", "k", "e").await);
    assert_eq!(server.runs(), 0);
}
