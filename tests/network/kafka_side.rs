//! Faults of the network between the router and Kafka.

use std::time::{Duration, Instant};

use super::{detected, events_again, insert_large, warnings};
use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::private_kafka::PrivateKafka;
use crate::support::proxy::{Cut, Direction, Network, Proxy};
use crate::support::router::Router;
use crate::support::seed;
use crate::support::settings::Settings;
use crate::support::writers::Writers;

/// A broker that advertises the proxy to the router; the test connects to it directly.
struct Setup {
    outbox: Outbox,
    kafka: Kafka,
    proxy: Proxy,
    router: Router,
    writers: Writers,
    _broker: PrivateKafka,
}

impl Setup {
    async fn new(more: impl FnOnce(Settings) -> Settings) -> Self {
        let proxy = Proxy::to("127.0.0.1:9");
        let broker = PrivateKafka::behind(&proxy).await;
        let (outbox, kafka) = (Outbox::new().await, broker.client());
        let settings = Settings::new(&outbox, &kafka).set("kafka.'bootstrap.servers'", proxy.address());
        let router = Router::active(&more(settings)).await;
        let writers = Writers::start(&outbox, 2, &mut seed::random()).await;
        kafka.holds(&outbox.name, 20).await;
        Setup { outbox, kafka, proxy, router, writers, _broker: broker }
    }

    /// Breaks the network, waits until the router reports this reason, mends it, and waits for events.
    async fn broken(
        &mut self,
        case: &str,
        reason: &str,
        fault: impl FnOnce(&Proxy),
        mend: impl FnOnce(&Proxy),
    ) {
        let walsender = self.outbox.active_pid().await;
        let (since, mark) = (Instant::now(), self.router.log().len());
        fault(&self.proxy);
        detected(case, since, &mut self.router, mark, "kafka", reason).await;
        // on a busy machine a request may time out later too
        let mut warnings = warnings(&self.router, mark, "");
        // a checkpoint that was under way is named too, if its request runs out of time first
        warnings.retain(|line| !line.starts_with("the position cannot be written"));
        assert_eq!(warnings.len(), 1, "{case}: {warnings:#?}");
        let since = Instant::now();
        mend(&self.proxy);
        events_again(case, since, &self.outbox, &self.kafka).await;
        self.router.ready().await;
        assert_eq!(self.outbox.active_pid().await, walsender, "{case}: the stream broke as well");
    }

    /// Checks that nothing is lost, out of order or repeated.
    async fn end(mut self) {
        self.writers.finish().await;
        self.outbox.all_confirmed().await;
        self.router.assert_running();
        self.router.stop().await;
        same(&self.outbox, &self.kafka.records(&self.outbox.name).await, Repeats::Never).await;
    }
}

fn open(proxy: &Proxy) {
    proxy.set(Network::OPEN);
}

/// With this timeout, librdkafka finds that no broker can be reached before the router reports a broker that does not answer.
fn short_socket_timeout(settings: Settings) -> Settings {
    settings.set("kafka.'socket.timeout.ms'", 1_000)
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn network_to_kafka_lost_in_both_directions_or_in_one() {
    let mut setup = Setup::new(short_socket_timeout).await;
    for (case, network) in [
        ("Kafka, black hole", Network::BLACK_HOLE),
        ("Kafka, answers lost", Network::TO_CLIENT_LOST),
        ("Kafka, requests lost", Network::TO_SERVER_LOST),
    ] {
        setup.broken(case, "no broker can be reached", |proxy| proxy.set(network), open).await;
    }
    setup.end().await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn network_to_kafka_cut_in_the_middle_of_a_message() {
    let setup = Setup::new(|settings| settings).await;
    for (n, how) in [Cut::Fin, Cut::Rst].into_iter().enumerate() {
        for (direction, after) in [(Direction::ToServer, 300_000), (Direction::ToClient, 7)] {
            let case = format!("Kafka, {how:?} in a message {direction:?}");
            let cuts = setup.proxy.cuts();
            setup.proxy.cut_after(direction, after, how);
            insert_large(&setup.outbox, &format!("{direction:?} {n}")).await;
            eventually(&case, async || (setup.proxy.cuts() > cuts).then_some(())).await;
            events_again(&case, Instant::now(), &setup.outbox, &setup.kafka).await;
        }
    }
    setup.end().await;
}

/// New connections are refused, and then accepted but never answered.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn network_to_kafka_without_new_connections() {
    let mut setup = Setup::new(short_socket_timeout).await;
    let down = "no broker can be reached";
    setup.broken("Kafka, connections refused", down, Proxy::refuse, Proxy::listen).await;
    let mute = |proxy: &Proxy| {
        proxy.refuse();
        proxy.set(Network::BLACK_HOLE);
        proxy.listen();
    };
    setup.broken("Kafka, connections without an answer", down, mute, open).await;
    setup.end().await;
}

/// A round trip of half a second must not be taken for a fault.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn network_to_kafka_slow_causes_no_reconnect() {
    let setup = Setup::new(|settings| settings).await;
    setup.proxy.set(Network::delayed(Duration::from_millis(250)));
    events_again("Kafka, 250 ms each way", Instant::now(), &setup.outbox, &setup.kafka).await;
    // a new topic takes many round trips, and records of other partitions may overtake it
    setup.outbox.insert("slow", "a", "{\"n\": 1}").await;
    setup.kafka.holds(&setup.outbox.topic("slow"), 1).await;
    let status = setup.router.status().unwrap();
    assert!(status["ready"] == true && status["reconnects"]["kafka"] == 0, "{status}");
    setup.proxy.set(Network::OPEN);
    setup.end().await;
}
