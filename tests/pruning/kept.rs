//! Which rows are deleted, and which stay.

use super::*;
use crate::support::pooler::pooler;
use crate::support::seed::random;

#[tokio::test]
async fn rows_behind_every_slot_are_deleted_and_younger_ones_stay() {
    let kafka = Kafka::shared();
    let (outbox, settings) = logged(&kafka).await;
    outbox.insert_old("old", 20).await;
    outbox.insert_numbers("order", "young", 1..6).await;
    let router = Router::active(&settings).await;
    outbox.all_behind_slot().await;
    let ran = prune(&settings, &["--dry-run"]).await;
    succeeded(ran, &["Would delete 20 rows of public.outbox, inserted from "]);
    assert_eq!(outbox.aggregates("outbox").await, "old 20, young 5");
    succeeded(prune(&settings, &["--batch", "7"]).await, &["Deleted 20 rows of public.outbox"]);
    assert_eq!(outbox.aggregates("outbox").await, "young 5");
    succeeded(prune(&settings, &[]).await, &["No row of public.outbox that was inserted before"]);
    // deletes are no events
    outbox.insert_numbers("order", "last", 1..2).await;
    kafka.holds(&outbox.name, 26).await;
    assert_eq!(kafka.count(&outbox.name).await.unwrap(), 26);
    router.stop().await;
}

/// Its transaction may be older than others that are delivered.
#[tokio::test]
async fn rows_that_are_not_delivered_for_certain_stay() {
    let kafka = Kafka::shared();
    let (outbox, settings) = logged(&kafka).await;
    outbox.insert_old("delivered", 3).await;
    let router = Router::active(&settings).await;
    outbox.all_behind_slot().await;
    let mut open = outbox.client().await;
    let transaction = open.transaction().await.unwrap();
    let insert = format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, created_at) VALUES ('order', 'open', {LONG_AGO})"
    );
    transaction.batch_execute(&insert).await.unwrap();
    // delivered, but the transaction before it is open
    outbox.insert_old("later", 2).await;
    kafka.holds(&outbox.name, 5).await;
    outbox.all_confirmed().await;
    outbox.execute("CHECKPOINT").await;
    let pruned = json(&prune(&settings, &["--json"]).await);
    assert_eq!((&pruned["deleted"], &pruned["others"]), (&3.into(), &2.into()), "{pruned}");
    router.stop().await;
    transaction.commit().await.unwrap();
    succeeded(
        prune(&settings, &[]).await,
        &["No row", "3 rows are as old and stay: perhaps not delivered yet"],
    );
    assert_eq!(outbox.aggregates("outbox").await, "later 2, open 1");
}

/// Also those without an id.
#[tokio::test]
async fn parked_rows_stay() {
    let kafka = Kafka::shared();
    let (outbox, settings) = logged(&kafka).await;
    let settings = settings.set("dead_letters.policy", "park");
    outbox.insert_old("fine", 2).await;
    outbox
        .execute(&format!(
            "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey, ALTER id DROP NOT NULL; \
             INSERT INTO outbox (id, aggregate_type, aggregate_id, created_at) VALUES \
             (gen_random_uuid(), 'not/a/topic', 'bad', {LONG_AGO}), (NULL, 'not/a/topic', 'nameless', {LONG_AGO})"
        ))
        .await;
    let router = Router::active(&settings).await;
    outbox.all_behind_slot().await;
    assert_eq!(outbox.text("SELECT count(*)::text FROM outbox_router.dead_letters").await, "2");
    let pruned = json(&prune(&settings, &["--json"]).await);
    assert_eq!((&pruned["deleted"], &pruned["others"]), (&2.into(), &2.into()), "{pruned}");
    assert_eq!(outbox.aggregates("outbox").await, "bad 1, nameless 1");
    router.stop().await;
}

#[tokio::test]
async fn of_a_polled_table_only_published_rows_are_deleted() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    for status in ["NEW", "PUBLISHED", "FAILED"] {
        outbox
            .execute(&format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, created_at, status) SELECT 'order', '{status}', {LONG_AGO}, '{status}' \
                 FROM generate_series(1, 4)"
            ))
            .await;
    }
    let pruned = json(&prune(&settings, &["--json"]).await);
    assert_eq!((&pruned["deleted"], &pruned["others"]), (&4.into(), &8.into()), "{pruned}");
    assert_eq!(outbox.aggregates("outbox").await, "FAILED 4, NEW 4");
}

/// Nobody else may delete what this one must not touch.
#[tokio::test]
async fn rows_that_somebody_has_locked_stay() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    outbox.insert_old("a", 5).await;
    outbox.execute("UPDATE outbox SET status = 'PUBLISHED'").await;
    let mut client = outbox.client().await;
    let transaction = client.transaction().await.unwrap();
    transaction
        .batch_execute("SELECT FROM outbox WHERE payload->>'n' IN ('2', '4') FOR KEY SHARE")
        .await
        .unwrap();
    succeeded(prune(&settings, &["--batch", "2"]).await, &["Deleted 3 rows"]);
    assert_eq!(outbox.text("SELECT string_agg(payload->>'n', ' ') FROM outbox").await, "2 4");
}

#[tokio::test]
async fn rows_of_unusual_times_and_of_one_time_are_deleted_in_batches() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    let insert = |aggregate: &str, time: &str, count: u32| {
        format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, status, created_at) SELECT 'order', '{aggregate}', 'PUBLISHED', {time} \
             FROM generate_series(1, {count}); "
        )
    };
    let all = [
        insert("same", "now() - interval '40 days'", 25),
        insert("ever", "'-infinity'", 9),
        insert("bc", "'0001-01-01 BC'", 3),
        insert("never", "'infinity'", 2),
        insert("future", "now() + interval '1 day'", 2),
    ];
    outbox.execute(&all.concat()).await;
    succeeded(prune(&settings, &["--batch", "4"]).await, &["Deleted 37 rows"]);
    assert_eq!(outbox.aggregates("outbox").await, "future 2, never 2");
    outbox.execute(&insert("ever", "'-infinity'", 9)).await;
    succeeded(prune(&settings, &["--batch", "4"]).await, &["Deleted 9 rows of public.outbox.\n"]);
}

#[tokio::test]
async fn partitions_and_tables_without_time_zones_are_pruned() {
    let kafka = Kafka::shared();
    let outbox = Outbox::bare(crate::support::shared::postgres()).await;
    let settings = Settings::new(&outbox, &kafka);
    outbox
        .execute(
            "CREATE TABLE outbox (id uuid NOT NULL DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, aggregate_id text NOT NULL, \
             event_type text NOT NULL DEFAULT 'happened', payload jsonb, created_at timestamp NOT NULL) PARTITION BY LIST (aggregate_id); \
             CREATE TABLE outbox_a PARTITION OF outbox FOR VALUES IN ('a'); \
             CREATE TABLE outbox_others PARTITION OF outbox DEFAULT",
        )
        .await;
    succeeded(settings.run_async(&["init"]).await, &["retention of \"public\".\"outbox\": stored"]);
    for aggregate in ["a", "b", "c"] {
        outbox.insert_old(aggregate, 10).await;
        outbox
            .execute(&format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, created_at) VALUES ('order', '{aggregate}', localtimestamp)"
            ))
            .await;
    }
    let router = Router::active(&settings).await;
    outbox.all_behind_slot().await;
    succeeded(prune(&settings, &["--batch", "4"]).await, &["Deleted 30 rows"]);
    assert_eq!(outbox.aggregates("outbox").await, "a 1, b 1, c 1");
    router.stop().await;
}

/// Compared with the table row by row.
#[tokio::test]
async fn exactly_the_old_rows_go_while_applications_write() {
    let kafka = Kafka::shared();
    let (outbox, settings) = logged(&kafka).await;
    let settings = settings.set("retention.archive", "kept");
    succeeded(settings.run_async(&["init"]).await, &["table \"public\".\"kept\": created"]);
    outbox.insert_old("old", 3_000).await;
    outbox.execute("CREATE TABLE before AS SELECT * FROM outbox").await;
    let router = Router::active(&settings).await;
    outbox.all_behind_slot().await;
    let writers = crate::support::writers::Writers::start(&outbox, 3, &mut random()).await;
    let ran = prune(&settings, &["--batch", "100"]).await;
    writers.finish().await;
    succeeded(ran, &["Moved 3000 rows of public.outbox to public.kept"]);
    let differences = "SELECT count(*)::text FROM ((TABLE before EXCEPT ALL TABLE kept) UNION ALL (TABLE kept EXCEPT ALL TABLE before)) d";
    assert_eq!(outbox.text(differences).await, "0");
    let left = "SELECT count(*)::text FROM outbox WHERE created_at < now() - interval '30 days'";
    assert_eq!(outbox.text(left).await, "0");
    let written: usize = outbox.text("SELECT count(*)::text FROM outbox").await.parse().unwrap();
    kafka.holds(&outbox.name, 3_000 + written).await;
    assert_eq!(kafka.count(&outbox.name).await.unwrap(), 3_000 + written, "deletes are no events");
    router.stop().await;
}

/// Its connections have no settings, and each transaction may get another one.
#[tokio::test]
async fn a_polled_table_is_pruned_behind_a_pooler() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    outbox.insert_old("a", 30).await;
    outbox.execute("UPDATE outbox SET status = 'PUBLISHED'").await;
    let port = pooler(outbox.address().to_owned(), "options");
    let url = format!("postgres://postgres@127.0.0.1:{port}/{}?sslmode=disable", outbox.name);
    succeeded(prune(&settings.set("postgres.url", url), &["--batch", "7"]).await, &["Deleted 30 rows"]);
}

/// Whatever the role or the database says about statements.
#[tokio::test]
async fn settings_of_the_database_change_nothing() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    outbox.insert_old("a", 30).await;
    outbox.execute("UPDATE outbox SET status = 'PUBLISHED'").await;
    // one batch takes longer than a statement may
    outbox
        .execute(
            "CREATE FUNCTION delay() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1.2); RETURN OLD; END'; \
             CREATE TRIGGER delay BEFORE DELETE ON outbox FOR EACH ROW WHEN (OLD.payload = '{\"n\": 9}') EXECUTE FUNCTION delay()",
        )
        .await;
    let name = &outbox.name;
    let values = [
        ("default_transaction_isolation", "'serializable'"),
        ("default_transaction_read_only", "on"),
        ("statement_timeout", "'1s'"),
        ("timezone", "'Pacific/Kiritimati'"),
        ("datestyle", "'SQL, DMY'"),
        ("search_path", "'nowhere'"),
        ("bytea_output", "'escape'"),
    ];
    for (setting, value) in values {
        outbox.execute(&format!("ALTER DATABASE {name} SET {setting} = {value}")).await;
    }
    let ran = prune(&settings, &["--batch", "7"]).await;
    // the connection of the test has none of them yet
    succeeded(ran, &["Deleted 30 rows"]);
    assert_eq!(outbox.aggregates("public.outbox").await, "");
}
