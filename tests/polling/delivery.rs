//! What a router that polls delivers, and what becomes of the rows.

use crate::polling::{BY_STATUS, polled};
use crate::support::comparison::{Repeats, same};
use crate::support::kafka::Kafka;
use crate::support::proxy::{Network, Proxy};
use crate::support::router::Router;
use crate::support::seed;
use crate::support::writers::Writers;

#[tokio::test]
async fn rows_are_published_in_the_order_of_their_aggregates() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    outbox.insert_numbers("order", "a", 1..20).await;
    let router = Router::active(&settings).await;
    let writers = Writers::start(&outbox, 3, &mut seed::random()).await;
    outbox.insert_numbers("order", "a", 20..60).await;
    outbox.insert_numbers("invoice", "b", 1..40).await;
    writers.finish().await;
    outbox.all_published().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
    let marked = "SELECT count(*)::text FROM outbox WHERE attempts = 1 AND refusals = 0 AND published_at >= created_at \
                  AND next_attempt_at IS NULL AND last_error IS NULL";
    let all = outbox.text("SELECT count(*)::text FROM outbox").await;
    assert_eq!(outbox.text(marked).await, all);
    // nothing is claimed any more
    assert_eq!(
        outbox.text("SELECT count(*)::text FROM outbox_router.poll_claims WHERE NOT ended").await,
        "0"
    );
}

#[tokio::test]
async fn a_failure_between_the_state_change_and_the_insert_leaves_neither() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    outbox.execute("CREATE TABLE orders (id int PRIMARY KEY)").await;
    let mut client = outbox.client().await;
    let transaction = client.transaction().await.unwrap();
    transaction.batch_execute("INSERT INTO orders VALUES (1)").await.unwrap();
    let failed = transaction
        .batch_execute(
            "INSERT INTO outbox (aggregate_type, aggregate_id, headers) VALUES ('order', '1', NULL)",
        )
        .await;
    failed.unwrap_err();
    drop(transaction);
    outbox.insert("order", "2", "{\"n\": 1}").await;
    let router = Router::active(&settings).await;
    outbox.all_published().await;
    router.stop().await;
    assert_eq!(outbox.text("SELECT count(*)::text FROM orders").await, "0");
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

/// Positions are drawn when rows are inserted, and rows become visible when their transactions are committed.
#[tokio::test]
async fn a_row_that_is_committed_late_is_published() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    let router = Router::active(&settings).await;
    let mut client = outbox.client().await;
    let early = client.transaction().await.unwrap();
    let insert =
        "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'early', '{\"n\": 1}')";
    early.batch_execute(insert).await.unwrap();
    // claims move the mark below which no row waits
    for batch in 0..6 {
        outbox.insert_numbers("order", "late", batch * 10 + 1..batch * 10 + 11).await;
        kafka.holds(&outbox.name, (batch as usize + 1) * 10).await;
    }
    outbox.all_published().await;
    early.commit().await.unwrap();
    outbox.all_published().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

/// An answer is awaited for longer than a standstill may last without a reason.
#[tokio::test]
async fn a_router_says_that_postgres_does_not_answer() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    let proxy = Proxy::to(outbox.address());
    let mut router = Router::active(&settings.reached_at(&outbox, &proxy.address())).await;
    proxy.set(Network::BLACK_HOLE);
    outbox.insert("order", "a", "{\"n\": 1}").await;
    let silent = "Postgres has not answered for 8 s";
    router.shows("the reason", |status| status["reason"].as_str()?.starts_with(silent).then_some(())).await;
    assert!(router.get("/readyz").is_some_and(|(status, text)| status == 503 && text.contains(silent)));
    assert!(router.log().contains(silent) && !router.log().contains("gave no answer"), "{}", router.log());
    proxy.set(Network::OPEN);
    outbox.all_published().await;
    router.ready().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

#[tokio::test]
async fn a_router_ends_when_nothing_is_due() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    outbox.insert_numbers("order", "a", 1..3_000).await;
    let ended = Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
    assert!(ended.log.contains("caught up"), "{}", ended.log);
    assert_eq!(outbox.text(BY_STATUS).await, "PUBLISHED 2999");
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}
