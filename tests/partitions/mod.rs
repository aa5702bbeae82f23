//! An outbox that is partitioned by time: `init --partitioned`.

mod created;
mod dropped;
mod existing;
mod refused;

use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::succeeded;
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::shared;

/// An empty database, so early that the day, which is one of UTC, does not end while the test runs.
async fn of_today() -> Outbox {
    let outbox = Outbox::bare(shared::postgres()).await;
    let sql = "SELECT (now() AT TIME ZONE 'UTC')::time < '23:58'";
    eventually("midnight has passed", async || outbox.query(sql).await[0].get::<_, bool>(0).then_some(()))
        .await;
    outbox
}

/// An outbox with partitions of a day, made by `init`.
async fn by_day(kafka: &Kafka) -> (Outbox, Settings) {
    let outbox = of_today().await;
    let settings = Settings::new(&outbox, kafka);
    succeeded(
        settings.run_async(&["init", "--partitioned", "day"]).await,
        &["table \"public\".\"outbox\": created, with partitions"],
    );
    outbox.execute("ALTER TABLE outbox ALTER event_type SET DEFAULT 'happened'").await;
    (outbox, settings)
}

impl Outbox {
    /// Creates the partition of a day that was so many days ago, as a router did then.
    async fn partition_of(&self, days_ago: u32) {
        let name = format!("outbox_{days_ago}_days_ago");
        let bounds = self
            .text(&format!(
                "SELECT format('FROM (%L) TO (%L)', day, day + interval '1 day') \
                 FROM (SELECT date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' - {days_ago} * interval '1 day') d (day)"
            ))
            .await;
        self.execute(&format!("CREATE TABLE {name} PARTITION OF outbox FOR VALUES {bounds}")).await;
    }

    /// Inserts events of an aggregate, so many days ago.
    async fn insert_ago(&self, aggregate: &str, count: u32, days_ago: u32) {
        self.execute(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload, created_at) \
             SELECT 'order', '{aggregate}', jsonb_build_object('n', n), \
             date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' - {days_ago} * interval '1 day' + n * interval '1 s' \
             FROM generate_series(1, {count}) n"
        ))
        .await;
    }

    /// The partitions in which an aggregate has rows.
    async fn places(&self, aggregate: &str) -> String {
        self.text(&format!(
            "SELECT coalesce(string_agg(DISTINCT tableoid::regclass::text, ' '), '') FROM outbox WHERE aggregate_id = '{aggregate}'"
        ))
        .await
    }

    async fn partitions(&self) -> Vec<String> {
        let rows = self
            .query(
                "SELECT part::text FROM outbox_router.partitions_of('\"public\".\"outbox\"') ORDER BY lower",
            )
            .await;
        rows.iter().map(|row| row.get(0)).collect()
    }
}
