//! Routers that are killed, cut off or frozen while they read in bites, and others that wait.

use rand::Rng;

use super::{MODES, settings};
use crate::standby::{TIMEOUT, all_stop, as_promised, two_behind_proxies};
use crate::support::comparison::Repeats;
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::proxy::{Network, Proxy};
use crate::support::router::Router;
use crate::support::seed;
use crate::support::signal::Signal;
use crate::support::writers::Writers;

/// Between two statements nobody reads the slot, so the lock tells who has it.
async fn held_by_another(outbox: &Outbox, before: i32) {
    eventually("another session holds the lock", async || holder(outbox).await.filter(|pid| *pid != before))
        .await;
}

async fn holder(outbox: &Outbox) -> Option<i32> {
    let sql = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted \
               AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    Some(outbox.query(sql).await.first()?.get(0))
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
        let before = eventually("the lock is held", async || holder(&outbox).await).await;
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
async fn bites_of_frozen_routers_are_taken_over() {
    for mode in MODES {
        let stop = |router: &Router, _: &Proxy| router.signal(Signal::Stop);
        let go_on = |router: &Router, _: &Proxy| router.signal(Signal::Continue);
        taken_over(mode, stop, go_on, Repeats::Late).await;
    }
}

#[tokio::test]
async fn bites_of_routers_that_are_cut_off_are_taken_over() {
    for mode in MODES {
        let cut = |_: &Router, proxy: &Proxy| proxy.set(Network::BLACK_HOLE);
        let open = |_: &Router, proxy: &Proxy| proxy.set(Network::OPEN);
        taken_over(mode, cut, open, Repeats::Restarts(4)).await;
    }
}
