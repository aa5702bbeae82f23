//! A session that ends leaves no transaction open. Consumers would see later records only after it has timed out.

use super::settings;
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::seed;
use crate::support::signal::Signal;
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

/// The transaction would time out only after 15 minutes.
#[tokio::test]
async fn exactly_once_a_new_name_ends_the_transaction_of_the_former_one() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = settings(&outbox, &kafka).set("kafka.'transaction.timeout.ms'", 900_000);
    let router = Router::active(&settings).await;
    let writers = Writers::start(&outbox, 4, &mut seed::random()).await;
    let mut seen = 0;
    loop {
        kafka.holds(&outbox.name, seen + 100).await;
        router.signal(Signal::Stop);
        if !kafka.has_no_open_transaction(&outbox.name).await.unwrap() {
            break;
        }
        seen = kafka.count(&outbox.name).await.unwrap();
        router.signal(Signal::Continue);
    }
    router.kill();
    let renamed = settings.set("name", format!("{}.renamed", outbox.name));
    let refused = Router::start(&renamed).exits(3).await;
    let router = Router::with_arguments(&renamed, &["--accept-gap", refused.accept_gap_position()]);
    eventually("no transaction is open", async || {
        kafka.has_no_open_transaction(&outbox.name).await.ok()?.then_some(())
    })
    .await;
    writers.finish().await;
    router.stop().await;
}
