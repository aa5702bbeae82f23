//! Records of a router that stood still and writes what is true no more, as it goes on.

use serde_json::{Value, json};

use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::settings::Settings;

/// What a start looks through before it reads the topic as a whole.
const STRETCH: usize = 1_000;

/// A router with a topic of its own, which has delivered three events; and what it wrote first.
async fn delivered(outbox: &Outbox, kafka: &Kafka) -> (Settings, String, Value) {
    let topic = format!("positions-{}", outbox.name);
    let settings = Settings::new(outbox, kafka)
        .set("name", outbox.name.as_str())
        .set("delivery.positions_topic", topic.as_str());
    let router = Router::active(&settings).await;
    let ran = settings.run(&["slot", "bookmark", "before"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    outbox.insert_numbers("order", "a", 1..4).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let first = serde_json::from_str(kafka.records(&topic).await[0].text()).unwrap();
    (settings, topic, first)
}

/// It starts, and has sent these in all when two more are written.
async fn starts_and_sends(outbox: &Outbox, kafka: &Kafka, settings: &Settings, expected: &[u64]) {
    let router = Router::active(settings).await;
    outbox.insert_numbers("order", "a", 4..6).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let records = kafka.committed(&outbox.name).await.unwrap();
    let numbers: Vec<u64> = records.iter().map(|record| record.number()).collect();
    assert_eq!(numbers, expected);
}

/// It had read what the other one read, and stood still before it wrote that it begins.
#[tokio::test]
async fn positions_of_a_beginning_that_comes_late_do_not_count() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let (settings, topic, first) = delivered(&outbox, &kafka).await;
    kafka.write(&topic, &outbox.name, Some(&first.to_string())).await;
    starts_and_sends(&outbox, &kafka, &settings, &[1, 2, 3, 4, 5]).await;
    kafka.delete_topic(&topic).await;
}

#[tokio::test]
async fn positions_of_a_beginning_that_comes_after_a_reset_do_not_count() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let (settings, topic, _) = delivered(&outbox, &kafka).await;
    let records = kafka.records(&topic).await;
    let mut late: Value = serde_json::from_str(records.last().unwrap().text()).unwrap();
    late["epoch"] = json!(late["epoch"].as_u64().unwrap() + 1);
    let ran = settings.run(&["slot", "reset", "--to", "before", "--yes"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    kafka.write(&topic, &outbox.name, Some(&late.to_string())).await;
    starts_and_sends(&outbox, &kafka, &settings, &[1, 2, 3, 1, 2, 3, 4, 5]).await;
    kafka.delete_topic(&topic).await;
}

/// A start need not read all that other routers have written, but for this.
#[tokio::test]
async fn positions_are_found_far_before_a_late_one() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let (settings, topic, mut late) = delivered(&outbox, &kafka).await;
    late["epoch"] = json!(late["epoch"].as_u64().unwrap() - 1);
    kafka.write_times(&topic, "another", &late.to_string(), STRETCH).await;
    kafka.write(&topic, &outbox.name, Some(&late.to_string())).await;
    starts_and_sends(&outbox, &kafka, &settings, &[1, 2, 3, 4, 5]).await;
    kafka.delete_topic(&topic).await;
}
