//! Between the router and Kafka.

use std::time::{Duration, Instant};

use super::{events_again, found_out, insert_large, warnings};
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

/// A broker that sends the router through the network, and the test past it.
struct Setting {
    outbox: Outbox,
    kafka: Kafka,
    proxy: Proxy,
    router: Router,
    writers: Writers,
    _broker: PrivateKafka,
}

impl Setting {
    async fn new(more: impl FnOnce(Settings) -> Settings) -> Self {
        let proxy = Proxy::to("127.0.0.1:9");
        let broker = PrivateKafka::behind(&proxy).await;
        let (outbox, kafka) = (Outbox::new().await, broker.client());
        let settings = Settings::new(&outbox, &kafka).set("kafka.'bootstrap.servers'", proxy.address());
        let router = Router::active(&more(settings)).await;
        let writers = Writers::start(&outbox, 2, &mut seed::random()).await;
        kafka.holds(&outbox.name, 20).await;
        Setting { outbox, kafka, proxy, router, writers, _broker: broker }
    }

    /// Breaks the network, waits until that is known for this reason, mends it, and waits for events.
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
        found_out(case, since, &mut self.router, mark, "kafka", reason).await;
        let since = Instant::now();
        mend(&self.proxy);
        events_again(case, since, &self.outbox, &self.kafka).await;
        self.router.ready().await;
        let said = warnings(&self.router, mark, "");
        assert_eq!(said.len(), 1, "{case}: {said:#?}");
        assert_eq!(self.outbox.active_pid().await, walsender, "{case}: the stream was broken too");
    }

    /// Nothing is lost, out of order, or there twice.
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

/// librdkafka knows that no broker can be reached before the router says that one does not answer.
fn gives_up_soon(settings: Settings) -> Settings {
    settings.set("kafka.'socket.timeout.ms'", 1_000)
}

#[tokio::test]
async fn network_to_kafka_lost_in_both_directions_or_in_one() {
    let mut setting = Setting::new(gives_up_soon).await;
    for (case, network) in [
        ("Kafka, black hole", Network::BLACK_HOLE),
        ("Kafka, answers lost", Network::TO_CLIENT_LOST),
        ("Kafka, requests lost", Network::TO_SERVER_LOST),
    ] {
        setting.broken(case, "no broker can be reached", |proxy| proxy.set(network), open).await;
    }
    setting.end().await;
}

#[tokio::test]
async fn network_to_kafka_cut_in_the_middle_of_a_message() {
    let setting = Setting::new(|settings| settings).await;
    for (n, how) in [Cut::Fin, Cut::Rst].into_iter().enumerate() {
        for (direction, after) in [(Direction::ToServer, 300_000), (Direction::ToClient, 7)] {
            let case = format!("Kafka, {how:?} in a message {direction:?}");
            let cuts = setting.proxy.cuts();
            setting.proxy.cut_after(direction, after, how);
            insert_large(&setting.outbox, &format!("{direction:?} {n}")).await;
            eventually(&case, async || (setting.proxy.cuts() > cuts).then_some(())).await;
            events_again(&case, Instant::now(), &setting.outbox, &setting.kafka).await;
        }
    }
    setting.end().await;
}

/// Refused, and then taken and never answered.
#[tokio::test]
async fn network_to_kafka_without_new_connections() {
    let mut setting = Setting::new(gives_up_soon).await;
    let down = "no broker can be reached";
    setting.broken("Kafka, connections refused", down, Proxy::refuse, Proxy::listen).await;
    let mute = |proxy: &Proxy| {
        proxy.refuse();
        proxy.set(Network::BLACK_HOLE);
        proxy.listen();
    };
    setting.broken("Kafka, connections without an answer", down, mute, open).await;
    setting.end().await;
}

/// Half a second there and back is slow, and no fault.
#[tokio::test]
async fn network_to_kafka_slow_is_no_fault() {
    let setting = Setting::new(|settings| settings).await;
    setting.proxy.set(Network::delayed(Duration::from_millis(250)));
    events_again("Kafka, 250 ms each way", Instant::now(), &setting.outbox, &setting.kafka).await;
    // a topic that is new takes many round trips, and busy partitions pass it
    setting.outbox.insert("slow", "a", "{\"n\": 1}").await;
    setting.kafka.holds(&setting.outbox.topic("slow"), 1).await;
    let status = setting.router.status().unwrap();
    assert!(status["ready"] == true && status["reconnects"]["kafka"] == 0, "{status}");
    setting.proxy.set(Network::OPEN);
    setting.end().await;
}
