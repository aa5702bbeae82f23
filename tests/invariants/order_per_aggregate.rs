//! The records of one key are in commit order, and end before an event that the broker refuses.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::support::comparison::{Repeats, in_order, same};
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::private_kafka::PrivateKafka;
use crate::support::router::Router;
use crate::support::settings::Settings;

/// Five events of one key, of which the middle one has 20,000 bytes that do not compress.
const MIDDLE_IS_LARGE: &str = "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
     SELECT 'order', 'a', jsonb_build_object('n', n, 'text', CASE n WHEN 3 THEN \
     (SELECT string_agg(md5(n::text || i), '') FROM generate_series(1, 625) i) END) FROM generate_series(1, 5) n";

/// Inserts the same events in five transactions.
async fn one_by_one(outbox: &Outbox) {
    for n in 1..=5 {
        outbox
            .execute(&MIDDLE_IS_LARGE.replace("generate_series(1, 5)", &format!("generate_series({n}, {n})")))
            .await;
    }
}

async fn id_of_the_middle(outbox: &Outbox) -> String {
    outbox.query("SELECT id::text FROM outbox WHERE payload->>'n' = '3'").await[0].get(0)
}

fn numbers(records: &[crate::support::kafka::Record]) -> Vec<u64> {
    records.iter().map(|record| record.number()).collect()
}

/// The broker forgets an idle producer after five seconds.
const FORGETFUL: [&str; 2] =
    ["producer.id.expiration.ms=5000", "producer.id.expiration.check.interval.ms=1000"];
const SMALL: (&str, &str) = ("max.message.bytes", "5000");
const LARGE: (&str, &str) = ("max.message.bytes", "1000000");

/// Changes the limit of the topic of orders, and returns when the broker applies it, which is a moment after it shows it. The
/// broker applies one change after the other, so a topic that is created later accepts records only then.
pub(crate) async fn change_limit(outbox: &Outbox, kafka: &Kafka, limit: (&str, &str)) {
    kafka.alter_topic(&outbox.topic("order"), &[limit]).await;
    let later = format!("after-limit-{}-{}", limit.1, outbox.name);
    kafka.create_topic(&later, 1, &[]).await;
    kafka.write(&later, "", None).await;
}

/// A compressed record may fit although it is larger than the limit, so the router leaves the refusal to the broker. Each
/// record is a batch of its own, so that its successors are in flight when it is refused.
fn compressing(outbox: &Outbox, kafka: &Kafka) -> Settings {
    Settings::new(outbox, kafka).set("kafka.'compression.type'", "lz4").set("kafka.'batch.num.messages'", 1)
}

#[tokio::test]
async fn order_per_aggregate_ends_before_a_refused_event_of_one_transaction() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    kafka.create_topic(&outbox.topic("order"), 1, &[SMALL]).await;
    let router = Router::active(&compressing(&outbox, &kafka)).await;
    outbox.execute(MIDDLE_IS_LARGE).await;
    let id = id_of_the_middle(&outbox).await;
    router.exits(3).await.says(&[&id, &outbox.topic("order"), "max.message.bytes"]);
    let records = kafka.records(&outbox.name).await;
    assert!(records.iter().all(|record| record.number() < 3), "{:?}", numbers(&records));

    change_limit(&outbox, &kafka, LARGE).await;
    let router = Router::active(&compressing(&outbox, &kafka)).await;
    outbox.all_confirmed().await;
    router.stop().await;
    // the transaction is sent again from its start, and the first router may have resent its batches one by one
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(2)).await;
}

#[tokio::test]
async fn order_per_aggregate_ends_before_an_event_refused_by_a_limit_lowered_under_the_router() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    outbox.insert("order", "b", "{\"n\": 1}").await;
    outbox.all_confirmed().await;
    change_limit(&outbox, &kafka, SMALL).await;
    one_by_one(&outbox).await;
    let id = id_of_the_middle(&outbox).await;
    router.exits(3).await.says(&[&id]);
    let records = kafka.records(&outbox.name).await;
    let of_a: Vec<_> = records.iter().filter(|record| record.key() == Some("a")).collect();
    assert!(of_a.iter().all(|record| record.number() < 3), "{:?}", numbers(&records));

    // still too large for the topic; a new router reads the limit before it sends
    outbox.released().await;
    let router = Router::start(&settings);
    router.exits(3).await.says(&[&id, "max.message.bytes"]);
    change_limit(&outbox, &kafka, LARGE).await;
    let router = Router::active(&settings).await;
    outbox.all_confirmed().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(3)).await;
}

/// Inserts the events `from` to `to` of one key into a partition; number 3 is the large one.
fn insert(partition: u32, from: u32, to: u32) -> String {
    MIDDLE_IS_LARGE
        .replace("payload)", "payload, event_type)")
        .replace(" END) FROM", &format!(" END), '{partition}' FROM"))
        .replace("generate_series(1, 5)", &format!("generate_series({from}, {to})"))
}

/// A broker accepts the first batch of a producer in a partition whatever its sequence number. So if the first record of
/// partition `refused` is refused, the broker would accept its successors, which wait in requests of their own while the broker
/// is frozen. `meanwhile` runs after the first record of partition 0. Returns the numbers in the topic at the end.
async fn ends_before_a_refused_first_record(
    broker: &PrivateKafka,
    refused: u32,
    meanwhile: impl AsyncFnOnce(&Outbox),
) -> Vec<u64> {
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    kafka.create_topic(&outbox.topic("order"), 2, &[LARGE]).await;
    let settings = Settings::new(&outbox, &kafka)
        .set("kafka.'batch.num.messages'", 1)
        .set("route.partition", "${event_type}");
    let mut router = Router::active(&settings).await;
    outbox.execute(&insert(0, 1, 1)).await;
    outbox.all_confirmed().await;
    meanwhile(&outbox).await;
    change_limit(&outbox, &kafka, SMALL).await;
    broker.freeze();
    outbox.execute(&insert(refused, 3, 5)).await;
    router
        .shows("records are in flight", |status| (status["in_flight"]["records"].as_u64()? > 0).then_some(()))
        .await;
    broker.thaw();
    router.exits(3).await.says(&["cannot be sent", "max.message.bytes"]);
    numbers(&kafka.records(&outbox.name).await)
}

#[tokio::test]
async fn order_per_aggregate_ends_before_a_refused_event_that_is_the_first_of_its_partition() {
    let broker = PrivateKafka::start(&[]).await;
    assert_eq!(ends_before_a_refused_first_record(&broker, 1, async |_| {}).await, [1]);
}

/// The broker forgets the producer in a partition that is idle while the topic's other partition is busy, so the refused record
/// is again the first of its partition. Takes a minute, because the router assumes that brokers remember producers that long.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn order_per_aggregate_ends_before_a_refused_event_that_is_the_first_after_an_idle_minute() {
    let broker = PrivateKafka::start(&FORGETFUL).await;
    let busy = async |outbox: &Outbox| {
        let idle_since = Instant::now();
        while idle_since.elapsed() < Duration::from_secs(61) {
            outbox.execute(&insert(1, 2, 2)).await;
            outbox.all_confirmed().await;
            sleep(Duration::from_secs(1)).await;
        }
    };
    let mut sent = ends_before_a_refused_first_record(&broker, 0, busy).await;
    sent.retain(|number| *number != 2);
    assert_eq!(sent, [1]);
}

/// librdkafka does not split a batch that is larger than the topic allows.
#[tokio::test]
async fn order_per_aggregate_with_small_records_and_a_topic_that_accepts_only_small_batches() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    kafka.create_topic(&outbox.topic("order"), 1, &[("max.message.bytes", "1500")]).await;
    let router = Router::active(&Settings::new(&outbox, &kafka)).await;
    outbox
        .execute(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
             SELECT 'order', 'a', jsonb_build_object('n', n) FROM generate_series(1, 60) n",
        )
        .await;
    outbox.all_confirmed().await;
    router.stop().await;
    let records = kafka.records(&outbox.name).await;
    assert_eq!(numbers(&records), (1..=60).collect::<Vec<_>>());
}

/// The limit is lowered later: the router resends the records of a refused batch one by one, and none of them is refused.
#[tokio::test]
async fn order_per_aggregate_with_batches_refused_by_a_limit_lowered_under_the_router() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    kafka.create_topic(&outbox.topic("order"), 1, &[]).await;
    let router = Router::active(&Settings::new(&outbox, &kafka)).await;
    outbox.insert("order", "a", "{\"n\": 1}").await;
    outbox.all_confirmed().await;
    change_limit(&outbox, &kafka, ("max.message.bytes", "1500")).await;
    outbox
        .execute(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
             SELECT 'order', 'a', jsonb_build_object('n', n) FROM generate_series(2, 400) n",
        )
        .await;
    outbox.all_confirmed().await;
    router.stop().await;
    let records = kafka.records(&outbox.name).await;
    in_order(&records, Repeats::Restarts(1));
    assert_eq!(records.iter().map(|record| record.number()).max(), Some(400));
}
