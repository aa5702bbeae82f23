//! A router that was frozen writes an outdated checkpoint when it continues.

use serde_json::{Value, json};

use super::deliver_after_a_bookmark;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::succeeded;
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::signal::Signal;

/// Number of records that a starting router reads from the end of the topic before it reads the whole topic.
const TAIL: usize = 1_000;

/// Settings of a router with a positions topic of its own that has delivered three events, the topic, and its first checkpoint.
async fn delivered(outbox: &Outbox, kafka: &Kafka) -> (Settings, String, Value) {
    let topic = format!("positions-{}", outbox.name);
    let settings = Settings::new(outbox, kafka)
        .set("name", outbox.name.as_str())
        .set("delivery.positions_topic", topic.as_str());
    deliver_after_a_bookmark(outbox, &settings).await;
    let first = serde_json::from_str(kafka.records(&topic).await[0].text()).unwrap();
    (settings, topic, first)
}

/// Starts the router, inserts two more events, and asserts that these were sent in all.
async fn starts_and_sends(outbox: &Outbox, kafka: &Kafka, settings: &Settings, expected: &[u64]) {
    let router = Router::active(settings).await;
    outbox.insert_numbers("order", "a", 4..6).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let records = kafka.committed(&outbox.name).await.unwrap();
    let numbers: Vec<u64> = records.iter().map(|record| record.number()).collect();
    assert_eq!(numbers, expected);
}

/// The router was frozen after it had read the checkpoint and before it wrote its first one. Meanwhile another router started.
#[tokio::test]
async fn checkpoints_of_a_session_that_starts_late_do_not_count() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let (settings, topic, first) = delivered(&outbox, &kafka).await;
    kafka.write(&topic, &outbox.name, Some(&first.to_string())).await;
    starts_and_sends(&outbox, &kafka, &settings, &[1, 2, 3, 4, 5]).await;
    kafka.delete_topic(&topic).await;
}

/// The router is frozen while it holds the lock, and loses it. It reads what the next router has written since, and must not write
/// the epoch after that one.
#[tokio::test]
async fn checkpoints_of_a_router_that_loses_its_lock_while_it_starts_do_not_count() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    outbox.all_confirmed().await;
    router.stop().await;
    outbox.released().await;

    let mut frozen = Router::start(&settings);
    let holder = outbox.locked_by_other_than(0).await;
    frozen.signal(Signal::Stop);
    outbox.execute(&format!("SELECT pg_terminate_backend({holder}, 60000)")).await;
    let other = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 4..6).await;
    outbox.all_confirmed().await;
    frozen.signal(Signal::Continue);
    frozen.logs("waiting for the slot").await;
    outbox.insert_numbers("order", "a", 6..8).await;
    outbox.all_confirmed().await;
    other.stop().await;
    frozen.shows("it takes over", |status| (status["state"] == "active").then_some(())).await;
    outbox.insert_numbers("order", "a", 8..9).await;
    outbox.all_confirmed().await;
    frozen.stop().await;
    let records = kafka.committed(&outbox.name).await.unwrap();
    let numbers: Vec<u64> = records.iter().map(|record| record.number()).collect();
    assert_eq!(numbers, (1..9).collect::<Vec<_>>());
}

#[tokio::test]
async fn checkpoints_written_late_after_a_reset_do_not_count() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let (settings, topic, _) = delivered(&outbox, &kafka).await;
    let records = kafka.records(&topic).await;
    let mut late: Value = serde_json::from_str(records.last().unwrap().text()).unwrap();
    late["epoch"] = json!(late["epoch"].as_u64().unwrap() + 1);
    succeeded(settings.run(&["slot", "reset", "--to", "before", "--yes"]), &[]);
    kafka.write(&topic, &outbox.name, Some(&late.to_string())).await;
    starts_and_sends(&outbox, &kafka, &settings, &[1, 2, 3, 1, 2, 3, 4, 5]).await;
    kafka.delete_topic(&topic).await;
}

/// Normally a start need not read all records of other routers.
#[tokio::test]
async fn checkpoints_are_found_far_before_a_late_one() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let (settings, topic, mut late) = delivered(&outbox, &kafka).await;
    late["epoch"] = json!(late["epoch"].as_u64().unwrap() - 1);
    kafka.write_times(&topic, "another", &late.to_string(), TAIL).await;
    kafka.write(&topic, &outbox.name, Some(&late.to_string())).await;
    starts_and_sends(&outbox, &kafka, &settings, &[1, 2, 3, 4, 5]).await;
    kafka.delete_topic(&topic).await;
}
