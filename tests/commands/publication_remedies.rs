//! What `check` and `run` print about a publication is typed as printed. Every row arrives, and nobody else loses anything.

use super::check::Found;
use crate::situations::typist::Typist;
use crate::support::eventually::eventually;
use crate::support::kafka::{Kafka, Record};
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::settings::Settings;

/// Postgres has row filters and column lists from this version on.
const LISTS: i32 = 150_000;

/// The command of `text` that begins like this. A command is between backticks or a line of its own.
fn printed<'a>(text: &'a str, begin: &str) -> &'a str {
    let at = text.find(begin).unwrap_or_else(|| panic!("no {begin:?} in {text}"));
    text[at..].split(['`', '\n']).next().unwrap()
}

/// Starts the router, which refuses, and again with the command that it prints.
async fn accept_gap(settings: &Settings) -> Router {
    let ended = Router::start(settings).exits(3).await;
    let mut router = Router::with_arguments(settings, &["--accept-gap", ended.accept_gap_position()]);
    router.ready().await;
    router
}

/// Types the steps to a publication and a slot of the router's own, up to the start of the router.
async fn type_steps(settings: &Settings, steps: &str) -> Settings {
    let value = |key: &str| {
        let (_, rest) =
            steps.split_once(&format!("{key} = \"")).unwrap_or_else(|| panic!("no {key} in {steps}"));
        rest.split('"').next().unwrap().to_owned()
    };
    let settings = settings
        .clone()
        .set("name", value("name"))
        .set("postgres.publication", value("publication"))
        .set("postgres.slot", value("slot"));
    let ran = settings.run_async(&["init"]).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    settings
}

async fn drop_slot(outbox: &Outbox, steps: &str) {
    outbox.execute(printed(steps, "SELECT pg_catalog.pg_drop_replication_slot")).await;
}

/// Waits until the events with the numbers below `count` are in Kafka. Each may be there several times.
async fn arrive(outbox: &Outbox, kafka: &Kafka, count: u64) {
    eventually(&format!("{count} events arrive"), async || {
        let mut numbers: Vec<_> = kafka.records(&outbox.name).await.iter().map(Record::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        (numbers == (0..count).collect::<Vec<_>>()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn remedies_for_a_publication_of_the_routers_own_lose_nothing() {
    for (alteration, check) in [
        ("SET TABLE outbox WHERE (aggregate_type <> 'draft')", "publication_row_filter"),
        ("SET (publish = 'insert, delete')", "publication_content"),
        (
            "SET TABLE outbox (id, aggregate_type, aggregate_id, event_type, payload, created_at)",
            "publication_columns",
        ),
    ] {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        if alteration.starts_with("SET TABLE") && outbox.server_version().await < LISTS {
            continue;
        }
        outbox.execute(&format!("ALTER PUBLICATION outbox_router {alteration}")).await;
        let settings = Settings::new(&outbox, &kafka);
        let router = Router::active(&settings).await;
        outbox.insert_numbers("order", "a", 0..2).await;
        outbox.all_confirmed().await;
        let text = Found::with(&settings).await.of(check);
        outbox.execute(printed(&text, "ALTER PUBLICATION")).await;
        outbox.insert_numbers("draft", "a", 2..4).await;
        // no row is missing, so the router goes on
        outbox.insert_numbers("order", "a", 4..6).await;
        arrive(&outbox, &kafka, 6).await;
        outbox.all_confirmed().await;
        router.stop().await;
        assert_eq!(Found::with(&settings).await.of(check), "", "{alteration}");
    }
}

#[tokio::test]
async fn remedies_for_a_publication_that_others_read_take_nothing_from_it() {
    for (alteration, check) in [
        ("SET TABLE outbox WHERE (aggregate_type <> 'draft'), other", "publication_row_filter"),
        ("SET (publish = 'insert, update, delete')", "publication_content"),
    ] {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        if alteration.starts_with("SET TABLE") && outbox.server_version().await < LISTS {
            continue;
        }
        outbox
            .execute(&format!(
                "CREATE TABLE other (i int PRIMARY KEY); ALTER PUBLICATION outbox_router ADD TABLE other; \
                 ALTER PUBLICATION outbox_router {alteration}"
            ))
            .await;
        let shared = "SELECT p::text FROM pg_publication p WHERE pubname = 'outbox_router' UNION ALL \
                      SELECT t::text FROM pg_publication_tables t WHERE pubname = 'outbox_router' ORDER BY 1";
        let catalogue = async || {
            let rows = outbox.query(shared).await;
            rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>()
        };
        let before = catalogue().await;
        let settings = Settings::new(&outbox, &kafka);
        let router = Router::active(&settings).await;
        outbox.insert_numbers("order", "a", 0..2).await;
        outbox.all_confirmed().await;
        let text = Found::with(&settings).await.of(check);
        assert!(!text.contains("ALTER PUBLICATION"), "{text}");
        // the old router still runs
        let own = type_steps(&settings, &text).await;
        outbox.insert_numbers("order", "a", 2..4).await;
        let delivered = printed(&text, "SELECT o.confirmed_flush_lsn");
        eventually("the old slot has delivered everything", async || {
            outbox.query(delivered).await[0].get::<_, bool>(0).then_some(())
        })
        .await;
        router.stop().await;
        outbox.insert_numbers("draft", "a", 4..6).await;
        let router = accept_gap(&own).await;
        drop_slot(&outbox, &text).await;
        arrive(&outbox, &kafka, 6).await;
        router.stop().await;
        assert_eq!(Found::with(&own).await.of(check), "");
        assert_eq!(catalogue().await, before);
    }
}

/// `run` and `check` print the same way on. `also` is another table of the publication.
#[tokio::test]
async fn rows_without_a_required_column_of_the_publications_column_list_are_sent_after_all() {
    for also in ["", ", other"] {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        if outbox.server_version().await < LISTS {
            return;
        }
        outbox
            .execute(&format!(
                "CREATE TABLE other (i int PRIMARY KEY); ALTER PUBLICATION outbox_router SET TABLE \
                 outbox (id, aggregate_type, aggregate_id, event_type, headers){also}"
            ))
            .await;
        outbox.insert_numbers("order", "a", 0..3).await;
        let settings = Settings::new(&outbox, &kafka);
        let ran = settings.run_async(&["init"]).await;
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(ran.err.contains("column list"), "{ran:?}");
        let text = Found::with(&settings).await.of("publication_columns");
        assert!(text.starts_with("error") && !text.contains("ALTER PUBLICATION"), "{text}");
        // a row that is gone from the table is still in the log
        outbox.execute("DELETE FROM outbox WHERE payload = '{\"n\": 1}'").await;
        let ended = Router::start(&settings).exits(1).await;
        ended.says(&["column list", "payload"]);
        if also.is_empty() {
            ended.shown(&outbox);
        }
        let mut typist = Typist::new(&outbox, &settings);
        typist.types(&ended, "").await;
        let (router, _) = typist.done();
        outbox.insert_numbers("order", "a", 3..5).await;
        arrive(&outbox, &kafka, 5).await;
        router.stop().await;
    }
}

/// The column list was removed, but the slot still has rows from before.
#[tokio::test]
async fn rows_that_an_earlier_column_list_left_incomplete_are_sent_after_all() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    if outbox.server_version().await < LISTS {
        return;
    }
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 0..2).await;
    outbox.all_confirmed().await;
    router.stop().await;
    outbox
        .execute(
            "ALTER PUBLICATION outbox_router SET TABLE outbox (id, aggregate_type, aggregate_id, event_type)",
        )
        .await;
    outbox.insert_numbers("order", "a", 2..4).await;
    outbox.execute("ALTER PUBLICATION outbox_router SET TABLE outbox").await;
    outbox.insert_numbers("order", "a", 4..6).await;
    let refused = Router::start(&settings).exits(3).await;
    refused.says(&["2 of the rows that were committed since lack columns"]);
    let accepting = Router::with_arguments(&settings, &["--accept-gap", refused.accept_gap_position()]);
    let ended = accepting.exits(3).await;
    ended.says(&["payload", "column list"]).shown(&outbox);
    let mut typist = Typist::new(&outbox, &settings);
    let way = "If a column list of the publication left out the column, which the table has, when the row was written";
    typist.types(&ended, way).await;
    let (router, _) = typist.done();
    arrive(&outbox, &kafka, 6).await;
    router.stop().await;
}
