//! Rows that go to an archive.

use super::*;
use crate::support::comparison::REPLAY;
use crate::support::kafka::Record;

async fn archived(kafka: &Kafka) -> (Outbox, Settings) {
    let (outbox, settings) = polled(kafka).await;
    let settings = settings.set("retention.archive", "public.kept");
    succeeded(settings.run_async(&["init"]).await, &["table \"public\".\"kept\": created"]);
    outbox.insert_old("a", 50).await;
    outbox.execute("UPDATE outbox SET status = 'PUBLISHED'").await;
    (outbox, settings)
}

#[tokio::test]
async fn rows_are_in_the_archive_as_they_were_in_the_outbox() {
    let kafka = Kafka::shared();
    let (outbox, settings) = archived(&kafka).await;
    outbox.execute("CREATE TABLE before AS SELECT * FROM outbox").await;
    let pruned = json(&prune(&settings, &["--json", "--batch", "20"]).await);
    assert_eq!((&pruned["deleted"], &pruned["archive"]), (&50.into(), &"public.kept".into()), "{pruned}");
    let differences = "SELECT count(*)::text FROM ((TABLE before EXCEPT ALL TABLE kept) UNION ALL (TABLE kept EXCEPT ALL TABLE before)) d";
    assert_eq!(outbox.text(differences).await, "0");
    assert_eq!(outbox.aggregates("outbox").await, "");
}

/// Columns that the archive has besides, or in another order, or generated.
#[tokio::test]
async fn an_archive_may_have_more_columns_than_the_outbox() {
    let kafka = Kafka::shared();
    let (outbox, settings) = archived(&kafka).await;
    outbox
        .execute(
            "ALTER TABLE outbox ADD n text GENERATED ALWAYS AS (payload->>'n') STORED, DROP COLUMN headers; DROP TABLE kept; \
             CREATE TABLE kept (archived_at timestamptz DEFAULT now(), LIKE outbox); \
             ALTER TABLE kept DROP n, ADD n text GENERATED ALWAYS AS (payload->>'n') STORED",
        )
        .await;
    let grant = "GRANT INSERT ON public.kept TO outbox_router_pruner";
    refused(
        &prune(&settings, &[]).await,
        1,
        &["OBR-8206", "lacks the privilege INSERT on the archive public.kept", grant],
    );
    outbox.execute(grant).await;
    succeeded(prune(&settings, &[]).await, &["Moved 50 rows"]);
    let numbers = "SELECT concat(count(DISTINCT n), ' ', min(n::int), ' ', max(n::int), ' ', count(archived_at)) FROM kept";
    assert_eq!(outbox.text(numbers).await, "50 1 50 50");
}

#[tokio::test]
async fn an_archive_that_cannot_take_the_rows_is_refused_and_all_rows_stay() {
    let kafka = Kafka::shared();
    let (outbox, settings) = archived(&kafka).await;
    for (change, message) in [
        (
            "ALTER TABLE kept DROP COLUMN payload",
            "it lacks columns of the outbox, or they have other types: payload",
        ),
        ("ALTER TABLE kept ADD payload json", "they have other types: payload"),
        (
            "ALTER TABLE kept DROP COLUMN payload; ALTER TABLE kept ADD payload jsonb; ALTER TABLE kept SET UNLOGGED",
            "a crash empties it",
        ),
        ("DROP TABLE kept; CREATE VIEW kept AS SELECT * FROM outbox", "it is not a table"),
        ("DROP VIEW kept", "it does not exist"),
    ] {
        outbox.execute(change).await;
        let ran = prune(&settings, &[]).await;
        refused(&ran, 1, &["OBR-8206: ", "cannot be the archive of public.outbox", message]);
        assert_eq!(outbox.aggregates("outbox").await, "a 50", "{change}");
    }
    succeeded(settings.run_async(&["init"]).await, &["table \"public\".\"kept\": created"]);
    outbox.execute("ALTER TABLE kept ENABLE ROW LEVEL SECURITY").await;
    let protected =
        ["OBR-8206: row-level security of public.kept applies to the role outbox_router_pruner", "BYPASSRLS"];
    refused(&prune(&settings, &[]).await, 1, &protected);
    outbox.execute("ALTER TABLE kept DISABLE ROW LEVEL SECURITY").await;
    succeeded(prune(&settings, &[]).await, &["Moved 50 rows"]);
}

/// Neither a mistake in the configuration nor somebody who may call the functions sends rows elsewhere.
#[tokio::test]
async fn only_the_archive_that_init_has_stored_takes_rows() {
    let kafka = Kafka::shared();
    let (outbox, settings) = archived(&kafka).await;
    outbox.execute("CREATE TABLE elsewhere (LIKE outbox)").await;
    let elsewhere = settings.clone().set("retention.archive", "public.elsewhere");
    let ran = prune(&elsewhere, &[]).await;
    refused(
        &ran,
        1,
        &[
            "OBR-8206: what is stored about the retention of public.outbox is not what this configuration says",
        ],
    );
    let nowhere = settings.without("retention.archive");
    let ran = prune(&nowhere, &[]).await;
    refused(&ran, 1, &["what is stored about the retention of public.outbox", "init"]);
    // another router with a slot of its own, which has no archive
    outbox.execute("INSERT INTO outbox_router.retention SELECT outbox, slot || 'x', router, slots, id_column, time_column, status_column, published, NULL FROM outbox_router.retention; UPDATE outbox_router.retention SET archive = CASE WHEN slot = '' THEN NULL ELSE 'public.kept' END").await;
    let ran = prune(&nowhere, &[]).await;
    refused(&ran, 1, &["another router has stored that rows of public.outbox go to public.kept"]);
    assert_eq!(outbox.aggregates("outbox").await, "a 50");
}

/// In the order of their inserts, also those of one time.
#[tokio::test]
async fn archived_rows_can_be_sent_again() {
    let kafka = Kafka::shared();
    let (outbox, settings) = logged(&kafka).await;
    let settings = settings
        .set("retention.archive", "kept")
        .set("route.topic", format!("{}.${{source.table}}", outbox.name));
    outbox
        .execute(
            "ALTER TABLE outbox ALTER created_at SET DEFAULT now(), ALTER id SET DEFAULT gen_random_uuid()",
        )
        .await;
    succeeded(settings.run_async(&["init"]).await, &["table \"public\".\"kept\": created"]);
    outbox
        .execute(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload, created_at) \
             SELECT 'order', 'a', jsonb_build_object('n', n), date_trunc('hour', {LONG_AGO}) FROM generate_series(1, 200) n"
        ))
        .await;
    let router = Router::active(&settings).await;
    outbox.all_behind_slot().await;
    router.stop().await;
    succeeded(prune(&settings, &["--batch", "30"]).await, &["Moved 200 rows"]);
    // whatever becomes of the slot
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{}')", outbox.name)).await;
    let arguments = ["replay", "--from", "archive", "--since", "50d", "--yes"];
    succeeded(settings.run_async(&arguments).await, &["200 events of public.kept", "200 rows done"]);
    let records = kafka.records_when(&outbox.name, 400).await;
    let replayed = records.iter().filter(|record| record.header(REPLAY).is_some());
    assert_eq!(replayed.map(Record::number).collect::<Vec<_>>(), (1..201).collect::<Vec<_>>());
    let topic = outbox.topic("outbox");
    assert!(records.iter().all(|record| record.topic == topic), "{topic}");
    let list = settings.run_async(&["replay", "--list"]).await;
    succeeded(list, &["--from archive"]);
    let without = settings.without("retention.archive");
    refused(&without.run_async(&arguments).await, 2, &["--from archive: the configuration names no archive"]);
}

/// Its values would be lost.
#[tokio::test]
async fn a_column_that_is_added_meanwhile_stops_the_prune() {
    let kafka = Kafka::shared();
    let (outbox, _) = archived(&kafka).await;
    let token = outbox.text("SELECT outbox_router.prune_begin('\"public\".\"outbox\"')::text").await;
    let batch = format!("SELECT outbox_router.prune('\"public\".\"outbox\"', '{token}', NULL, now(), 10)");
    outbox.execute(&batch).await;
    outbox.execute("ALTER TABLE outbox ADD tenant text NOT NULL DEFAULT 'acme'").await;
    let error = outbox.client().await.batch_execute(&batch).await.unwrap_err();
    let message = error.as_db_error().unwrap().message().to_owned();
    assert!(
        message.contains("it lacks columns of the outbox, or they have other types: tenant"),
        "{message}"
    );
    assert_eq!(
        (outbox.aggregates("outbox").await, outbox.aggregates("kept").await),
        ("a 40".into(), "a 10".into())
    );
}
