//! Events that cannot be sent: the router stops there, says which it is, and nothing that follows is sent past it.

use crate::support::kafka::{Kafka, Record};
use crate::support::outbox::{Outbox, PUBLICATION, TABLE};
use crate::support::router::{Ended, Router};
use crate::support::sentences::Sentences;
use crate::support::settings::Settings;
use crate::support::shared;

/// Takes transactions of three rows, of which the one in the middle cannot be sent.
struct Setting {
    outbox: Outbox,
    kafka: Kafka,
    settings: Settings,
    sentences: Sentences,
    sent: usize,
}

impl Setting {
    async fn new() -> Self {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        outbox.execute("ALTER TABLE outbox ALTER aggregate_type DROP NOT NULL").await;
        outbox.create_witness().await;
        let settings = Settings::new(&outbox, &kafka);
        Setting { outbox, kafka, settings, sentences: Sentences::default(), sent: 0 }
    }

    /// A good transaction, one with `values` in its middle, and a good one after it: what is before the bad row arrives,
    /// what is after it does not, and only the first transaction is confirmed.
    async fn stops_at(&mut self, case: &str, columns: &str, values: &str) -> Ended {
        let good = "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '{}');";
        let delivered = self.outbox.commit(good).await;
        let bad = format!(
            "INSERT INTO outbox (event_type, aggregate_id, {columns}) VALUES ('bad', 'a', {values});"
        );
        let refused = self.outbox.commit(&[good, &bad, good].concat()).await;
        self.outbox.execute(good).await;
        let id: String =
            self.outbox.query("SELECT id::text FROM outbox WHERE event_type = 'bad'").await[0].get(0);

        let ended = Router::start(&self.settings).exits(3).await;
        assert!(ended.says(&[&id]).log.lines().all(printable), "{}", ended.log);
        self.sent += 2;
        assert_eq!(self.kafka.count(&self.outbox.name).await, Ok(self.sent), "{case}: {}", ended.log);
        self.outbox.released().await;
        // where Postgres writes for long, a keepalive may name a place behind the first transaction and before the refused one's end
        let confirmed = self.outbox.confirmed().await;
        assert!((delivered..refused).contains(&confirmed), "{case}: {confirmed}: {}", ended.log);
        self.sentences.of(case, &self.outbox, &ended);
        ended
    }

    /// What an operator may do: take the rows away and move the slot past them.
    async fn clear(&self) {
        self.outbox.execute("DELETE FROM outbox").await;
        self.settings.advance_past_everything(&self.outbox).await;
    }
}

/// Holds nothing that a terminal would act upon, and no line that the router did not begin.
fn printable(line: &str) -> bool {
    !line.starts_with("forged") && !line.chars().any(char::is_control)
}

#[tokio::test]
async fn bad_input_hostile_aggregate_types_stop_the_router_before_them() {
    let mut setting = Setting::new().await;
    let long = format!("'{}'", "x".repeat(300));
    for (case, aggregate_type) in [
        ("two words", "'two words'"),
        ("a slash", "'a/b'"),
        ("300 characters", long.as_str()),
        ("line feeds", "E'order\\r\\nforged line'"),
        ("a terminal's escapes", "E'\\x1b[2Jorder'"),
        ("not ASCII", "'ordré'"),
        ("a template", "'${id}'"),
        ("a direction of writing", "E'a\\u202eb'"),
        ("NULL", "NULL"),
    ] {
        setting.stops_at(case, "aggregate_type", aggregate_type).await;
        setting.clear().await;
    }
    insta::assert_snapshot!(setting.sentences.text());
}

/// By the default template an empty type would still leave a name.
#[tokio::test]
async fn bad_input_names_that_are_no_topics_stop_the_router() {
    let mut setting = Setting::new().await;
    let prefix = setting.outbox.name.clone();
    setting
        .outbox
        .execute(&format!("ALTER TABLE outbox ADD COLUMN topic text DEFAULT '{prefix}.order'"))
        .await;
    setting.settings = setting.settings.set("route.topic", "${topic}");
    for (case, topic) in [
        ("empty", "''"),
        ("one dot", "'.'"),
        ("two dots", "'..'"),
        ("Kafka's own", "'__consumer_offsets'"),
        ("the router's own", "'outbox-router.positions'"),
        ("NULL", "NULL"),
    ] {
        setting.stops_at(case, "aggregate_type, topic", &format!("'order', {topic}")).await;
        setting.clear().await;
    }
    insta::assert_snapshot!(setting.sentences.text());
}

#[tokio::test]
async fn bad_input_headers_that_are_no_object_stop_the_router() {
    let mut setting = Setting::new().await;
    setting
        .outbox
        .execute("ALTER TABLE outbox ALTER headers DROP DEFAULT, ALTER headers TYPE text, ALTER headers SET DEFAULT '{}'")
        .await;
    for (case, headers) in [
        ("a list", "'[1]'"),
        ("a text", "'\"pay10ad\"'"),
        ("a number", "'7'"),
        ("no JSON", "'{\"a\": pay10ad}'"),
        ("a zero character in a name", r#"'{"a": 1, "b\u0000c": "pay10ad"}'"#),
        ("half a surrogate", r#"'{"a": "\ud800pay10ad"}'"#),
    ] {
        let ended = setting.stops_at(case, "aggregate_type, headers", &format!("'order', {headers}")).await;
        assert!(!ended.log.contains("pay10ad"), "{}", ended.log);
        setting.clear().await;
    }
    insta::assert_snapshot!(setting.sentences.text());
}

/// Known before it is sent where the topic's limit tells, by the broker's answer where a compression could have helped.
#[tokio::test]
async fn bad_input_payloads_larger_than_the_broker_takes_stop_the_router() {
    let mut setting = Setting::new().await;
    let large = "'order', (SELECT jsonb_build_object('text', string_agg(md5(n::text), '')) FROM generate_series(1, 100000) n)";
    setting.stops_at("too large for the topic", "aggregate_type, payload", large).await;
    setting.clear().await;

    let before = setting.settings.clone();
    setting.settings = before.clone().set("kafka.'compression.type'", "zstd");
    setting.stops_at("too large even when compressed", "aggregate_type, payload", large).await;
    setting.clear().await;

    setting.settings = before.set("kafka.'message.max.bytes'", 100_000);
    setting.stops_at("too large for the producer", "aggregate_type, payload", large).await;
    insta::assert_snapshot!(setting.sentences.text());
}

/// When the cause is put right the next start goes on at the very row.
#[tokio::test]
async fn bad_input_that_was_put_right_goes_on_at_the_very_row() {
    let mut setting = Setting::new().await;
    setting.stops_at("a slash", "aggregate_type, payload", "'a/b', '{\"slash\": 1}'").await;
    let corrected = setting.settings.clone().set("route.topic", setting.outbox.topic("all"));
    let router = Router::start(&corrected);
    setting.outbox.all_confirmed().await;
    router.stop().await;
    let records = setting.kafka.records(&setting.outbox.topic("all")).await;
    // what the transaction holds before that row was acknowledged, and is not sent again
    let types: Vec<_> = records.iter().map(|record| record.header("type").unwrap()).collect();
    assert_eq!(types, ["bad", "happened", "happened"]);
    setting.clear().await;

    let large = "'order', jsonb_build_object('text', repeat('x', 1500000))";
    setting.sent += records.len();
    setting.stops_at("too large", "aggregate_type, payload", large).await;
    setting.kafka.alter_topic(&setting.outbox.topic("order"), &[("max.message.bytes", "2000000")]).await;
    let router = Router::start(&setting.settings);
    setting.outbox.all_confirmed().await;
    router.stop().await;
    let records = setting.kafka.records(&setting.outbox.topic("order")).await;
    let large: Vec<_> = records.iter().filter(|record| record.header("type") == Some("bad")).collect();
    assert_eq!(large.len(), 1);
    assert!(large[0].value.as_ref().unwrap().len() > 1_500_000);
}

/// The sentence holds the statement that leaves the transaction out, and no more than that.
#[tokio::test]
async fn bad_input_that_is_left_out_as_the_sentence_says_leaves_out_its_transaction_alone() {
    let mut setting = Setting::new().await;
    let ended = setting.stops_at("a slash", "aggregate_type", "'a/b'").await;
    setting.settings.run_suggested_command(&ended);
    setting.outbox.insert("order", "after", "{}").await;
    let router = Router::start(&setting.settings);
    setting.outbox.all_confirmed().await;
    router.stop().await;
    // what came before, and the transaction after it, and the new one
    let keys = async |key: &str| {
        let records = setting.kafka.records(&setting.outbox.name).await;
        records.iter().filter(|record| record.key() == Some(key)).count()
    };
    assert_eq!((keys("a").await, keys("after").await), (setting.sent + 1, 1));
}

#[tokio::test]
async fn bad_input_in_an_id_is_printed_harmlessly() {
    let outbox = Outbox::bare(shared::postgres()).await;
    outbox.execute(&format!("{}; {PUBLICATION}", TABLE.replace("id uuid PRIMARY KEY", "id text"))).await;
    outbox.create_slot("pgoutput").await;
    let kafka = Kafka::shared();
    let long = format!("'{}'", "7".repeat(300));
    let mut sentences = Sentences::default();
    for (case, id) in [
        ("a line of its own", "E'7\\nforged line \\x1b[2J'"),
        ("300 characters", long.as_str()),
        ("NULL", "NULL"),
    ] {
        let insert =
            format!("INSERT INTO outbox (id, aggregate_type, aggregate_id) VALUES ({id}, 'a b', 'x')");
        outbox.execute(&insert).await;
        let settings = Settings::new(&outbox, &kafka);
        let ended = Router::start(&settings).exits(3).await;
        assert!(ended.log.lines().all(printable), "{}", ended.log);
        sentences.of(case, &outbox, &ended);
        outbox.released().await;
        settings.run_suggested_command(&ended);
    }
    insta::assert_snapshot!(sentences.text());
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
    let keyless: Vec<_> = records.iter().filter(|record| record.key.is_none()).map(Record::text).collect();
    assert_eq!(keyless.len(), 2);
    assert_eq!(records.iter().filter(|record| record.key() == Some("")).count(), 1);
    router
        .shows("two events without a key", |status| (status["totals"]["keyless_events"] == 2).then_some(()))
        .await;
    let (_, metrics) = router.get("/metrics").unwrap();
    assert!(metrics.contains("\noutbox_router_keyless_events_total 2\n"), "{metrics}");
    router.stop().await;
}
