//! While bulk reads are read nobody streams the slot itself: it can be dropped or moved without a word from the server.

use super::{MODES, backlog, settings, slow};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::router::{Ended, Router};
use crate::support::signal::Signal;

/// What somebody does to the slot of a router that reads in bulk and cannot be done for long, while it does not look. How the
/// router ends.
async fn ended_by(sql: &str, message: &str) {
    for mode in MODES {
        ended(mode, sql, None).await.says(&[message]);
    }
    ended(MODES[0], sql, Some("")).await.says(&[message]);
}

async fn ended(mode: &str, sql: &str, positions: Option<&str>) -> Ended {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    backlog(&outbox, 3_000).await;
    let mut settings = slow(settings(&outbox, &kafka, mode, "1"));
    if let Some(topic) = positions {
        settings = settings.set("delivery.positions_topic", topic);
    }
    let mut router = Router::start(&settings);
    kafka.holds(&outbox.name, 100).await;
    // frozen: a slot cannot be made again at one stroke, and a server with other transactions takes its time
    eventually("it was frozen between two questions", async || {
        router.shows("it reads in bulk", |status| (status["in_bites"] == true).then_some(())).await;
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
    assert!(kafka.count(&outbox.name).await.unwrap() < 30_000, "{mode}: there was nothing left to be lost");
    ended
}

#[tokio::test]
async fn bulk_reads_of_a_slot_that_is_dropped_end_the_router() {
    ended_by("SELECT pg_drop_replication_slot('SLOT')", "does not exist").await;
}

#[tokio::test]
async fn bulk_reads_of_a_slot_that_is_made_again_end_the_router() {
    let again = "SELECT pg_drop_replication_slot('SLOT'); SELECT pg_create_logical_replication_slot('SLOT', 'pgoutput')";
    ended_by(again, "was moved").await;
}

#[tokio::test]
async fn bulk_reads_of_a_slot_that_another_has_moved_end_the_router() {
    let moved = "SELECT pg_replication_slot_advance('SLOT', pg_current_wal_insert_lsn())";
    ended_by(moved, "was moved").await;
}
