//! The router is killed at random points while applications write.

use rand::Rng;

use crate::support::comparison::{Repeats, same};
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::seed;
use crate::support::settings::Settings;
use crate::support::writers::Writers;

pub(crate) const KILLS: usize = 8;

/// Applications write, and the router is killed at random points; the last one delivers the rest.
pub(crate) async fn killed_at_random_points(outbox: &Outbox, kafka: &Kafka, settings: &Settings) {
    let mut random = seed::random();
    let writers = Writers::start(outbox, 4, &mut random).await;
    let mut seen = 0;
    for _ in 0..KILLS {
        let router = Router::start(settings);
        // counts records of open transactions too
        kafka.holds(&outbox.name, seen + random.random_range(1..400)).await;
        router.kill();
        seen = kafka.count(&outbox.name).await.unwrap();
    }
    let router = Router::start(settings);
    kafka.holds(&outbox.name, seen + 1).await;
    writers.finish().await;
    outbox.all_confirmed().await;
    router.stop().await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn sigkill_at_random_points_loses_nothing_and_keeps_order_per_aggregate() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    killed_at_random_points(&outbox, &kafka, &Settings::new(&outbox, &kafka)).await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(KILLS)).await;
}
