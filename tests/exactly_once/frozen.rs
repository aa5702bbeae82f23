//! A router is frozen for longer than its transactions last, and continues.

use rand::Rng;

use super::settings;
use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::private_kafka::PrivateKafka;
use crate::support::router::Router;
use crate::support::seed;
use crate::support::signal::Signal;
use crate::support::writers::Writers;

/// The coordinator aborts timed-out transactions every 200 ms instead of every ten seconds.
const FAST_ABORTS: &str = "transaction.abort.timed.out.transaction.cleanup.interval.ms=200";

/// Waits until no transaction is open in any topic of the outbox.
async fn none_open(outbox: &Outbox, kafka: &Kafka) {
    eventually("no transaction is open", async || {
        kafka.has_no_open_transaction(&outbox.name).await.ok()?.then_some(())
    })
    .await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn exactly_once_a_transaction_that_timed_out_is_sent_again_and_seen_once() {
    const FREEZES: usize = 4;
    let mut random = seed::random();
    let broker = PrivateKafka::start(&[FAST_ABORTS]).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    let settings = settings(&outbox, &kafka)
        .set("kafka.'transaction.timeout.ms'", 1_000)
        .set("postgres.wal_sender_timeout", "60s");
    let mut router = Router::active(&settings).await;
    let writers = Writers::start(&outbox, 4, &mut random).await;
    let mut seen = 0;
    for _ in 0..FREEZES {
        // until the router is frozen inside a transaction
        loop {
            kafka.holds(&outbox.name, seen + random.random_range(1..400)).await;
            router.signal(Signal::Stop);
            seen = kafka.count(&outbox.name).await.unwrap();
            if !kafka.has_no_open_transaction(&outbox.name).await.unwrap() {
                break;
            }
            router.signal(Signal::Continue);
        }
        none_open(&outbox, &kafka).await;
        router.signal(Signal::Continue);
    }
    kafka.holds(&outbox.name, seen + 1).await;
    writers.finish().await;
    outbox.all_confirmed().await;
    router.assert_running();
    router.stop().await;
    same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
}
