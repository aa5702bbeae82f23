//! Checkpoints in Kafka: what they save from being sent again after a crash, and which resume conflicts they reveal.

mod late_records;
mod resume_conflicts;
mod resumed;
mod shared_topic;
mod unacknowledged;

use crate::support::outbox::Outbox;
use crate::support::place::succeeded;
use crate::support::router::Router;
use crate::support::settings::Settings;

/// Creates the bookmark `before`, and delivers three events after it.
async fn deliver_after_a_bookmark(outbox: &Outbox, settings: &Settings) {
    let router = Router::active(settings).await;
    succeeded(settings.run(&["slot", "bookmark", "before"]), &[]);
    outbox.insert_numbers("order", "a", 1..4).await;
    outbox.all_confirmed().await;
    router.stop().await;
}
