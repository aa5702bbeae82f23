//! Acknowledged events are not sent again, whether the router or Postgres crashed.

use crate::invariants::feedback_never_starves::PG_HBA;
use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::mock::Mock;
use crate::support::outbox::Outbox;
use crate::support::postgres::{PrivatePostgres, Shutdown};
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::signal::{Signal, send};

/// Kills router and Postgres after everything written by `write` was confirmed, so that the slot returns with an older position.
/// Postgres saves slots only at its checkpoints, so without the router's checkpoints everything would be sent again.
async fn crash(server: &PrivatePostgres, outbox: &Outbox, settings: &Settings, write: impl AsyncFnOnce()) {
    outbox.execute("CHECKPOINT").await;
    let background_writer = server.background_writer().await;
    assert!(send(Signal::Stop, background_writer));
    let router = Router::active(settings).await;
    // at the first confirmation after a checkpoint, the walsender saves the slot
    outbox.all_confirmed().await;
    let before = outbox.lsn().await;
    write().await;
    outbox.all_confirmed().await;
    router.kill();
    assert!(send(Signal::Continue, background_writer));
    server.stop(Shutdown::Immediate);
    server.start_again();
    let confirmed = outbox.confirmed().await;
    assert!(confirmed <= before, "Postgres has saved the slot: {confirmed} is after {before}");
}

#[tokio::test]
async fn checkpoints_survive_a_crash_of_postgres_and_a_kill_of_the_router() {
    let server = PrivatePostgres::start(PG_HBA, &["checkpoint_timeout=1h"]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    crash(&server, &outbox, &settings, async || outbox.insert_numbers("order", "a", 1..101).await).await;
    outbox.insert_numbers("order", "a", 101..103).await;
    let router = Router::start(&settings);
    outbox.all_confirmed().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

/// The stream repeats changes before the checkpoint. They were delivered, so the router must not apply newer settings to them.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn checkpoints_skip_changes_that_newer_settings_would_refuse() {
    let server = PrivatePostgres::start(PG_HBA, &["checkpoint_timeout=1h"]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    outbox.execute("ALTER PUBLICATION outbox_router SET (publish = 'insert, update')").await;
    outbox.execute("ALTER TABLE outbox REPLICA IDENTITY FULL").await;
    let settings = Settings::new(&outbox, &kafka);
    let update_and_insert = "BEGIN; UPDATE outbox SET event_type = 'x'; \
         INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '{\"n\": 2}'); COMMIT";
    outbox.insert_numbers("order", "a", 1..2).await;
    crash(&server, &outbox, &settings, async || outbox.execute(update_and_insert).await).await;
    outbox.execute("ALTER TABLE outbox ADD COLUMN tenant text").await;
    let settings = settings.set("route.headers.tenant", "${tenant}").set("outbox.on_update", "stop");
    outbox.insert_numbers("order", "a", 3..5).await;
    let router = Router::start(&settings);
    outbox.all_confirmed().await;
    router.stop().await;
    let numbers: Vec<_> = kafka.records(&outbox.name).await.iter().map(|record| record.number()).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
}

#[tokio::test]
async fn checkpoints_may_be_inside_a_transaction() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let topic = outbox.topic("order");
    kafka.create_topic(&topic, 1, &[]).await;
    // the row in the middle is too large for the topic
    outbox
        .execute(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) SELECT 'order', 'a', \
             jsonb_build_object('n', n, 'text', CASE n WHEN 700 THEN repeat('x', 1500000) ELSE '' END) \
             FROM generate_series(1, 1000) n",
        )
        .await;
    let settings = Settings::new(&outbox, &kafka);
    Router::start(&settings).exits(3).await.says(&["larger than"]);
    let sent = kafka.count(&outbox.name).await.unwrap();
    assert_eq!(sent, 699);
    kafka.alter_topic(&topic, &[("max.message.bytes", "2000000")]).await;
    let router = Router::start(&settings);
    outbox.all_confirmed().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

/// The router confirms nothing to Postgres before the checkpoint is durable, but still delivers events.
#[tokio::test]
async fn checkpoints_that_cannot_be_written_hold_back_the_slot_but_not_events() {
    let (outbox, mock) = (Outbox::new().await, Mock::start(2));
    mock.create_topic(&outbox.topic("order"), 1, 1);
    mock.cluster.partition_leader("outbox-router.positions", 0, Some(2)).unwrap();
    let kafka = mock.client();
    let router = Router::active(&Settings::new(&outbox, &kafka)).await;
    outbox.insert("order", "a", "{\"n\": 1}").await;
    outbox.all_confirmed().await;
    mock.down(2);
    let confirmed = outbox.confirmed().await;
    let event = outbox.lsn().await;
    outbox.insert("order", "a", "{\"n\": 2}").await;
    kafka.holds_in(&outbox.topic("order"), 1, 2).await;
    outbox.watched().await;
    let now = outbox.confirmed().await;
    // an earlier idle checkpoint may still have been written
    assert!(now >= confirmed && now <= event, "confirmed up to {now}, past {event}");
    mock.up(2);
    outbox.all_confirmed().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

#[tokio::test]
async fn checkpoints_are_written_again_after_their_topic_was_deleted() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let topic = format!("{}_positions", outbox.name);
    let settings = Settings::new(&outbox, &kafka).set("delivery.positions_topic", topic.as_str());
    let mut router = Router::active(&settings).await;
    outbox.insert("order", "a", "{\"n\": 1}").await;
    outbox.all_confirmed().await;
    kafka.wait_for_setting(&topic, "cleanup.policy", "compact").await;
    kafka.delete_topic(&topic).await;
    outbox.insert("order", "a", "{\"n\": 2}").await;
    router.logs("positions are written again").await;
    outbox.all_confirmed().await;
    let log = router.stop().await.log;
    let line = log.lines().find(|line| line.contains("the position cannot be written")).unwrap();
    assert!(line.contains("remedy=\"The router repeats it"), "{line}");
    assert!(line.contains("the topic was deleted") || !line.contains("Unknown"), "{line}");
    assert_eq!(kafka.count(&outbox.topic("order")).await, Ok(2));
    assert!(kafka.count(&topic).await.unwrap() > 0);
}

/// If the router's key has an unreadable record, the router starts only after a user has deleted it and accepted the slot's
/// position.
#[tokio::test]
async fn checkpoints_that_cannot_be_read_stop_the_router_until_they_are_deleted() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let topic = format!("{}_positions", outbox.name);
    let settings = Settings::new(&outbox, &kafka)
        .set("name", outbox.name.as_str())
        .set("delivery.positions_topic", topic.as_str());
    let router = Router::active(&settings).await;
    outbox.insert("order", "a", "{\"n\": 1}").await;
    outbox.all_confirmed().await;
    router.stop().await;
    for value in ["garbage", r#"{"version": 2}"#] {
        kafka.write(&topic, &outbox.name, Some(value)).await;
        let ended = Router::start(&settings).exits(3).await;
        ended.says(&["cannot be read", &topic, "tombstone"]);
        if value == "garbage" {
            ended.shown(&outbox);
        }
        kafka.write(&topic, &outbox.name, None).await;
        let ended = Router::start(&settings).exits(3).await;
        let mut router = Router::with_arguments(&settings, &["--accept-gap", ended.accept_gap_position()]);
        router.ready().await;
        router.stop().await;
    }
    assert_eq!(kafka.count(&outbox.topic("order")).await, Ok(1));
}

/// Two routers alternate. Each resumes where the other one stopped, and neither reports the other's checkpoints as a conflict.
#[tokio::test]
async fn checkpoints_are_taken_over_by_the_other_router() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let mut first = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..11).await;
    outbox.all_confirmed().await;
    let mut second = Router::active(&settings).await;
    second.shows("it is a standby", |status| (status["state"] == "waiting").then_some(())).await;
    for turn in 1..4 {
        let pid = outbox.active_pid().await;
        first.signal(Signal::Stop);
        outbox.execute(&format!("SELECT pg_terminate_backend({pid})")).await;
        second.shows("it has taken over", |status| (status["state"] == "active").then_some(())).await;
        outbox.insert_numbers("order", "a", turn * 10 + 1..turn * 10 + 11).await;
        outbox.all_confirmed().await;
        first.signal(Signal::Continue);
        first.shows("it is a standby", |status| (status["state"] == "waiting").then_some(())).await;
        std::mem::swap(&mut first, &mut second);
    }
    eventually("all events are there", async || (kafka.count(&outbox.name).await == Ok(40)).then_some(()))
        .await;
    drop((first, second));
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}
