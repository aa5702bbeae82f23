//! Rows from before the slot and those in it, together.

use super::*;
use crate::support::comparison::{Repeats, same};
use crate::support::router::Router;
use crate::support::seed;
use crate::support::writers::Writers;

/// While applications write, some in subtransactions and some that roll back, `init` creates the slot, and `run` sends.
async fn with_writers(settings: impl FnOnce(Settings) -> Settings) {
    let (outbox, kafka) = (outbox().await, Kafka::shared());
    let settings = settings(Settings::new(&outbox, &kafka));
    let writers = Writers::start(&outbox, 6, &mut seed::random()).await;
    let written = async |rows: i64| {
        eventually(&format!("{rows} rows are written"), async || {
            let count = outbox.query("SELECT count(*) FROM outbox").await[0].get::<_, i64>(0);
            (count >= rows).then_some(count)
        })
        .await
    };
    let before = written(300).await;
    succeeded(init(&settings, &[]).await, &["from before it will be sent first"]);
    let between = written(before + 200).await;
    let router = Router::start(&settings);
    finished(&outbox).await;
    written(between + 200).await;
    writers.finish().await;
    outbox.all_confirmed().await;
    let (_, metrics) = router.get_now("/metrics").await;
    router.stop().await;
    let first: u64 = outbox.text("SELECT rows::text FROM outbox_router.backfills").await.parse().unwrap();
    assert!(first >= before.unsigned_abs(), "{first} of {before}");
    let backfilled = format!("outbox_router_source_events_total{{source=\"backfill\"}} {first}\n");
    assert!(metrics.contains(&backfilled), "no {backfilled}{metrics}");
    same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
}

#[tokio::test]
async fn every_row_is_sent_once_and_in_order_while_applications_write() {
    with_writers(|settings| settings).await;
}

#[tokio::test]
async fn every_row_is_sent_once_and_in_order_with_transactions() {
    with_writers(|settings| settings.set("delivery.mode", "exactly-once")).await;
}

#[tokio::test]
async fn every_row_is_sent_once_and_in_order_without_a_positions_topic() {
    with_writers(|settings| settings.set("delivery.positions_topic", false)).await;
}

/// As Postgres makes it while transactions are rolled back.
#[tokio::test]
async fn a_snapshot_that_ends_before_it_begins_is_understood() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, 5).await;
    begun(&settings, &[], 20).await;
    outbox
        .execute(
            "UPDATE outbox_router.backfills SET snapshot = concat(x, ':', x::text::bigint - 1, ':') \
             FROM (SELECT pg_snapshot_xmax(snapshot::pg_snapshot) AS x FROM outbox_router.backfills) s",
        )
        .await;
    let router = Router::start(&settings);
    finished(&outbox).await;
    outbox.all_confirmed().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

#[tokio::test]
async fn each_shard_sends_the_rows_of_its_aggregates() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, 25).await;
    if outbox.server_version().await < 150_000 {
        return;
    }
    let settings = settings.set("shards.count", 2);
    let ran = succeeded(init(&settings, &[]).await, &["_0_of_2", "_1_of_2"]);
    let rows = |line: &str| line.split(" rows of").next()?.rsplit(' ').next()?.parse::<u64>().ok();
    let rows: Vec<u64> = ran.out.lines().filter(|line| line.starts_with("slot ")).filter_map(rows).collect();
    assert!(rows.len() == 2 && rows.iter().sum::<u64>() == 100, "{rows:?}: {}", ran.out);
    insert(&outbox, 26, 30).await;
    Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

async fn limited(mode: &str) {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, 5).await;
    let settings = settings.set("delivery.mode", mode);
    outbox
        .execute(
            "ALTER TABLE outbox ADD published_at timestamptz; \
             UPDATE outbox SET created_at = now() - interval '1 day' WHERE (payload ->> 'n')::int <= 2; \
             UPDATE outbox SET published_at = now() WHERE (payload ->> 'n')::int = 3",
        )
        .await;
    // a comment must not hide what follows
    begun(&settings, &["--since", "1h", "--only", "published_at IS NULL -- not yet"], 8).await;
    // the relay that was there before has published one more
    outbox
        .execute(
            "UPDATE outbox SET published_at = now() WHERE payload = '{\"n\": 4}' AND aggregate_id = 'a0'",
        )
        .await;
    Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
    let mut sent: Vec<_> = kafka
        .committed(&outbox.name)
        .await
        .unwrap()
        .iter()
        .map(|record| (record.key().unwrap().to_owned(), record.number()))
        .collect();
    sent.sort();
    let all = (0..4).flat_map(|a| [4, 5].map(|n| (format!("a{a}"), n)));
    assert!(sent.into_iter().eq(all.filter(|event| *event != ("a0".to_owned(), 4))), "{mode}");
}

#[tokio::test]
async fn rows_are_limited_by_time_and_by_a_condition_that_holds_when_they_are_read() {
    limited("at-least-once").await;
}

#[tokio::test]
async fn rows_are_limited_by_time_and_by_a_condition_with_transactions() {
    limited("exactly-once").await;
}

#[tokio::test]
async fn an_empty_table_has_nothing_to_send_first() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, 0).await;
    begun(&settings, &[], 0).await;
    insert(&outbox, 1, 3).await;
    let ended = Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
    assert!(!ended.log.contains("sent first"), "{}", ended.log);
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

#[tokio::test]
async fn progress_is_shown_until_the_stream_begins() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, 10_000).await;
    begun(&settings, &[], 40_000).await;
    let check = settings.run_async(&["check"]).await;
    assert!(check.out.contains("40000 rows from before the slot are still to be sent"), "{}", check.out);
    let mut router = Router::start(&slowly(&settings));
    router
        .shows("how far it has come", |status| {
            let reason = status["reason"].as_str()?;
            let (done, of) = reason.strip_prefix("sends rows from before the slot: ")?.split_once(' ')?;
            (done.parse::<u64>().is_ok() && of.starts_with("of 40000 rows")).then_some(())
        })
        .await;
    router.stop().await;
    let mut router = Router::start(&settings);
    finished(&outbox).await;
    router.ready().await;
    outbox.all_confirmed().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

#[tokio::test]
async fn rows_that_are_updated_before_their_turn_are_not_sent_and_the_log_says_so() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, 5).await;
    begun(&settings, &[], 20).await;
    outbox.execute("UPDATE outbox SET headers = '{\"a\": 1}' WHERE aggregate_id = 'a2'").await;
    insert(&outbox, 6, 6).await;
    let ended = Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
    assert!(ended.log.contains("updated ones are not sent") && ended.log.contains("rows=5"), "{}", ended.log);
    assert_eq!(kafka.records(&outbox.name).await.len(), 19);
}
