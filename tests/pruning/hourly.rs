//! `[retention]` inside `run`.

use super::*;
use crate::support::eventually::eventually;

/// Published rows: `old` were inserted 40 days ago, `older` 400 days ago, and `young` now.
async fn aged(kafka: &Kafka) -> (Outbox, Settings) {
    let (outbox, settings) = polled(kafka).await;
    for aggregate in ["old", "older", "young"] {
        outbox.insert_old(aggregate, 20).await;
    }
    outbox
        .execute(
            "UPDATE outbox SET status = 'PUBLISHED', created_at = created_at + \
             CASE aggregate_id WHEN 'older' THEN interval '-360 days' WHEN 'young' THEN interval '39 days' ELSE interval '0' END",
        )
        .await;
    (outbox, settings.set("retention.keep", "30d"))
}

fn with_archive(settings: Settings) -> Settings {
    settings.set("retention.archive", "kept").set("retention.keep_archived", "365d")
}

#[tokio::test]
async fn a_router_moves_old_rows_to_the_archive_and_deletes_those_that_are_older() {
    let kafka = Kafka::shared();
    let (outbox, settings) = aged(&kafka).await;
    let settings = with_archive(settings);
    succeeded(settings.run_async(&["init"]).await, &["table \"public\".\"kept\": created"]);
    let mut router = Router::active(&settings).await;
    router.logs("archived 40 old rows of public.outbox").await;
    router.logs("deleted 20 old rows from the archive of public.outbox").await;
    assert_eq!(outbox.aggregates("outbox").await, "young 20");
    assert_eq!(outbox.aggregates("kept").await, "old 20");
    let status = router.status().unwrap();
    let retention = &status["retention"];
    assert_eq!((&retention["pruned"], &retention["pruned_archived"]), (&40.into(), &20.into()), "{status}");
    let (_, metrics) = router.get_now("/metrics").await;
    assert!(metrics.contains("outbox_router_pruned_rows_total{table=\"outbox\"} 40"), "{metrics}");
    assert!(metrics.contains("outbox_router_pruned_rows_total{table=\"archive\"} 20"), "{metrics}");
    router.stop().await;
}

#[tokio::test]
async fn without_an_archive_old_rows_are_deleted() {
    let kafka = Kafka::shared();
    let (outbox, settings) = aged(&kafka).await;
    succeeded(settings.run_async(&["init"]).await, &[]);
    let mut router = Router::active(&settings).await;
    router.logs("deleted 40 old rows of public.outbox").await;
    assert_eq!(outbox.aggregates("outbox").await, "young 20");
    router.stop().await;
}

/// It says why, and delivers on.
#[tokio::test]
async fn a_router_that_cannot_delete_rows_goes_on() {
    let kafka = Kafka::shared();
    let (outbox, settings) = aged(&kafka).await;
    // init has not stored the archive
    let settings = with_archive(settings);
    let mut router = Router::active(&settings).await;
    router.logs("old rows are kept: what is stored about the retention of public.outbox").await;
    outbox.insert_numbers("order", "a", 1..3).await;
    kafka.records_when(&outbox.name, 2).await;
    let status = router.status().unwrap();
    let problem = status["retention"]["problem"].as_str().unwrap_or_default();
    assert!(problem.contains("OBR-8206"), "{status}");
    assert_eq!(outbox.text("SELECT count(*)::text FROM outbox").await, "62");
    router.stop().await;
}

#[tokio::test]
async fn rows_of_an_archive_that_may_not_be_deleted_stay() {
    let kafka = Kafka::shared();
    let (outbox, settings) = aged(&kafka).await;
    let settings = with_archive(settings);
    succeeded(settings.run_async(&["init"]).await, &["table \"public\".\"kept\": created"]);
    outbox.execute("REVOKE DELETE ON kept FROM outbox_router_pruner").await;
    let mut router = Router::active(&settings).await;
    router.logs("archived 40 old rows").await;
    router.logs("GRANT SELECT, INSERT, DELETE ON public.kept TO outbox_router_pruner").await;
    assert_eq!(outbox.aggregates("kept").await, "old 20, older 20");
    router.stop().await;
    // init brings it back
    succeeded(settings.run_async(&["init"]).await, &[]);
    let mut router = Router::active(&settings).await;
    router.logs("deleted 20 old rows from the archive").await;
    router.stop().await;
}

/// Whoever continues the replay finds its rows.
#[tokio::test]
async fn archived_rows_of_an_interrupted_replay_stay() {
    let kafka = Kafka::shared();
    let (outbox, settings) = aged(&kafka).await;
    let settings = with_archive(settings);
    succeeded(settings.run_async(&["init"]).await, &["table \"public\".\"kept\": created"]);
    succeeded(prune(&settings, &[]).await, &["Moved 40 rows"]);
    outbox
        .execute(
            "INSERT INTO outbox_router.replays (router, requested_by, outbox, until, selection, mark, horizon, order_by, rows, events, bytes, token, lease_until, \
             last_inserted_at) \
             SELECT 'r', 'me', '\"public\".\"outbox\"', now(), '{\"archive\": \"kept\"}', '', '', '', 1, 1, 1, gen_random_uuid(), now(), created_at \
             FROM kept WHERE aggregate_id = 'older' AND payload->>'n' = '15'",
        )
        .await;
    let mut router = Router::active(&settings).await;
    router.logs("deleted 14 old rows from the archive of public.outbox").await;
    assert_eq!(outbox.aggregates("kept").await, "old 20, older 6");
    router.stop().await;
}

/// Two instances of a router, of which only one deletes at a time.
#[tokio::test]
async fn a_second_instance_waits_for_the_first() {
    let kafka = Kafka::shared();
    let (outbox, settings) = aged(&kafka).await;
    succeeded(settings.run_async(&["init"]).await, &[]);
    let begin = "SELECT outbox_router.prune_begin('\"public\".\"outbox\"')::text";
    outbox.text(begin).await;
    let router = Router::active(&settings).await;
    eventually("the second one is refused", async || {
        let status = router.status()?;
        status["retention"]["problem"]
            .as_str()?
            .contains("another prune of public.outbox is running")
            .then_some(())
    })
    .await;
    assert!(!router.log().contains("WARN"), "{}", router.log());
    assert_eq!(outbox.text("SELECT count(*)::text FROM outbox").await, "60");
    router.stop().await;
}

/// They are delivered, and behind the slot's position.
#[tokio::test]
async fn a_router_that_reads_the_log_deletes_old_rows_that_it_has_delivered() {
    let kafka = Kafka::shared();
    let (outbox, settings) = logged(&kafka).await;
    outbox.insert_old("a", 5).await;
    let router = Router::active(&settings).await;
    outbox.all_behind_slot().await;
    router.stop().await;
    let mut client = outbox.client().await;
    let open = client.transaction().await.unwrap();
    open.batch_execute(&format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, payload, created_at) VALUES ('order', 'late', '{}', {LONG_AGO})",
        "{\"n\": 1}"
    ))
    .await
    .unwrap();
    let settings = settings.set("retention.keep", "30d");
    let mut router = Router::active(&settings).await;
    router.logs("deleted 5 old rows of public.outbox").await;
    open.commit().await.unwrap();
    assert_eq!(outbox.aggregates("outbox").await, "late 1");
    // the second row of the log
    assert_eq!(kafka.records_when(&outbox.name, 6).await.len(), 6);
    router.stop().await;
}

/// After the loss of a slot, somebody may still have to save rows.
#[tokio::test]
async fn a_router_that_does_not_get_as_far_as_delivering_deletes_nothing() {
    let kafka = Kafka::shared();
    let (outbox, settings) = aged(&kafka).await;
    succeeded(settings.run_async(&["init"]).await, &[]);
    let away = settings.clone().set("kafka.'bootstrap.servers'", "127.0.0.1:1");
    let mut router = Router::with_arguments(&away, &[]);
    router.shows("it waits for Kafka", |status| (status["state"] == "reconnecting").then_some(())).await;
    assert_eq!(outbox.text("SELECT count(*)::text FROM outbox").await, "60");
    router.stop().await;
    // the other settings are those with which it does
    let mut router = Router::active(&settings).await;
    router.logs("deleted 40 old rows of public.outbox").await;
    router.stop().await;
}

/// Each might delete what the other wants to keep.
#[tokio::test]
async fn rows_of_an_archive_that_two_outboxes_use_stay() {
    let kafka = Kafka::shared();
    let (outbox, settings) = aged(&kafka).await;
    let settings = with_archive(settings);
    succeeded(settings.run_async(&["init"]).await, &[]);
    outbox
        .execute(
            "INSERT INTO outbox_router.retention SELECT 'public.other', slot, router, slots, id_column, time_column, status_column, published, archive \
             FROM outbox_router.retention",
        )
        .await;
    let mut router = Router::active(&settings).await;
    router.logs("rows of the archive public.kept are not deleted, because public.other uses it too").await;
    assert_eq!(outbox.aggregates("kept").await, "old 20, older 20");
    router.stop().await;
}
