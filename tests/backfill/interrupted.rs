//! Routers that are killed, stopped, or lose a server before every row from before the slot is sent.

use super::*;
use crate::support::comparison::{Repeats, same};
use crate::support::mock::Mock;
use crate::support::router::Router;

/// More than can be sent slowly in half a minute.
const OF_EACH: u64 = 10_000;

/// More than half a page.
const SOME: u64 = 1_500;

/// Kills three routers that send slowly, lets another one send the rest, and returns how many were killed.
async fn killed(outbox: &Outbox, settings: &Settings) -> usize {
    const KILLS: usize = 3;
    for _ in 0..KILLS {
        let router = Router::start(&slowly(settings));
        more(outbox, SOME).await;
        router.kill();
    }
    assert!(done(outbox).await < OF_EACH * 4);
    let router = Router::start(settings);
    insert(outbox, OF_EACH + 1, OF_EACH + 10).await;
    finished(outbox).await;
    outbox.all_confirmed().await;
    router.stop().await;
    KILLS
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
#[ignore = "runs in scripts/test --full"]
async fn no_row_is_sent_twice_with_transactions_however_often_the_router_is_killed() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, OF_EACH).await;
    let settings = settings.set("delivery.mode", "exactly-once");
    begun(&settings, &[], OF_EACH * 4).await;
    killed(&outbox, &settings).await;
    same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
}

/// Stops a router that sends slowly, and lets another one send the rest.
async fn stopped(settings: impl FnOnce(Settings) -> Settings) {
    let kafka = Kafka::shared();
    let (outbox, default) = with_rows(&kafka, OF_EACH).await;
    let settings = settings(default);
    begun(&settings, &[], OF_EACH * 4).await;
    let router = Router::start(&slowly(&settings));
    more(&outbox, SOME).await;
    router.stop().await;
    assert!(done(&outbox).await < OF_EACH * 4);
    Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

#[tokio::test]
async fn a_router_that_is_stopped_repeats_nothing() {
    stopped(|settings| settings).await;
}

#[tokio::test]
async fn a_router_that_is_stopped_repeats_nothing_without_a_positions_topic() {
    stopped(|settings| settings.set("delivery.positions_topic", false)).await;
}

#[tokio::test]
async fn a_standby_goes_on_where_the_active_router_has_stopped() {
    let kafka = Kafka::shared();
    let (outbox, settings) = with_rows(&kafka, OF_EACH).await;
    begun(&settings, &[], OF_EACH * 4).await;
    let active = Router::start(&slowly(&settings));
    more(&outbox, SOME).await;
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
    let router = Router::start(&slowly(&settings));
    more(&outbox, SOME).await;
    mock.down(1);
    mock.up(1);
    more(&outbox, SOME).await;
    // the session with the lock stores progress, another one reads
    for name in [format!("{0}.{0} backfill", outbox.name), format!("{0}.{0}", outbox.name)] {
        let kill = format!(
            "SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name = '{name}'"
        );
        // it may just be connecting again
        eventually(&format!("{name} is terminated"), async || {
            (outbox.text(&kill).await == "1").then_some(())
        })
        .await;
        more(&outbox, SOME).await;
    }
    router.stop().await;
    assert!(done(&outbox).await < OF_EACH * 4);
    Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(3)).await;
}
