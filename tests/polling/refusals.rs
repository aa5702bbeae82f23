//! Rows that cannot be sent: they are tried again later, then they fail, and rows behind them wait.

use crate::polling::polled;
use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::{refused as refused_command, succeeded};
use crate::support::router::Router;

/// How often a row was refused. Those that are tried again later are made due now.
async fn refusals(outbox: &Outbox) -> u32 {
    let due = "UPDATE outbox SET next_attempt_at = now() WHERE refusals > 0 AND next_attempt_at > now() AND next_attempt_at < 'infinity'";
    outbox.execute(due).await;
    outbox.text("SELECT coalesce(max(refusals), 0)::text FROM outbox").await.parse().unwrap()
}

/// Waits until a row was refused.
async fn refused(outbox: &Outbox) {
    let refused = "SELECT (count(*) > 0)::text FROM outbox WHERE refusals > 0";
    eventually("a row is refused", async || (outbox.text(refused).await == "true").then_some(())).await;
}

#[tokio::test]
async fn a_row_that_is_refused_eight_times_fails_and_holds_up_only_its_aggregate() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    let allowed: Vec<String> = ["order", "invoice"].map(|of| outbox.topic(of)).into();
    let settings = settings.set("topics.allow", allowed);
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..3).await;
    outbox.insert("forbidden", "a", "{\"n\": 3}").await;
    outbox.insert_numbers("order", "a", 4..40).await;
    outbox.insert_numbers("invoice", "b", 1..10).await;
    eventually("a row is refused eight times", async || (refusals(&outbox).await == 8).then_some(())).await;
    let failed = "SELECT concat_ws(' ', status, attempts, next_attempt_at, last_error LIKE '%forbidden%') FROM outbox WHERE refusals > 0";
    assert_eq!(outbox.text(failed).await, "FAILED 8 infinity t");
    let mut router = router;
    router.shows("a row has failed", |status| (status["polling"]["rows_failed"] == 1).then_some(())).await;
    let metrics = router.get_now("/metrics").await.1;
    assert!(metrics.contains("outbox_router_rows_failed 1"), "{metrics}");
    assert!(metrics.contains("outbox_router_source_events_total{source=\"table\"} 11"), "{metrics}");
    outbox.insert_numbers("order", "a", 40..50).await;
    outbox.insert_numbers("invoice", "b", 10..20).await;
    kafka.holds(&outbox.name, 2 + 19).await;
    let waiting = "SELECT count(*)::text FROM outbox WHERE status = 'NEW' AND aggregate_id = 'a'";
    assert_eq!(outbox.text(waiting).await, "46");

    let listed = succeeded(
        settings.run_async(&["dead-letters", "list"]).await,
        &["failed", "behind", "unroutable", "47 events of 1 aggregate"],
    );
    assert_eq!(listed.out.matches("behind").count(), 46);
    let shown = succeeded(
        settings.run_async(&["dead-letters", "show", "--reason", "unroutable"]).await,
        &["forbidden", "not in"],
    );
    assert!(!shown.out.contains("behind"), "{}", shown.out);
    // somebody corrects the row
    outbox.execute("UPDATE outbox SET aggregate_type = 'order' WHERE status = 'FAILED'").await;
    let dry = succeeded(
        settings.run_async(&["dead-letters", "retry", "--all", "--dry-run", "--json"]).await,
        &["\"refusals\": 8"],
    );
    assert_eq!(dry.out.matches("\"position\"").count(), 1);
    assert_eq!(outbox.text(failed).await, "FAILED 8 infinity t");
    succeeded(
        settings.run_async(&["dead-letters", "retry", "--aggregate", "a"]).await,
        &["1 event will be tried again"],
    );
    outbox.all_published().await;
    succeeded(settings.run_async(&["dead-letters", "list"]).await, &["No row was refused"]);
    refused_command(
        &settings.run_async(&["dead-letters", "show", "--aggregate", "a"]).await,
        1,
        &["no such row"],
    );
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

#[tokio::test]
async fn a_discarded_row_is_not_sent_and_holds_nothing_up() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    let settings = settings.set("topics.allow", vec![outbox.topic("order")]);
    let router = Router::active(&settings).await;
    outbox.insert("forbidden", "a", "{\"n\": 0}").await;
    refused(&outbox).await;
    outbox.insert_numbers("order", "a", 1..5).await;
    let discard = ["dead-letters", "discard", "--aggregate", "a", "--reason", "unroutable", "--yes"];
    succeeded(settings.run_async(&discard).await, &["1 event will not be sent"]);
    outbox.all_published().await;
    router.stop().await;
    let discarded = "SELECT last_error FROM outbox WHERE published_at IS NULL";
    assert!(outbox.text(discarded).await.starts_with("discarded by postgres at "));
    outbox.execute("DELETE FROM outbox WHERE published_at IS NULL").await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

#[tokio::test]
async fn rows_behind_one_that_somebody_deletes_are_published() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    let settings = settings.set("topics.allow", vec![outbox.topic("order")]);
    outbox.insert("forbidden", "a", "{\"n\": 1}").await;
    let router = Router::active(&settings).await;
    refused(&outbox).await;
    outbox.insert_numbers("order", "a", 1..5).await;
    let waiting = "SELECT count(*)::text FROM outbox WHERE next_attempt_at = 'infinity'";
    eventually("they wait", async || (outbox.text(waiting).await == "4").then_some(())).await;
    router.stop().await;
    outbox.execute("DELETE FROM outbox WHERE refusals > 0").await;
    let router = Router::active(&settings).await;
    outbox.all_published().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

#[tokio::test]
async fn a_refusal_that_could_not_be_stored_in_time_is_stored_later() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    let settings = settings.set("topics.allow", vec![outbox.topic("order")]).set("source.lease", "10s");
    outbox.insert("forbidden", "a", "{\"n\": 1}").await;
    outbox.insert_numbers("order", "a", 2..5).await;
    let mut client = outbox.client().await;
    let lock = client.transaction().await.unwrap();
    lock.batch_execute("SELECT FROM outbox WHERE aggregate_type = 'forbidden' FOR UPDATE").await.unwrap();
    let mut router = Router::active(&settings).await;
    outbox.insert_numbers("order", "b", 1..5).await;
    kafka.holds(&outbox.name, 4).await;
    router.logs("a row that was refused cannot be marked").await;
    lock.rollback().await.unwrap();
    refused(&outbox).await;
    outbox
        .execute("UPDATE outbox SET aggregate_type = 'order', next_attempt_at = now() WHERE refusals > 0")
        .await;
    outbox.all_published().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}
