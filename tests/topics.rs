//! Creation of topics, their names, and what happens when they are deleted.

mod many;
mod policy;

use crate::support::comparison::{Repeats, same};
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::settings::{Settings, positions_topic};

#[tokio::test]
async fn topics_are_created_as_configured() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka)
        .set("topics.partitions", 5)
        .set("topics.replication_factor", 1)
        .set("topics.config.'retention.ms'", "3600000");
    let router = Router::active(&settings).await;
    outbox.insert("order", "a", "{}").await;
    outbox.insert("customer", "a", "{}").await;
    kafka.holds(&outbox.name, 2).await;
    router.stop().await;
    for topic in ["order", "customer"] {
        assert_eq!(kafka.partitions(&outbox.topic(topic)).await, 5);
        kafka.wait_for_setting(&outbox.topic(topic), "retention.ms", "3600000").await;
    }
}

#[tokio::test]
async fn topics_are_built_from_columns_headers_and_source() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let template = format!(
        "{}.${{aggregate_type | kebab}}.${{headers.region | default('eu') | lower}}.${{source.table}}",
        outbox.name
    );
    let settings = Settings::new(&outbox, &kafka)
        .set("route.topic", template)
        .set("route.headers.shop", "${source.schema}/${headers.region | default('none')}");
    let router = Router::active(&settings).await;
    for headers in ["{}", "{\"region\": \"US\"}", "{\"region\": null}"] {
        outbox
            .execute(&format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, headers) VALUES ('PurchaseOrder', 'a', '{headers}')"
            ))
            .await;
    }
    outbox.all_confirmed().await;
    router.stop().await;
    for (topic, shops) in [
        ("purchase-order.eu.outbox", &["public/none", "public/none"][..]),
        ("purchase-order.us.outbox", &["public/US"]),
    ] {
        let records = kafka.records(&outbox.topic(topic)).await;
        assert_eq!(
            records.iter().filter_map(|record| record.header("shop")).collect::<Vec<_>>(),
            shops,
            "{topic}"
        );
    }
}

/// A router that sends the same events again gives them the same sequence.
#[tokio::test]
async fn topics_by_sequence_are_the_same_after_a_restart() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let template = format!("{}.${{source.sequence}}", outbox.name);
    let settings = Settings::new(&outbox, &kafka).set("route.topic", template);
    outbox.insert_numbers("order", "a", 1..4).await;
    let earlier_slot = format!("{}_before", outbox.name);
    outbox
        .execute(&format!("SELECT pg_copy_logical_replication_slot('{}', '{earlier_slot}')", outbox.name))
        .await;
    let router = Router::active(&settings).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let topics = |records: Vec<crate::support::kafka::Record>| {
        let mut topics: Vec<_> =
            records.into_iter().map(|record| (record.topic.clone(), record.number())).collect();
        topics.sort();
        topics
    };
    let first = topics(kafka.records(&outbox.name).await);
    assert_eq!(
        first.iter().map(|(_, number)| *number).collect::<Vec<_>>(),
        [1, 2, 3],
        "in the order of delivery"
    );

    let earlier = settings.clone().set("postgres.slot", earlier_slot.as_str());
    let ended = Router::start(&earlier).exits(3).await;
    let router = Router::with_arguments(&earlier, &["--accept-gap", ended.accept_gap_position()]);
    kafka.holds(&outbox.name, 6).await;
    router.stop().await;
    let twice: Vec<_> = first.iter().flat_map(|once| [once.clone(), once.clone()]).collect();
    assert_eq!(topics(kafka.records(&outbox.name).await), twice);
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{earlier_slot}')")).await;
}

#[tokio::test]
async fn topics_that_are_missing_stop_the_router_that_may_not_create_them() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    kafka.create_topic(&positions_topic(&outbox), 1, &[("cleanup.policy", "compact")]).await;
    let settings = Settings::new(&outbox, &kafka).set("topics.create", false);
    let router = Router::active(&settings).await;
    outbox.insert("order", "a", "{}").await;
    router.exits(3).await.says(&[&outbox.topic("order"), "does not exist", "create"]).shown(&outbox);
    assert_eq!(kafka.partitions(&outbox.topic("order")).await, 0);

    kafka.create_topic(&outbox.topic("order"), 1, &[]).await;
    let router = Router::start(&settings);
    kafka.holds(&outbox.name, 1).await;
    router.stop().await;
}

#[tokio::test]
async fn topics_that_are_deleted_are_created_again() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    outbox.all_confirmed().await;
    kafka.delete_topic(&outbox.topic("order")).await;
    outbox.insert_numbers("order", "a", 4..7).await;
    outbox.all_confirmed().await;
    let numbers: Vec<_> = kafka.records(&outbox.name).await.iter().map(|record| record.number()).collect();
    assert_eq!(numbers, [4, 5, 6]);
    router.stop().await;
}

/// A broker announces a new topic before it has created all of its partitions. It refuses a record that reaches a partition too
/// early, but would accept the next one a moment later, because it has no sequence of the producer yet.
#[tokio::test]
async fn topics_lose_nothing_while_the_broker_creates_them() {
    const TOPICS: i32 = 5;
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings =
        Settings::new(&outbox, &kafka).set("topics.partitions", 150).set("kafka.'batch.num.messages'", 1);
    let router = Router::active(&settings).await;
    for topic in 0..TOPICS {
        outbox
            .execute(&format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
                 SELECT 'order{topic}', n % 3, jsonb_build_object('n', n / 3 + 1) FROM generate_series(0, 299) n"
            ))
            .await;
    }
    outbox.all_confirmed().await;
    router.stop().await;
    let records = kafka.records(&outbox.name).await;
    same(&outbox, &records, Repeats::Never).await;
    for topic in 0..TOPICS {
        kafka.delete_topic(&outbox.topic(&format!("order{topic}"))).await;
    }
}
