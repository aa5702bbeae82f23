//! How long detection takes with the default settings, which is too long for an ordinary test.

use std::time::{Duration, Instant};

use super::warnings;
use crate::support::comparison::{Repeats, same};
use crate::support::outbox::Outbox;
use crate::support::private_kafka::PrivateKafka;
use crate::support::proxy::{Network, Proxy};
use crate::support::router::Router;
use crate::support::seed;
use crate::support::settings::Settings;
use crate::support::writers::Writers;

/// Waits for a warning with `text` after `mark` in the log, for longer than the longest default.
async fn warned(router: &mut Router, mark: usize, text: &str) {
    let since = Instant::now();
    while warnings(router, mark, text).is_empty() {
        router.assert_running();
        assert!(since.elapsed() < Duration::from_secs(300), "no {text:?} in\n{}", router.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
#[ignore = "takes minutes; prints figures of docs/network.md"]
async fn network_lost_with_default_settings() {
    let to_kafka = Proxy::to("127.0.0.1:9");
    let broker = PrivateKafka::behind(&to_kafka).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    let to_postgres = Proxy::to(outbox.address());
    let settings = Settings::new(&outbox, &kafka)
        .reached_at(&outbox, &to_postgres.address())
        .set("kafka.'bootstrap.servers'", to_kafka.address())
        .without("postgres.wal_sender_timeout")
        .without("delivery.shutdown_timeout");
    let mut router = Router::active(&settings).await;
    let writers = Writers::start(&outbox, 2, &mut seed::random()).await;
    kafka.holds(&outbox.name, 20).await;
    let mut breaks = 0;
    for (case, proxy, network, text) in [
        ("Postgres, black hole", &to_postgres, Network::BLACK_HOLE, "Postgres has been silent"),
        (
            "Postgres, requests lost",
            &to_postgres,
            Network::TO_SERVER_LOST,
            "the server closed the connection",
        ),
        ("Kafka, black hole", &to_kafka, Network::BLACK_HOLE, "no broker can be reached"),
        ("Kafka, answers lost", &to_kafka, Network::TO_CLIENT_LOST, "no broker can be reached"),
    ] {
        breaks += 1;
        let (since, mark) = (Instant::now(), router.log().len());
        proxy.set(network);
        warned(&mut router, mark, text).await;
        println!("network: defaults: {case}: known after {:.1} s", since.elapsed().as_secs_f64());
        let before = kafka.count(&outbox.name).await.unwrap();
        let since = Instant::now();
        proxy.set(Network::OPEN);
        kafka.holds(&outbox.name, before + 1).await;
        println!(
            "network: defaults: {case}: events again {:.1} s after its return",
            since.elapsed().as_secs_f64()
        );
        router.ready().await;
    }
    writers.finish().await;
    outbox.all_confirmed().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(breaks)).await;
}
