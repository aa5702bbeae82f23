//! Faults of the network between the router and Postgres.

use std::time::{Duration, Instant};

use super::{detected, events_again, insert_large, warnings};
use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::proxy::{Cut, Direction, Network, Proxy};
use crate::support::router::Router;
use crate::support::seed;
use crate::support::settings::Settings;
use crate::support::writers::Writers;

/// The silence after which either side gives up the other. A busy machine leaves either without processor time for a while.
const TIMEOUT: &str = "6s";

/// A router behind a proxy. The applications connect to Postgres directly.
struct Setup {
    outbox: Outbox,
    kafka: Kafka,
    proxy: Proxy,
    router: Router,
    writers: Writers,
    /// How often the test has broken the stream.
    breaks: usize,
}

impl Setup {
    async fn new() -> Self {
        Self::with_timeout(TIMEOUT).await
    }

    async fn with_timeout(timeout: &str) -> Self {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        let proxy = Proxy::to(outbox.address());
        let settings = Settings::new(&outbox, &kafka)
            .reached_at(&outbox, &proxy.address())
            .set("postgres.wal_sender_timeout", timeout);
        let router = Router::active(&settings).await;
        let writers = Writers::start(&outbox, 2, &mut seed::random()).await;
        kafka.holds(&outbox.name, 20).await;
        Setup { outbox, kafka, proxy, router, writers, breaks: 0 }
    }

    /// Breaks the network, waits until the router reports this reason, mends it, and waits for events.
    async fn broken(
        &mut self,
        case: &str,
        reason: &str,
        fault: impl FnOnce(&Proxy),
        mend: impl FnOnce(&Proxy),
    ) {
        self.breaks += 1;
        let (since, mark) = (Instant::now(), self.router.log().len());
        fault(&self.proxy);
        detected(case, since, &mut self.router, mark, "postgres", reason).await;
        // later the machine may be so busy that the stream breaks once more
        let warnings = warnings(&self.router, mark, reason);
        assert_eq!(warnings.len(), 1, "{case}: {warnings:?}");
        let since = Instant::now();
        mend(&self.proxy);
        events_again(case, since, &self.outbox, &self.kafka).await;
        self.router.ready().await;
    }

    /// Checks that nothing is lost or out of order.
    async fn end(mut self) {
        self.writers.finish().await;
        self.outbox.all_confirmed().await;
        self.router.assert_running();
        let log = self.router.stop().await.log;
        // on a busy machine the stream may have broken by itself too
        let breaks = self.breaks.max(log.matches("connected; events flow").count() - 1);
        same(&self.outbox, &self.kafka.records(&self.outbox.name).await, Repeats::Restarts(breaks)).await;
    }

    /// How often the router has lost Postgres or failed to connect to it.
    fn reconnects(&self) -> Option<u64> {
        self.router.status()?["reconnects"]["postgres"].as_u64()
    }
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn network_to_postgres_lost_in_both_directions_or_in_one() {
    let mut setup = Setup::new().await;
    let open = |proxy: &Proxy| proxy.set(Network::OPEN);
    for (case, network, reason) in [
        ("Postgres, black hole", Network::BLACK_HOLE, "silent for"),
        ("Postgres, answers lost", Network::TO_CLIENT_LOST, "silent for"),
        ("Postgres, requests lost", Network::TO_SERVER_LOST, "the server closed the connection"),
    ] {
        setup.broken(case, reason, |proxy| proxy.set(network), open).await;
    }
    setup.end().await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn network_to_postgres_cut_in_the_middle_of_a_message() {
    let mut setup = Setup::new().await;
    for (case, how) in [("Postgres, FIN in a message", Cut::Fin), ("Postgres, RST in a message", Cut::Rst)] {
        let since = Instant::now();
        setup.breaks += 1;
        let (cuts, reconnects) = (setup.proxy.cuts(), setup.reconnects().unwrap());
        setup.proxy.cut_after(Direction::ToClient, 300_000, how);
        insert_large(&setup.outbox, case).await;
        eventually(case, async || (setup.proxy.cuts() > cuts).then_some(())).await;
        setup
            .router
            .shows("the stream broke", |status| {
                let broke = status["last_problem"]["what"].as_str()?.contains("the replication stream broke");
                (broke && status["reconnects"]["postgres"].as_u64()? > reconnects).then_some(())
            })
            .await;
        println!("network: {case}: known after {:.1} s", since.elapsed().as_secs_f64());
        events_again(case, since, &setup.outbox, &setup.kafka).await;
    }
    // first a status update or a query of the catalogue watch, then the server's reply at the start of a session
    for (n, how) in [Cut::Fin, Cut::Rst].into_iter().enumerate() {
        setup.breaks += 2;
        setup.proxy.cut_after(Direction::ToServer, 20, how);
        eventually("a request is cut", async || (setup.proxy.cuts() == 3 + 2 * n as u64).then_some(())).await;
        setup.proxy.refuse();
        setup.proxy.cut_after(Direction::ToClient, 20, how);
        setup.proxy.listen();
        eventually("a start is cut", async || (setup.proxy.cuts() == 4 + 2 * n as u64).then_some(())).await;
        let since = Instant::now();
        events_again(&format!("Postgres, {how:?} in a start"), since, &setup.outbox, &setup.kafka).await;
    }
    setup.end().await;
}

/// New connections are refused, and then accepted but never answered.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn network_to_postgres_without_new_connections() {
    let mut setup = Setup::new().await;
    setup.broken("Postgres, connections refused", "refused", Proxy::refuse, Proxy::listen).await;
    let mute = |proxy: &Proxy| {
        proxy.refuse();
        proxy.set(Network::BLACK_HOLE);
        proxy.listen();
    };
    let open = |proxy: &Proxy| proxy.set(Network::OPEN);
    setup.broken("Postgres, connections without an answer", "no answer within 6 s", mute, open).await;
    setup.end().await;
}

/// A round trip of half a second must not be taken for a fault.
#[tokio::test]
async fn network_to_postgres_slow_causes_no_reconnect() {
    // with TLS, a connection takes four round trips, which have to fit into it even on a busy machine
    let mut setup = Setup::with_timeout("20s").await;
    setup.proxy.set(Network::delayed(Duration::from_millis(150)));
    let since = Instant::now();
    events_again("Postgres, 150 ms each way", since, &setup.outbox, &setup.kafka).await;
    setup.outbox.watched().await;
    // the start of a session takes many round trips
    setup.breaks += 1;
    setup.proxy.refuse();
    setup.proxy.listen();
    let since = Instant::now();
    events_again("Postgres, 150 ms each way, a new connection", since, &setup.outbox, &setup.kafka).await;
    setup.outbox.watched().await;
    setup.router.ready().await;
    let status = setup.router.status().unwrap();
    assert_eq!(status["reconnects"]["postgres"], 1, "{status}");
    setup.proxy.set(Network::OPEN);
    setup.end().await;
}
