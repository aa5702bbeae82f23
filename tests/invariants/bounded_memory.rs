//! Memory is bounded by the window, whatever the backlog and the size of a transaction.

use crate::support::comparison::{Repeats, in_order};
use crate::support::kafka::Kafka;
use crate::support::mock::Mock;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::settings::Settings;

const ROWS: usize = 200_000;

/// In bytes: the window of 16 MiB, and the overhead of librdkafka and the allocator, without the program itself.
const BOUND: u64 = 36 << 20;

/// On a busy machine, decoding a large transaction delays the server's keepalives, and the broker is slow to take large records. A
/// session or request lost to a timeout would hold a further copy for a moment, and so would a switch to bulk reads.
fn patient(settings: Settings) -> Settings {
    settings
        .set("postgres.wal_sender_timeout", "5m")
        .set("postgres.catch_up", "stream")
        .set("kafka.'socket.timeout.ms'", 300_000)
        .set("kafka.'request.timeout.ms'", 300_000)
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bounded_memory_in_a_transaction_of_200_000_rows() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = patient(Settings::new(&outbox, &kafka));
    let router = Router::active(&settings).await;
    let mut client = outbox.client().await;
    let transaction = client.transaction().await.unwrap();
    let insert = format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
         SELECT 'large', 'a' || n % 100, jsonb_build_object('n', n / 100 + 1, 'text', repeat('x', 300)) \
         FROM generate_series(0, {ROWS} - 1) n"
    );
    transaction.batch_execute(&insert).await.unwrap();
    // other transactions commit before and after it
    outbox.insert_numbers("ordinary", "a", 1..50).await;
    kafka.holds(&outbox.topic("ordinary"), 49).await;
    transaction.commit().await.unwrap();
    outbox.insert_numbers("ordinary", "a", 50..100).await;
    outbox.all_confirmed().await;

    let memory = router.peak_heap();
    router.stop().await;
    println!("peak memory: {} kB", memory / 1024);
    let records = kafka.records(&outbox.name).await;
    assert_eq!(records.len(), ROWS + 99);
    in_order(&records, Repeats::Never);
    assert!(memory < BOUND, "{} kB, more than {} kB", memory / 1024, BOUND / 1024);
}

/// Starts a router, and then takes away the broker of its topic, which has `partitions` partitions.
async fn blocked(partitions: i32) -> (Outbox, Mock, Router) {
    let (outbox, mock) = (Outbox::new().await, Mock::start(2));
    // the first broker stays up, so the router still gets metadata
    mock.create_topic(&outbox.topic("large"), partitions, 2);
    let settings = patient(Settings::new(&outbox, &mock.client()));
    let router = Router::active(&settings).await;
    // the first record of a partition is sent alone; get that over with
    for n in 0..10 {
        outbox.insert("large", &format!("a{n}"), "{}").await;
    }
    outbox.all_confirmed().await;
    mock.down(2);
    (outbox, mock, router)
}

/// librdkafka allocates each header separately, which takes many times the size of a short one.
#[tokio::test]
async fn bounded_memory_of_records_with_thousands_of_headers() {
    let (outbox, mock, mut router) = blocked(1).await;
    outbox
        .execute(
            "INSERT INTO outbox (aggregate_type, aggregate_id, headers) SELECT 'large', 'a', \
             (SELECT jsonb_object_agg(to_hex(h), '') FROM generate_series(1, 2000) h) FROM generate_series(1, 500)",
        )
        .await;
    let full =
        |status: &serde_json::Value| (status["in_flight"]["bytes"].as_u64()? >= 16 << 20).then_some(());
    router.shows("the window is full", full).await;
    let memory = router.peak_heap();
    println!("peak memory: {} kB", memory / 1024);
    mock.up(2);
    outbox.all_confirmed().await;
    router.stop().await;
    assert!(memory < BOUND, "{} kB, more than {} kB", memory / 1024, BOUND / 1024);
}

/// While the broker accepts nothing, the backlog stays in Postgres.
#[tokio::test]
async fn bounded_memory_while_the_broker_is_down() {
    let (outbox, mock, mut router) = blocked(3).await;
    // 100 MB
    outbox
        .execute(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
             SELECT 'large', 'a' || n % 100, jsonb_build_object('text', repeat('x', 10000)) \
             FROM generate_series(1, 10000) n",
        )
        .await;
    let window = 16 << 20;
    router
        .shows("the window is full", |status| {
            let bytes = status["in_flight"]["bytes"].as_u64()?;
            assert!(bytes < window + 20_000, "{bytes} bytes are in flight");
            (bytes >= window).then_some(())
        })
        .await;
    outbox.watched().await;
    let blocked = router.peak_heap();
    mock.up(2);
    outbox.all_confirmed().await;
    let memory = router.peak_heap();
    println!("peak memory: {} kB while blocked, {} kB at the end", blocked / 1024, memory / 1024);
    let sent = router.status().unwrap()["totals"]["events"].as_u64();
    assert_eq!(sent, Some(10_010));
    router.stop().await;
    assert!(memory < BOUND, "{} kB, more than {} kB", memory / 1024, BOUND / 1024);
}

/// Changes of other published tables take no memory, however many lie between two records in flight.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bounded_memory_across_millions_of_other_changes() {
    let (outbox, mock, mut router) = blocked(1).await;
    outbox.execute("CREATE TABLE other (); ALTER PUBLICATION outbox_router ADD TABLE other").await;
    outbox.insert("large", "a0", "{}").await;
    outbox.execute("INSERT INTO other SELECT FROM generate_series(1, 1500000)").await;
    outbox.insert("large", "a1", "{}").await;
    // waits in ten parts, because all changes together may take longer than one wait allows
    for part in 1..=10 {
        let passed = |status: &serde_json::Value| {
            (status["totals"]["ignored_changes"].as_u64()? >= part * 150_000).then_some(())
        };
        router.shows("the other changes are skipped", passed).await;
    }
    router
        .shows("both records are in flight", |status| (status["in_flight"]["records"] == 2).then_some(()))
        .await;
    let memory = router.peak_heap();
    println!("peak memory: {} kB", memory / 1024);
    mock.up(2);
    outbox.all_confirmed().await;
    router.stop().await;
    assert!(memory < BOUND, "{} kB, more than {} kB", memory / 1024, BOUND / 1024);
}

/// The router holds a large row twice: as received from Postgres, and as a record of the Kafka client.
#[tokio::test]
async fn bounded_memory_of_rows_of_20_and_50_megabytes() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let largest = "60000000";
    kafka.create_topic(&outbox.topic("large"), 1, &[("max.message.bytes", largest)]).await;
    let settings = patient(Settings::new(&outbox, &kafka)).set("kafka.'message.max.bytes'", largest);
    let router = Router::active(&settings).await;
    outbox.insert("large", "a", "{}").await;
    outbox.all_confirmed().await;
    let base = router.peak_memory();
    for megabytes in [20, 50] {
        let payload = format!("jsonb_build_object('text', repeat('x', {megabytes}000000))");
        outbox
            .execute(&format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('large', 'a', {payload})"
            ))
            .await;
        outbox.all_confirmed().await;
        let (above, row) = (router.peak_memory() - base, megabytes * 1_000_000);
        println!("{} kB above {} kB", above / 1024, base / 1024);
        assert!(above <= row * 22 / 10, "a row of {megabytes} MB takes {} kB", above / 1024);
    }
    router.stop().await;
}
