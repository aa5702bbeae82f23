//! How the router reacts to signals, and how it stops.

use std::os::unix::process::ExitStatusExt;

use crate::bulk_reads::slow;
use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::mock::Mock;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::settings::{MODES, Settings};
use crate::support::signal::Signal;

/// Each row is a transaction of its own, so that the router can confirm a position after each.
async fn backlog(outbox: &Outbox) {
    outbox
        .execute(
            "CREATE PROCEDURE backlog() LANGUAGE plpgsql AS $$ BEGIN FOR n IN 1..10000 LOOP \
             INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
             VALUES ('order', n % 20, jsonb_build_object('n', (n - 1) / 20 + 1)); COMMIT; END LOOP; END $$",
        )
        .await;
    outbox.execute("CALL backlog()").await;
}

async fn stopped_in_a_backlog(signal: Signal) {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    backlog(&outbox).await;
    let router = Router::start(&slow(Settings::new(&outbox, &kafka)));
    kafka.holds(&outbox.name, 100).await;
    router.signal(signal);
    router.exits(0).await;
    let sent = kafka.count(&outbox.name).await.unwrap();
    assert!(sent < 10_000, "the router had sent everything before it was stopped");

    let router = Router::start(&Settings::new(&outbox, &kafka));
    outbox.all_confirmed().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

#[tokio::test]
async fn stopping_in_a_backlog_confirms_everything_sent() {
    let stopped = stopped_in_a_backlog;
    tokio::join!(stopped(Signal::Terminate), stopped(Signal::Interrupt), stopped(Signal::Quit));
}

async fn run_until_caught_up(mode: &str, lag: &str) {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings =
        Settings::new(&outbox, &kafka).set("delivery.mode", mode).set("postgres.catch_up_lag", lag);
    let caught_up = async || {
        let ran = settings.run_async(&["run", "--until-caught-up"]).await;
        assert_eq!(ran.code, 0, "{mode} {lag}: {}", ran.err);
        assert!(ran.err.contains("caught up"), "{mode} {lag}: {}", ran.err);
    };
    backlog(&outbox).await;
    caught_up().await;
    same(&outbox, &kafka.committed_when(&outbox.name, 10_000).await, Repeats::Never).await;
    // it has confirmed the slot
    caught_up().await;
    same(&outbox, &kafka.committed_when(&outbox.name, 10_000).await, Repeats::Never).await;
    // an open transaction is not waited for
    let open = outbox.client().await;
    let insert = "BEGIN; INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'b', '{\"n\": 1}')";
    open.batch_execute(insert).await.unwrap();
    caught_up().await;
    open.batch_execute("COMMIT").await.unwrap();
    caught_up().await;
    same(&outbox, &kafka.committed_when(&outbox.name, 10_001).await, Repeats::Never).await;
}

#[tokio::test]
async fn run_until_caught_up_ends_when_what_was_committed_before_its_start_is_delivered() {
    for mode in MODES {
        tokio::join!(run_until_caught_up(mode, "64MiB"), run_until_caught_up(mode, "1"));
    }
}

/// Two brokers, a topic on the second one, and settings for it.
async fn two_brokers(shutdown_timeout: &str) -> (Outbox, Mock, Settings) {
    let (outbox, mock) = (Outbox::new().await, Mock::start(2));
    mock.create_topic(&outbox.topic("order"), 1, 2);
    let settings = Settings::new(&outbox, &mock.client()).set("delivery.shutdown_timeout", shutdown_timeout);
    (outbox, mock, settings)
}

/// Makes the router send an event that no broker acknowledges.
async fn gets_stuck(outbox: &Outbox, mock: &Mock, router: &mut Router) {
    outbox.insert("order", "a", "{\"n\": 1}").await;
    outbox.all_confirmed().await;
    mock.down(2);
    outbox.insert("order", "a", "{\"n\": 2}").await;
    router
        .shows("one record is in flight", |status| (status["in_flight"]["records"] == 1).then_some(()))
        .await;
}

/// A router with an unacknowledged event.
async fn stuck(shutdown_timeout: &str) -> (Outbox, Mock, Router) {
    let (outbox, mock, settings) = two_brokers(shutdown_timeout).await;
    let mut router = Router::active(&settings).await;
    gets_stuck(&outbox, &mock, &mut router).await;
    (outbox, mock, router)
}

async fn second_signal(first: Signal, second: Signal, code: i32) {
    let (_outbox, _mock, mut router) = stuck("10m").await;
    router.signal(first);
    router.shows("it is stopping", |status| (status["state"] == "stopping").then_some(())).await;
    assert_eq!(router.get_now("/healthz").await.0, 200);
    assert_eq!(router.get_now("/readyz").await.0, 503);
    router.signal(second);
    let ended = router.exits(code).await;
    assert_eq!(ended.status.signal(), None);
}

#[tokio::test]
async fn stopping_at_once_at_a_second_signal() {
    tokio::join!(
        second_signal(Signal::Terminate, Signal::Terminate, 128 + 15),
        second_signal(Signal::Terminate, Signal::Interrupt, 128 + 2),
        second_signal(Signal::Quit, Signal::Quit, 128 + 3),
    );
}

#[tokio::test]
async fn stopping_waits_no_longer_than_the_shutdown_timeout() {
    let (outbox, mock, router) = stuck("1s").await;
    router.signal(Signal::Terminate);
    let ended = router.exits(0).await;
    assert!(ended.log.contains("before Kafka acknowledged all records"), "{}", ended.log);

    mock.up(2);
    let kafka = mock.client();
    let router = Router::start(&Settings::new(&outbox, &kafka));
    outbox.all_confirmed().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(1)).await;
}

#[tokio::test]
async fn stopping_waits_for_the_events_in_flight() {
    let (outbox, mock, mut router) = stuck("10m").await;
    router.signal(Signal::Terminate);
    router.shows("it is stopping", |status| (status["state"] == "stopping").then_some(())).await;
    mock.up(2);
    router.exits(0).await;
    let kafka = mock.client();
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
    let router = Router::active(&Settings::new(&outbox, &kafka)).await;
    outbox.all_confirmed().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

/// Asserts that the router logs `line` after `signal`, and still delivers.
async fn ignored(signal: Signal, line: &str) {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let mut router = Router::active(&Settings::new(&outbox, &kafka)).await;
    router.signal(signal);
    router.logs(line).await;
    outbox.insert("order", "a", "{\"n\": 1}").await;
    outbox.all_confirmed().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
    // an ignored signal does not count as the first of two
    router.stop().await;
}

#[tokio::test]
async fn a_hang_up_is_ignored_and_logged() {
    ignored(Signal::HangUp, "SIGHUP is ignored: the configuration cannot be reloaded").await;
}

#[tokio::test]
async fn user_signals_are_ignored_and_logged() {
    tokio::join!(ignored(Signal::User1, "SIGUSR1 is ignored"), ignored(Signal::User2, "SIGUSR2 is ignored"));
}

#[tokio::test]
async fn an_ignored_signal_does_not_cut_the_stop_short() {
    let (outbox, mock, mut router) = stuck("10m").await;
    router.signal(Signal::Terminate);
    router.shows("it is stopping", |status| (status["state"] == "stopping").then_some(())).await;
    router.signal(Signal::HangUp);
    router.logs("SIGHUP is ignored").await;
    mock.up(2);
    router.exits(0).await;
    let kafka = mock.client();
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

/// At this level the router logs more than a pipe holds.
const EVERYTHING: &[(&str, &str)] = &[("RUST_LOG", "trace")];

#[tokio::test]
async fn stopping_and_delivery_do_not_depend_on_a_reader_of_the_log() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let (mut router, _unread) = Router::unread(&Settings::new(&outbox, &kafka), EVERYTHING);
    router.ready().await;
    outbox.insert_numbers("order", "a", 1..301).await;
    outbox.all_confirmed().await;
    assert_eq!(router.get_now("/healthz").await.0, 200);
    router.signal(Signal::Terminate);
    router.exits(0).await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

#[tokio::test]
async fn lines_dropped_while_nobody_reads_the_log_are_counted_in_it() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    // the router logs more than its queue holds
    let settings = Settings::new(&outbox, &kafka).set("kafka.debug", "all");
    let (mut router, pipe) = Router::unread(&settings, EVERYTHING);
    router.ready().await;
    outbox.insert_numbers("order", "a", 1..3001).await;
    outbox.all_confirmed().await;
    router.read(pipe);
    router.logs("log lines were dropped").await;
    // not those of the end: a router that ends does not wait long for a slow reader
    eventually("the router logs again", async || {
        let log = router.log();
        let (_, after) = log.split_once("log lines were dropped")?;
        (after.lines().count() > 1).then_some(())
    })
    .await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

#[tokio::test]
async fn stopping_at_once_at_a_second_signal_without_a_reader_of_the_log() {
    let (outbox, mock, settings) = two_brokers("10m").await;
    let (mut router, _unread) = Router::unread(&settings, EVERYTHING);
    router.ready().await;
    gets_stuck(&outbox, &mock, &mut router).await;
    router.signal(Signal::Terminate);
    router.shows("it is stopping", |status| (status["state"] == "stopping").then_some(())).await;
    router.signal(Signal::Terminate);
    router.exits(128 + 15).await;
}

#[tokio::test]
async fn stopping_writes_the_whole_log() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let (mut router, pipe) = Router::unread(&Settings::new(&outbox, &kafka), &[]);
    router.ready().await;
    router.read(pipe);
    let ended = router.stop().await;
    for line in ["starting", "stopped"] {
        assert!(ended.log.contains(line), "no {line:?} in\n{}", ended.log);
    }
    assert!(!ended.log.contains("log lines were dropped"), "{}", ended.log);
}

#[tokio::test]
async fn stopping_and_delivery_do_not_depend_on_an_open_log() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let (mut router, closed) = Router::unread(&Settings::new(&outbox, &kafka), EVERYTHING);
    drop(closed);
    router.ready().await;
    outbox.insert_numbers("order", "a", 1..101).await;
    outbox.all_confirmed().await;
    router.signal(Signal::Terminate);
    router.exits(0).await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}
