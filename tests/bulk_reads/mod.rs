//! The router reads a lagging slot in bulk, and switches between bulk reads and the stream.

mod fallback;
mod in_bulk;
mod parked_and_replayed;
mod slot_changed;
mod switching;
mod takeover;

use crate::support::comparison::{Repeats, same};
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::settings::{MODES, Settings};

/// For tests that need a server of their own: where others write a lot of WAL, the router prefers the stream.
pub(crate) const PG_HBA: &str = "host all all 127.0.0.1/32 trust\n";

/// Settings of a router that reads in bulk when it is `lag` behind.
fn settings(outbox: &Outbox, kafka: &Kafka, mode: &str, lag: &str) -> Settings {
    Settings::new(outbox, kafka)
        .set("delivery.mode", mode)
        .set("postgres.catch_up_lag", lag)
        // the router ends bulk reads after a fraction of it, and the machine may be busy
        .set("postgres.wal_sender_timeout", "60s")
}

/// The router then sends twenty records every twenty milliseconds.
pub(crate) fn slow(settings: Settings) -> Settings {
    settings.set("delivery.window.records", 20).set("kafka.'linger.ms'", 20)
}

/// Commits so many transactions of ten rows each. The rows belong to twenty aggregates in rotation.
pub(crate) async fn backlog(outbox: &Outbox, transactions: u32) {
    outbox
        .execute(
            "CREATE TABLE IF NOT EXISTS counter (n int); INSERT INTO counter SELECT 0 WHERE NOT EXISTS (SELECT FROM counter); \
             CREATE OR REPLACE PROCEDURE backlog(times int) LANGUAGE plpgsql AS $$ DECLARE start int; BEGIN FOR t IN 1..times LOOP \
             UPDATE counter SET n = n + 10 RETURNING n - 10 INTO start; \
             INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
             SELECT 'order', i % 20, jsonb_build_object('n', i / 20 + 1, 'text', repeat('x', 100)) \
             FROM generate_series(start, start + 9) i; COMMIT; END LOOP; END $$",
        )
        .await;
    outbox.execute(&format!("CALL backlog({transactions})")).await;
}

/// The value of a counter of `/metrics`.
fn counter(router: &Router, name: &str) -> Option<u64> {
    let (_, metrics) = router.get("/metrics")?;
    let value = metrics.lines().find_map(|line| line.strip_prefix(&format!("outbox_router_{name} ")))?;
    value.parse().ok()
}

pub(crate) async fn took_bulk_reads(router: &mut Router, least: u64) {
    router
        .shows("bulk reads were taken", |status| {
            (status["totals"]["bulk_reads"].as_u64()? >= least).then_some(())
        })
        .await;
}

pub(crate) async fn is_reading_in_bulk(router: &mut Router) {
    router.shows("it reads in bulk", |status| (status["reading_in_bulk"] == true).then_some(())).await;
}

pub(crate) async fn is_streaming(router: &mut Router) {
    router.shows("it streams", |status| (status["reading_in_bulk"] == false).then_some(())).await;
}

/// Asserts that every event was delivered once and in the order of its aggregate.
async fn delivered_once(outbox: &Outbox, kafka: &Kafka) {
    same(outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
}
