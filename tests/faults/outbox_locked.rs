//! A table that the router looks at, locked by another session: the router names the table and who has locked it, and goes on
//! when the lock is gone.

use serde_json::Value;

use crate::invariants::feedback_never_starves::PG_HBA;
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::postgres::PrivatePostgres;
use crate::support::private_kafka::PrivateKafka;
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::table_lock::TableLock;

const MODES: [&str; 2] = ["at-least-once", "exactly-once"];
const TABLE: &str = "public.outbox";

fn settings(outbox: &Outbox, kafka: &Kafka, mode: &str) -> Settings {
    Settings::new(outbox, kafka).set("delivery.mode", mode).set("outbox.message_prefix", "outbox")
}

/// A table that a look at the catalogues waits for while it is locked.
async fn looked_at(outbox: &Outbox) -> &'static str {
    // before 16 it takes no lock on the outbox itself
    if outbox.server_version().await < 160_000 { "pg_catalog.pg_publication" } else { TABLE }
}

/// A server that leaves its catalogues alone. Once autovacuum has written to some of them, the next session of that database reads
/// them all as it starts, and waits there for one that is locked.
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

/// Waits until so many queries of the watch have waited for a lock.
async fn looks_wait(outbox: &Outbox, times: usize) {
    let waits = format!(
        "SELECT query_start::text FROM pg_stat_activity \
         WHERE application_name = '{0}.{0} watch' AND wait_event_type = 'Lock'",
        outbox.name
    );
    let mut last = String::new();
    for _ in 0..times {
        last = eventually("another look waits for the lock", async || {
            let now: String = outbox.query(&waits).await.iter().map(|row| row.get::<_, String>(0)).max()?;
            (now > last).then_some(now)
        })
        .await;
    }
}

#[tokio::test]
async fn outbox_locked_under_a_running_router_is_shown_with_who_has_locked_it() {
    let server = server_without_autovacuum().await;
    for mode in MODES {
        let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
        let settings = settings(&outbox, &kafka, mode);
        let mut router = Router::active(&settings).await;
        outbox.insert_numbers("order", "a", 1..2).await;
        outbox.all_confirmed().await;
        let lock = TableLock::take(&outbox, looked_at(&outbox).await).await;
        // events flow, and the slot stands still
        emit(&outbox, 2).await;
        let end = outbox.lsn().await;
        kafka.committed_when(&outbox.name, 2).await;
        let reason = lock.is_shown_by(&settings, &mut router).await;
        assert!(reason.contains("the slot is not moved"), "{mode}: {reason}");
        assert!(outbox.confirmed().await < end, "{mode}");
        let line = lock.is_logged_by(&mut router).await;
        assert!(line.contains("pg_terminate_backend"), "{mode}: {line}");
        // and no session is left behind with each look
        looks_wait(&outbox, 2).await;
        let sessions = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation' \
                        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        let waiting: i64 = outbox.query(sessions).await[0].get(0);
        assert!(waiting <= 1, "{mode}: {waiting} sessions wait for the lock");
        lock.release().await;
        router.ready().await;
        router.logs("the catalogues can be read again").await;
        outbox.all_confirmed().await;
        let log = router.stop().await.log;
        for other in ["peer=\"kafka\"", "not connected"] {
            assert!(!log.contains(other), "{mode}: {log}");
        }
        let numbers: Vec<u64> =
            kafka.committed(&outbox.name).await.unwrap().iter().map(|record| record.number()).collect();
        assert_eq!(numbers, [1, 2], "{mode}");
    }
}

#[tokio::test]
async fn outbox_locked_while_no_event_waits_to_be_confirmed_leaves_the_router_ready() {
    let server = server_without_autovacuum().await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let mut router = Router::active(&settings(&outbox, &kafka, "at-least-once")).await;
    outbox.insert_numbers("order", "a", 1..2).await;
    outbox.all_confirmed().await;
    let lock = TableLock::take(&outbox, looked_at(&outbox).await).await;
    lock.is_logged_by(&mut router).await;
    for _ in 0..4 {
        looks_wait(&outbox, 1).await;
        let (ready, text) = router.get("/readyz").unwrap();
        assert_eq!(ready, 200, "{text}");
    }
    lock.release().await;
    router.logs("the catalogues can be read again").await;
    outbox.all_confirmed().await;
    router.stop().await;
}

/// While the broker holds back the stream only the watch tells that the session still has the slot.
#[tokio::test]
async fn outbox_locked_while_the_broker_is_frozen_does_not_end_the_session() {
    let server = server_without_autovacuum().await;
    let broker = PrivateKafka::start(&[]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, broker.client());
    let settings = Settings::new(&outbox, &kafka)
        .set("postgres.wal_sender_timeout", "4s")
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
    let lock = TableLock::take(&outbox, looked_at(&outbox).await).await;
    lock.is_logged_by(&mut router).await;
    looks_wait(&outbox, 5).await;
    assert_eq!(outbox.slot().await.unwrap().active_pid, Some(walsender), "{}", router.log());
    assert!(!router.log().contains("silent"), "{}", router.log());
    lock.release().await;
    broker.thaw();
    outbox.all_confirmed().await;
    kafka.holds(&outbox.name, 500).await;
    router.stop().await;
}

/// Waits for the lock at the start of a router, and goes on when it is gone.
async fn at_the_start(mode: &str, outbox: Outbox, table: &'static str) {
    let kafka = Kafka::shared();
    let dead_letters = include_str!("../../migrations/V2__dead_letters.sql");
    outbox.execute(dead_letters).await;
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
async fn outbox_locked_at_the_start_is_waited_for_and_who_has_locked_it_is_named() {
    let server = server_without_autovacuum().await;
    for mode in MODES {
        let outbox = Outbox::on(&server.url()).await;
        let table = looked_at(&outbox).await;
        at_the_start(mode, outbox, table).await;
    }
}

/// Where the positions are in Kafka transactions, that table tells a new slot from another.
#[tokio::test]
async fn outbox_locked_or_rather_the_table_of_slots_at_the_start_of_exactly_once() {
    at_the_start("exactly-once", Outbox::new().await, "outbox_router.slots").await;
}

/// A router that does not park looks whether events are parked.
#[tokio::test]
async fn outbox_locked_or_rather_the_dead_letters_at_the_start_of_a_router_that_does_not_park() {
    for mode in MODES {
        at_the_start(mode, Outbox::new().await, "outbox_router.dead_letters").await;
    }
}

/// At-least-once delivers without the table of slots, and says what it could not write.
#[tokio::test]
async fn outbox_locked_or_rather_the_table_of_slots_does_not_keep_at_least_once_from_delivering() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let lock = TableLock::take(&outbox, "outbox_router.slots").await;
    outbox.insert_numbers("order", "a", 1..2).await;
    let mut router = Router::active(&settings(&outbox, &kafka, "at-least-once")).await;
    outbox.all_confirmed().await;
    let line = lock.is_logged_by(&mut router).await;
    assert!(line.contains("the router goes on without it"), "{line}");
    lock.release().await;
    router.stop().await;
}

/// What `pg_replication_slots` shows does not depend on the table.
#[tokio::test]
async fn outbox_locked_the_slot_is_shown_by_slot_list_and_by_status_without_a_router() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let _lock = TableLock::take(&outbox, TABLE).await;
    let confirmed = outbox.confirmed().await.to_string();
    let listed = settings.run_beside(&["slot", "list", "--json"]).await;
    let shown: Value = serde_json::from_str(&listed.out).unwrap_or_default();
    assert_eq!(shown["confirmed"], *confirmed, "{listed:?}");
    assert_eq!(listed.code, 0, "{listed:?}");
    // nobody listens there
    let status = settings.set("admin.listen", "127.0.0.1:1").run_beside(&["status", "--json"]).await;
    assert!(status.out.contains(&confirmed), "{status:?}");
}
