//! What `init --backfill` refuses.

use std::path::Path;

use super::*;
use crate::support::comparison::{Repeats, same};
use crate::support::outbox::PUBLICATION;
use crate::support::place::refused;
use crate::support::postgres::{PrivatePostgres, Shutdown};
use crate::support::router::Router;

#[tokio::test]
async fn rows_from_before_an_existing_slot_cannot_be_told_from_those_in_it() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, 1).await;
    succeeded(settings.run_async(&["init"]).await, &[]);
    let ran = init(&settings, &[]).await;
    refused(&ran, 1, &["OBR-8205", "exists already", "pg_drop_replication_slot", "replay --dry-run"]);
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{}')", outbox.name)).await;
    begun(&settings, &[], 4).await;
    // it can be run again
    succeeded(init(&settings, &[]).await, &["exists already"]);
    let plain = async || settings.run_async(&["init"]).await;
    succeeded(plain().await, &["exists already"]);
    assert_eq!(outbox.text("SELECT count(*)::text FROM outbox_router.backfills").await, "1");
    // the rows are not forgotten by accident
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{}')", outbox.name)).await;
    refused(&plain().await, 1, &["OBR-8205", "is gone, and only 0 of 4 rows", "init --backfill"]);
    outbox.execute("UPDATE outbox_router.backfills SET finished_at = now()").await;
    succeeded(plain().await, &[]);
    assert_eq!(outbox.text("SELECT count(*)::text FROM outbox_router.backfills").await, "0");
}

#[tokio::test]
async fn rows_that_would_not_be_found_are_refused_and_no_slot_is_left() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, 1).await;
    for (time, unusable) in [("NULL", "1 row of"), ("'infinity'", "1 row of"), ("'-infinity'", "1 row of")] {
        outbox
            .execute(&format!(
                "ALTER TABLE outbox ALTER created_at DROP NOT NULL; \
                 UPDATE outbox SET created_at = {time} WHERE aggregate_id = 'a0'"
            ))
            .await;
        let ran = init(&settings, &["--since", "1h"]).await;
        refused(&ran, 1, &["OBR-8205", unusable, "without a usable time in created_at"]);
        assert!(outbox.slot().await.is_none());
    }
    outbox.execute("UPDATE outbox SET created_at = now() WHERE aggregate_id = 'a0'").await;
    begun(&settings, &[], 4).await;
}

#[tokio::test]
async fn what_cannot_be_sent_first_is_refused_before_a_slot_is_created() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, 1).await;
    outbox.execute(PUBLICATION).await;
    let two = settings.clone().set("outbox.table", vec!["public.outbox", "public.other"]);
    outbox.execute("CREATE TABLE other (LIKE outbox)").await;
    let renamed = settings.clone().set("outbox.columns.created_at", "event_type");
    let of_the_log = settings.clone().set("route.topic", "t-${source.lsn}");
    let polling = Settings::polling(&outbox, &kafka);
    let cases: [(&Settings, &[&str], i32, &[&str]); 9] = [
        (&two, &[], 1, &["OBR-8205", "there are several outbox tables"]),
        (&renamed, &[], 1, &["OBR-8205", "no column of the type timestamptz"]),
        (&of_the_log, &[], 1, &["OBR-8205", "a value that only the log has"]),
        (&polling, &[], 1, &["OBR-8205", "this router polls the table"]),
        (&settings, &["--only", "published"], 2, &["OBR-2001", "--only", "published"]),
        (&settings, &["--only", "true) OR (true"], 2, &["OBR-2001", "--only"]),
        (&settings, &["--only", "true); COMMIT; SELECT 1 WHERE (true"], 2, &["OBR-2001", "--only"]),
        (&settings, &["--only", "true])[1] OR (ARRAY[true"], 2, &["OBR-2001", "--only"]),
        (&settings, &["--since", "yesterdayish"], 2, &["OBR-2001", "--since", "is not a time"]),
    ];
    for (settings, arguments, code, parts) in cases {
        refused(&init(settings, arguments).await, code, parts);
        assert!(outbox.slot().await.is_none(), "{arguments:?}");
    }
    let ran = settings.run_async(&["init", "--since", "1h"]).await;
    refused(&ran, 2, &["--backfill"]);
}

/// The condition that `init` has stored, evaluated as if another transaction id came next.
#[tokio::test]
async fn rows_are_told_apart_by_their_transaction() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, 1).await;
    begun(&settings, &[], 4).await;
    let condition = outbox.text("SELECT before_slot FROM outbox_router.backfills").await;
    let snapshot = condition.split(" < ").nth(1).and_then(|rest| rest.split(' ').next());
    let first: i64 = snapshot.unwrap().parse().unwrap();
    let epoch = 1_i64 << 32;
    outbox
        .execute(
            "CREATE SCHEMA fake; CREATE TABLE fake.next (id bigint); \
             CREATE FUNCTION fake.pg_current_snapshot() RETURNS pg_snapshot LANGUAGE sql STABLE \
             AS 'SELECT (id || '':'' || id || '':'')::pg_snapshot FROM fake.next'",
        )
        .await;
    let (old, new) = ("interval '3 days'", "interval '1 hour'");
    for (next, xmin, age, committed_before) in [
        (first + 9, first - 1, new, true),
        (first + 9, first + 5, new, false),
        (first + 9, first + 5, old, false),
        // frozen, and from before an upgrade that has begun to count anew
        (first + 9, first + 500, new, true),
        (epoch + first + 9, first + 500, new, false),
        (epoch + first + 9, first + 5, new, false),
        // there were no rows of that age when the slot was created
        (epoch + first + 9, first - 1, old, false),
    ] {
        let sql = format!(
            "TRUNCATE fake.next; INSERT INTO fake.next VALUES ({next}); SET search_path = fake, pg_catalog; \
             CREATE TABLE fake.seen AS SELECT ({condition}) AS seen FROM (SELECT '{xmin}'::xid AS xmin, now() - {age} AS created_at) q; \
             RESET search_path"
        );
        outbox.execute(&sql).await;
        let seen = outbox.text("SELECT coalesce(seen, false)::text FROM fake.seen").await;
        assert_eq!(seen, committed_before.to_string(), "{next} {xmin} {age}");
        outbox.execute("DROP TABLE fake.seen").await;
    }
}

/// `init` is killed while it waits for a transaction, or before it has stored which rows there are.
#[tokio::test]
async fn an_init_that_was_interrupted_begins_anew() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, 1).await;
    succeeded(settings.run_async(&["init"]).await, &[]);
    outbox
        .execute("INSERT INTO outbox_router.backfills (slot, begun_at) VALUES (current_database(), now())")
        .await;
    let ended = Router::start(&settings).exits(1).await;
    ended.says(&["OBR-8205", "is creating the slot", "or was interrupted", "init", "--backfill"]);
    let plain = settings.run_async(&["init"]).await;
    refused(&plain, 1, &["OBR-8205", "was interrupted before the slot", "init --backfill"]);
    begun(&settings, &[], 4).await;
    Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

#[tokio::test]
async fn rows_from_before_a_slot_do_not_overtake_parked_events() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, 1).await;
    let settings =
        settings.set("dead_letters.policy", "park").set("topics.allow", vec![outbox.topic("other")]);
    succeeded(settings.run_async(&["init"]).await, &[]);
    insert(&outbox, 2, 2).await;
    Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{}')", outbox.name)).await;
    refused(&init(&settings, &[]).await, 1, &["OBR-8205", "are parked", "dead-letters list"]);
}

/// The server has used up its transaction ids once, and a row has one that comes again while the router is away.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn a_row_whose_transaction_id_is_used_again_is_sent() {
    let server = PrivatePostgres::start("host all all 127.0.0.1/32 trust", &["autovacuum=off"]).await;
    let resetwal = Path::new(server.variable("TEST_POSTGRES_BIN")).join("pg_resetwal");
    if !resetwal.exists() {
        // only the system's own Postgres has all programs
        return;
    }
    let (outbox, kafka) = (Outbox::bare(&server.url()).await, Kafka::shared());
    outbox.execute(TABLE).await;
    let settings = Settings::new(&outbox, &kafka);
    let use_ids = async |last: u32| {
        let next = "SELECT (txid_current() & 4294967295)::text";
        while outbox.text(next).await.parse::<u32>().unwrap() < last {}
    };
    use_ids(2_000).await;
    insert(&outbox, 1, 3).await;
    outbox.execute("UPDATE outbox SET created_at = now() - interval '9 days'").await;
    server.execute(&["VACUUM FREEZE"]).await;
    let client = outbox.client().await;
    client.batch_execute("VACUUM FREEZE").await.unwrap();
    drop(client);
    server.stop(Shutdown::Fast);
    let resetwal = format!(
        "{} {} -e 1 -x 1500 -D {}",
        server.variable("TEST_POSTGRES_RUN_AS"),
        resetwal.display(),
        server.data().display()
    );
    let ran = std::process::Command::new("sh").args(["-c", &resetwal]).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    server.start_again();
    // finds that its connection has ended
    outbox.slot().await;
    insert(&outbox, 4, 4).await;
    begun(&settings, &[], 16).await;
    use_ids(2_100).await;
    insert(&outbox, 5, 5).await;
    Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}
