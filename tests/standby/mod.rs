//! Several routers on one slot: one is active, the others wait.

use std::time::{Duration, Instant};

use rand::Rng;

use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::kafka::{Kafka, Record};
use crate::support::outbox::Outbox;
use crate::support::private_kafka::PrivateKafka;
use crate::support::proxy::{Network, Proxy};
use crate::support::router::Router;
use crate::support::seed;
use crate::support::settings::Settings;
use crate::support::signal::{Signal, send};
use crate::support::writers::Writers;

const MODES: [&str; 2] = ["at-least-once", "exactly-once"];

/// How long the server waits for a router. A quarter of it is what a slow machine may take from a router.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(4);

fn settings(outbox: &Outbox, kafka: &Kafka, mode: &str) -> Settings {
    Settings::new(outbox, kafka)
        .set("delivery.mode", mode)
        .set("postgres.wal_sender_timeout", format!("{}s", TIMEOUT.as_secs()))
}

/// What consumers may count on in this mode after so many takeovers.
pub(crate) async fn as_promised(outbox: &Outbox, kafka: &Kafka, mode: &str, repeats: Repeats) {
    let records: Vec<Record> = kafka.committed(&outbox.name).await.unwrap();
    same(outbox, &records, if mode == "exactly-once" { Repeats::Never } else { repeats }).await;
}

/// When all that was written is confirmed, and none has ended before.
pub(crate) async fn all_stop(outbox: &Outbox, writers: Writers, routers: impl IntoIterator<Item = Router>) {
    writers.finish().await;
    outbox.all_confirmed().await;
    for mut router in routers {
        router.assert_running();
        router.stop().await;
    }
}

async fn read_by_another(outbox: &Outbox, before: i32) {
    eventually("another walsender reads the slot", async || {
        outbox.slot().await?.active_pid.filter(|pid| *pid != before)
    })
    .await;
}

#[tokio::test]
async fn standby_says_that_it_waits_and_for_whom() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = settings(&outbox, &kafka, "exactly-once");
    let active = Router::active(&settings).await;
    let mut standby = Router::active(&settings).await;
    let state = standby
        .shows("it waits", |status| (status["state"] == "waiting").then(|| status["reason"].clone()))
        .await;
    let pid = outbox.active_pid().await.to_string();
    assert!(state.as_str().unwrap().contains(&pid), "{state}");
    let (status, text) = standby.get("/readyz").unwrap();
    assert!(status == 200 && text.contains("waiting") && text.contains(&outbox.name), "{status} {text}");
    let (_, metrics) = standby.get("/metrics").unwrap();
    assert!(metrics.contains("outbox_router_state{state=\"waiting\"} 1"), "{metrics}");
    assert!(metrics.contains("outbox_router_state{state=\"active\"} 0"), "{metrics}");
    // it touches nothing: the active one is not shut out
    outbox.insert_numbers("order", "a", 1..11).await;
    outbox.all_confirmed().await;
    active.stop().await;
    outbox.insert_numbers("order", "a", 11..21).await;
    outbox.all_confirmed().await;
    standby.shows("it is active", |status| (status["state"] == "active").then_some(())).await;
    standby.stop().await;
    as_promised(&outbox, &kafka, "exactly-once", Repeats::Never).await;
}

async fn killed(mode: &str) {
    const KILLS: usize = 6;
    let mut random = seed::random();
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = settings(&outbox, &kafka, mode);
    let mut routers = vec![Router::active(&settings).await, Router::start(&settings)];
    let writers = Writers::start(&outbox, 4, &mut random).await;
    let mut seen = 0;
    for _ in 0..KILLS {
        // three at a time, of which one is active
        routers.push(Router::start(&settings));
        kafka.holds(&outbox.name, seen + random.random_range(1..400)).await;
        let before = outbox.active_pid().await;
        let active = routers.iter().position(is_active).unwrap_or_default();
        let since = Instant::now();
        routers.remove(active).kill();
        read_by_another(&outbox, before).await;
        println!("standby: {mode}: the slot is read again {:?} after a SIGKILL", since.elapsed());
        seen = kafka.count(&outbox.name).await.unwrap();
    }
    kafka.holds(&outbox.name, seen + 1).await;
    all_stop(&outbox, writers, routers).await;
    as_promised(&outbox, &kafka, mode, Repeats::Restarts(KILLS)).await;
}

fn is_active(router: &Router) -> bool {
    router.status().is_some_and(|status| status["state"] == "active")
}

#[tokio::test]
async fn standby_takes_over_from_killed_routers_at_least_once() {
    killed(MODES[0]).await;
}

#[tokio::test]
async fn standby_takes_over_from_killed_routers_exactly_once() {
    killed(MODES[1]).await;
}

/// Two routers, of which the first is active, each behind a proxy of its own.
pub(crate) async fn two_behind_proxies(settings: &Settings, outbox: &Outbox) -> ([Proxy; 2], [Router; 2]) {
    let proxies = [Proxy::to(outbox.address()), Proxy::to(outbox.address())];
    let behind = |proxy: &Proxy| settings.clone().reached_at(outbox, &proxy.address());
    let routers = [Router::active(&behind(&proxies[0])).await, Router::start(&behind(&proxies[1]))];
    (proxies, routers)
}

/// Cut off from Postgres, and not from Kafka, while it has plenty to send.
async fn cut(mode: &str) {
    const CUTS: usize = 3;
    let mut random = seed::random();
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = settings(&outbox, &kafka, mode);
    let (proxies, mut routers) = two_behind_proxies(&settings, &outbox).await;
    let writers = Writers::start(&outbox, 4, &mut random).await;
    let mut seen = 0;
    for round in 0..CUTS {
        let (active, waiting) = (round % 2, (round + 1) % 2);
        routers[waiting].logs_times("waiting for the slot", 1 + round / 2).await;
        kafka.holds(&outbox.name, seen + random.random_range(1..400)).await;
        let before = outbox.active_pid().await;
        let since = Instant::now();
        proxies[active].set(Network::BLACK_HOLE);
        read_by_another(&outbox, before).await;
        println!("standby: {mode}: the slot is read again {:?} after a cut", since.elapsed());
        // it finds out by itself: that Postgres is silent, or, where it is slow, from Kafka that another has come after it;
        // that it sends nothing after its successor shows in the order of the records
        routers[active]
            .shows("it knows that it is cut off", |status| (status["state"] != "active").then_some(()))
            .await;
        seen = kafka.count(&outbox.name).await.unwrap();
        kafka.holds(&outbox.name, seen + 1).await;
        proxies[active].set(Network::OPEN);
    }
    all_stop(&outbox, writers, routers).await;
    as_promised(&outbox, &kafka, mode, Repeats::Restarts(CUTS)).await;
}

#[tokio::test]
async fn standby_takes_over_from_routers_that_are_cut_off_at_least_once() {
    cut(MODES[0]).await;
}

#[tokio::test]
async fn standby_takes_over_from_routers_that_are_cut_off_exactly_once() {
    cut(MODES[1]).await;
}

/// A hop that ends TCP goes on taking what a router sends to Postgres. This one is held back by Kafka, which answers nothing, so
/// it does not read what Postgres sends either.
#[tokio::test]
async fn standby_takes_over_from_routers_that_wait_for_kafka_and_do_not_see_that_postgres_is_lost() {
    let (to_postgres, to_kafka) = (Proxy::to("127.0.0.1:9"), Proxy::to("127.0.0.1:9"));
    let broker = PrivateKafka::behind(&to_kafka).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    to_postgres.lead_to(outbox.address());
    let settings = settings(&outbox, &kafka, MODES[0])
        .set("delivery.window.records", 50)
        .set("kafka.'batch.num.messages'", 5);
    let behind = settings
        .clone()
        .reached_at(&outbox, &to_postgres.address())
        .set("kafka.'bootstrap.servers'", to_kafka.address());
    let mut first = Router::active(&behind).await;
    outbox.insert_numbers("order", "a", 1..11).await;
    outbox.all_confirmed().await;
    let mut second = Router::start(&settings);
    second.logs("waiting for the slot").await;
    let before = outbox.active_pid().await;

    to_kafka.set(Network::TO_CLIENT_LOST);
    outbox.insert_numbers("order", "a", 11..611).await;
    first.shows("its window is full", |status| (status["in_flight"]["records"] == 50).then_some(())).await;
    to_postgres.set(Network::SERVER_SIDE_LOST);
    read_by_another(&outbox, before).await;
    outbox.insert_numbers("order", "a", 611..621).await;
    outbox.all_confirmed().await;

    to_kafka.set(Network::OPEN);
    const LOST: &str = "Postgres has been silent for";
    eventually("the first one has ended its producer, or sent what it had", async || {
        let empty = first.status()?["in_flight"]["records"] == 0;
        (empty || first.log().contains(LOST)).then_some(())
    })
    .await;
    to_postgres.set(Network::OPEN);
    first.logs("waiting for the slot").await;
    first.stop().await;
    second.stop().await;
    // nothing of the first one stands behind what the second one has sent
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(1)).await;
}

/// Frozen for longer than it is waited for, and back.
async fn frozen(mode: &str) {
    const FREEZES: usize = 4;
    let mut random = seed::random();
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = settings(&outbox, &kafka, mode);
    let mut routers = [Router::active(&settings).await, Router::start(&settings)];
    let writers = Writers::start(&outbox, 4, &mut random).await;
    let mut seen = 0;
    for round in 0..FREEZES {
        let (active, waiting) = (round % 2, (round + 1) % 2);
        routers[waiting].logs_times("waiting for the slot", 1 + round / 2).await;
        kafka.holds(&outbox.name, seen + random.random_range(1..400)).await;
        let before = outbox.active_pid().await;
        routers[active].signal(Signal::Stop);
        read_by_another(&outbox, before).await;
        seen = kafka.count(&outbox.name).await.unwrap();
        kafka.holds(&outbox.name, seen + 100).await;
        routers[active].signal(Signal::Continue);
        seen = kafka.count(&outbox.name).await.unwrap();
    }
    all_stop(&outbox, writers, routers).await;
    // what it had handed to the network may arrive behind what its successor has sent
    as_promised(&outbox, &kafka, mode, Repeats::Late).await;
}

#[tokio::test]
async fn standby_takes_over_from_frozen_routers_that_come_back_at_least_once() {
    frozen(MODES[0]).await;
}

#[tokio::test]
async fn standby_takes_over_from_frozen_routers_that_come_back_exactly_once() {
    frozen(MODES[1]).await;
}

/// One that has the slot's lock and waits for Kafka before it streams anything. Another may wait longer than a session may be idle.
#[tokio::test]
async fn standby_takes_over_from_routers_that_are_frozen_as_they_start() {
    let broker = PrivateKafka::start(&[]).await;
    for mode in MODES {
        let (outbox, kafka) = (Outbox::new().await, broker.client());
        let settings = settings(&outbox, &kafka, mode);
        assert!(send(Signal::Stop, broker.pid()));
        let first = Router::start(&settings);
        let before = eventually("the lock is held", async || outbox.lock_holder().await).await;
        let mut second = Router::start(&settings);
        second.logs("waiting for the slot").await;
        first.signal(Signal::Stop);
        eventually("another session holds the lock", async || {
            outbox.lock_holder().await.filter(|pid| *pid != before)
        })
        .await;
        first.signal(Signal::Continue);
        second.logs("no Kafka broker answers").await;
        assert!(send(Signal::Continue, broker.pid()));
        outbox.insert_numbers("order", "a", 1..4).await;
        outbox.all_confirmed().await;
        first.stop().await;
        let log = second.stop().await.log;
        assert!(!log.contains("idle-session timeout"), "{log}");
        same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
    }
}

/// A database with a limit on idle sessions. A standby's session for the catalogues is idle for as long as another router is active,
/// and an active router's between two looks.
#[tokio::test]
async fn standby_that_waits_for_longer_than_sessions_may_be_idle_takes_over_at_once() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    // the session of the test is older, and keeps what it has
    outbox.execute(&format!("ALTER DATABASE {} SET idle_session_timeout = '500ms'", outbox.name)).await;
    for mode in MODES {
        let settings = settings(&outbox, &kafka, mode);
        let name = format!("standby-{mode}");
        let url = format!("{}?application_name={name}", outbox.url());
        let active = Router::active(&settings).await;
        let before = outbox.active_pid().await;
        let mut standby = Router::start(&settings.clone().set("postgres.url", url));
        standby.logs("waiting for the slot").await;
        let sessions = outbox
            .query(&format!(
                "SELECT pid, backend_type = 'walsender' FROM pg_stat_activity \
                 WHERE datname = current_database() AND application_name = '{name}' ORDER BY 2"
            ))
            .await;
        let [looks, waits] = [0, 1].map(|n| sessions[n].get::<_, i32>(0));
        let waited = format!(
            "SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {looks} \
             AND clock_timestamp() < state_change + interval '1 s')"
        );
        eventually("it has been idle for long, or is gone", async || outbox.query(&waited).await.pop()).await;
        let log = active.log();
        assert!(!log.contains("idle-session timeout"), "{log}");
        active.kill();
        read_by_another(&outbox, before).await;
        let reads = outbox.active_pid().await;
        outbox.insert_numbers("order", mode, 1..4).await;
        outbox.all_confirmed().await;
        let log = standby.stop().await.log;
        assert!(!log.contains("idle-session timeout"), "{log}");
        assert_eq!(reads, waits, "{log}");
    }
    same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
}
