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
    /// The code of an error, and what it means for events.
    code: String,
    events: String,
    what: String,
    /// The steps and commands of the remedy.
    remedy: Vec<String>,
}

impl Finding {
    /// Asserts that it has the code, the sentences and the commands with which the router has refused to start.
    #[track_caller]
    fn is_refusal(&self, ended: &Ended) {
        assert_eq!(self.level, "error", "{self:?}");
        ended.says(&[&self.code, &self.events, &self.what]);
        assert!(!self.remedy.is_empty(), "{self:?}");
        ended.says(&self.remedy.iter().map(String::as_str).collect::<Vec<_>>());
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
    let steps = finding["ways"].as_array().unwrap().iter().flat_map(|way| way["steps"].as_array().unwrap());
    let remedy = steps.flat_map(|step| {
        let commands = step["commands"].as_array().unwrap().iter();
        [&step["text"]].into_iter().chain(commands).map(|text| text.as_str().unwrap().to_owned())
    });
    Finding {
        level: text("level"),
        code: text("code"),
        events: text("events"),
        what: text("what"),
        remedy: remedy.collect(),
    }
}
