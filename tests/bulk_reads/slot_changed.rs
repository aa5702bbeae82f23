//! Between bulk reads no walsender holds the slot, so the server lets anyone drop or move it.

use super::{MODES, backlog, is_reading_in_bulk, settings, slow};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::router::{Ended, Router};
use crate::support::signal::Signal;

/// Asserts that the router ends with the message after somebody has run `sql` on the slot between two bulk reads.
async fn ended_by(sql: &str, message: &str) {
    for mode in MODES {
        router_end(mode, sql, None).await.says(&[message]);
    }
    router_end(MODES[0], sql, Some("")).await.says(&[message]);
}

async fn router_end(mode: &str, sql: &str, positions: Option<&str>) -> Ended {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    backlog(&outbox, 3_000).await;
    let mut settings = slow(settings(&outbox, &kafka, mode, "1"));
    if let Some(topic) = positions {
        settings = settings.set("delivery.positions_topic", topic);
    }
    let mut router = Router::start(&settings);
    kafka.holds(&outbox.name, 100).await;
    // frozen, because to recreate a slot takes time, above all on a server with other transactions
    eventually("the router is frozen between two bulk reads", async || {
        is_reading_in_bulk(&mut router).await;
        router.signal(Signal::Stop);
        let slot = outbox.slot().await.unwrap();
        if slot.active_pid.is_some() {
            router.signal(Signal::Continue);
        }
        slot.active_pid.is_none().then_some(())
    })
    .await;
    outbox.execute(&sql.replace("SLOT", &outbox.name)).await;
    router.signal(Signal::Continue);
    let ended = router.exits(3).await;
    assert!(
        kafka.count(&outbox.name).await.unwrap() < 30_000,
        "{mode}: the router had sent everything already"
    );
    ended
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bulk_reads_of_a_dropped_slot_end_the_router() {
    ended_by("SELECT pg_drop_replication_slot('SLOT')", "does not exist").await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bulk_reads_of_a_recreated_slot_end_the_router() {
    let recreate = "SELECT pg_drop_replication_slot('SLOT'); SELECT pg_create_logical_replication_slot('SLOT', 'pgoutput')";
    ended_by(recreate, "was moved").await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bulk_reads_of_a_slot_that_was_moved_end_the_router() {
    let advance = "SELECT pg_replication_slot_advance('SLOT', pg_current_wal_insert_lsn())";
    ended_by(advance, "was moved").await;
}
