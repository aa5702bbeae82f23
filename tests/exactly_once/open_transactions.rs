//! A session that ends leaves no transaction open. Consumers would see later records only after it has timed out.

use super::settings;
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::seed;
use crate::support::writers::Writers;

#[tokio::test]
async fn exactly_once_a_router_that_stops_on_an_error_leaves_no_transaction_open() {
    let mut random = seed::random();
    for _ in 0..4 {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        let router = Router::active(&settings(&outbox, &kafka)).await;
        let writers = Writers::start(&outbox, 4, &mut random).await;
        kafka.holds(&outbox.name, 200).await;
        outbox.execute("DROP PUBLICATION outbox_router").await;
        router.exits(3).await;
        // an aborted transaction gets its markers at once, while a timeout takes a minute
        eventually("no transaction is open", async || {
            kafka.has_no_open_transaction(&outbox.name).await.ok()?.then_some(())
        })
        .await;
        writers.finish().await;
    }
}
