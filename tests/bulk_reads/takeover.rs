//! A standby takes over from a router that is frozen or cut off while it reads in bulk.

use rand::Rng;

use super::{MODES, PG_HBA, backlog, is_streaming, settings, slow};
use crate::standby::{TIMEOUT, active_of, all_stop, delivered_as_promised, two_behind_proxies};
use crate::support::comparison::Repeats;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::postgres::PrivatePostgres;
use crate::support::proxy::{Network, Proxy};
use crate::support::router::Router;
use crate::support::seed;
use crate::support::signal::Signal;
use crate::support::writers::Writers;

/// Log lines: before a router switches to bulk reads, and after each connection.
const SWITCHING: &str = "far behind: switching to bulk reads";
const CONNECTED: &str = "connected; events flow";

/// Only the session that takes the lock over from its predecessor waits for it. Standbys poll.
const WAITS_FOR_LOCK: &str = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
                    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

async fn takes_over(
    mode: &str,
    disable: impl Fn(&Router, &Proxy),
    restore: impl Fn(&Router, &Proxy),
    repeats: Repeats,
) {
    let mut random = seed::random();
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = settings(&outbox, &kafka, mode, "1")
        .set("postgres.wal_sender_timeout", format!("{}s", TIMEOUT.as_secs()));
    let (proxies, routers) = two_behind_proxies(&settings, &outbox).await;
    let writers = Writers::start(&outbox, 4, &mut random).await;
    let mut seen = 0;
    for _ in 0..4 {
        kafka.holds(&outbox.name, seen + random.random_range(1..400)).await;
        let active = active_of(&routers).await;
        // between two bulk reads the slot has no walsender, so only its lock shows which router has it
        let before = outbox.locked_by_other_than(0).await;
        disable(&routers[active], &proxies[active]);
        outbox.locked_by_other_than(before).await;
        seen = kafka.count(&outbox.name).await.unwrap();
        kafka.holds(&outbox.name, seen + 1).await;
        restore(&routers[active], &proxies[active]);
    }
    all_stop(&outbox, writers, routers).await;
    delivered_as_promised(&outbox, &kafka, mode, repeats).await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn standby_takes_over_bulk_reads_of_frozen_routers() {
    for mode in MODES {
        let stop = |router: &Router, _: &Proxy| router.signal(Signal::Stop);
        let resume = |router: &Router, _: &Proxy| router.signal(Signal::Continue);
        takes_over(mode, stop, resume, Repeats::Late).await;
    }
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn standby_takes_over_bulk_reads_of_routers_that_are_cut_off() {
    for mode in MODES {
        let cut = |_: &Router, proxy: &Proxy| proxy.set(Network::BLACK_HOLE);
        let open = |_: &Router, proxy: &Proxy| proxy.set(Network::OPEN);
        takes_over(mode, cut, open, Repeats::Restarts(4)).await;
    }
}

/// While the router switches, its old session holds the lock until the new one has it. Slow delivery keeps the router behind
/// until it checks its lag.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn standby_takes_over_when_router_freezes_while_switching_to_bulk_reads() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    for mode in MODES {
        let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
        let settings = slow(settings(&outbox, &kafka, mode, "1"))
            .set("postgres.wal_sender_timeout", format!("{}s", TIMEOUT.as_secs()));
        let mut routers = [Router::active(&settings).await, Router::start(&settings)];
        for round in 0..2 {
            let (active, waiting) = (round % 2, (round + 1) % 2);
            routers[waiting].logs_times("waiting for the slot", 1 + round / 2).await;
            outbox.all_confirmed().await;
            is_streaming(&mut routers[active]).await;
            let times = routers[active].log().matches(SWITCHING).count();
            backlog(&outbox, 200).await;
            let starts = routers[active].log().matches(CONNECTED).count();
            routers[active].logs_times(SWITCHING, times + 1).await;
            // the new session waits for the lock for twenty milliseconds, so this loop sees it most of the time
            while outbox.query(WAITS_FOR_LOCK).await.is_empty()
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
        delivered_as_promised(&outbox, &kafka, mode, Repeats::Late).await;
    }
}
