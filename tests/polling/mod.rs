//! Routers that poll the outbox table.

mod claims;
mod crashes;
mod delivery;
mod prepared;
mod refusals;
mod several;
mod wake;

use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::succeeded;
use crate::support::settings::Settings;
use crate::support::shared;

/// How many rows have each status, as text.
const BY_STATUS: &str = "SELECT coalesce(string_agg(status || ' ' || n, ', ' ORDER BY status), '') FROM (SELECT status, count(*) AS n FROM outbox GROUP BY status) s";

/// An outbox made by `init` for polling, and the settings of its routers.
pub(crate) async fn polled(kafka: &Kafka) -> (Outbox, Settings) {
    let outbox = Outbox::bare(shared::postgres()).await;
    // no row is tried twice because the machine is busy; tests of leases set their own
    let settings = Settings::polling(&outbox, kafka).set("source.lease", "10m");
    succeeded(settings.run_async(&["init"]).await, &["table \"public\".\"outbox\": created"]);
    outbox.execute("ALTER TABLE outbox ALTER event_type SET DEFAULT 'happened'").await;
    (outbox, settings)
}

impl Outbox {
    /// The only value of a query.
    pub(crate) async fn text(&self, sql: &str) -> String {
        self.query(sql).await[0].get(0)
    }

    /// Waits until all rows are published.
    pub(crate) async fn all_published(&self) {
        let what = format!("all rows of {} are published", self.name);
        crate::support::eventually::eventually(&what, async || {
            let waiting = self.text("SELECT count(*)::text FROM outbox WHERE status <> 'PUBLISHED'").await;
            (waiting == "0").then_some(())
        })
        .await;
    }
}
