//! Checkpoints in Kafka: what they save from being sent again after a crash, and which resume conflicts they reveal.

mod late_records;
mod lost;
mod old_kafka_data;
mod resume_conflicts;
mod resumed;
mod shared_topic;
mod stopped;
mod unacknowledged;

use serde_json::Value;

use crate::support::outbox::Outbox;
use crate::support::place::succeeded;
use crate::support::router::{Ended, Router};
use crate::support::settings::Settings;

/// Creates the bookmark `before`, and delivers three events after it.
async fn deliver_after_a_bookmark(outbox: &Outbox, settings: &Settings) {
    let router = Router::active(settings).await;
    succeeded(settings.run(&["slot", "bookmark", "before"]), &[]);
    outbox.insert_numbers("order", "a", 1..4).await;
    outbox.all_confirmed().await;
    router.stop().await;
}

/// What `check` says about the position.
#[derive(Debug)]
struct Finding {
    level: String,
    what: String,
    remedy: String,
}

impl Finding {
    /// Asserts that it has the sentences with which the router has refused to start.
    #[track_caller]
    fn is_refusal(&self, ended: &Ended) {
        assert_eq!(self.level, "error", "{self:?}");
        ended.says(&[&self.what, &self.remedy]);
    }
}

/// Runs `check`, and returns its only finding about the position.
async fn position_finding(settings: &Settings) -> Finding {
    let ran = settings.run_async(&["check", "--json"]).await;
    let findings: Vec<Value> = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran:?}"));
    let mut of_position = findings.iter().filter(|finding| finding["check"] == "position");
    let finding = of_position.next().unwrap_or_else(|| panic!("{ran:?}"));
    assert!(of_position.next().is_none(), "{ran:?}");
    let text = |key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    Finding { level: text("level"), what: text("what"), remedy: text("remedy") }
}
