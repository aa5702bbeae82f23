//! The broker stops, is killed or freezes, and returns.

use std::time::Instant;

use rand::Rng;

use crate::invariants::feedback_never_starves::{TIMEOUT, a_silent_reader_is_dropped, server_with_timeout};
use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::outbox::Outbox;
use crate::support::private_kafka::PrivateKafka;
use crate::support::router::{Router, waits};
use crate::support::seed;
use crate::support::settings::{MODES, Settings};
use crate::support::writers::Writers;

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn broker_stopped_for_longer_than_wal_sender_timeout_and_back() {
    let server = server_with_timeout().await;
    let broker = PrivateKafka::start(&[]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, broker.client());
    let settings = Settings::new(&outbox, &kafka).set("postgres.wal_sender_timeout", TIMEOUT);
    let mut router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..101).await;
    outbox.all_confirmed().await;
    let walsender = outbox.active_pid().await;

    // some events are in flight when the broker stops, others are written while it is away
    outbox.insert_numbers("order", "a", 101..201).await;
    broker.stop();
    outbox.insert_numbers("order", "a", 201..301).await;
    outbox.insert_numbers("customer", "b", 1..101).await;
    for _ in 0..2 {
        a_silent_reader_is_dropped(&server).await;
    }
    router.logs("no broker can be reached").await;
    assert_eq!(router.get_now("/healthz").await.0, 200);
    broker.start_again();
    let back = Instant::now();
    kafka.holds(&outbox.name, 101).await;
    println!("the broker is back: the next record {:?} later", back.elapsed());

    outbox.insert_numbers("order", "a", 301..401).await;
    outbox.all_confirmed().await;
    assert_eq!(outbox.slot().await.unwrap().active_pid, Some(walsender), "dropped\n{}", router.log());
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
}

/// Applications write, and the broker is killed at random points while one router keeps running.
pub(crate) async fn broker_killed_at_random_points(
    broker: &PrivateKafka,
    outbox: &Outbox,
    settings: &Settings,
    kills: usize,
) {
    let (mut random, kafka) = (seed::random(), broker.client());
    let mut router = Router::active(settings).await;
    let writers = Writers::start(outbox, 2, &mut random).await;
    let mut seen = 0;
    for _ in 0..kills {
        kafka.holds(&outbox.name, seen + random.random_range(1..400)).await;
        broker.kill();
        broker.start_again();
        seen = eventually("the broker answers again", async || kafka.count(&outbox.name).await.ok()).await;
    }
    kafka.holds(&outbox.name, seen + 1).await;
    writers.finish().await;
    outbox.all_confirmed().await;
    router.assert_running();
    router.stop().await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn broker_killed_at_random_points_loses_nothing_and_keeps_order_per_aggregate() {
    const KILLS: usize = 2;
    let broker = PrivateKafka::that_is_killed().await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    broker_killed_at_random_points(&broker, &outbox, &Settings::new(&outbox, &kafka), KILLS).await;
    // each of three topics may end the producer
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(3 * KILLS)).await;
}

/// The router then advises the user to skip the transaction of the event. That must not skip what came before it.
#[tokio::test]
async fn broker_away_an_unsendable_event_waits_for_earlier_ones() {
    let broker = PrivateKafka::that_is_killed().await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    let settings = Settings::new(&outbox, &kafka).set("delivery.shutdown_timeout", "0s");
    let mut router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..2).await;
    outbox.all_confirmed().await;
    broker.kill();
    outbox.insert_numbers("order", "a", 2..3).await;
    outbox.insert("two words", "b", "{}").await;
    outbox.insert_numbers("order", "a", 3..4).await;
    router.logs("stopping once everything before it is acknowledged").await;
    router.logs("no broker can be reached").await;
    router.assert_running();

    broker.start_again();
    let ended = router.ended().await;
    assert_eq!(ended.status.code(), Some(3), "{}", ended.log);
    ended.says(&["two words", "Nothing was skipped"]);
    settings.run_suggested_command(&ended);
    let router = Router::active(&settings).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let numbers: Vec<_> = kafka.records(&outbox.name).await.iter().map(|record| record.number()).collect();
    assert_eq!(numbers, [1, 2, 3]);
}

#[tokio::test]
async fn broker_frozen_is_logged_once_with_a_reason() {
    let broker = PrivateKafka::start(&[]).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    let settings = Settings::new(&outbox, &kafka).set("kafka.'socket.timeout.ms'", 2_000);
    let mut router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..2).await;
    outbox.all_confirmed().await;
    let before = router.log().len();
    broker.freeze();
    outbox.insert_numbers("order", "a", 2..3).await;
    router.logs("no broker can be reached").await;
    router.logs("the broker does not answer").await;
    // a busy broker may exceed the timeout before it is frozen, and after it
    let log = router.log().split_off(before);
    broker.thaw();
    assert_eq!(log.matches("no broker can be reached").count(), 1, "{log}");
    assert!(!log.contains("Timed out"), "{log}");
    outbox.all_confirmed().await;
    router.stop().await;
}

/// Requests time out only after a minute, which is too late for an explanation.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn broker_frozen_is_explained_before_its_requests_time_out() {
    for mode in MODES {
        let broker = PrivateKafka::start(&[]).await;
        let (outbox, kafka) = (Outbox::new().await, broker.client());
        let mut router = Router::active(&Settings::new(&outbox, &kafka).set("delivery.mode", mode)).await;
        outbox.insert_numbers("order", "a", 1..2).await;
        outbox.all_confirmed().await;
        broker.freeze();
        outbox.insert_numbers("order", "a", 2..3).await;
        let reason = router.shows("a reason", |status| status["reason"].as_str().map(str::to_owned)).await;
        assert!(reason.contains("a broker does not answer"), "{mode}: {reason}");
        let (ready, text) = router.get_now("/readyz").await;
        assert!(ready == 503 && text.contains(&reason), "{mode}: {ready} {text}");
        router.logs("a broker does not answer").await;
        let log = router.log();
        assert!(!log.contains("brokers answer"), "{mode}: {log}");
        broker.thaw();
        outbox.all_confirmed().await;
        router.ready().await;
        router.stop().await;
        kafka.holds(&outbox.name, 2).await;
    }
}

/// The checkpoint is not acknowledged, so the slot does not advance.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn broker_frozen_while_no_event_waits_is_explained_too() {
    let broker = PrivateKafka::start(&[]).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    let mut router = Router::active(&Settings::new(&outbox, &kafka)).await;
    outbox.insert_numbers("order", "a", 1..2).await;
    outbox.all_confirmed().await;
    broker.freeze();
    outbox.execute("SELECT pg_logical_emit_message(true, 'of another', 'message')").await;
    let reason = router.shows("a reason", |status| status["reason"].as_str().map(str::to_owned)).await;
    assert!(reason.contains("a broker does not answer"), "{reason}");
    // later the broker may answer that it has lost its session
    assert!(!router.log().contains("brokers answer"), "{}", router.log());
    broker.thaw();
    router.logs("positions are written again").await;
    outbox.all_confirmed().await;
    router.ready().await;
    router.stop().await;
}

/// A broker that was frozen for longer than its session answers for a moment that there are no brokers, and librdkafka then
/// forgets them all.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn broker_frozen_until_its_session_expired_is_found_again() {
    let broker = PrivateKafka::start(&[]).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    // longer than broker.session.timeout.ms
    let settings = Settings::new(&outbox, &kafka).set("kafka.'socket.timeout.ms'", 4000);
    let mut router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..2).await;
    outbox.all_confirmed().await;
    for n in 2..4 {
        broker.freeze();
        outbox.insert_numbers("order", "a", n..n + 1).await;
        router.shows("it waits for Kafka", |status| waits(status).then_some(())).await;
        broker.thaw();
        outbox.all_confirmed().await;
        router.ready().await;
    }
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(2)).await;
}

/// No record is in flight that could fail or be acknowledged, so only the state shows the outage.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn broker_away_and_its_return_are_shown_by_state_and_readiness() {
    let broker = PrivateKafka::start(&[]).await;
    let outbox = Outbox::new().await;
    let mut router = Router::active(&Settings::new(&outbox, &broker.client())).await;
    broker.stop();
    // its topic does not exist yet, so the event cannot even be sent
    outbox.insert("order", "a", "{}").await;
    let named = |status: &serde_json::Value| {
        let (state, peer) = (status["state"].as_str()?, status["peer"].as_str()?);
        let waits = status["lag"]["seconds"].as_f64()? > 0.0;
        (state == "reconnecting" && peer == "kafka" && waits).then_some(())
    };
    router.shows("the router is reconnecting to Kafka, and an event waits", named).await;
    assert_eq!(router.get_now("/readyz").await.0, 503);
    assert_eq!(router.get_now("/healthz").await.0, 200);
    broker.start_again();
    router.ready().await;
    outbox.all_confirmed().await;
    router.stop().await;
}
