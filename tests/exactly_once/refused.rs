//! An event that cannot be sent, and what came before it.

use super::settings;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::private_kafka::{PrivateKafka, kafka_tool};
use crate::support::router::Router;
use crate::support::settings::Settings;

/// Many small events, then one of 20,000 bytes that no compression makes small, then more; each in its transaction.
async fn the_tenth_is_large(outbox: &Outbox) {
    for n in 1..=20 {
        let parts = if n == 10 { 625 } else { 1 };
        outbox
            .execute(&format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, payload) SELECT 'order', 'a', jsonb_build_object('n', {n}, 'text', \
                 (SELECT string_agg(md5({n}::text || i), '') FROM generate_series(1, {parts}) i))"
            ))
            .await;
    }
}

async fn numbers(outbox: &Outbox, kafka: &Kafka) -> Vec<u64> {
    kafka.committed(&outbox.name).await.unwrap().iter().map(|record| record.number()).collect()
}

/// What the router advises leaves out the event's transaction, and nothing that came before it.
async fn what_comes_before_is_committed(outbox: &Outbox, kafka: &Kafka, settings: &Settings, says: &str) {
    the_tenth_is_large(outbox).await;
    let ended = Router::start(settings).exits(3).await;
    ended.says(&[says]);
    assert_eq!(numbers(outbox, kafka).await, (1..10).collect::<Vec<_>>());
    settings.obey(&ended);
    let router = Router::start(settings);
    outbox.all_confirmed().await;
    router.stop().await;
    assert_eq!(numbers(outbox, kafka).await, (1..10).chain(11..=20).collect::<Vec<_>>());
}

#[tokio::test]
async fn exactly_once_everything_before_an_event_that_the_broker_refuses_is_committed() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    kafka.create_topic(&outbox.topic("order"), 1, &[("max.message.bytes", "5000")]).await;
    // it may fit when it is compressed, so it is the broker that has to refuse it
    let settings = settings(&outbox, &kafka).set("kafka.'compression.type'", "lz4");
    what_comes_before_is_committed(&outbox, &kafka, &settings, "Kafka refuses the event").await;
}

#[tokio::test]
async fn exactly_once_everything_before_an_event_that_is_too_large_is_committed() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    kafka.create_topic(&outbox.topic("order"), 1, &[("max.message.bytes", "5000")]).await;
    what_comes_before_is_committed(&outbox, &kafka, &settings(&outbox, &kafka), "max.message.bytes").await;
}

#[tokio::test]
async fn exactly_once_without_the_right_to_transactions_is_refused_with_what_to_grant() {
    let broker = PrivateKafka::start(&crate::support::private_kafka::AUTHORIZING).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    // the position is read first
    let grant = "--add --allow-principal User:outbox-router --operation All --topic outbox-router.positions";
    let mut arguments = vec!["--bootstrap-server", kafka.bootstrap.as_str()];
    arguments.extend(grant.split(' '));
    let granted = kafka_tool("org.apache.kafka.tools.AclCommand", &arguments);
    assert_eq!(granted.code, 0, "{granted:?}");
    let settings = settings(&outbox, &kafka)
        .set("kafka.'bootstrap.servers'", broker.extra())
        .set("kafka.'security.protocol'", "SASL_PLAINTEXT")
        .set("kafka.'sasl.mechanism'", "PLAIN")
        .set("kafka.'sasl.username'", "outbox-router")
        .set("kafka.'sasl.password'", "secret");
    Router::start(&settings)
        .exits(1)
        .await
        .says(&["do not let the router begin transactions", "init --print-acls"]);
}
