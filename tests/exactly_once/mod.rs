//! `[delivery] mode = "exactly-once"`: what a consumer of committed transactions sees.

mod frozen;
mod killed;
mod mode_change;
mod new_slot;
mod open_transactions;
mod partition_not_added;
mod refused;
mod shared_name;
mod slow_broker;

use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::settings::Settings;

fn settings(outbox: &Outbox, kafka: &Kafka) -> Settings {
    Settings::new(outbox, kafka).set("delivery.mode", "exactly-once")
}
