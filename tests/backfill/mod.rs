//! `init --backfill`: rows from before the slot are sent before it is streamed.

mod interrupted;
mod prepared;
mod refused;
mod together;
mod unstable;

use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::{Outbox, TABLE};
use crate::support::place::{Ran, succeeded};
use crate::support::settings::Settings;
use crate::support::shared;

/// An outbox without publication and slot.
async fn outbox() -> Outbox {
    let outbox = Outbox::bare(shared::postgres()).await;
    outbox.execute(TABLE).await;
    outbox
}

/// An outbox with so many rows of each of four aggregates, and the settings of its router.
async fn with_rows(kafka: &Kafka, of_each: u64) -> (Outbox, Settings) {
    let outbox = outbox().await;
    insert(&outbox, 1, of_each).await;
    let settings = Settings::new(&outbox, kafka);
    (outbox, settings)
}

/// Inserts these numbers for each of four aggregates.
async fn insert(outbox: &Outbox, first: u64, last: u64) {
    let sql = format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, payload) SELECT 'order', 'a' || a, jsonb_build_object('n', n) \
         FROM generate_series({first}, {last}) n, generate_series(0, 3) a"
    );
    outbox.execute(&sql).await;
}

/// Settings with which no more than a thousand rows are sent in a second, so that a test has time to interrupt it.
fn slowly(settings: &Settings) -> Settings {
    settings.clone().set("delivery.window.records", 50).set("kafka.'linger.ms'", 50)
}

async fn init(settings: &Settings, arguments: &[&str]) -> Ran {
    settings.run_async(&[&["init", "--backfill"], arguments].concat()).await
}

/// Runs init, and asserts how many rows are to be sent first.
async fn begun(settings: &Settings, arguments: &[&str], rows: u64) {
    let rows = format!(
        "{rows} row{} of public.outbox from before it will be sent first",
        if rows == 1 { "" } else { "s" }
    );
    succeeded(init(settings, arguments).await, &[&rows]);
}

/// How many rows are stored as done.
async fn done(outbox: &Outbox) -> u64 {
    outbox.text("SELECT done::text FROM outbox_router.backfills").await.parse().unwrap()
}

/// Waits until so many more rows are stored as done.
async fn more(outbox: &Outbox, rows: u64) {
    let goal = done(outbox).await + rows;
    eventually(&format!("{goal} rows are done"), async || (done(outbox).await >= goal).then_some(())).await;
}

async fn finished(outbox: &Outbox) {
    eventually("every row from before the slot is sent", async || {
        let sql = "SELECT (finished_at IS NOT NULL)::text FROM outbox_router.backfills";
        (outbox.text(sql).await == "true").then_some(())
    })
    .await;
}
