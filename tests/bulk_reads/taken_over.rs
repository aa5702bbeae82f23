//! Routers that are killed, cut off or frozen while they read in bulk, and others that wait.

use rand::Rng;

use super::{MODES, PG_HBA, backlog, settings, streams};
use crate::standby::{TIMEOUT, all_stop, as_promised, two_behind_proxies};
use crate::support::comparison::Repeats;
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::postgres::PrivatePostgres;
use crate::support::proxy::{Network, Proxy};
use crate::support::router::Router;
use crate::support::seed;
use crate::support::signal::Signal;
use crate::support::writers::Writers;

/// What a router says before it does, and after it has started.
const GOES_OVER: &str = "far behind: switching to bulk reads";
const CONNECTED: &str = "connected; events flow";

/// Only a session that takes the lock over waits for it; others ask again and again.
const WAITS: &str = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
                     AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// Between two statements nobody reads the slot, so the lock tells who has it.
async fn held_by_another(outbox: &Outbox, before: i32) {
    eventually("another session holds the lock", async || {
        outbox.lock_holder().await.filter(|pid| *pid != before)
    })
    .await;
}

async fn taken_over(
    mode: &str,
    ends: impl Fn(&Router, &Proxy),
    comes_back: impl Fn(&Router, &Proxy),
    repeats: Repeats,
) {
    let mut random = seed::random();
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = settings(&outbox, &kafka, mode, "1")
        .set("postgres.wal_sender_timeout", format!("{}s", TIMEOUT.as_secs()));
    let (proxies, mut routers) = two_behind_proxies(&settings, &outbox).await;
    let writers = Writers::start(&outbox, 4, &mut random).await;
    let mut seen = 0;
    for round in 0..4 {
        let (active, waiting) = (round % 2, (round + 1) % 2);
        routers[waiting].logs_times("waiting for the slot", 1 + round / 2).await;
        kafka.holds(&outbox.name, seen + random.random_range(1..400)).await;
        let before = eventually("the lock is held", async || outbox.lock_holder().await).await;
        ends(&routers[active], &proxies[active]);
        held_by_another(&outbox, before).await;
        seen = kafka.count(&outbox.name).await.unwrap();
        kafka.holds(&outbox.name, seen + 1).await;
        comes_back(&routers[active], &proxies[active]);
    }
    all_stop(&outbox, writers, routers).await;
    as_promised(&outbox, &kafka, mode, repeats).await;
}

#[tokio::test]
async fn bulk_reads_of_frozen_routers_are_taken_over() {
    for mode in MODES {
        let stop = |router: &Router, _: &Proxy| router.signal(Signal::Stop);
        let go_on = |router: &Router, _: &Proxy| router.signal(Signal::Continue);
        taken_over(mode, stop, go_on, Repeats::Late).await;
    }
}

#[tokio::test]
async fn bulk_reads_of_routers_that_are_cut_off_are_taken_over() {
    for mode in MODES {
        let cut = |_: &Router, proxy: &Proxy| proxy.set(Network::BLACK_HOLE);
        let open = |_: &Router, proxy: &Proxy| proxy.set(Network::OPEN);
        taken_over(mode, cut, open, Repeats::Restarts(4)).await;
    }
}

/// Between the stream and the bulk reads one session holds the lock until another has it. Twenty records at a time keep the router
/// behind until it looks.
#[tokio::test]
async fn bulk_reads_of_routers_that_are_frozen_while_they_go_over_are_taken_over() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    for mode in MODES {
        let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
        let settings = settings(&outbox, &kafka, mode, "1")
            .set("postgres.wal_sender_timeout", format!("{}s", TIMEOUT.as_secs()))
            .set("delivery.window.records", 20)
            .set("kafka.'linger.ms'", 20);
        let mut routers = [Router::active(&settings).await, Router::start(&settings)];
        for round in 0..2 {
            let (active, waiting) = (round % 2, (round + 1) % 2);
            routers[waiting].logs_times("waiting for the slot", 1 + round / 2).await;
            outbox.all_confirmed().await;
            streams(&mut routers[active]).await;
            let times = routers[active].log().matches(GOES_OVER).count();
            backlog(&outbox, 200).await;
            let starts = routers[active].log().matches(CONNECTED).count();
            routers[active].logs_times(GOES_OVER, times + 1).await;
            // the next session stands in line for twenty milliseconds, which is long enough to be seen most of the time
            while outbox.query(WAITS).await.is_empty()
                && routers[active].log().matches(CONNECTED).count() == starts
            {}
            routers[active].signal(Signal::Stop);
            let before = routers[waiting].log().matches(CONNECTED).count();
            routers[waiting].logs_times(CONNECTED, before + 1).await;
            routers[active].signal(Signal::Continue);
        }
        outbox.all_confirmed().await;
        for router in routers {
            router.stop().await;
        }
        as_promised(&outbox, &kafka, mode, Repeats::Late).await;
    }
}
