//! The delivery mode of an existing slot is changed.

use rand::Rng;

use super::settings;
use crate::support::comparison::{Repeats, same};
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::seed;
use crate::support::settings::Settings;
use crate::support::writers::Writers;

/// If routers stop in order, no change repeats an event.
#[tokio::test]
async fn exactly_once_after_at_least_once_and_back_repeats_nothing_between_orderly_stops() {
    let mut random = seed::random();
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let modes = [Settings::new(&outbox, &kafka), settings(&outbox, &kafka)];
    let writers = Writers::start(&outbox, 4, &mut random).await;
    let mut seen = 0;
    for round in 0..6 {
        let router = Router::start(&modes[round % 2]);
        kafka.holds(&outbox.name, seen + random.random_range(100..400)).await;
        router.stop().await;
        seen = kafka.count(&outbox.name).await.unwrap();
    }
    writers.finish().await;
    let router = Router::start(&modes[0]);
    outbox.all_confirmed().await;
    router.stop().await;
    same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
}

/// If routers are killed, only those in at-least-once repeat events, and a transaction that was left open blocks nobody.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn exactly_once_after_at_least_once_and_back_loses_nothing_when_killed() {
    const ROUNDS: usize = 6;
    let mut random = seed::random();
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let modes = [Settings::new(&outbox, &kafka), settings(&outbox, &kafka)];
    let writers = Writers::start(&outbox, 4, &mut random).await;
    let mut seen = 0;
    for round in 0..ROUNDS {
        let router = Router::start(&modes[round % 2]);
        kafka.holds(&outbox.name, seen + random.random_range(100..400)).await;
        router.kill();
        seen = kafka.count(&outbox.name).await.unwrap();
    }
    writers.finish().await;
    let router = Router::start(&modes[0]);
    outbox.all_confirmed().await;
    router.stop().await;
    same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Restarts(ROUNDS / 2)).await;
}
