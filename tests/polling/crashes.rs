//! Routers that are killed, or lose Kafka or Postgres, with rows that they have claimed.

use crate::polling::{BY_STATUS, polled};
use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::mock::Mock;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::settings::Settings;

/// An outbox, and a broker that can be shut down, whose topic holds one event already.
async fn with_mock(lease: &str) -> (Outbox, Mock, Settings, Router) {
    let mock = Mock::start(1);
    let (outbox, settings) = polled(&mock.client()).await;
    mock.create_topic(&outbox.topic("order"), 1, 1);
    let settings = settings.set("source.lease", lease);
    let router = Router::active(&settings).await;
    outbox.insert("order", "a", "{\"n\": 1}").await;
    outbox.all_published().await;
    (outbox, mock, settings, router)
}

async fn claimed(outbox: &Outbox) {
    let claims = "SELECT count(*)::text FROM outbox_router.poll_claims WHERE NOT ended";
    eventually("rows are claimed", async || (outbox.text(claims).await != "0").then_some(())).await;
}

/// Ends the session of a router.
async fn terminate_session(outbox: &Outbox) {
    let sessions = "SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_activity \
                    WHERE datname = current_database() AND application_name LIKE '%outbox_router'";
    eventually("the session is gone", async || (outbox.text(sessions).await == "0").then_some(())).await;
}

/// Ends the leases of routers that are gone.
async fn leases_expire(outbox: &Outbox) {
    // its last statement would claim the rows again
    terminate_session(outbox).await;
    outbox.execute("UPDATE outbox_router.poll_claims SET lease_until = now()").await;
}

#[tokio::test]
async fn while_kafka_is_down_attempts_grow_and_rows_stay_new() {
    let (outbox, mock, _, router) = with_mock("10s").await;
    mock.down(1);
    outbox.insert("order", "a", "{\"n\": 2}").await;
    let tried =
        "SELECT concat_ws(' ', status, refusals, attempts > 0) FROM outbox ORDER BY position DESC LIMIT 1";
    eventually("the row was tried", async || (outbox.text(tried).await == "NEW 0 t").then_some(())).await;
    mock.up(1);
    outbox.all_published().await;
    router.stop().await;
    assert_eq!(outbox.text(tried).await, "PUBLISHED 0 t");
    same(&outbox, &mock.client().records(&outbox.name).await, Repeats::Late).await;
}

#[tokio::test]
async fn a_router_that_is_killed_before_it_publishes_repeats_nothing() {
    let (outbox, mock, settings, router) = with_mock("1h").await;
    mock.down(1);
    outbox.insert("order", "a", "{\"n\": 2}").await;
    claimed(&outbox).await;
    router.kill();
    mock.up(1);
    leases_expire(&outbox).await;
    let router = Router::active(&settings).await;
    outbox.all_published().await;
    router.stop().await;
    assert_eq!(
        outbox.text("SELECT string_agg(attempts::text, ' ' ORDER BY position) FROM outbox").await,
        "1 2"
    );
    same(&outbox, &mock.client().records(&outbox.name).await, Repeats::Never).await;
}

#[tokio::test]
async fn a_router_that_is_killed_between_publishing_and_marking_repeats_a_row_with_its_id() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    let id = outbox.insert("order", "a", "{\"n\": 1}").await;
    // it can be read, and not be marked
    let mut client = outbox.client().await;
    let locked = client.transaction().await.unwrap();
    locked.batch_execute("SELECT FROM outbox FOR UPDATE").await.unwrap();
    let router = Router::active(&settings).await;
    kafka.holds(&outbox.name, 1).await;
    router.kill();
    // its session would wait for the lock, and mark the row
    terminate_session(&outbox).await;
    locked.commit().await.unwrap();
    assert_eq!(outbox.text(BY_STATUS).await, "NEW 1");
    leases_expire(&outbox).await;
    let router = Router::active(&settings).await;
    outbox.all_published().await;
    router.stop().await;
    let records = kafka.records(&outbox.name).await;
    assert_eq!(records.iter().filter(|record| record.id() == id).count(), 2);
    same(&outbox, &records, Repeats::Late).await;
}

#[tokio::test]
async fn a_router_that_is_killed_after_marking_repeats_nothing() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..20).await;
    outbox.all_published().await;
    router.kill();
    leases_expire(&outbox).await;
    outbox.insert_numbers("order", "a", 20..40).await;
    Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

/// Between the session that has claimed rows and the one that goes on, sessions fail to start.
#[tokio::test]
async fn claims_of_a_lost_session_are_released_by_the_next_one_that_starts() {
    let (outbox, mock, _, mut router) = with_mock("1h").await;
    mock.down(1);
    outbox.insert("order", "a", "{\"n\": 2}").await;
    claimed(&outbox).await;
    terminate_session(&outbox).await;
    router.logs("terminating connection due to administrator command").await;
    router.logs("no Kafka broker answers").await;
    mock.up(1);
    outbox.all_published().await;
    router.stop().await;
    same(&outbox, &mock.client().records(&outbox.name).await, Repeats::Late).await;
}
