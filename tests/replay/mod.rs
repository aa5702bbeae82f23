//! `outbox-router replay`: rows of the table are sent again.

mod interrupted;
mod refused;
mod selected;

use serde_json::Value;

use crate::polling::polled;
use crate::support::comparison::REPLAY;
use crate::support::eventually::eventually;
use crate::support::kafka::{Kafka, Record};
use crate::support::outbox::Outbox;
use crate::support::place::{Ran, succeeded};
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::shared;

/// An outbox made by `init` for a router that reads the log, and its settings.
pub(crate) async fn logged(kafka: &Kafka) -> (Outbox, Settings) {
    let outbox = Outbox::bare(shared::postgres()).await;
    let settings = Settings::new(&outbox, kafka);
    succeeded(settings.run_async(&["init"]).await, &["table \"public\".\"outbox\": created"]);
    outbox.execute("ALTER TABLE outbox ALTER event_type SET DEFAULT 'happened'").await;
    (outbox, settings)
}

/// A polled outbox whose events were published: `order` a and b with 1 to 9, `invoice` c with 1 to 4.
async fn published(kafka: &Kafka) -> (Outbox, Settings) {
    let (outbox, settings) = polled(kafka).await;
    for (kind, aggregate, numbers) in [("order", "a", 1..10), ("invoice", "c", 1..5), ("order", "b", 1..10)] {
        outbox.insert_numbers(kind, aggregate, numbers).await;
    }
    Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
    (outbox, settings)
}

async fn replay(settings: &Settings, arguments: &[&str]) -> Ran {
    settings.run_async(&[&["replay"], arguments].concat()).await
}

/// What `--json` has printed.
fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}{}", ran.out, ran.err))
}

/// The aggregate and number of each record that was sent again, by aggregate in the order of their arrival.
fn again(records: &[Record]) -> Vec<(String, u64)> {
    let again = records.iter().filter(|record| record.header(REPLAY).is_some());
    let mut again: Vec<_> =
        again.map(|record| (record.key().unwrap_or_default().to_owned(), record.number())).collect();
    again.sort_by(|one, other| one.0.cmp(&other.0));
    again
}

fn numbers(aggregate: &str, numbers: std::ops::Range<u64>) -> Vec<(String, u64)> {
    numbers.map(|n| (aggregate.to_owned(), n)).collect()
}

impl Outbox {
    /// Waits until the slot has no transaction left that is older than the rows, as far as it knows.
    pub(crate) async fn all_behind_slot(&self) {
        let sql = "SELECT (SELECT min(age(xmin)) FROM outbox) > (SELECT age(catalog_xmin) FROM pg_replication_slots \
                   WHERE slot_name = current_database())";
        eventually("every row is older than the slot's catalog_xmin", async || {
            // writes which transactions are running
            self.execute("CHECKPOINT").await;
            self.query(sql).await[0].get::<_, bool>(0).then_some(())
        })
        .await;
    }
}
