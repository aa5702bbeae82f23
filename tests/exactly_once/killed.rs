//! Routers and brokers are killed at random points.

use rand::Rng;

use super::settings;
use crate::faults::broker_stopped::broker_killed_at_random_points;
use crate::faults::sigkill::killed_at_random_points;
use crate::support::comparison::{Repeats, same};
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::private_kafka::PrivateKafka;
use crate::support::router::Router;
use crate::support::seed;

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn exactly_once_under_sigkill_at_random_points_shows_no_event_twice() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    killed_at_random_points(&outbox, &kafka, &settings(&outbox, &kafka)).await;
    same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
}

/// Rows of one Postgres transaction, which needs more than twenty Kafka transactions.
const LARGE: usize = 200_000;

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn exactly_once_inside_a_large_transaction_resumes_after_the_last_commit() {
    let mut random = seed::random();
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = settings(&outbox, &kafka);
    let topic = outbox.topic("order");
    kafka.create_topic(&topic, 2, &[]).await;
    outbox
        .execute(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
             SELECT 'order', 'a' || n % 10, jsonb_build_object('n', n / 10 + 1) FROM generate_series(0, {LARGE} - 1) n"
        ))
        .await;
    let (mut before, mut inside) = (0, false);
    while before < LARGE / 2 {
        let router = Router::start(&settings);
        kafka
            .holds(
                &outbox.name,
                kafka.count(&outbox.name).await.unwrap() + random.random_range(10_000..30_000),
            )
            .await;
        router.kill();
        // the next router aborts the transaction that this one left open
        let router = Router::active(&settings).await;
        let now = kafka.committed_when(&outbox.name, before + 1).await.len();
        inside |= now < LARGE;
        before = now;
        router.kill();
    }
    assert!(inside, "no router was killed inside the transaction");
    let router = Router::start(&settings);
    outbox.all_confirmed().await;
    router.stop().await;
    same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
    // no committed record is repeated, only those of the transaction that was open at each kill
    let (offsets, committed) = (kafka.count(&outbox.name).await.unwrap(), LARGE);
    assert!(offsets < 2 * committed, "{offsets} offsets for {committed} records");
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn exactly_once_with_a_broker_killed_at_random_points_shows_no_event_twice() {
    const BROKER_KILLS: usize = 3;
    let broker = PrivateKafka::that_is_killed().await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    broker_killed_at_random_points(&broker, &outbox, &settings(&outbox, &kafka), BROKER_KILLS).await;
    same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
}
