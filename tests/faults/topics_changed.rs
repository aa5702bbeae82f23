//! Topics are deleted, recreated and given more partitions or larger limits under a running router.

use std::collections::{BTreeMap, HashMap};

use rand::Rng;

use crate::invariants::order_per_aggregate::change_limit;
use crate::support::eventually::eventually;
use crate::support::kafka::{Kafka, Record};
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::seed;
use crate::support::settings::{Settings, positions_topic};
use crate::support::writers::Writers;

/// The current version of each of the writers' aggregates.
async fn versions(outbox: &Outbox) -> HashMap<String, u64> {
    let rows = outbox.query("SELECT id, version FROM aggregate").await;
    rows.iter().map(|row| (row.get(0), u64::try_from(row.get::<_, i32>(1)).unwrap())).collect()
}

/// Asserts that each key's records continue without a gap up to version `to`. They begin after version `from` at the latest,
/// which was the last one when the old topic was deleted with its records.
fn continue_without_a_gap(
    records: &[Record],
    from: &HashMap<String, u64>,
    to: &HashMap<String, u64>,
    repeats: usize,
) {
    let mut keys: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for record in records {
        keys.entry(record.key().unwrap()).or_default().push(record.number());
    }
    for (key, last) in to {
        let before = from[key];
        let Some(numbers) = keys.get(key.as_str()) else {
            assert_eq!(before, *last, "no record of {key}, although it was written");
            continue;
        };
        assert!(numbers[0] <= before + 1, "{key}: {before} was the last version, then came {numbers:?}");
        assert_eq!(numbers.iter().max(), Some(last), "the last version of {key} is missing");
        let back = numbers.windows(2).filter(|pair| pair[1] <= pair[0]).count();
        assert!(back <= repeats, "{back} steps back in {key}: {numbers:?}");
        assert!(numbers.windows(2).all(|pair| pair[1] <= pair[0] + 1), "a gap in {key}: {numbers:?}");
    }
}

/// Deletes the writers' topics one after the other under load, and calls `recreate` after each.
async fn deleted_under_load(recreate: impl AsyncFn(&Kafka, &str)) {
    const TYPES: [&str; 3] = ["order", "customer", "invoice"];
    let mut random = seed::random();
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let mut router = Router::active(&Settings::new(&outbox, &kafka)).await;
    let writers = Writers::start(&outbox, 2, &mut random).await;
    let mut from = HashMap::new();
    for aggregate_type in TYPES {
        let topic = outbox.topic(aggregate_type);
        kafka.holds_in(&topic, 3, random.random_range(20..200)).await;
        kafka.delete_topic(&topic).await;
        recreate(&kafka, &topic).await;
        from = versions(&outbox).await;
        kafka.holds_in(&topic, 3, 20).await;
    }
    writers.finish().await;
    outbox.all_confirmed().await;
    router.assert_running();
    router.stop().await;
    let to = versions(&outbox).await;
    // each deletion may end the producer, which repeats records of all topics
    continue_without_a_gap(&kafka.records(&outbox.name).await, &from, &to, 2 * TYPES.len());
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn topics_deleted_under_load_are_recreated_and_continue_without_a_gap() {
    deleted_under_load(async |_, _| {}).await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn topics_deleted_and_recreated_under_load_continue_without_a_gap() {
    deleted_under_load(async |kafka, topic| kafka.ensure_topic(topic, 3).await).await;
}

/// A producer that knows of the deletion accepts no record for the topic.
#[tokio::test]
async fn topics_whose_deletion_the_producer_has_noticed_are_recreated() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka)
        .set("kafka.'topic.metadata.refresh.interval.ms'", 200)
        .set("kafka.'topic.metadata.propagation.max.ms'", 500)
        .set("kafka.debug", "topic,metadata");
    let mut router = Router::with_variables(&settings, &[("RUST_LOG", "librdkafka=debug,info")]);
    router.ready().await;
    outbox.insert_numbers("order", "a", 1..4).await;
    outbox.all_confirmed().await;
    kafka.delete_topic(&outbox.topic("order")).await;
    router.logs("changed state exists -> notexists").await;
    outbox.insert_numbers("order", "a", 4..7).await;
    outbox.all_confirmed().await;
    let numbers: Vec<_> = kafka.records(&outbox.name).await.iter().map(Record::number).collect();
    assert_eq!(numbers, [4, 5, 6]);
    router.stop().await;
}

#[tokio::test]
async fn topics_deleted_under_a_router_that_may_not_create_them_stop_it() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let topic = outbox.topic("order");
    kafka.create_topic(&topic, 1, &[]).await;
    kafka.create_topic(&positions_topic(&outbox), 1, &[("cleanup.policy", "compact")]).await;
    let settings = Settings::new(&outbox, &kafka).set("topics.create", false);
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    outbox.all_confirmed().await;
    kafka.delete_topic(&topic).await;
    outbox.insert_numbers("order", "a", 4..7).await;
    router.exits(3).await.says(&[&topic, "does not exist", "create"]);
    assert_eq!(kafka.partitions(&topic).await, 0);

    kafka.create_topic(&topic, 1, &[]).await;
    outbox.released().await;
    let router = Router::active(&settings).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let numbers: Vec<_> = kafka.records(&topic).await.iter().map(Record::number).collect();
    assert_eq!(numbers, [4, 5, 6]);
}

/// Keys then move to other partitions, which cannot be avoided. But no key is in two partitions at the same time.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn topics_that_get_more_partitions_are_drained_before_keys_move() {
    let mut random = seed::random();
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let topics: Vec<_> = ["order", "customer", "invoice"].iter().map(|name| outbox.topic(name)).collect();
    for topic in &topics {
        // timestamps come from the broker's clock at the append
        kafka.create_topic(topic, 1, &[("message.timestamp.type", "LogAppendTime")]).await;
    }
    let mut router = Router::active(&Settings::new(&outbox, &kafka)).await;
    let writers = Writers::start(&outbox, 2, &mut random).await;
    for topic in &topics {
        kafka.holds_in(topic, 1, random.random_range(10..200)).await;
        kafka.add_partitions(topic, 7).await;
    }
    eventually("the router counts the new partitions", async || {
        router.assert_running();
        let (_, metrics) = router.get("/metrics")?;
        metrics.contains("outbox_router_partitions_grown_total 3").then_some(())
    })
    .await;
    for topic in &topics {
        eventually(&format!("keys of {topic} move"), async || {
            let records = kafka.records(topic).await;
            records.iter().any(|record| record.partition > 0).then_some(())
        })
        .await;
    }
    writers.finish().await;
    outbox.all_confirmed().await;
    let log = router.stop().await.log;
    assert_eq!(log.matches("more partitions").count(), 3, "{log}");

    let records = kafka.records(&outbox.name).await;
    // in its new partition each key continues with the next number, at a later time
    let mut homes: BTreeMap<_, BTreeMap<i32, Vec<_>>> = BTreeMap::new();
    for record in &records {
        let partitions = homes.entry((&record.topic, record.key().unwrap())).or_default();
        partitions.entry(record.partition).or_default().push((record.number(), record.timestamp.unwrap()));
    }
    let mut moved = 0;
    for (key, partitions) in homes {
        let mut runs: Vec<_> = partitions.into_values().collect();
        runs.sort();
        assert!(runs.len() <= 2, "{key:?} was in more than two partitions");
        moved += runs.len() - 1;
        let run = runs.concat();
        assert!(run.iter().map(|(number, _)| *number).eq(1..=run.len() as u64), "{key:?}: {run:?}");
        assert!(
            run.is_sorted_by_key(|(_, appended)| *appended),
            "{key:?} was in two partitions at the same time: {run:?}"
        );
    }
    assert!(moved > 0, "no key has moved");
}

/// The router must not stop because of an outdated limit. Records before and after the change keep their order.
#[tokio::test]
async fn topics_with_a_raised_limit_accept_larger_records_of_the_running_router() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let topic = outbox.topic("order");
    kafka.create_topic(&topic, 1, &[("max.message.bytes", "2000")]).await;
    let mut router = Router::active(&Settings::new(&outbox, &kafka)).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    outbox.all_confirmed().await;
    for (limit, first, size) in [("10000", 4, 5_000), ("100000", 104, 50_000)] {
        change_limit(&outbox, &kafka, ("max.message.bytes", limit)).await;
        outbox
            .execute(&format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, payload) SELECT 'order', 'a', jsonb_build_object('n', n, 'text', \
                 repeat('x', CASE WHEN n % 10 = 0 THEN {size} ELSE 0 END)) FROM generate_series({first}, {first} + 99) n"
            ))
            .await;
        outbox.all_confirmed().await;
    }
    router.assert_running();
    // a record above the new limit stops the router, and the message names that limit
    outbox.insert("order", "a", &format!("{{\"text\": \"{}\"}}", "x".repeat(200_000))).await;
    router.exits(3).await.says(&[&topic, "max.message.bytes", "(99939 bytes)"]);
    let numbers: Vec<_> = kafka.records(&topic).await.iter().map(Record::number).collect();
    assert_eq!(numbers, (1..204).collect::<Vec<_>>());
}

/// A Kafka transaction waits for each partition to which it writes.
#[tokio::test]
async fn topics_deleted_during_a_transaction_do_not_block_others_for_long() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let positions = format!("positions-{}", outbox.name);
    let settings = Settings::new(&outbox, &kafka)
        .set("delivery.mode", "exactly-once")
        .set("delivery.positions_topic", positions.as_str());
    let mut router = Router::active(&settings).await;
    for (round, topic) in [outbox.topic("order"), positions.clone()].iter().enumerate() {
        let first = u32::try_from(round).unwrap() * 10;
        outbox.insert_numbers("customer", "c", first + 1..first + 4).await;
        outbox.insert_numbers("order", "o", first + 1..first + 4).await;
        outbox.all_confirmed().await;
        kafka.delete_topic(topic).await;
        outbox.insert_numbers("order", "o", first + 4..first + 6).await;
        outbox.insert_numbers("customer", "c", first + 4..first + 6).await;
        outbox.all_confirmed().await;
    }
    router.assert_running();
    let log = router.stop().await.log;
    assert!(log.contains("no longer exists"), "{log}");
    let records = kafka.committed(&outbox.name).await.unwrap();
    let numbers = |key| -> Vec<u64> {
        records.iter().filter(|record| record.key() == Some(key)).map(Record::number).collect()
    };
    assert_eq!(numbers("c"), [1, 2, 3, 4, 5, 11, 12, 13, 14, 15]);
    // the records before the deletion are gone with the topic
    assert_eq!(numbers("o"), [4, 5, 11, 12, 13, 14, 15]);
    kafka.delete_topic(&positions).await;
}
