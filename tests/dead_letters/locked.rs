//! The table of parked events, locked by another session: the router says so, and goes on when the lock is gone.

use super::{MODES, Setting};
use crate::support::eventually::eventually;
use crate::support::private_kafka::PrivateKafka;
use crate::support::router::Router;
use crate::support::table_lock::TableLock;

const TABLE: &str = "outbox_router.dead_letters";

#[tokio::test]
async fn dead_letters_whose_table_is_locked_are_waited_for_and_who_has_locked_it_is_named() {
    for mode in MODES {
        let setting = Setting::new(mode).await;
        let mut router = Router::active(&setting.settings).await;
        setting.outbox.insert_numbers("order", "b", 1..2).await;
        setting.sees("b", vec![1]).await;
        let lock = TableLock::take(&setting.outbox, TABLE).await;
        setting.poison("a", 1).await;
        setting.outbox.insert_numbers("order", "b", 2..3).await;
        let reason = lock.is_shown_by(&setting.settings, &mut router).await;
        assert!(reason.contains("idle in transaction"), "{mode}: {reason}");
        lock.release().await;
        setting.parks(1).await;
        setting.sees("b", vec![1, 2]).await;
        router.ready().await;
        router.logs("the table of parked events can be used again").await;
        setting.outbox.all_confirmed().await;
        let log = router.stop().await.log;
        // neither is Kafka blamed, nor has the session ended
        for other in ["peer=\"kafka\"", "not connected"] {
            assert!(!log.contains(other), "{mode}: {log}");
        }
        assert_eq!(setting.seen("b").await, [1, 2], "{mode}");
    }
}

/// The lock outlasts the Kafka transaction that waits for the row.
#[tokio::test]
async fn dead_letters_whose_table_was_locked_for_longer_than_the_transaction_lasts_are_parked_then() {
    // the coordinator ends it soon after it has timed out; by default it looks every ten seconds
    let broker =
        PrivateKafka::start(&["transaction.abort.timed.out.transaction.cleanup.interval.ms=200"]).await;
    let mut setting = Setting::on_broker("exactly-once", &broker).await;
    setting.settings = setting.settings.clone().set("kafka.'transaction.timeout.ms'", 5_000);
    let mut router = Router::active(&setting.settings).await;
    setting.outbox.insert_numbers("order", "b", 1..2).await;
    setting.sees("b", vec![1]).await;
    let lock = TableLock::take(&setting.outbox, TABLE).await;
    // the event that waits comes first: what is sent after it cannot be committed to Kafka before it is parked
    let name = &setting.outbox.name;
    let both = "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES \
                ('two words', 'a', '{\"n\": 1}'), ('order', 'b', '{\"n\": 2}')";
    setting.outbox.execute(both).await;
    // it stays in the log when the transaction has timed out, however late this looks
    eventually("the event after the one that waits was sent", async || {
        let records = setting.kafka.records(name).await;
        records.iter().any(|record| record.key() == Some("b") && record.number() == 2).then_some(())
    })
    .await;
    lock.is_shown_by(&setting.settings, &mut router).await;
    eventually("the Kafka transaction has timed out", async || {
        setting.kafka.are_ended(name).await.ok()?.then_some(())
    })
    .await;
    assert_eq!(setting.seen("b").await, [1]);
    lock.is_shown_by(&setting.settings, &mut router).await;
    lock.release().await;
    setting.parks(1).await;
    setting.sees("b", vec![1, 2]).await;
    router.ready().await;
    setting.outbox.all_confirmed().await;
    setting.outbox.insert_numbers("order", "b", 3..4).await;
    setting.sees("b", vec![1, 2, 3]).await;
    router.stop().await;
}

/// What is parked has to be known before the first event is sent.
#[tokio::test]
async fn dead_letters_whose_table_is_locked_at_the_start_are_waited_for_and_who_has_locked_it_is_named() {
    for mode in MODES {
        let setting = Setting::new(mode).await;
        let lock = TableLock::take(&setting.outbox, TABLE).await;
        let mut router = Router::start(&setting.settings);
        setting.outbox.insert_numbers("order", "b", 1..2).await;
        lock.is_shown_by(&setting.settings, &mut router).await;
        lock.release().await;
        router.ready().await;
        setting.sees("b", vec![1]).await;
        router.stop().await;
    }
}

/// The role of `init --role` sees who holds the lock, and not in what state that session is.
#[tokio::test]
async fn dead_letters_whose_table_is_locked_are_explained_to_the_least_privileged_role() {
    let mut setting = Setting::new("at-least-once").await;
    setting.outbox.execute("DROP SCHEMA outbox_router CASCADE").await;
    let role = format!("{}_router", setting.outbox.name);
    let ran = setting.settings.run(&["init", "--role", &role]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let url = setting.outbox.url().replace("//postgres@", &format!("//{role}@"));
    assert!(url.contains(&role), "{url}");
    setting.settings = setting.settings.clone().set("postgres.url", url);
    let mut router = Router::active(&setting.settings).await;
    let lock = TableLock::take(&setting.outbox, TABLE).await;
    setting.poison("a", 1).await;
    let reason = lock.is_shown_by(&setting.settings, &mut router).await;
    assert!(reason.contains("role postgres") && !reason.contains("idle in transaction"), "{reason}");
    setting.outbox.execute(&format!("GRANT pg_read_all_stats TO {role}")).await;
    router
        .shows("the state of that session is shown, too", |status| {
            status["reason"].as_str()?.contains("idle in transaction").then_some(())
        })
        .await;
    lock.release().await;
    setting.parks(1).await;
    router.ready().await;
    router.stop().await;
    setting.outbox.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// Whether a decision has made room for one more aggregate is written in the table.
#[tokio::test]
async fn dead_letters_whose_table_is_locked_while_room_for_one_more_aggregate_is_looked_for_are_explained() {
    for mode in MODES {
        let mut setting = Setting::new(mode).await;
        setting.settings = setting.settings.clone().set("dead_letters.max_aggregates", 1);
        let mut router = Router::active(&setting.settings).await;
        setting.poison("a", 1).await;
        setting.parks(1).await;
        let lock = TableLock::take(&setting.outbox, TABLE).await;
        setting.poison("c", 1).await;
        lock.is_shown_by(&setting.settings, &mut router).await;
        lock.release().await;
        router.exits(3).await.says(&["`[dead_letters] max_aggregates` allows: 1"]);
    }
}
