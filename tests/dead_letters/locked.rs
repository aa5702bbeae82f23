//! Another session has locked the dead-letter table. The router reports it, and continues once the lock is released.

use super::{MODES, Setup};
use crate::support::eventually::eventually;
use crate::support::outbox::Outbox;
use crate::support::place::succeeded;
use crate::support::private_kafka::PrivateKafka;
use crate::support::router::Router;
use crate::support::table_lock::TableLock;

const TABLE: &str = "outbox_router.dead_letters";

#[tokio::test]
async fn dead_letters_in_a_locked_table_are_waited_for_and_the_locking_session_is_named() {
    tokio::join!(locked_under_a_running_router(MODES[0]), locked_under_a_running_router(MODES[1]));
}

async fn locked_under_a_running_router(mode: &str) {
    let setup = Setup::of(Outbox::with_long_transactions().await, mode).await;
    let mut router = Router::active(&setup.settings).await;
    setup.outbox.insert_numbers("order", "b", 1..2).await;
    setup.sees("b", vec![1]).await;
    let lock = TableLock::take(&setup.outbox, TABLE).await;
    setup.poison("a", 1).await;
    setup.outbox.insert_numbers("order", "b", 2..3).await;
    let reason = lock.is_shown_by(&setup.settings, &mut router).await;
    assert!(reason.contains("idle in transaction"), "{mode}: {reason}");
    lock.release().await;
    setup.parks(1).await;
    setup.sees("b", vec![1, 2]).await;
    router.ready().await;
    router.logs("the table of parked events can be used again").await;
    setup.outbox.all_confirmed().await;
    let log = router.stop().await.log;
    // the router did not blame Kafka or end its session
    for other in ["peer=\"kafka\"", "connection failed"] {
        assert!(!log.contains(other), "{mode}: {log}");
    }
    assert_eq!(setup.seen("b").await, [1, 2], "{mode}");
}

/// The lock outlasts the Kafka transaction that waits for the row.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn dead_letters_are_parked_after_a_lock_that_outlasts_the_transaction() {
    // the coordinator aborts timed-out transactions every 200 ms instead of every ten seconds
    let broker =
        PrivateKafka::start(&["transaction.abort.timed.out.transaction.cleanup.interval.ms=200"]).await;
    let mut setup = Setup::on_broker("exactly-once", &broker).await;
    setup.settings = setup.settings.clone().set("kafka.'transaction.timeout.ms'", 5_000);
    let mut router = Router::active(&setup.settings).await;
    setup.outbox.insert_numbers("order", "b", 1..2).await;
    setup.sees("b", vec![1]).await;
    let lock = TableLock::take(&setup.outbox, TABLE).await;
    // the unsendable event comes first, so the later one cannot be committed in Kafka before that is parked
    let name = &setup.outbox.name;
    let both = "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES \
                ('two words', 'a', '{\"n\": 1}'), ('order', 'b', '{\"n\": 2}')";
    setup.outbox.execute(both).await;
    // the record stays in the log even after the transaction has timed out
    eventually("the event after the unsendable one was sent", async || {
        let records = setup.kafka.records(name).await;
        records.iter().any(|record| record.key() == Some("b") && record.number() == 2).then_some(())
    })
    .await;
    lock.is_shown_by(&setup.settings, &mut router).await;
    eventually("the Kafka transaction has timed out", async || {
        setup.kafka.has_no_open_transaction(name).await.ok()?.then_some(())
    })
    .await;
    assert_eq!(setup.seen("b").await, [1]);
    lock.is_shown_by(&setup.settings, &mut router).await;
    lock.release().await;
    setup.parks(1).await;
    setup.sees("b", vec![1, 2]).await;
    router.ready().await;
    setup.outbox.all_confirmed().await;
    setup.outbox.insert_numbers("order", "b", 3..4).await;
    setup.sees("b", vec![1, 2, 3]).await;
    router.stop().await;
}

/// The router has to read the parked events before it sends any.
#[tokio::test]
async fn dead_letters_in_a_locked_table_are_waited_for_at_the_start() {
    tokio::join!(locked_at_the_start(MODES[0]), locked_at_the_start(MODES[1]));
}

async fn locked_at_the_start(mode: &str) {
    let setup = Setup::of(Outbox::with_long_transactions().await, mode).await;
    let lock = TableLock::take(&setup.outbox, TABLE).await;
    let mut router = Router::start(&setup.settings);
    setup.outbox.insert_numbers("order", "b", 1..2).await;
    lock.is_shown_by(&setup.settings, &mut router).await;
    lock.release().await;
    router.ready().await;
    setup.sees("b", vec![1]).await;
    router.stop().await;
}

/// The role of `init --role` sees which session holds the lock, but not its state.
#[tokio::test]
async fn dead_letters_in_a_locked_table_are_explained_to_the_least_privileged_role() {
    let mut setup = Setup::of(Outbox::with_long_transactions().await, "at-least-once").await;
    setup.outbox.execute("DROP SCHEMA outbox_router CASCADE").await;
    let role = format!("{}_router", setup.outbox.name);
    succeeded(setup.settings.run(&["init", "--role", &role]), &[]);
    let url = setup.outbox.url().replace("//postgres@", &format!("//{role}@"));
    assert!(url.contains(&role), "{url}");
    setup.settings = setup.settings.clone().set("postgres.url", url);
    let mut router = Router::active(&setup.settings).await;
    let lock = TableLock::take(&setup.outbox, TABLE).await;
    setup.poison("a", 1).await;
    let reason = lock.is_shown_by(&setup.settings, &mut router).await;
    assert!(reason.contains("role postgres") && !reason.contains("idle in transaction"), "{reason}");
    setup.outbox.execute(&format!("GRANT pg_read_all_stats TO {role}")).await;
    router
        .shows("the reason includes the state of that session", |status| {
            status["reason"].as_str()?.contains("idle in transaction").then_some(())
        })
        .await;
    lock.release().await;
    setup.parks(1).await;
    router.ready().await;
    router.stop().await;
    setup.outbox.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// At `max_aggregates`, the router reads from the table whether a decision allows one more aggregate.
#[tokio::test]
async fn dead_letters_in_a_locked_table_are_explained_when_max_aggregates_is_reached() {
    tokio::join!(locked_at_max_aggregates(MODES[0]), locked_at_max_aggregates(MODES[1]));
}

async fn locked_at_max_aggregates(mode: &str) {
    let mut setup = Setup::of(Outbox::with_long_transactions().await, mode).await;
    setup.settings = setup.settings.clone().set("dead_letters.max_aggregates", 1);
    let mut router = Router::active(&setup.settings).await;
    setup.poison("a", 1).await;
    setup.parks(1).await;
    let lock = TableLock::take(&setup.outbox, TABLE).await;
    setup.poison("c", 1).await;
    lock.is_shown_by(&setup.settings, &mut router).await;
    lock.release().await;
    router.exits(3).await.says(&["`[dead_letters] max_aggregates` allows: 1"]);
}
