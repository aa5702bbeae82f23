//! Dead letters that an earlier session is still writing, or that a failover has lost.

use super::Setup;
use crate::faults::failover::Pair;
use crate::support::eventually::eventually;
use crate::support::outbox::connect;
use crate::support::place::succeeded;
use crate::support::router::Router;
use crate::support::settings::positions_topic;
use crate::support::signal::{Signal, send};

/// The router lost the earlier session while that was inserting a row, and the row is committed late.
#[tokio::test]
async fn dead_letters_that_an_earlier_session_is_still_writing_are_waited_for() {
    let setup = Setup::new("exactly-once").await;
    let router = Router::active(&setup.settings).await;
    setup.poison("a", 1).await;
    setup.parks(1).await;
    let name: String = setup.outbox.query("SELECT router FROM outbox_router.dead_letters").await[0].get(0);
    router.stop().await;
    // an open transaction inserts that row again
    setup.outbox.execute("CREATE TABLE saved AS SELECT * FROM outbox_router.dead_letters; DELETE FROM outbox_router.dead_letters").await;
    let earlier = connect(&setup.outbox.url()).await.unwrap();
    let insert = format!(
        "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('outbox-router dead letters {name}', 0)); \
         INSERT INTO outbox_router.dead_letters SELECT * FROM saved"
    );
    earlier.batch_execute(&insert).await.unwrap();
    let mut router = Router::start(&setup.settings);
    setup.outbox.insert_numbers("order", "a", 2..4).await;
    setup.outbox.session_waits_for_advisory_lock().await;
    assert!(setup.seen("a").await.is_empty());
    earlier.batch_execute("COMMIT").await.unwrap();
    router.ready().await;
    setup.parks(3).await;
    setup.outbox.all_confirmed().await;
    assert!(setup.seen("a").await.is_empty(), "events were sent past the dead letter");
    router.stop().await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn dead_letters_lost_in_a_failover_stop_a_new_router() {
    lost_in_a_failover("exactly-once", true).await;
}

#[tokio::test]
async fn dead_letters_lost_in_a_failover_stop_the_router_that_wrote_them() {
    lost_in_a_failover("at-least-once", false).await;
}

/// The new primary has the event but not its dead letter, which was committed after the standby was cut off.
async fn lost_in_a_failover(mode: &str, killed: bool) {
    let pair = Pair::new().await;
    let settings = pair.settings.clone().set("delivery.mode", mode).set("dead_letters.policy", "park");
    succeeded(settings.run(&["init"]), &[]);
    let router = Router::active(&settings).await;
    pair.outbox.insert_numbers("order", "a", 1..11).await;
    pair.outbox.all_confirmed().await;
    pair.slot_synced().await;
    let (outbox, mut standby) = (&pair.outbox, pair.standby.superuser().await);
    let table = outbox.client().await;
    table.batch_execute("BEGIN; LOCK TABLE outbox_router.dead_letters IN EXCLUSIVE MODE").await.unwrap();
    outbox.insert("two words", "a", "{\"n\": 11}").await;
    let event = outbox.lsn().await;
    let replayed = format!("SELECT 1 WHERE pg_last_wal_replay_lsn() >= '{event}'");
    eventually("the standby has the event", async || standby.query_one(&replayed).await.unwrap()).await;
    let waits =
        "SELECT 1 FROM pg_locks WHERE relation = 'outbox_router.dead_letters'::regclass AND NOT granted";
    eventually("the insert of the dead letter is blocked", async || outbox.query(waits).await.pop()).await;
    pair.cut_off().await;
    // the walsender stops after the event, so the position stays there
    let walsender = u32::try_from(outbox.active_pid().await).unwrap();
    assert!(send(Signal::Stop, walsender));
    table.batch_execute("COMMIT").await.unwrap();
    eventually("the checkpoint has the position and the LSN of the dead letter", async || {
        let records = pair.kafka.committed(&positions_topic(outbox)).await.ok()?;
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
    let ended = router.exits(3).await;
    ended.says(&["parked events are lost", "accept-gap"]);
    if killed {
        ended.shown(&pair.outbox);
    }
    let parked = outbox.query("SELECT count(*) FROM outbox_router.dead_letters").await;
    assert_eq!(parked[0].get::<_, i64>(0), 0, "no dead letter was lost");
}
