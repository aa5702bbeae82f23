//! `outbox-router prune`: rows that nobody needs are deleted, or archived.

mod archive;
mod file;
mod hourly;
mod interrupted;
mod kept;
mod refused;

use serde_json::Value;

use crate::polling::polled;
use crate::replay::logged;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::{Ran, refused, succeeded};
use crate::support::router::Router;
use crate::support::settings::Settings;

/// An expression for a time that `OLD` includes.
const LONG_AGO: &str = "clock_timestamp() - interval '40 days'";

/// The arguments for rows from then.
const OLD: [&str; 3] = ["prune", "--older-than", "30d"];

pub(crate) async fn prune(settings: &Settings, more: &[&str]) -> Ran {
    settings.run_async(&[&OLD, more].concat()).await
}

/// What `--json` has printed about the only table.
pub(crate) fn json(ran: &Ran) -> Value {
    let printed: Value =
        serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}{}", ran.out, ran.err));
    printed[0].clone()
}

impl Outbox {
    /// Inserts events of one aggregate in one transaction, as if that had been long ago.
    async fn insert_old(&self, aggregate: &str, count: u32) {
        self.execute(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload, created_at) \
             SELECT 'order', '{aggregate}', jsonb_build_object('n', n), {LONG_AGO} + n * interval '1 s' FROM generate_series(1, {count}) n"
        ))
        .await;
    }

    /// The aggregates of a table, each with the number of its rows.
    async fn aggregates(&self, table: &str) -> String {
        self.text(&format!(
            "SELECT coalesce(string_agg(concat(aggregate_id, ' ', n), ', ' ORDER BY aggregate_id), '') \
             FROM (SELECT aggregate_id, count(*) AS n FROM {table} GROUP BY aggregate_id) a"
        ))
        .await
    }
}
