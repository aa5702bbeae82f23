//! Between the router and Postgres.

use std::time::{Duration, Instant};

use super::{events_again, found_out, insert_large, warnings};
use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::proxy::{Cut, Direction, Network, Proxy};
use crate::support::router::Router;
use crate::support::seed;
use crate::support::settings::Settings;
use crate::support::writers::Writers;

/// How long either side waits for the other.
const TIMEOUT: &str = "2s";

/// A router behind a network, and applications that are not.
struct Setting {
    outbox: Outbox,
    kafka: Kafka,
    proxy: Proxy,
    router: Router,
    writers: Writers,
    /// How often the stream was broken.
    breaks: usize,
}

impl Setting {
    async fn new() -> Self {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        let proxy = Proxy::to(outbox.address());
        let settings = Settings::new(&outbox, &kafka)
            .reached_at(&outbox, &proxy.address())
            .set("postgres.wal_sender_timeout", TIMEOUT);
        let router = Router::active(&settings).await;
        let writers = Writers::start(&outbox, 2, &mut seed::random()).await;
        kafka.holds(&outbox.name, 20).await;
        Setting { outbox, kafka, proxy, router, writers, breaks: 0 }
    }

    /// Breaks the network, waits until that is known for this reason, mends it, and waits for events.
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
        found_out(case, since, &mut self.router, mark, "postgres", reason).await;
        let since = Instant::now();
        mend(&self.proxy);
        events_again(case, since, &self.outbox, &self.kafka).await;
        self.router.ready().await;
        let said = warnings(&self.router, mark, reason);
        assert_eq!(said.len(), 1, "{case}: {said:?}");
    }

    /// Nothing is lost or out of order.
    async fn end(mut self) {
        self.writers.finish().await;
        self.outbox.all_confirmed().await;
        self.router.assert_running();
        self.router.stop().await;
        same(&self.outbox, &self.kafka.records(&self.outbox.name).await, Repeats::Restarts(self.breaks))
            .await;
    }
}

#[tokio::test]
async fn network_to_postgres_lost_in_both_directions_or_in_one() {
    let mut setting = Setting::new().await;
    let open = |proxy: &Proxy| proxy.set(Network::OPEN);
    for (case, network, reason) in [
        ("Postgres, black hole", Network::BLACK_HOLE, "silent for"),
        ("Postgres, answers lost", Network::TO_CLIENT_LOST, "silent for"),
        ("Postgres, requests lost", Network::TO_SERVER_LOST, "the server closed the connection"),
    ] {
        setting.broken(case, reason, |proxy| proxy.set(network), open).await;
    }
    setting.end().await;
}

#[tokio::test]
async fn network_to_postgres_cut_in_the_middle_of_a_message() {
    let mut setting = Setting::new().await;
    for (case, how) in [("Postgres, FIN in a message", Cut::Fin), ("Postgres, RST in a message", Cut::Rst)] {
        let since = Instant::now();
        setting.breaks += 1;
        let breaks = setting.breaks;
        setting.proxy.cut_after(Direction::ToClient, 300_000, how);
        insert_large(&setting.outbox, case).await;
        setting
            .router
            .shows("the stream broke", |status| {
                let broke = status["last_problem"]["what"].as_str()?.contains("the replication stream broke");
                (broke && status["reconnects"]["postgres"].as_u64()? >= breaks as u64).then_some(())
            })
            .await;
        println!("network: {case}: known after {:.1} s", since.elapsed().as_secs_f64());
        events_again(case, since, &setting.outbox, &setting.kafka).await;
    }
    // a status update or a look at the catalogues, and then what the server says at the start of a session
    for (n, how) in [Cut::Fin, Cut::Rst].into_iter().enumerate() {
        setting.breaks += 2;
        setting.proxy.cut_after(Direction::ToServer, 20, how);
        eventually("a request is cut", async || (setting.proxy.cuts() == 3 + 2 * n as u64).then_some(()))
            .await;
        setting.proxy.refuse();
        setting.proxy.cut_after(Direction::ToClient, 20, how);
        setting.proxy.listen();
        eventually("a start is cut", async || (setting.proxy.cuts() == 4 + 2 * n as u64).then_some(())).await;
        let since = Instant::now();
        events_again(&format!("Postgres, {how:?} in a start"), since, &setting.outbox, &setting.kafka).await;
    }
    setting.end().await;
}

/// Refused, and then taken and never answered.
#[tokio::test]
async fn network_to_postgres_without_new_connections() {
    let mut setting = Setting::new().await;
    setting.broken("Postgres, connections refused", "refused", Proxy::refuse, Proxy::listen).await;
    let mute = |proxy: &Proxy| {
        proxy.refuse();
        proxy.set(Network::BLACK_HOLE);
        proxy.listen();
    };
    let open = |proxy: &Proxy| proxy.set(Network::OPEN);
    setting.broken("Postgres, connections without an answer", "no answer within 2 s", mute, open).await;
    setting.end().await;
}

/// Half a second there and back is slow, and no fault.
#[tokio::test]
async fn network_to_postgres_slow_is_no_fault() {
    let mut setting = Setting::new().await;
    setting.proxy.set(Network::delayed(Duration::from_millis(250)));
    let since = Instant::now();
    events_again("Postgres, 250 ms each way", since, &setting.outbox, &setting.kafka).await;
    setting.outbox.watched().await;
    // a start has many round trips
    setting.breaks += 1;
    setting.proxy.refuse();
    setting.proxy.listen();
    let since = Instant::now();
    events_again("Postgres, 250 ms each way, a new connection", since, &setting.outbox, &setting.kafka).await;
    setting.outbox.watched().await;
    setting.router.ready().await;
    let status = setting.router.status().unwrap();
    assert_eq!(status["reconnects"]["postgres"], 1, "{status}");
    setting.proxy.set(Network::OPEN);
    setting.end().await;
}
