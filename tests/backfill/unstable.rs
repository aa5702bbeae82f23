//! Rows whose place in the table, transaction or statement changes before their turn.

use super::*;
use crate::support::comparison::{Repeats, in_order, same};
use crate::support::postgres::PrivatePostgres;
use crate::support::router::Router;

/// A table as many applications have it: all rows of a transaction have the same time, and ids do not ascend.
async fn with_statements(kafka: &Kafka, rows: u64) -> (Outbox, Settings) {
    let (outbox, settings) = with_rows(kafka, 0).await;
    outbox.execute("ALTER TABLE outbox ALTER created_at SET DEFAULT now()").await;
    // each row has a statement of its own, and the space of earlier rows is used again
    outbox
        .execute(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) SELECT 'gone', 'x', jsonb_build_object('n', repeat('x', n % 90)) \
             FROM generate_series(1, 400) n; DELETE FROM outbox WHERE (ctid::text::point)[1]::int % 3 > 0",
        )
        .await;
    outbox.client().await.batch_execute("VACUUM outbox").await.unwrap();
    outbox.execute("DELETE FROM outbox").await;
    let sql = format!(
        "DO $$ BEGIN FOR i IN 1..{rows} LOOP \
         INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', jsonb_build_object('n', i)); \
         END LOOP; END $$"
    );
    outbox.execute(&sql).await;
    (outbox, settings)
}

#[tokio::test]
async fn rows_of_a_transaction_are_in_the_order_of_its_statements() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_statements(&kafka, 90).await;
    begun(&settings, &[], 90).await;
    Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

/// A DELETE that is rolled back overwrites the number of the statement that has inserted the row.
async fn tried_to_delete(rows: u64) {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_statements(&kafka, rows).await;
    let settings = settings.set("delivery.mode", "exactly-once").set("delivery.window.records", 50);
    begun(&settings, &[], rows).await;
    let topic = outbox.topic("order");
    kafka.create_topic(&topic, 1, &[]).await;
    let tried = async |numbers: &str| {
        // statements before it give it a high number
        let sql = format!(
            "BEGIN; DO $$ BEGIN FOR i IN 1..{rows} LOOP PERFORM pg_current_xact_id(); END LOOP; END $$; \
             DELETE FROM outbox WHERE (payload ->> 'n')::int IN ({numbers}); ROLLBACK"
        );
        outbox.client().await.batch_execute(&sql).await.unwrap();
    };
    let half = rows / 2;
    for _ in 0..3 {
        let router = Router::start(&settings);
        let sent = kafka.count(&outbox.name).await.unwrap_or_default();
        eventually("some rows are sent", async || {
            let now = kafka.count(&outbox.name).await.ok()?;
            (now > sent || now as u64 >= rows).then_some(())
        })
        .await;
        router.kill();
        tried(&format!("1, 2, {half}, {rows}")).await;
    }
    Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
    let mut numbers: Vec<u64> =
        kafka.committed(&outbox.name).await.unwrap().iter().map(|record| record.number()).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(1..=rows), "{rows}");
}

#[tokio::test]
async fn rows_that_somebody_has_tried_to_delete_are_sent_once() {
    tried_to_delete(90).await;
}

/// Of several pages. Routers are killed wherever they happen to be.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn many_rows_of_which_somebody_has_tried_to_delete_some_are_sent_once() {
    tried_to_delete(5_000).await;
}

#[tokio::test]
async fn another_table_of_the_name_stops_the_router() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, 5).await;
    begun(&settings, &[], 20).await;
    outbox
        .execute(
            "ALTER TABLE outbox RENAME TO former; CREATE TABLE outbox (LIKE former INCLUDING ALL); \
             ALTER PUBLICATION outbox_router SET TABLE outbox",
        )
        .await;
    let ended = Router::start(&settings).exits(3).await;
    ended.says(&["OBR-8205", "public.outbox was rewritten or replaced"]);
}

/// The commit is written, and the slot begins after it, but nobody sees it before a standby has confirmed it.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn a_transaction_that_waits_for_a_standby_is_waited_for() {
    let server = PrivatePostgres::start("host all all 127.0.0.1/32 trust", &[]).await;
    let (outbox, kafka) = (Outbox::bare(&server.url()).await, Kafka::shared());
    outbox.execute(TABLE).await;
    insert(&outbox, 1, 2).await;
    let settings = Settings::new(&outbox, &kafka);
    // its own transactions do not wait
    let url = format!("{}?options=-csynchronous_commit%3Dlocal", outbox.url());
    let settings = settings.set("postgres.url", url);
    succeeded(settings.run_async(&["init"]).await, &[]);
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{}')", outbox.name)).await;
    let (first, second) = (outbox.client().await, outbox.client().await);
    server.configure(&[("synchronous_standby_names", "nobody")]).await;
    let open = async |client: &tokio_postgres::Client| {
        let sql = "SET synchronous_commit = local; BEGIN; SELECT pg_current_xact_id()";
        client.batch_execute(sql).await.unwrap();
    };
    open(&first).await;
    let creating = tokio::spawn({
        let settings = settings.clone();
        async move { init(&settings, &[]).await }
    });
    let waits = "SELECT count(*)::text FROM pg_stat_activity WHERE query LIKE 'CREATE_REPLICATION_SLOT%' AND wait_event_type = 'Lock'";
    eventually("the slot waits for the first transaction", async || {
        (outbox.text(waits).await == "1").then_some(())
    })
    .await;
    open(&second).await;
    first.batch_execute("COMMIT").await.unwrap();
    let third = outbox.client().await;
    tokio::spawn(async move {
        let sql =
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a0', '{\"n\": 3}')";
        third.batch_execute(sql).await.ok();
    });
    let waits = "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    eventually("a transaction waits for a standby", async || (outbox.text(waits).await == "1").then_some(()))
        .await;
    second.batch_execute("COMMIT").await.unwrap();
    let ran = creating.await.unwrap();
    succeeded(ran, &["9 rows of public.outbox from before it"]);
    let mut router = Router::start(&settings);
    router.logs("is not visible yet").await;
    server.configure(&[("synchronous_standby_names", "")]).await;
    finished(&outbox).await;
    router.stop().await;
    let records = kafka.records(&outbox.name).await;
    assert_eq!(records.len(), 9);
    in_order(&records, Repeats::Never);
}
