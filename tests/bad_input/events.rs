//! Events that cannot be sent: the router stops there, names the event, and sends nothing after it.

use crate::support::kafka::{Kafka, Record};
use crate::support::outbox::{Outbox, PUBLICATION, TABLE};
use crate::support::place::succeeded;
use crate::support::router::{Ended, Router};
use crate::support::sentences::Sentences;
use crate::support::settings::{Settings, positions_topic};
use crate::support::shared;

/// An outbox for transactions of three rows, of which the second cannot be sent.
struct Setup {
    outbox: Outbox,
    kafka: Kafka,
    settings: Settings,
    sentences: Sentences,
    sent: usize,
}

impl Setup {
    async fn new() -> Self {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        outbox.execute("ALTER TABLE outbox ALTER aggregate_type DROP NOT NULL").await;
        outbox.create_witness().await;
        let settings = Settings::new(&outbox, &kafka);
        Setup { outbox, kafka, settings, sentences: Sentences::default(), sent: 0 }
    }

    /// Commits a good transaction, one with `values` in its middle, and another good one. Checks that only the rows before the
    /// bad row arrive, and that only the first transaction is confirmed.
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
        // a keepalive may confirm a position between the end of the first transaction and the end of the refused one
        let confirmed = self.outbox.confirmed().await;
        assert!((delivered..refused).contains(&confirmed), "{case}: {confirmed}: {}", ended.log);
        self.sentences.of(case, &self.outbox, &ended);
        ended
    }

    /// Deletes the rows and moves the slot past them, as an operator may do.
    async fn clear(&self) {
        self.outbox.execute("DELETE FROM outbox").await;
        self.settings.advance_past_everything(&self.outbox).await;
    }
}

/// Whether the line has no control character and was not forged by an event.
fn printable(line: &str) -> bool {
    !line.starts_with("forged") && !line.chars().any(char::is_control)
}

#[tokio::test]
async fn bad_input_hostile_aggregate_types_stop_the_router_before_them() {
    let mut setup = Setup::new().await;
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
        setup.stops_at(case, "aggregate_type", aggregate_type).await;
        setup.clear().await;
    }
    insta::assert_snapshot!(setup.sentences.text());
}

/// The template is a single column, because with the default template even an empty type leaves a topic name.
#[tokio::test]
async fn bad_input_of_invalid_topic_names_stops_the_router() {
    let mut setup = Setup::new().await;
    let prefix = setup.outbox.name.clone();
    setup.outbox.execute(&format!("ALTER TABLE outbox ADD COLUMN topic text DEFAULT '{prefix}.order'")).await;
    setup.settings = setup.settings.set("route.topic", "${topic}");
    for (case, topic) in [
        ("empty", "''"),
        ("one dot", "'.'"),
        ("two dots", "'..'"),
        ("Kafka's own", "'__consumer_offsets'"),
        ("the router's own", &format!("'{}'", positions_topic(&setup.outbox))),
        ("NULL", "NULL"),
    ] {
        setup.stops_at(case, "aggregate_type, topic", &format!("'order', {topic}")).await;
        setup.clear().await;
    }
    insta::assert_snapshot!(setup.sentences.text());
}

#[tokio::test]
async fn bad_input_of_headers_that_are_not_an_object_stops_the_router() {
    let mut setup = Setup::new().await;
    setup
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
        let ended = setup.stops_at(case, "aggregate_type, headers", &format!("'order', {headers}")).await;
        assert!(!ended.log.contains("pay10ad"), "{}", ended.log);
        setup.clear().await;
    }
    insta::assert_snapshot!(setup.sentences.text());
}

/// The router refuses the event itself if it exceeds the topic's limit. With compression it may fit, so the broker refuses it.
#[tokio::test]
async fn bad_input_of_payloads_that_are_too_large_stops_the_router() {
    let mut setup = Setup::new().await;
    let large = "'order', (SELECT jsonb_build_object('text', string_agg(md5(n::text), '')) FROM generate_series(1, 100000) n)";
    setup.stops_at("too large for the topic", "aggregate_type, payload", large).await;
    setup.clear().await;

    let before = setup.settings.clone();
    setup.settings = before.clone().set("kafka.'compression.type'", "zstd");
    setup.stops_at("too large even when compressed", "aggregate_type, payload", large).await;
    setup.clear().await;

    setup.settings = before.set("kafka.'message.max.bytes'", 100_000);
    setup.stops_at("too large for the producer", "aggregate_type, payload", large).await;
    insta::assert_snapshot!(setup.sentences.text());
}

/// Once the cause is corrected, the next start resumes at the refused row.
#[tokio::test]
async fn bad_input_that_was_corrected_resumes_at_the_refused_row() {
    let mut setup = Setup::new().await;
    setup.stops_at("a slash", "aggregate_type, payload", "'a/b', '{\"slash\": 1}'").await;
    let corrected = setup.settings.clone().set("route.topic", setup.outbox.topic("all"));
    let router = Router::start(&corrected);
    setup.outbox.all_confirmed().await;
    router.stop().await;
    let records = setup.kafka.records(&setup.outbox.topic("all")).await;
    // the row before it in the transaction was acknowledged, and is not sent again
    let types: Vec<_> = records.iter().map(|record| record.header("type").unwrap()).collect();
    assert_eq!(types, ["bad", "happened", "happened"]);
    setup.clear().await;

    let large = "'order', jsonb_build_object('text', repeat('x', 1500000))";
    setup.sent += records.len();
    setup.stops_at("too large", "aggregate_type, payload", large).await;
    setup.kafka.alter_topic(&setup.outbox.topic("order"), &[("max.message.bytes", "2000000")]).await;
    let router = Router::start(&setup.settings);
    setup.outbox.all_confirmed().await;
    router.stop().await;
    let records = setup.kafka.records(&setup.outbox.topic("order")).await;
    let large: Vec<_> = records.iter().filter(|record| record.header("type") == Some("bad")).collect();
    assert_eq!(large.len(), 1);
    assert!(large[0].value.as_ref().unwrap().len() > 1_500_000);
}

/// The error has the command that skips the transaction, and only that one.
#[tokio::test]
async fn bad_input_skipped_as_advised_skips_only_its_transaction() {
    let mut setup = Setup::new().await;
    let ended = setup.stops_at("a slash", "aggregate_type", "'a/b'").await;
    setup.settings.run_suggested_command(&ended);
    setup.outbox.insert("order", "after", "{}").await;
    let router = Router::start(&setup.settings);
    setup.outbox.all_confirmed().await;
    router.stop().await;
    // the events sent before, the transaction after the skipped one, and the new event
    let keys = async |key: &str| {
        let records = setup.kafka.records(&setup.outbox.name).await;
        records.iter().filter(|record| record.key() == Some(key)).count()
    };
    assert_eq!((keys("a").await, keys("after").await), (setup.sent + 1, 1));
}

/// What was sent of the transaction stays sent, and the message says so.
#[tokio::test]
async fn bad_input_within_a_transaction_says_what_is_sent_and_what_is_skipped() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let insert = "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
                  SELECT CASE n WHEN 6 THEN 'a/b' ELSE 'order' END, 'a', jsonb_build_object('n', n) \
                  FROM generate_series(1, 10) n";
    outbox.execute(insert).await;
    let ended = Router::start(&settings).exits(3).await;
    ended.says(&["from this event on (any event in its first 5 changes was sent)"]);
    assert_eq!(ended.message().matches("othing was skipped").count(), 1, "{}", ended.log);
    assert_eq!(kafka.count(&outbox.name).await, Ok(5));
    let dry: Vec<&str> = ended.command("outbox-router slot advance").split(' ').skip(1).collect();
    succeeded(settings.run(&dry), &["5 events, ", "They are never sent"]);
    settings.run_suggested_command(&ended);
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 11..12).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let numbers: Vec<_> = kafka.records(&outbox.name).await.iter().map(|record| record.number()).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 11]);
}

#[tokio::test]
async fn bad_input_of_a_topic_that_may_not_be_created_says_once_that_nothing_was_skipped() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    // a missing positions topic would be refused first
    let settings =
        Settings::new(&outbox, &kafka).set("topics.create", false).set("delivery.positions_topic", "");
    outbox.insert_numbers("order", "a", 1..2).await;
    let ended = Router::start(&settings).exits(3).await;
    ended.says(&["`[topics] create` is false", "its whole transaction, of which nothing was sent"]);
    assert_eq!(ended.message().matches("othing was skipped").count(), 1, "{}", ended.log);
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

/// An event without an aggregate has no order, so it needs no key.
#[tokio::test]
async fn bad_input_does_not_include_a_null_aggregate_id() {
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
    let (_, metrics) = router.get_now("/metrics").await;
    assert!(metrics.contains("\noutbox_router_keyless_events_total 2\n"), "{metrics}");
    router.stop().await;
}
