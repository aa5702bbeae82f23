//! Kafka's data was restored to an earlier state, so the checkpoint is older than the slot. Events between them are missing.

use super::position_finding;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::succeeded;
use crate::support::router::{Ended, Router};
use crate::support::settings::Settings;

/// A stopped router that has sent events 1 to 6, and a Kafka that was restored to the time when it had sent events 1 to 3.
struct Setup {
    outbox: Outbox,
    kafka: Kafka,
    settings: Settings,
}

impl Setup {
    async fn new(bookmark: bool) -> Self {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        let topic = format!("positions-{}", outbox.name);
        let settings = Settings::new(&outbox, &kafka).set("delivery.positions_topic", topic.as_str());
        let setup = Setup { outbox, kafka, settings };
        if bookmark {
            succeeded(setup.settings.run(&["slot", "bookmark", "before"]), &[]);
        }
        setup.sends(1..4).await;
        let old = setup.kafka.records(&topic).await.pop().unwrap();
        setup.sends(4..7).await;
        // what the events' topic holds matters only to the counts
        for name in [&topic, &setup.outbox.topic("order")] {
            setup.kafka.delete_topic(name).await;
            setup.kafka.create_topic(name, 1, &[]).await;
        }
        let (key, value) = (old.key.unwrap(), old.value.unwrap());
        let (key, value) = (String::from_utf8(key).unwrap(), String::from_utf8(value).unwrap());
        setup.kafka.write(&topic, &key, Some(&value)).await;
        setup
    }

    async fn sends(&self, numbers: std::ops::Range<u32>) {
        let router = Router::active(&self.settings).await;
        self.outbox.insert_numbers("order", "a", numbers).await;
        self.outbox.all_confirmed().await;
        router.stop().await;
    }

    async fn refused(&self) -> Ended {
        let ended = Router::start(&self.settings).exits(3).await;
        ended.says(&[
            "restored to an earlier state",
            "the events committed between the two positions are missing",
        ]);
        position_finding(&self.settings).await.is_refusal(&ended);
        ended
    }

    async fn numbers(&self) -> Vec<u64> {
        let records = self.kafka.records(&self.outbox.topic("order")).await;
        records.iter().map(|record| record.number()).collect()
    }
}

#[tokio::test]
async fn old_kafka_data_is_named_and_the_bookmark_sends_the_missing_events_again() {
    let setup = Setup::new(true).await;
    let ended = setup.refused().await;
    setup.settings.run_command(&ended, "slot reset");
    setup.sends(7..8).await;
    assert_eq!(setup.numbers().await, [1, 2, 3, 4, 5, 6, 7]);
}

#[tokio::test]
async fn old_kafka_data_is_named_and_the_statement_sends_the_missing_rows_again() {
    let setup = Setup::new(false).await;
    let ended = setup.refused().await;
    for _ in 0..2 {
        // typed again, it is refused
        let _ = setup.outbox.client().await.batch_execute(ended.save_statement()).await;
    }
    // events 1 to 3 were sent before the earlier state, so an operator deletes them
    let table = ended.command("SELECT * FROM outbox_router.").split(' ').nth(3).unwrap();
    setup.outbox.execute(&format!("DELETE FROM {table} WHERE (payload->>'n')::int <= 3")).await;
    let mut router = Router::with_arguments(&setup.settings, &["--accept-gap", ended.accept_gap_position()]);
    router.ready().await;
    let client = setup.outbox.client().await;
    client.batch_execute(ended.command("DO ")).await.unwrap();
    // typed again, it sends nothing again
    client.batch_execute(ended.command("DO ")).await.unwrap_err();
    setup.outbox.insert_numbers("order", "a", 7..8).await;
    setup.outbox.all_confirmed().await;
    router.stop().await;
    assert_eq!(setup.numbers().await, [4, 5, 6, 7]);
    assert_eq!(setup.outbox.query("SELECT FROM outbox").await.len(), 7);
}
