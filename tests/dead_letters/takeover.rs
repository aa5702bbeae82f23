//! Rows that an earlier session has written, or that another server does not have.

use super::Setting;
use crate::faults::failover::Pair;
use crate::support::eventually::eventually;
use crate::support::outbox::connect;
use crate::support::router::Router;
use crate::support::signal::{Signal, send};

/// The earlier session was past its guard when it was lost, and its row comes late.
#[tokio::test]
async fn dead_letters_that_an_earlier_session_is_still_writing_are_waited_for() {
    let setting = Setting::new("exactly-once").await;
    let router = Router::active(&setting.settings).await;
    setting.poison("a", 1).await;
    setting.parks(1).await;
    let name: String = setting.outbox.query("SELECT router FROM outbox_router.dead_letters").await[0].get(0);
    router.stop().await;
    // it becomes the row of an insert that is under way
    setting.outbox.execute("CREATE TABLE kept AS SELECT * FROM outbox_router.dead_letters; DELETE FROM outbox_router.dead_letters").await;
    let earlier = connect(&setting.outbox.url()).await.unwrap();
    let turn = format!(
        "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('outbox-router dead letters {name}', 0)); \
         INSERT INTO outbox_router.dead_letters SELECT * FROM kept"
    );
    earlier.batch_execute(&turn).await.unwrap();
    let mut router = Router::start(&setting.settings);
    setting.outbox.insert_numbers("order", "a", 2..4).await;
    setting.outbox.turn_is_waited_for().await;
    assert!(setting.seen("a").await.is_empty());
    earlier.batch_execute("COMMIT").await.unwrap();
    router.ready().await;
    setting.parks(3).await;
    setting.outbox.all_confirmed().await;
    assert!(setting.seen("a").await.is_empty(), "sent past the row");
    router.stop().await;
}

#[tokio::test]
async fn dead_letters_that_a_failover_has_lost_are_not_passed_over() {
    lost_by_a_failover("exactly-once", true).await;
}

#[tokio::test]
async fn dead_letters_that_a_failover_has_lost_are_not_passed_over_by_the_router_that_wrote_them() {
    lost_by_a_failover("at-least-once", false).await;
}

/// The new primary has the event, and not its row: that was committed when the standby heard of nothing more.
async fn lost_by_a_failover(mode: &str, killed: bool) {
    let pair = Pair::new().await;
    let settings = pair.settings.clone().set("delivery.mode", mode).set("dead_letters.policy", "park");
    let ran = settings.run(&["init"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let router = Router::active(&settings).await;
    pair.outbox.insert_numbers("order", "a", 1..11).await;
    pair.outbox.all_confirmed().await;
    pair.copied().await;
    let (outbox, mut standby) = (&pair.outbox, pair.standby.superuser().await);
    let table = outbox.client().await;
    table.batch_execute("BEGIN; LOCK TABLE outbox_router.dead_letters IN EXCLUSIVE MODE").await.unwrap();
    outbox.insert("two words", "a", "{\"n\": 11}").await;
    let event = outbox.lsn().await;
    let replayed = format!("SELECT 1 WHERE pg_last_wal_replay_lsn() >= '{event}'");
    eventually("the standby has the event", async || standby.query_one(&replayed).await.unwrap()).await;
    let waits =
        "SELECT 1 FROM pg_locks WHERE relation = 'outbox_router.dead_letters'::regclass AND NOT granted";
    eventually("the row is on its way", async || outbox.query(waits).await.pop()).await;
    pair.cut_off().await;
    // the stream ends at the event, and so does the position
    let walsender = u32::try_from(outbox.active_pid().await).unwrap();
    assert!(send(Signal::Stop, walsender));
    table.batch_execute("COMMIT").await.unwrap();
    eventually("the position is remembered, and what it rests on", async || {
        let records = pair.kafka.committed("outbox-router.positions").await.ok()?;
        records
            .iter()
            .any(|record| {
                let ours = record.key().is_some_and(|key| key.starts_with(&outbox.name));
                ours && record.text().contains("parked_lsn")
            })
            .then_some(())
    })
    .await;
    let router = if killed {
        router.kill();
        None
    } else {
        Some(router)
    };
    pair.primary.kill();
    assert!(send(Signal::Kill, walsender));
    pair.promote().await;
    let router = router.unwrap_or_else(|| Router::start(&settings));
    router.exits(3).await.says(&["parked events are lost", "accept-gap"]);
    let parked = outbox.query("SELECT count(*) FROM outbox_router.dead_letters").await;
    assert_eq!(parked[0].get::<_, i64>(0), 0, "it was right to refuse");
}
