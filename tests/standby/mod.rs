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
use crate::support::settings::{MODES, Settings};
use crate::support::signal::Signal;
use crate::support::writers::Writers;

/// `wal_sender_timeout` where a router has to lose the slot. On a slow machine a router may get no processor time for a quarter
/// of it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(6);

fn settings(outbox: &Outbox, kafka: &Kafka, mode: &str) -> Settings {
    Settings::new(outbox, kafka).set("delivery.mode", mode)
}

/// The same with [`TIMEOUT`].
fn impatient(outbox: &Outbox, kafka: &Kafka, mode: &str) -> Settings {
    settings(outbox, kafka, mode).set("postgres.wal_sender_timeout", format!("{}s", TIMEOUT.as_secs()))
}

/// Asserts what this mode promises to consumers. Only at-least-once allows `repeats`.
pub(crate) async fn delivered_as_promised(outbox: &Outbox, kafka: &Kafka, mode: &str, repeats: Repeats) {
    let records: Vec<Record> = kafka.committed(&outbox.name).await.unwrap();
    same(outbox, &records, if mode == "exactly-once" { Repeats::Never } else { repeats }).await;
}

/// Stops the routers after everything written is confirmed, and asserts that none has ended before.
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
async fn standby_reports_which_session_it_waits_for() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = settings(&outbox, &kafka, "exactly-once");
    let active = Router::active(&settings).await;
    let mut standby = Router::active(&settings).await;
    let reason = standby
        .shows("it waits", |status| (status["state"] == "waiting").then(|| status["reason"].clone()))
        .await;
    let pid = outbox.active_pid().await.to_string();
    assert!(reason.as_str().unwrap().contains(&pid), "{reason}");
    let (status, text) = standby.get_now("/readyz").await;
    assert!(status == 200 && text.contains("waiting") && text.contains(&outbox.name), "{status} {text}");
    let (_, metrics) = standby.get_now("/metrics").await;
    assert!(metrics.contains("outbox_router_state{state=\"waiting\"} 1"), "{metrics}");
    assert!(metrics.contains("outbox_router_state{state=\"active\"} 0"), "{metrics}");
    // the standby does not disturb the active router
    outbox.insert_numbers("order", "a", 1..11).await;
    outbox.all_confirmed().await;
    active.stop().await;
    outbox.insert_numbers("order", "a", 11..21).await;
    outbox.all_confirmed().await;
    standby.shows("it is active", |status| (status["state"] == "active").then_some(())).await;
    standby.stop().await;
    delivered_as_promised(&outbox, &kafka, "exactly-once", Repeats::Never).await;
}

/// Kills the active router so many times, each time after some further `events`.
async fn killed(mode: &str, kills: usize, mut events: impl FnMut() -> usize) {
    let mut random = seed::random();
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = settings(&outbox, &kafka, mode);
    let mut routers = vec![Router::active(&settings).await, Router::start(&settings)];
    let writers = Writers::start(&outbox, 4, &mut random).await;
    let mut seen = 0;
    for _ in 0..kills {
        // three routers run at a time, and one of them is active
        routers.push(Router::start(&settings));
        kafka.holds(&outbox.name, seen + events()).await;
        let active = eventually("a router is active", async || routers.iter().position(is_active)).await;
        let before = outbox.active_pid().await;
        let since = Instant::now();
        routers.remove(active).kill();
        read_by_another(&outbox, before).await;
        println!("standby: {mode}: the slot is read again {:?} after a SIGKILL", since.elapsed());
        seen = kafka.count(&outbox.name).await.unwrap();
    }
    kafka.holds(&outbox.name, seen + 1).await;
    all_stop(&outbox, writers, routers).await;
    delivered_as_promised(&outbox, &kafka, mode, Repeats::Restarts(kills)).await;
}

/// The index of the active router, once the other one waits.
pub(crate) async fn active_of(routers: &[Router; 2]) -> usize {
    eventually("one router is active, and the other one waits", async || {
        let [one, other] = routers.each_ref().map(Router::status);
        match (one?["state"].as_str()?, other?["state"].as_str()?) {
            ("active", "waiting") => Some(0),
            ("waiting", "active") => Some(1),
            _ => None,
        }
    })
    .await
}

fn is_active(router: &Router) -> bool {
    router.status().is_some_and(|status| status["state"] == "active")
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn standby_takes_over_from_killed_routers_at_least_once() {
    let mut random = seed::random();
    killed(MODES[0], 6, || random.random_range(1..400)).await;
}

#[tokio::test]
async fn standby_takes_over_from_killed_routers_exactly_once() {
    killed(MODES[1], 3, || 200).await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn standby_takes_over_from_routers_killed_at_random_points_exactly_once() {
    let mut random = seed::random();
    killed(MODES[1], 6, || random.random_range(1..400)).await;
}

/// Two routers, each with a proxy to Postgres. The first one is active.
pub(crate) async fn two_behind_proxies(settings: &Settings, outbox: &Outbox) -> ([Proxy; 2], [Router; 2]) {
    let proxies = [Proxy::to(outbox.address()), Proxy::to(outbox.address())];
    let behind = |proxy: &Proxy| settings.clone().reached_at(outbox, &proxy.address());
    let routers = [Router::active(&behind(&proxies[0])).await, Router::start(&behind(&proxies[1]))];
    (proxies, routers)
}

/// Cuts the active router off from Postgres, but not from Kafka, while it has many events to send.
async fn cut(mode: &str) {
    const CUTS: usize = 3;
    let mut random = seed::random();
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = impatient(&outbox, &kafka, mode);
    let (proxies, mut routers) = two_behind_proxies(&settings, &outbox).await;
    let writers = Writers::start(&outbox, 4, &mut random).await;
    let mut seen = 0;
    for _ in 0..CUTS {
        kafka.holds(&outbox.name, seen + random.random_range(1..400)).await;
        // on a busy machine they may have changed roles
        let active = active_of(&routers).await;
        let before = outbox.active_pid().await;
        let since = Instant::now();
        proxies[active].set(Network::BLACK_HOLE);
        read_by_another(&outbox, before).await;
        println!("standby: {mode}: the slot is read again {:?} after a cut", since.elapsed());
        // It notices that Postgres is silent or, if it is slow, learns from Kafka that another router has taken over. The order
        // of the records shows that it sends nothing after its successor.
        routers[active]
            .shows("it has noticed that it is cut off", |status| (status["state"] != "active").then_some(()))
            .await;
        seen = kafka.count(&outbox.name).await.unwrap();
        kafka.holds(&outbox.name, seen + 1).await;
        proxies[active].set(Network::OPEN);
    }
    all_stop(&outbox, writers, routers).await;
    delivered_as_promised(&outbox, &kafka, mode, Repeats::Restarts(CUTS)).await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn standby_takes_over_from_routers_that_are_cut_off_at_least_once() {
    cut(MODES[0]).await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn standby_takes_over_from_routers_that_are_cut_off_exactly_once() {
    cut(MODES[1]).await;
}

/// A hop that terminates TCP still accepts what the router sends to Postgres. The router waits for Kafka, which does not answer,
/// so it does not read what Postgres sends either.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn standby_takes_over_when_router_waits_for_kafka_and_has_lost_postgres() {
    let (to_postgres, to_kafka) = (Proxy::to("127.0.0.1:9"), Proxy::to("127.0.0.1:9"));
    let broker = PrivateKafka::behind(&to_kafka).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    to_postgres.forward_to(outbox.address());
    let settings = impatient(&outbox, &kafka, MODES[0])
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
    eventually("the first router has ended its producer, or has sent everything", async || {
        let empty = first.status()?["in_flight"]["records"] == 0;
        (empty || first.log().contains(LOST)).then_some(())
    })
    .await;
    to_postgres.set(Network::OPEN);
    first.logs("waiting for the slot").await;
    first.stop().await;
    second.stop().await;
    // no record of the first router comes after those of the second one
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(1)).await;
}

/// Freezes the active router for longer than the timeout, and lets it continue.
async fn frozen(mode: &str) {
    const FREEZES: usize = 4;
    let mut random = seed::random();
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = impatient(&outbox, &kafka, mode);
    let routers = [Router::active(&settings).await, Router::start(&settings)];
    let writers = Writers::start(&outbox, 4, &mut random).await;
    let mut seen = 0;
    for _ in 0..FREEZES {
        kafka.holds(&outbox.name, seen + random.random_range(1..400)).await;
        let active = active_of(&routers).await;
        let before = outbox.active_pid().await;
        routers[active].signal(Signal::Stop);
        read_by_another(&outbox, before).await;
        seen = kafka.count(&outbox.name).await.unwrap();
        kafka.holds(&outbox.name, seen + 100).await;
        routers[active].signal(Signal::Continue);
        seen = kafka.count(&outbox.name).await.unwrap();
    }
    all_stop(&outbox, writers, routers).await;
    // a request that it had handed to the network may arrive after the records of its successor
    delivered_as_promised(&outbox, &kafka, mode, Repeats::Late).await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn standby_takes_over_from_frozen_routers_that_continue_at_least_once() {
    frozen(MODES[0]).await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn standby_takes_over_from_frozen_routers_that_continue_exactly_once() {
    frozen(MODES[1]).await;
}

/// The first router has the slot's lock, and waits for Kafka before it starts to stream. The second one may wait for
/// longer than sessions may be idle.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn standby_takes_over_from_routers_frozen_during_startup() {
    let broker = PrivateKafka::start(&[]).await;
    for mode in MODES {
        let (outbox, kafka) = (Outbox::new().await, broker.client());
        let settings = impatient(&outbox, &kafka, mode);
        broker.freeze();
        let first = Router::start(&settings);
        let before = outbox.locked_by_other_than(0).await;
        let mut second = Router::start(&settings);
        second.logs("waiting for the slot").await;
        first.signal(Signal::Stop);
        outbox.locked_by_other_than(before).await;
        first.signal(Signal::Continue);
        second.logs("no Kafka broker answers").await;
        broker.thaw();
        outbox.insert_numbers("order", "a", 1..4).await;
        outbox.all_confirmed().await;
        first.stop().await;
        let log = second.stop().await.log;
        assert!(!log.contains("idle-session timeout"), "{log}");
        same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
    }
}

/// The database has `idle_session_timeout`. A standby's session for catalogue queries is idle for as long as another router is
/// active, and an active router's between two queries of the catalogue watch.
#[tokio::test]
async fn standby_takes_over_at_once_after_waiting_longer_than_idle_session_timeout() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    // the test's own session is older, so the setting does not apply to it
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
        let [queries, walsender] = [0, 1].map(|n| sessions[n].get::<_, i32>(0));
        let waited = format!(
            "SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {queries} \
             AND clock_timestamp() < state_change + interval '1 s')"
        );
        eventually("the session for queries was idle for a second, or is gone", async || {
            outbox.query(&waited).await.pop()
        })
        .await;
        let log = active.log();
        assert!(!log.contains("idle-session timeout"), "{log}");
        active.kill();
        read_by_another(&outbox, before).await;
        let active = outbox.active_pid().await;
        outbox.insert_numbers("order", mode, 1..4).await;
        outbox.all_confirmed().await;
        let log = standby.stop().await.log;
        assert!(!log.contains("idle-session timeout"), "{log}");
        assert_eq!(active, walsender, "{log}");
    }
    same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), Repeats::Never).await;
}
