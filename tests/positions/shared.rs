//! A positions topic that several routers share.

use std::time::Duration;

use rdkafka::producer::Producer;

use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::settings::Settings;

/// The other one was killed inside a transaction, and nobody has started it again.
#[tokio::test]
async fn positions_are_found_while_a_transaction_of_another_router_stays_open() {
    for mode in ["at-least-once", "exactly-once"] {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        let topic = format!("positions-{}", outbox.name);
        let settings = Settings::new(&outbox, &kafka)
            .set("delivery.mode", mode)
            .set("delivery.positions_topic", topic.as_str());
        let router = Router::active(&settings).await;
        let ran = settings.run(&["slot", "bookmark", "before"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        outbox.insert_numbers("order", "a", 1..4).await;
        outbox.all_confirmed().await;
        router.stop().await;

        let other = kafka.leave_open(&topic, "another", Duration::from_secs(600)).await;
        // more than is read at once
        kafka.write_times(&topic, "a third", "its position", 1_100).await;
        let ran = settings.run(&["slot", "reset", "--to", "before", "--yes"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        let router = Router::active(&settings).await;
        outbox.insert_numbers("order", "a", 4..6).await;
        outbox.all_confirmed().await;
        let log = router.stop().await.log;
        assert!(log.contains("the position was reset") && !log.contains("is still open"), "{log}");
        if mode == "exactly-once" {
            // its own record may be in a transaction, and whether it is cannot be told before
            let mut waiting = Router::start(&settings);
            waiting.logs("a transaction in it is still open").await;
            let log = waiting.stop().await.log;
            assert!(!log.contains("brokers do not answer"), "{log}");
            let ended = tokio::task::spawn_blocking(move || other.abort_transaction(Duration::from_secs(30)));
            ended.await.unwrap().unwrap();
        }
        let router = Router::active(&settings).await;
        let log = router.stop().await.log;
        assert!(!log.contains("is still open"), "{log}");
        let records = kafka.committed(&outbox.name).await.unwrap();
        let numbers: Vec<u64> = records.iter().map(|record| record.number()).collect();
        assert_eq!(numbers, [1, 2, 3, 1, 2, 3, 4, 5], "{mode}");
        kafka.delete_topic(&topic).await;
    }
}
