//! Another session has locked a table that the router reads. The router names the table and the session, and continues once the
//! lock is released.

use serde_json::Value;

use crate::invariants::feedback_never_starves::PG_HBA;
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::{self, Outbox};
use crate::support::postgres::PrivatePostgres;
use crate::support::private_kafka::PrivateKafka;
use crate::support::router::Router;
use crate::support::settings::{MODES, Settings};
use crate::support::shared;
use crate::support::table_lock::TableLock;

const TABLE: &str = "public.outbox";

fn settings(outbox: &Outbox, kafka: &Kafka, mode: &str) -> Settings {
    Settings::new(outbox, kafka).set("delivery.mode", mode).set("outbox.message_prefix", "outbox")
}

/// A table whose lock blocks the queries of the catalogue watch. That of an outbox does not.
const WATCHED: &str = "pg_catalog.pg_publication";

/// Once autovacuum has written to some catalogues, the next session of that database reads them all when it starts, and blocks on
/// one that is locked. Without autovacuum this does not happen.
async fn server_without_autovacuum() -> PrivatePostgres {
    PrivatePostgres::start(PG_HBA, &["autovacuum=off"]).await
}

/// Writes an event that needs no table.
async fn emit(outbox: &Outbox, n: u32) {
    let event = format!(
        r#"{{"id": "m{n}", "aggregate_type": "order", "aggregate_id": "a", "event_type": "made", "payload": {{"n": {n}}}}}"#
    );
    outbox.execute(&format!("SELECT pg_logical_emit_message(true, 'outbox', '{event}')")).await;
}

/// Waits until this many queries of the catalogue watch have waited for a lock.
async fn watch_is_blocked(outbox: &Outbox, times: usize) {
    let waits = format!(
        "SELECT query_start::text FROM pg_stat_activity \
         WHERE application_name = '{0}.{0} watch' AND wait_event_type = 'Lock'",
        outbox.name
    );
    let mut last = String::new();
    for _ in 0..times {
        last = eventually("another query of the watch waits for the lock", async || {
            let now: String = outbox.query(&waits).await.iter().map(|row| row.get::<_, String>(0)).max()?;
            (now > last).then_some(now)
        })
        .await;
    }
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn outbox_locked_under_a_running_router_is_reported_with_the_locking_session() {
    let server = server_without_autovacuum().await;
    for mode in MODES {
        let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
        let settings = settings(&outbox, &kafka, mode);
        let mut router = Router::active(&settings).await;
        outbox.insert_numbers("order", "a", 1..2).await;
        outbox.all_confirmed().await;
        let lock = TableLock::take(&outbox, WATCHED).await;
        // events are delivered, but the slot does not advance
        emit(&outbox, 2).await;
        let end = outbox.lsn().await;
        kafka.committed_when(&outbox.name, 2).await;
        let reason = lock.is_shown_by(&settings, &mut router).await;
        assert!(reason.contains("the slot is not moved"), "{mode}: {reason}");
        assert!(outbox.confirmed().await < end, "{mode}");
        let line = lock.is_logged_by(&mut router).await;
        assert!(line.contains("pg_terminate_backend"), "{mode}: {line}");
        // the router does not leave a blocked session behind with each query
        watch_is_blocked(&outbox, 2).await;
        let sessions = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation' \
                        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        let waiting: i64 = outbox.query(sessions).await[0].get(0);
        assert!(waiting <= 1, "{mode}: {waiting} sessions wait for the lock");
        lock.release().await;
        router.ready().await;
        router.logs("the catalogues can be read again").await;
        outbox.all_confirmed().await;
        let log = router.stop().await.log;
        for other in ["peer=\"kafka\"", "connection failed"] {
            assert!(!log.contains(other), "{mode}: {log}");
        }
        let numbers: Vec<u64> =
            kafka.committed(&outbox.name).await.unwrap().iter().map(|record| record.number()).collect();
        assert_eq!(numbers, [1, 2], "{mode}");
    }
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn outbox_locked_while_nothing_is_to_be_confirmed_leaves_the_router_ready() {
    let server = server_without_autovacuum().await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let mut router = Router::active(&settings(&outbox, &kafka, "at-least-once")).await;
    outbox.insert_numbers("order", "a", 1..2).await;
    outbox.all_confirmed().await;
    let lock = TableLock::take(&outbox, WATCHED).await;
    lock.is_logged_by(&mut router).await;
    for _ in 0..4 {
        watch_is_blocked(&outbox, 1).await;
        let (ready, text) = router.get_now("/readyz").await;
        assert_eq!(ready, 200, "{text}");
    }
    lock.release().await;
    router.logs("the catalogues can be read again").await;
    outbox.all_confirmed().await;
    router.stop().await;
}

/// While the broker blocks the stream, only the catalogue watch shows that the session still has the slot.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn outbox_locked_while_the_broker_is_frozen_does_not_end_the_session() {
    let server = server_without_autovacuum().await;
    let broker = PrivateKafka::start(&[]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, broker.client());
    let settings = Settings::new(&outbox, &kafka)
        .set("postgres.wal_sender_timeout", "6s")
        .set("delivery.window.records", 50);
    let mut router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..11).await;
    outbox.all_confirmed().await;
    let walsender = outbox.active_pid().await;
    broker.freeze();
    outbox
        .execute(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
             SELECT 'order', 'a', jsonb_build_object('n', n) FROM generate_series(11, 500) n",
        )
        .await;
    let lock = TableLock::take(&outbox, WATCHED).await;
    lock.is_logged_by(&mut router).await;
    watch_is_blocked(&outbox, 5).await;
    assert_eq!(outbox.slot().await.unwrap().active_pid, Some(walsender), "{}", router.log());
    assert!(!router.log().contains("silent"), "{}", router.log());
    lock.release().await;
    broker.thaw();
    outbox.all_confirmed().await;
    kafka.holds(&outbox.name, 500).await;
    router.stop().await;
}

/// Asserts that a router which finds the table locked when it starts reports the lock, and continues once it is released.
async fn locked_at_the_start(mode: &str, outbox: Outbox, table: &'static str) {
    let kafka = Kafka::shared();
    outbox.create_dead_letters_table().await;
    let settings = settings(&outbox, &kafka, mode);
    let lock = TableLock::take(&outbox, table).await;
    emit(&outbox, 1).await;
    let mut router = Router::start(&settings);
    let reason = lock.is_shown_by(&settings, &mut router).await;
    assert!(reason.contains("pg_terminate_backend"), "{mode} {table}: {reason}");
    lock.release().await;
    router.ready().await;
    kafka.committed_when(&outbox.name, 1).await;
    outbox.all_confirmed().await;
    router.stop().await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn outbox_locked_at_the_start_is_waited_for_and_the_locking_session_is_named() {
    let server = server_without_autovacuum().await;
    for mode in MODES {
        let outbox = Outbox::on(&server.url()).await;
        locked_at_the_start(mode, outbox, WATCHED).await;
    }
}

/// In exactly-once, the router reads from this table whether the slot is new.
#[tokio::test]
async fn outbox_locked_slots_table_at_the_start_of_exactly_once_is_waited_for() {
    locked_at_the_start("exactly-once", Outbox::with_long_transactions().await, "outbox_router.slots").await;
}

/// Even a router that does not park events checks whether some are parked.
#[tokio::test]
async fn outbox_locked_dead_letters_at_the_start_of_a_router_that_does_not_park_are_waited_for() {
    for mode in MODES {
        locked_at_the_start(mode, Outbox::with_long_transactions().await, "outbox_router.dead_letters").await;
    }
}

/// At-least-once delivers without the slots table, and logs what it could not write there.
#[tokio::test]
async fn outbox_locked_slots_table_does_not_stop_at_least_once() {
    let (outbox, kafka) = (Outbox::with_long_transactions().await, Kafka::shared());
    let lock = TableLock::take(&outbox, "outbox_router.slots").await;
    outbox.insert_numbers("order", "a", 1..2).await;
    let mut router = Router::active(&settings(&outbox, &kafka, "at-least-once")).await;
    outbox.all_confirmed().await;
    let line = lock.is_logged_by(&mut router).await;
    assert!(line.contains("the router goes on without it"), "{line}");
    lock.release().await;
    router.stop().await;
}

/// The outbox, or a table that is only in the same publication, is locked from before the start on. Rows written before arrive, and
/// the position moves.
#[tokio::test]
async fn outbox_locked_or_a_table_beside_it_delays_nothing() {
    for published in ["TABLE outbox, other", "ALL TABLES", "TABLES IN SCHEMA public"] {
        let (outbox, kafka) =
            (Outbox::bare(shared::postgres_with_long_transactions()).await, Kafka::shared());
        if published.contains("SCHEMA") && outbox.server_version().await < 150_000 {
            continue;
        }
        let options = "WITH (publish = 'insert', publish_via_partition_root = true)";
        let tables = format!("{}; CREATE TABLE other (id int)", outbox::TABLE);
        outbox
            .execute(&format!("{tables}; CREATE PUBLICATION outbox_router FOR {published} {options}"))
            .await;
        outbox.create_slot("pgoutput").await;
        for (table, n) in [("public.other", 1), ("public.outbox", 2)] {
            outbox.insert_numbers("order", "a", n..n + 1).await;
            let written = outbox.lsn().await;
            let lock = TableLock::take(&outbox, table).await;
            let router = Router::active(&settings(&outbox, &kafka, "at-least-once")).await;
            eventually("the position is past the row", async || {
                (outbox.confirmed().await >= written).then_some(())
            })
            .await;
            outbox.watched().await;
            let (ready, text) = router.get_now("/readyz").await;
            assert_eq!(ready, 200, "{published} {table}: {text}");
            lock.release().await;
            router.stop().await;
        }
        kafka.holds(&outbox.name, 2).await;
    }
}

/// `pg_replication_slots` can be read whatever lock the outbox has.
#[tokio::test]
async fn outbox_locked_does_not_block_slot_list_and_status() {
    let (outbox, kafka) = (Outbox::with_long_transactions().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let _lock = TableLock::take(&outbox, TABLE).await;
    let confirmed = outbox.confirmed().await.to_string();
    let listed = settings.run_async(&["slot", "list", "--json"]).await;
    let shown: Value = serde_json::from_str(&listed.out).unwrap_or_default();
    assert_eq!(shown["confirmed"], *confirmed, "{listed:?}");
    assert_eq!(listed.code, 0, "{listed:?}");
    // no router listens at this address
    let status = settings.set("admin.listen", "127.0.0.1:1").run_async(&["status", "--json"]).await;
    assert!(status.out.contains(&confirmed), "{status:?}");
}
