//! The slot of a quiet outbox retains no WAL.

use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::shared;

const BUSY: &str =
    "CREATE TABLE busy (text text); INSERT INTO busy SELECT repeat('x', 1000) FROM generate_series(1, 1000)";

#[tokio::test]
async fn idle_ack_follows_a_busy_database() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let router = Router::active(&Settings::new(&outbox, &kafka)).await;
    outbox.execute(BUSY).await;
    outbox.all_confirmed().await;
    assert_eq!(kafka.count(&outbox.name).await, Ok(0));
    router.stop().await;
}

#[tokio::test]
async fn idle_ack_follows_another_busy_database() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let other = Outbox::bare(shared::postgres()).await;
    let router = Router::active(&Settings::new(&outbox, &kafka)).await;
    other.execute(BUSY).await;
    outbox.all_confirmed().await;
    router.stop().await;
}

/// An idle confirmation must not overtake an event that was committed just before it.
#[tokio::test]
async fn idle_ack_does_not_overtake_an_event() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let router = Router::active(&Settings::new(&outbox, &kafka)).await;
    for n in 1..=4 {
        outbox.execute("INSERT INTO outbox (aggregate_type, aggregate_id) VALUES ('order', '1')").await;
        outbox.all_confirmed().await;
        assert_eq!(kafka.count(&outbox.name).await, Ok(n), "confirmed, but not in Kafka");
    }
    router.stop().await;
}
