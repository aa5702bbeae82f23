//! Events that cannot be sent: the router stops there, and nothing that follows is sent past them.

use crate::support::kafka::Kafka;
use crate::support::outbox::{Outbox, PUBLICATION, TABLE};
use crate::support::router::{Ended, Router};
use crate::support::settings::Settings;
use crate::support::shared;

/// A run of events: one that is sent, one that cannot be, and one that could be if that one were not there.
struct Setting {
    outbox: Outbox,
    kafka: Kafka,
    sent: usize,
}

impl Setting {
    async fn new() -> Self {
        Setting { outbox: Outbox::new().await, kafka: Kafka::shared(), sent: 0 }
    }

    /// Runs a router over a good event, `bad`, and another good one. `bad` inserts exactly one row.
    async fn stops_at(&mut self, bad: &str) -> (Ended, String) {
        self.outbox.insert("order", "a", "{}").await;
        self.outbox.execute(bad).await;
        let id = self.outbox.query("SELECT id::text FROM outbox WHERE aggregate_id = 'bad'").await;
        assert_eq!(id.len(), 1);
        self.outbox.insert("order", "b", "{}").await;
        let ended = Router::start(&Settings::new(&self.outbox, &self.kafka)).exits(3).await;
        self.sent += 1;
        assert_eq!(self.kafka.count(&self.outbox.name).await, Ok(self.sent), "{}", ended.log);
        (ended, id[0].get(0))
    }

    /// What an operator would do: take the row away and move the slot past it.
    async fn clear(&self) {
        self.outbox.released().await;
        self.outbox.execute("DELETE FROM outbox").await;
        let advance = format!(
            "SELECT pg_replication_slot_advance('{}', pg_current_wal_insert_lsn())",
            self.outbox.name
        );
        self.outbox.execute(&advance).await;
    }
}

/// Every line is a log line or the last sentence, and holds nothing that a terminal would act upon.
fn assert_harmless(log: &str) {
    for line in log.lines() {
        assert!(!line.starts_with("forged"), "a line of the event's own:\n{log}");
        assert!(!line.chars().any(char::is_control), "control characters in {line:?}");
    }
}

#[tokio::test]
async fn bad_input_hostile_aggregate_types_stop_the_router_before_them() {
    let mut setting = Setting::new().await;
    let long = "x".repeat(300);
    let line = "order\r\nforged line";
    let types = [
        ("two words", "two words"),
        ("a/b", "a/b"),
        ("../../etc", "../../etc"),
        (long.as_str(), "characters"),
        (line, "\\r\\nforged line"),
        ("\u{1b}[2Jorder", "\\u{1b}[2J"),
        ("ordre\u{e9}", "ordre"),
        ("${id}", "${id}"),
    ];
    for (aggregate_type, part) in types {
        let literal = aggregate_type.replace('\'', "''");
        let bad = format!("INSERT INTO outbox (aggregate_type, aggregate_id) VALUES ('{literal}', 'bad')");
        let (ended, id) = setting.stops_at(&bad).await;
        ended.says(&[&id, part, "nothing was skipped"]);
        assert_harmless(&ended.log);
        setting.clear().await;
    }
}

/// By the default template an empty type would still leave a name.
#[tokio::test]
async fn bad_input_names_that_are_no_topics_stop_the_router() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka).set("route.topic", "${aggregate_type}");
    for (aggregate_type, part) in [
        ("", "empty"),
        (".", "`.`"),
        ("..", "`..`"),
        ("__consumer_offsets", "__"),
        ("outbox-router.positions", "not for events"),
    ] {
        let id = outbox.insert(aggregate_type, "bad", "{}").await;
        Router::start(&settings).exits(3).await.says(&[&id, part]);
        outbox.released().await;
        let advance =
            format!("SELECT pg_replication_slot_advance('{}', pg_current_wal_insert_lsn())", outbox.name);
        outbox.execute(&advance).await;
    }
}

#[tokio::test]
async fn bad_input_null_in_the_topic_and_headers_that_are_no_object_stop_the_router() {
    let mut setting = Setting::new().await;
    setting.outbox.execute("ALTER TABLE outbox ALTER aggregate_type DROP NOT NULL").await;
    let (ended, id) = setting.stops_at("INSERT INTO outbox (aggregate_id) VALUES ('bad')").await;
    ended.says(&[&id, "aggregate_type", "NULL"]);
    setting.clear().await;
    for headers in ["[1]", "\"pay10ad\"", "7"] {
        let bad = format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, headers) VALUES ('order', 'bad', '{headers}')"
        );
        let (ended, id) = setting.stops_at(&bad).await;
        ended.says(&[&id, "headers"]);
        assert!(!ended.log.contains("pay10ad"), "{}", ended.log);
        setting.clear().await;
    }
}

#[tokio::test]
async fn bad_input_a_payload_that_the_topic_does_not_take_stops_the_router() {
    let mut setting = Setting::new().await;
    let bad = "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
               VALUES ('order', 'bad', jsonb_build_object('text', repeat('x', 1500000)))";
    let (ended, id) = setting.stops_at(bad).await;
    ended.says(&[&id, "max.message.bytes"]);
}

#[tokio::test]
async fn bad_input_in_an_id_is_printed_harmlessly() {
    let outbox = Outbox::bare(shared::postgres()).await;
    outbox.execute(&format!("{}; {PUBLICATION}", TABLE.replace("id uuid", "id text"))).await;
    outbox.create_slot("pgoutput").await;
    let kafka = Kafka::shared();
    let insert = "INSERT INTO outbox (id, aggregate_type, aggregate_id) VALUES (E'7\\nforged line \\x1b[2J', 'a b', 'x')";
    outbox.execute(insert).await;
    let ended = Router::start(&Settings::new(&outbox, &kafka)).exits(3).await;
    ended.says(&["7\\nforged line"]);
    assert_harmless(&ended.log);
}

/// Not bad: it has no order, so it needs no key.
#[tokio::test]
async fn bad_input_is_not_a_null_aggregate_id_which_is_counted() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let mut router = Router::active(&Settings::new(&outbox, &kafka)).await;
    outbox
        .execute("INSERT INTO outbox (aggregate_type, payload) VALUES ('order', '1'), ('order', '2')")
        .await;
    outbox.insert("order", "", "3").await;
    let records = kafka.records_when(&outbox.name, 3).await;
    assert_eq!(records.iter().filter(|record| record.key.is_none()).count(), 2);
    assert_eq!(records.iter().filter(|record| record.key() == Some("")).count(), 1);
    router
        .shows("two events without a key", |status| (status["totals"]["keyless_events"] == 2).then_some(()))
        .await;
    router.stop().await;
}
