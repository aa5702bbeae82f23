//! A broker accepts less within `transaction.timeout.ms` than the window holds.

use super::settings;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::succeeded;
use crate::support::private_kafka::{PrivateKafka, kafka_tool};
use crate::support::proxy::{Network, Proxy, Way};
use crate::support::router::{Router, waits};
use crate::support::settings::Settings;

/// Limits the bytes per second that the broker accepts from the router, or removes the limit.
fn quota(kafka: &Kafka, bytes_per_second: Option<u32>) {
    let (how, setting) = match bytes_per_second {
        Some(bytes) => ("--add-config", format!("producer_byte_rate={bytes}")),
        None => ("--delete-config", "producer_byte_rate".to_owned()),
    };
    let client = ["--entity-type", "clients", "--entity-default"];
    let mut arguments = vec!["--bootstrap-server", &kafka.bootstrap, "--alter", how, &setting];
    arguments.extend(client);
    succeeded(kafka_tool("kafka.admin.ConfigCommand", &arguments), &[]);
}

/// Settings with a short transaction timeout. At the quota, the records of a full window take far longer.
fn short_timeout(outbox: &Outbox, kafka: &Kafka) -> Settings {
    settings(outbox, kafka).set("kafka.'transaction.timeout.ms'", 8_000)
}

/// Inserts events of about a kilobyte for ten aggregates.
async fn insert_kilobytes(outbox: &Outbox, numbers: std::ops::RangeInclusive<u32>) {
    let (first, last) = numbers.into_inner();
    outbox
        .execute(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) SELECT 'order', n % 10, \
             jsonb_build_object('n', n, 'text', repeat('x', 900)) FROM generate_series({first}, {last}) n"
        ))
        .await;
}

/// Asserts that each event was delivered once, in the order of its aggregate.
async fn once_and_in_order(outbox: &Outbox, kafka: &Kafka, last: u64) {
    let records = kafka.committed(&outbox.name).await.unwrap();
    for aggregate in 0..10 {
        let key = aggregate.to_string();
        let numbers: Vec<_> = records
            .iter()
            .filter(|record| record.key() == Some(&key))
            .map(crate::support::kafka::Record::number)
            .collect();
        let expected: Vec<_> = (1..=last).filter(|n| n % 10 == aggregate).collect();
        assert_eq!(numbers, expected, "aggregate {key}");
    }
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn exactly_once_events_flow_under_a_quota_and_at_full_speed_after_it() {
    let broker = PrivateKafka::start(&[]).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    quota(&kafka, Some(10_000));
    insert_kilobytes(&outbox, 1..=5_000).await;
    let router = Router::start(&short_timeout(&outbox, &kafka));
    kafka.committed_when(&outbox.name, 100).await;
    quota(&kafka, None);
    kafka.committed_when(&outbox.name, 5_000).await;
    outbox.all_confirmed().await;
    router.stop().await;
    once_and_in_order(&outbox, &kafka, 5_000).await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn exactly_once_a_transaction_that_times_out_is_explained_and_split() {
    let broker = PrivateKafka::start(&[]).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    let mut router = Router::active(&short_timeout(&outbox, &kafka)).await;
    // the router sends these in large transactions
    insert_kilobytes(&outbox, 1..=20_000).await;
    outbox.all_confirmed().await;
    quota(&kafka, Some(10_000));
    insert_kilobytes(&outbox, 20_001..=40_000).await;
    router
        .shows("the reason names the timeout", |status| {
            let reason = status["reason"].as_str()?;
            (waits(status)
                && reason.contains("did not fit into transaction.timeout.ms (8 s)")
                && reason.contains("the next ones are smaller"))
            .then_some(())
        })
        .await;
    router.logs("did not fit into transaction.timeout.ms").await;
    kafka.committed_when(&outbox.name, 20_050).await;
    quota(&kafka, None);
    kafka.committed_when(&outbox.name, 40_000).await;
    outbox.all_confirmed().await;
    router.stop().await;
    once_and_in_order(&outbox, &kafka, 40_000).await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn exactly_once_a_single_event_that_outlasts_the_transaction_timeout_is_explained() {
    let link = Proxy::to("");
    let broker = PrivateKafka::behind(&link).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    let settings = short_timeout(&outbox, &kafka).set("kafka.'bootstrap.servers'", link.address());
    let mut router = Router::active(&settings).await;
    link.set(Network { to_server: Way::Slow(10_000), to_client: Way::Open });
    outbox.insert("order", "a", &format!("{{\"n\": 1, \"text\": \"{}\"}}", "x".repeat(500_000))).await;
    router
        .shows("the reason says what to change", |status| {
            let reason = status["reason"].as_str()?;
            (reason.contains("a single record of 500") && reason.contains("raise transaction.timeout.ms"))
                .then_some(())
        })
        .await;
    assert_eq!(router.get_now("/readyz").await.0, 503);
    link.set(Network::OPEN);
    outbox.all_confirmed().await;
    router.ready().await;
    router.stop().await;
    assert_eq!(kafka.committed(&outbox.name).await.unwrap().len(), 1);
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn exactly_once_events_flow_over_a_link_of_ten_kilobytes_a_second() {
    let link = Proxy::to("");
    let broker = PrivateKafka::behind(&link).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    let settings = short_timeout(&outbox, &kafka).set("kafka.'bootstrap.servers'", link.address());
    let router = Router::active(&settings).await;
    link.set(Network { to_server: Way::Slow(10_000), to_client: Way::Open });
    insert_kilobytes(&outbox, 1..=5_000).await;
    kafka.committed_when(&outbox.name, 50).await;
    link.set(Network::OPEN);
    kafka.committed_when(&outbox.name, 5_000).await;
    outbox.all_confirmed().await;
    router.stop().await;
    once_and_in_order(&outbox, &kafka, 5_000).await;
}
