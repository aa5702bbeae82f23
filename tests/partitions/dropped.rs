//! Old partitions are dropped whole once nobody needs a row of them.

use tokio::task::JoinHandle;

use super::*;
use crate::pruning::{json, prune};
use crate::support::place::{Ran, refused};

/// An outbox with delivered rows of 40 to 42 days ago, and of today.
async fn delivered(kafka: &Kafka) -> (Outbox, Settings) {
    let (outbox, settings) = by_day(kafka).await;
    for days_ago in [40, 41, 42] {
        outbox.partition_of(days_ago).await;
        outbox.insert_ago(&format!("old {days_ago}"), 10, days_ago).await;
    }
    outbox.insert_ago("young", 5, 0).await;
    let router = Router::active(&settings).await;
    outbox.all_behind_slot().await;
    router.stop().await;
    (outbox, settings)
}

#[tokio::test]
async fn old_partitions_are_dropped_and_rows_of_the_default_one_are_deleted() {
    let kafka = Kafka::shared();
    let (outbox, settings) = by_day(&kafka).await;
    let first = outbox.partitions().await[0].clone();
    for days_ago in [40, 41, 42] {
        outbox.partition_of(days_ago).await;
        outbox.insert_ago("old", 10, days_ago).await;
    }
    // its day is not over
    outbox.partition_of(30).await;
    outbox.insert_ago("almost", 10, 30).await;
    outbox.insert_ago("stray", 7, 50).await;
    let router = Router::active(&settings).await;
    outbox.all_behind_slot().await;
    let rehearsed = prune(&settings, &["--dry-run"]).await;
    succeeded(
        rehearsed,
        &["Would delete 37 rows of public.outbox, inserted from ", "Of 3 partitions from before that time"],
    );
    assert_eq!(outbox.partitions().await.len(), 13);
    let pruned = json(&prune(&settings, &["--json"]).await);
    assert_eq!(
        (&pruned["deleted"], &pruned["dropped"], &pruned["others"]),
        (&37.into(), &3.into(), &0.into()),
        "{pruned}"
    );
    assert_eq!(outbox.partitions().await[..2], ["outbox_30_days_ago".to_owned(), first]);
    assert_eq!(outbox.text("SELECT string_agg(DISTINCT aggregate_id, ' ') FROM outbox").await, "almost");
    // the stream goes on, and a drop is no event
    outbox.insert_ago("young", 1, 0).await;
    kafka.holds(&outbox.name, 48).await;
    assert_eq!(kafka.count(&outbox.name).await.unwrap(), 48);
    router.stop().await;
}

#[tokio::test]
async fn a_partition_with_a_row_that_somebody_needs_stays() {
    let kafka = Kafka::shared();
    let (outbox, settings) = delivered(&kafka).await;
    // not delivered
    outbox.insert_ago("late", 1, 41).await;
    // parked
    outbox
        .execute(
            "INSERT INTO outbox_router.dead_letters (router, final_lsn, change, xid, committed_at, source, event_id, reason, detail, event) \
             SELECT 'r', '0/1', 1, 1, now(), '', id, 'refused', '', '{}' FROM outbox WHERE aggregate_id = 'old 42' LIMIT 1",
        )
        .await;
    let pruned = json(&prune(&settings, &["--json"]).await);
    // the others of its partition are deleted one by one
    assert_eq!(
        (&pruned["deleted"], &pruned["dropped"], &pruned["others"]),
        (&29.into(), &1.into(), &2.into()),
        "{pruned}"
    );
    assert_eq!(
        outbox.partitions().await[..2],
        ["outbox_42_days_ago".to_owned(), "outbox_41_days_ago".to_owned()]
    );
    assert_eq!(outbox.text("SELECT string_agg(aggregate_id, ', ' ORDER BY created_at) FROM outbox WHERE aggregate_id <> 'young'").await, "old 42, late");
    outbox.execute("DELETE FROM outbox_router.dead_letters").await;
    let router = Router::active(&settings).await;
    outbox.all_behind_slot().await;
    succeeded(prune(&settings, &[]).await, &["Deleted 2 rows", "Dropped 2 partitions"]);
    router.stop().await;
}

/// A prune of the outbox that has been started, and waits.
async fn waiting_prune(outbox: &Outbox, settings: &Settings, wait: &str) -> JoinHandle<Ran> {
    let pruning = tokio::spawn({
        let settings = settings.clone();
        async move { prune(&settings, &["--json"]).await }
    });
    eventually("the prune waits", async || {
        let waits = format!(
            "SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND query ~ 'drop_partition' AND wait_event = '{wait}' \
             AND pid <> pg_backend_pid()"
        );
        (outbox.text(&waits).await == "1").then_some(())
    })
    .await;
    pruning
}

/// A row of its time that is written while a prune counts would be lost.
#[tokio::test]
async fn a_row_that_is_inserted_into_an_old_partition_meanwhile_is_not_lost() {
    let kafka = Kafka::shared();
    let (outbox, settings) = delivered(&kafka).await;
    let mut client = outbox.client().await;
    let open = client.transaction().await.unwrap();
    open.batch_execute("LOCK TABLE outbox_42_days_ago IN ROW EXCLUSIVE MODE").await.unwrap();
    let pruning = waiting_prune(&outbox, &settings, "relation").await;
    open.batch_execute(
        "INSERT INTO outbox_42_days_ago (aggregate_type, aggregate_id, event_type, payload, created_at) \
         SELECT 'order', 'late', '', '{\"n\": 1}', created_at FROM outbox_42_days_ago LIMIT 1",
    )
    .await
    .unwrap();
    // others write on
    outbox.insert_ago("young", 1, 0).await;
    open.commit().await.unwrap();
    let pruned = json(&pruning.await.unwrap());
    assert_eq!((&pruned["deleted"], &pruned["dropped"]), (&30.into(), &2.into()), "{pruned}");
    assert_eq!(outbox.places("late").await, "outbox_42_days_ago");
}

/// Dropping a partition needs a lock that conflicts with every use of the outbox. It is not requested while others would have to wait for it.
#[tokio::test]
async fn partitions_are_dropped_once_a_transaction_that_uses_the_outbox_has_ended() {
    let kafka = Kafka::shared();
    let (outbox, settings) = delivered(&kafka).await;
    let mut client = outbox.client().await;
    let open = client.transaction().await.unwrap();
    open.batch_execute("SELECT FROM outbox LIMIT 1").await.unwrap();
    let pruning = waiting_prune(&outbox, &settings, "PgSleep").await;
    for _ in 0..20 {
        outbox.insert_ago("young", 1, 0).await;
    }
    assert_eq!(outbox.partitions().await.len(), 12);
    open.commit().await.unwrap();
    let pruned = json(&pruning.await.unwrap());
    assert_eq!((&pruned["deleted"], &pruned["dropped"]), (&30.into(), &3.into()), "{pruned}");
    assert_eq!(outbox.partitions().await.len(), 9);
}

#[tokio::test]
async fn an_outbox_that_stays_locked_keeps_its_partitions() {
    let kafka = Kafka::shared();
    let (outbox, settings) = delivered(&kafka).await;
    let mut client = outbox.client().await;
    let open = client.transaction().await.unwrap();
    open.batch_execute("SELECT FROM outbox LIMIT 1").await.unwrap();
    let ran = prune(&settings, &[]).await;
    let message = "OBR-8209: an old partition is not dropped: public.outbox_42_days_ago: public.outbox is locked by a transaction of process ";
    refused(&ran, 1, &[message, "pg_terminate_backend"]);
    assert_eq!(outbox.partitions().await.len(), 12);
    assert_eq!(outbox.text("SELECT count(*)::text FROM outbox").await, "35");
    open.commit().await.unwrap();
    succeeded(prune(&settings, &[]).await, &["Deleted 30 rows", "Dropped 3 partitions"]);
}

/// A drop would not fire them.
#[tokio::test]
async fn triggers_for_deletes_see_every_row() {
    let kafka = Kafka::shared();
    let (outbox, settings) = delivered(&kafka).await;
    outbox
        .execute(
            "CREATE TABLE seen (id uuid); GRANT INSERT ON seen TO PUBLIC; \
             CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.seen VALUES (OLD.id); RETURN OLD; END $$; \
             CREATE TRIGGER see BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION see()",
        )
        .await;
    let pruned = json(&prune(&settings, &["--json"]).await);
    assert_eq!((&pruned["deleted"], &pruned["dropped"]), (&30.into(), &0.into()), "{pruned}");
    assert_eq!(outbox.text("SELECT count(DISTINCT id)::text FROM seen").await, "30");
    succeeded(prune(&settings, &[]).await, &["Dropped 3 partitions"]);
}

#[tokio::test]
async fn rows_are_in_the_archive_before_their_partition_is_dropped() {
    let kafka = Kafka::shared();
    let (outbox, settings) = delivered(&kafka).await;
    let rows = "SELECT string_agg(o::text, ';' ORDER BY created_at, id) FROM";
    let old = outbox.text(&format!("{rows} outbox o WHERE aggregate_id <> 'young'")).await;
    let archiving = settings.clone().set("retention.archive", "kept");
    succeeded(archiving.run_async(&["init"]).await, &["table \"public\".\"kept\": created"]);
    // the function that the router may call drops none with rows, whatever it is asked
    let token = outbox.text("SELECT outbox_router.prune_begin('\"public\".\"outbox\"')::text").await;
    let drop = format!(
        "SELECT concat(dropped, ' ', deleted, problem) FROM outbox_router.drop_partition('\"public\".\"outbox\"', '{token}', NULL, now(), false)"
    );
    assert_eq!(outbox.text(&drop).await, "f 0");
    outbox.execute(&format!("SELECT outbox_router.prune_end('\"public\".\"outbox\"', '{token}')")).await;
    outbox.insert_ago("late", 1, 41).await;
    let ran = prune(&archiving, &["--batch", "4"]).await;
    succeeded(ran, &["Moved 30 rows of public.outbox", "Dropped 2 partitions", "1 row is as old and stays"]);
    assert_eq!(outbox.text(&format!("{rows} kept o")).await, old);
    assert_eq!(outbox.partitions().await[0], "outbox_41_days_ago");
}

#[tokio::test]
async fn rows_are_in_a_file_before_their_partition_is_dropped() {
    let kafka = Kafka::shared();
    let (_outbox, settings) = delivered(&kafka).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.jsonl.zst");
    let file = file.to_str().unwrap();
    succeeded(
        prune(&settings, &["--archive", file, "--batch", "7"]).await,
        &["Moved 30 rows", "Dropped 3 partitions"],
    );
    let counted = settings.run_async(&["replay", "--from", file, "--dry-run"]).await;
    succeeded(counted, &["30 events"]);
}

#[tokio::test]
async fn a_router_with_keep_drops_old_partitions_and_its_role_owns_none() {
    let kafka = Kafka::shared();
    let (outbox, settings) = delivered(&kafka).await;
    let role = format!("{}_role", outbox.name);
    succeeded(
        settings.run_async(&["init", "--role", &role]).await,
        &[&format!("privilege of \"{role}\" to create partitions: granted")],
    );
    let url = outbox.url().replace("postgres@", &format!("{role}@"));
    let last = outbox.partitions().await[10].clone();
    outbox.execute(&format!("DROP TABLE {last}")).await;
    let mut router =
        Router::active(&settings.set("postgres.url", url.as_str()).set("retention.keep", "30d")).await;
    router.logs("deleted 30 old rows of public.outbox, and dropped 3 partitions").await;
    router.logs(&format!("created the partition public.{last}")).await;
    router.stop().await;
    let names = outbox.partitions().await;
    assert_eq!((names.len(), &names[7]), (9, &last));
    let statement = format!("DROP TABLE {last}");
    refused(&crate::support::place::psql(&url, &["-c", &statement]), 1, &["must be owner"]);
    outbox.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// A replay reads rows that a prune would drop.
#[tokio::test]
async fn a_replay_that_runs_or_was_interrupted_keeps_its_partitions() {
    let kafka = Kafka::shared();
    let (outbox, settings) = delivered(&kafka).await;
    outbox
        .execute(
            "INSERT INTO outbox_router.replays (router, requested_by, outbox, since, until, selection, mark, horizon, order_by, rows, events, bytes, token, lease_until) \
             SELECT 'r', 'me', '\"public\".\"outbox\"', min(created_at), max(created_at), '{}', '', '', '', 1, 1, 1, gen_random_uuid(), now() + interval '1 h' \
             FROM outbox WHERE aggregate_id = 'old 41'",
        )
        .await;
    refused(&prune(&settings, &[]).await, 1, &["OBR-8207: replay 1 of public.outbox is running"]);
    outbox.execute("UPDATE outbox_router.replays SET lease_until = now()").await;
    succeeded(prune(&settings, &[]).await, &["Dropped 2 partitions"]);
    assert_eq!(outbox.partitions().await[0], "outbox_41_days_ago");
}

/// The others of the outbox do not have to stay for that.
#[tokio::test]
async fn rows_of_a_partition_that_cannot_be_dropped_are_deleted() {
    let kafka = Kafka::shared();
    let (outbox, settings) = delivered(&kafka).await;
    outbox.execute("CREATE VIEW seen AS SELECT * FROM outbox_42_days_ago").await;
    let ran = prune(&settings, &[]).await;
    refused(
        &ran,
        1,
        &["cannot drop table public.outbox_42_days_ago because other objects depend on it", "pruned 30 rows"],
    );
    assert_eq!(outbox.text("SELECT string_agg(DISTINCT aggregate_id, ' ') FROM outbox").await, "young");
    outbox.execute("DROP VIEW seen").await;
    succeeded(prune(&settings, &[]).await, &["Dropped 1 partition"]);
}

#[tokio::test]
async fn a_week_is_dropped_once_its_last_day_is_old() {
    let kafka = Kafka::shared();
    let outbox = of_today().await;
    let settings = Settings::new(&outbox, &kafka);
    succeeded(settings.run_async(&["init", "--partitioned", "week"]).await, &[]);
    outbox
        .execute(
            "DO $$ DECLARE week timestamptz; BEGIN FOR n IN 3..9 LOOP \
             week := date_trunc('week', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' - n * interval '7 days'; \
             EXECUTE format('CREATE TABLE weeks_ago_%s PARTITION OF outbox FOR VALUES FROM (%L) TO (%L)', n, week, week + interval '7 days'); \
             INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('order', n::text, '', '{\"n\": 1}', week + interval '1 day'); \
             END LOOP; END $$",
        )
        .await;
    let router = Router::active(&settings).await;
    outbox.all_behind_slot().await;
    router.stop().await;
    let pruned = json(&prune(&settings, &["--json"]).await);
    // depends on the weekday
    let week = outbox
        .text("SELECT ceil(extract(epoch FROM date_trunc('week', now() AT TIME ZONE 'UTC') - date_trunc('week', (now() - interval '30 days') AT TIME ZONE 'UTC')) / 604800)::text")
        .await;
    let left: Vec<String> =
        outbox.partitions().await.into_iter().filter(|name| name.starts_with("weeks_ago")).collect();
    assert_eq!(left.first(), Some(&format!("weeks_ago_{week}")), "{left:?}");
    let dropped = 7 - left.len();
    assert_eq!((&pruned["deleted"], &pruned["dropped"]), (&dropped.into(), &dropped.into()), "{pruned}");
}

/// A partition may have partitions: their rows count, and their triggers.
#[tokio::test]
async fn a_partition_with_partitions_is_dropped_once_none_of_their_rows_is_needed() {
    let kafka = Kafka::shared();
    let (outbox, settings) = by_day(&kafka).await;
    outbox.partition_of(41).await;
    outbox
        .execute(
            "DO $$ DECLARE bounds text := (SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = 'outbox_41_days_ago'); BEGIN \
             DROP TABLE outbox_41_days_ago; EXECUTE 'CREATE TABLE nested PARTITION OF outbox ' || bounds || ' PARTITION BY RANGE (created_at)'; \
             CREATE TABLE leaf PARTITION OF nested DEFAULT; END $$",
        )
        .await;
    outbox.insert_ago("old", 10, 41).await;
    let router = Router::active(&settings).await;
    outbox.all_behind_slot().await;
    router.stop().await;
    outbox.insert_ago("late", 1, 41).await;
    let pruned = json(&prune(&settings, &["--json"]).await);
    assert_eq!(
        (&pruned["deleted"], &pruned["dropped"], &pruned["others"]),
        (&10.into(), &0.into(), &1.into()),
        "{pruned}"
    );
    let router = Router::active(&settings).await;
    outbox.all_behind_slot().await;
    router.stop().await;
    outbox
        .execute(
            "CREATE TABLE seen (n bigint); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             INSERT INTO public.seen VALUES (1); RETURN OLD; END $$; GRANT INSERT ON seen TO PUBLIC; \
             CREATE TRIGGER t AFTER DELETE ON leaf FOR EACH ROW EXECUTE FUNCTION f()",
        )
        .await;
    succeeded(prune(&settings, &[]).await, &["Deleted 1 row of"]);
    succeeded(prune(&settings, &[]).await, &["Dropped 1 partition"]);
    assert_eq!(outbox.text("SELECT concat(count(*), ' ', to_regclass('nested')) FROM seen").await, "1 ");
}
