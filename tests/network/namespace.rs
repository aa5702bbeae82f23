//! The router's machine loses its network: packets to Postgres and Kafka are dropped.

use std::time::Instant;

use super::{events_again, warnings};
use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::namespace::Namespace;
use crate::support::outbox::Outbox;
use crate::support::private_kafka::PrivateKafka;
use crate::support::proxy::Proxy;
use crate::support::router::Router;
use crate::support::seed;
use crate::support::settings::Settings;
use crate::support::writers::Writers;

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn network_link_down_and_up_again_loses_nothing_and_reorders_nothing() {
    const OUTAGES: usize = 2;
    let Some(namespace) = Namespace::new() else { return };
    let to_kafka = Proxy::at(namespace.host, "127.0.0.1:9");
    let broker = PrivateKafka::behind(&to_kafka).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    let to_postgres = Proxy::at(namespace.host, outbox.address());
    let settings = Settings::new(&outbox, &kafka)
        .reached_at(&outbox, &to_postgres.address())
        .set("postgres.wal_sender_timeout", "6s")
        .set("kafka.'bootstrap.servers'", to_kafka.address())
        .set("kafka.'socket.timeout.ms'", 6_000);
    let mut router = Router::inside(&settings, &namespace);
    let writers = Writers::start(&outbox, 2, &mut seed::random()).await;
    kafka.holds(&outbox.name, 20).await;
    for outage in 0..OUTAGES {
        let case = format!("link down, {outage}");
        let (since, mark) = (Instant::now(), router.log().len());
        namespace.down();
        // the router's silence limit and TCP's timeout end within milliseconds of each other
        let lost = |router: &Router| {
            let mut lost = warnings(router, mark, "Postgres has been silent");
            lost.extend(warnings(router, mark, "the replication stream broke"));
            lost
        };
        let warning = eventually("the router detects it", async || {
            router.assert_running();
            lost(&router).into_iter().next()
        })
        .await;
        println!("network: {case}: known after {:.1} s: {warning}", since.elapsed().as_secs_f64());
        eventually("an attempt to reconnect fails", async || {
            warnings(&router, mark, "cannot connect to Postgres").into_iter().next()
        })
        .await;
        // later the machine may be so busy that the stream breaks once more
        assert_eq!(lost(&router).len(), 1, "{}", &router.log()[mark..]);
        let since = Instant::now();
        namespace.up();
        events_again(&case, since, &outbox, &kafka).await;
    }
    writers.finish().await;
    outbox.all_confirmed().await;
    router.assert_running();
    router.stop().await;
    // a request that a session had handed to the network may arrive after the records of the next one
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Late).await;
}
