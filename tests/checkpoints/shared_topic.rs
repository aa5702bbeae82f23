//! Several routers share a positions topic.

use std::time::Duration;

use rdkafka::producer::Producer;

use super::deliver_after_a_bookmark;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::succeeded;
use crate::support::router::Router;
use crate::support::settings::{MODES, Settings};

/// The other router was killed inside a transaction, and nobody has restarted it.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn checkpoints_are_found_while_a_transaction_of_another_router_is_open() {
    for mode in MODES {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        let topic = format!("positions-{}", outbox.name);
        let settings = Settings::new(&outbox, &kafka)
            .set("delivery.mode", mode)
            .set("delivery.positions_topic", topic.as_str());
        deliver_after_a_bookmark(&outbox, &settings).await;

        let other = kafka.leave_open(&topic, "another", Duration::from_secs(600)).await;
        // more records than a start reads first
        kafka.write_times(&topic, "a third", "its position", 1_100).await;
        succeeded(settings.run(&["slot", "reset", "--to", "before", "--yes"]), &[]);
        let router = Router::active(&settings).await;
        outbox.insert_numbers("order", "a", 4..6).await;
        outbox.all_confirmed().await;
        let log = router.stop().await.log;
        assert!(log.contains("the position was reset") && !log.contains("is still open"), "{log}");
        if mode == "exactly-once" {
            // the open transaction may contain the router's own checkpoint, so it has to wait
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
