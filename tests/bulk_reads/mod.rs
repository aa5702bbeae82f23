//! A slot that lags is read in bulk, and the router goes over to the stream and back.

mod given_up;
mod going_over;
mod in_bulk;
mod kept;
mod not_ours;
mod taken_over;

use crate::support::comparison::{Repeats, same};
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::settings::Settings;

const MODES: [&str; 2] = ["at-least-once", "exactly-once"];

/// On a server of its own: where others write much log, a stream is better for it.
pub(crate) const PG_HBA: &str = "host all all 127.0.0.1/32 trust\n";

/// How many bytes of log make this router read in bulk.
fn settings(outbox: &Outbox, kafka: &Kafka, mode: &str, lag: &str) -> Settings {
    Settings::new(outbox, kafka)
        .set("delivery.mode", mode)
        .set("postgres.catch_up", "auto")
        .set("postgres.catch_up_lag", lag)
        // bulk reads are given up after a share of it, and the machine may be busy
        .set("postgres.wal_sender_timeout", "60s")
}

/// Twenty records at a time, each time after twenty milliseconds.
pub(crate) fn slow(settings: Settings) -> Settings {
    settings.set("delivery.window.records", 20).set("kafka.'linger.ms'", 20)
}

/// Ten rows a transaction, `transactions` of them, of twenty aggregates in turns.
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

/// The value of a counter.
fn counted(router: &Router, name: &str) -> Option<u64> {
    let (_, metrics) = router.get("/metrics")?;
    let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("outbox_router_{name} ")))?;
    line.parse().ok()
}

pub(crate) async fn took_bulk_reads(router: &mut Router, least: u64) {
    router
        .shows("bulk reads were taken", |status| (status["totals"]["bites"].as_u64()? >= least).then_some(()))
        .await;
}

pub(crate) async fn streams(router: &mut Router) {
    router.shows("it streams", |status| (status["in_bites"] == false).then_some(())).await;
}

/// All that is written is delivered, each event once and in the order of its aggregate.
async fn delivered_once(outbox: &Outbox, kafka: &Kafka) {
    same(outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
}
