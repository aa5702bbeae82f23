//! `[delivery] mode = "exactly-once"`: what a consumer of committed transactions is shown.

mod ended;
mod frozen;
mod killed;
mod modes;
mod new_slot;
mod not_added;
mod refused;
mod same_name;
mod slow_broker;

use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::settings::Settings;

fn settings(outbox: &Outbox, kafka: &Kafka) -> Settings {
    Settings::new(outbox, kafka).set("delivery.mode", "exactly-once")
}
