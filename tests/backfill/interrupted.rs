//! Routers that are killed, stopped, or lose a server before every row from before the slot is sent.

use super::*;
use crate::support::comparison::{Repeats, same};
use crate::support::mock::Mock;
use crate::support::router::Router;

const OF_EACH: u64 = 15_000;

/// Waits until more rows are done; true if all are.
async fn more(outbox: &Outbox, rows: u64) -> bool {
    eventually(&format!("{rows} rows are done"), async || {
        let done = done(outbox).await;
        (done >= rows).then_some(done >= OF_EACH * 4)
    })
    .await
}

/// Kills routers until all rows are sent, and returns how often.
async fn killed(outbox: &Outbox, settings: &Settings) -> usize {
    let mut kills = 0;
    for part in 1.. {
        let router = Router::start(settings);
        if more(outbox, (done(outbox).await + 7_000).min(OF_EACH * 4)).await || part > 6 {
            insert(outbox, OF_EACH + 1, OF_EACH + 10).await;
            finished(outbox).await;
            outbox.all_confirmed().await;
            router.stop().await;
            break;
        }
        router.kill();
        kills += 1;
    }
    assert!(kills >= 2, "all rows were sent before the router could be killed");
    kills
}

#[tokio::test]
async fn a_router_that_is_killed_goes_on_behind_the_last_row_that_it_knows_to_be_done() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, OF_EACH).await;
    begun(&settings, &[], OF_EACH * 4).await;
    let kills = killed(&outbox, &settings).await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(kills)).await;
}

#[tokio::test]
async fn no_row_is_sent_twice_with_transactions_however_often_the_router_is_killed() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, OF_EACH).await;
    let settings = settings.set("delivery.mode", "exactly-once");
    begun(&settings, &[], OF_EACH * 4).await;
    killed(&outbox, &settings).await;
    same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
}

#[tokio::test]
async fn a_router_that_is_stopped_repeats_nothing() {
    for positions in [true, false] {
        let kafka = Kafka::shared();
        let (outbox, mut settings) = with_rows(&kafka, OF_EACH).await;
        if !positions {
            settings = settings.set("delivery.positions_topic", false);
        }
        begun(&settings, &[], OF_EACH * 4).await;
        let router = Router::start(&settings);
        more(&outbox, 5_000).await;
        router.stop().await;
        assert!(done(&outbox).await < OF_EACH * 4);
        Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
        same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
    }
}

#[tokio::test]
async fn a_standby_goes_on_where_the_active_router_has_stopped() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, OF_EACH).await;
    begun(&settings, &[], OF_EACH * 4).await;
    let active = Router::start(&settings);
    more(&outbox, 2_000).await;
    let mut standby = Router::start(&settings);
    standby.logs("waiting for the slot").await;
    active.kill();
    finished(&outbox).await;
    insert(&outbox, OF_EACH + 1, OF_EACH + 5).await;
    outbox.all_confirmed().await;
    standby.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(1)).await;
}

#[tokio::test]
async fn a_backfill_outlives_its_servers() {
    let mock = Mock::start(1);
    let kafka = mock.client();
    let (outbox, settings) = with_rows(&kafka, OF_EACH).await;
    mock.create_topic(&outbox.topic("order"), 1, 1);
    begun(&settings, &[], OF_EACH * 4).await;
    let router = Router::start(&settings);
    more(&outbox, 1_000).await;
    mock.down(1);
    mock.up(1);
    more(&outbox, 10_000).await;
    // the session with the lock stores progress, another one reads
    for name in [format!("{0}.{0} backfill", outbox.name), format!("{0}.{0}", outbox.name)] {
        let kill = format!(
            "SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name = '{name}'"
        );
        assert_eq!(outbox.text(&kill).await, "1", "{name}");
        more(&outbox, done(&outbox).await + 5_000).await;
    }
    finished(&outbox).await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(3)).await;
}
