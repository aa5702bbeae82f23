//! Several slots read one outbox, each with a part of its aggregates.

mod change;
mod coverage;
mod distribution;

use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::{Outbox, TABLE};
use crate::support::place::{refused, succeeded};
use crate::support::settings::{MODES, Settings};
use crate::support::shared;

/// An outbox with its table but without publication and slot.
async fn outbox() -> Outbox {
    let outbox = Outbox::bare(shared::postgres()).await;
    outbox.execute(TABLE).await;
    outbox
}

/// Whether the server supports the row filters that shards need.
async fn has_row_filters(outbox: &Outbox) -> bool {
    outbox.server_version().await >= 150_000
}

/// An outbox and the shared broker; `None` on a server without row filters.
async fn outbox_and_kafka() -> Option<(Outbox, Kafka)> {
    let outbox = outbox().await;
    has_row_filters(&outbox).await.then(|| (outbox, Kafka::shared()))
}

fn settings(outbox: &Outbox, kafka: &Kafka, mode: &str, count: i64) -> Settings {
    Settings::new(outbox, kafka).set("delivery.mode", mode).set("shards.count", count)
}

/// Waits until every slot of the database is confirmed past all that is committed by now.
async fn all_confirmed(outbox: &Outbox) {
    let lsn = outbox.lsn().await;
    let sql = format!(
        "SELECT coalesce(bool_and(confirmed_flush_lsn >= '{lsn}'), false) FROM pg_replication_slots \
         WHERE database = current_database()"
    );
    eventually(&format!("every slot is confirmed up to {lsn}"), async || {
        outbox.query(&sql).await[0].get::<_, bool>(0).then_some(())
    })
    .await;
}

/// The slots of the database in alphabetical order, without the common beginning of their names.
async fn slots(outbox: &Outbox) -> Vec<String> {
    let rows = outbox
        .query(
            "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database() ORDER BY 1",
        )
        .await;
    let name = |row: &tokio_postgres::Row| row.get::<_, &str>(0).replacen(&outbox.name, "", 1);
    rows.iter().map(name).collect()
}
