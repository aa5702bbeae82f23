//! An event cannot be sent, but everything before it is committed.

use super::settings;
use crate::situations::page::keep;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::succeeded;
use crate::support::private_kafka::{PrivateKafka, kafka_tool};
use crate::support::router::Router;
use crate::support::settings::Settings;

/// Inserts twenty events in one transaction each. The tenth has 20,000 bytes that cannot be compressed.
async fn insert_large_tenth(outbox: &Outbox) {
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

/// The command that the router suggests skips the transaction of the event, and nothing before it.
async fn earlier_events_are_committed(outbox: &Outbox, kafka: &Kafka, settings: &Settings, says: &str) {
    insert_large_tenth(outbox).await;
    let ended = Router::start(settings).exits(3).await;
    ended.says(&[says]);
    assert_eq!(numbers(outbox, kafka).await, (1..10).collect::<Vec<_>>());
    settings.run_suggested_command(&ended);
    let router = Router::start(settings);
    outbox.all_confirmed().await;
    router.stop().await;
    assert_eq!(numbers(outbox, kafka).await, (1..10).chain(11..=20).collect::<Vec<_>>());
}

#[tokio::test]
async fn exactly_once_everything_before_an_event_that_the_broker_refuses_is_committed() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    kafka.create_topic(&outbox.topic("order"), 1, &[("max.message.bytes", "5000")]).await;
    // compressed it might fit, so only the broker can refuse it
    let settings = settings(&outbox, &kafka).set("kafka.'compression.type'", "lz4");
    earlier_events_are_committed(&outbox, &kafka, &settings, "Kafka refuses the event").await;
}

#[tokio::test]
async fn exactly_once_everything_before_an_event_that_is_too_large_is_committed() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    kafka.create_topic(&outbox.topic("order"), 1, &[("max.message.bytes", "5000")]).await;
    earlier_events_are_committed(&outbox, &kafka, &settings(&outbox, &kafka), "max.message.bytes").await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn exactly_once_without_permission_for_transactions_is_refused_with_what_to_grant() {
    let broker = PrivateKafka::start(&crate::support::private_kafka::AUTHORIZING).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    // the router reads its checkpoint before it begins a transaction
    let grant = "--add --allow-principal User:outbox-router --operation All --topic outbox-router.positions";
    let mut arguments = vec!["--bootstrap-server", kafka.bootstrap.as_str()];
    arguments.extend(grant.split(' '));
    succeeded(kafka_tool("org.apache.kafka.tools.AclCommand", &arguments), &[]);
    let settings = settings(&outbox, &kafka)
        .set("kafka.'bootstrap.servers'", broker.extra())
        .set("kafka.'security.protocol'", "SASL_PLAINTEXT")
        .set("kafka.'sasl.mechanism'", "PLAIN")
        .set("kafka.'sasl.username'", "outbox-router")
        .set("kafka.'sasl.password'", "secret");
    let ended = Router::start(&settings).exits(1).await;
    ended.says(&["do not let the router begin transactions", "init --print-acls"]);
    keep(ended.message(), &[(broker.extra(), "HOST"), (&outbox.name, "NAME")]);
}
