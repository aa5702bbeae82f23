//! The network goes down and the name server with it. Only a thread of the Kafka client may wait for it.

use std::process::{Command, Stdio};

use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::name_server::NameServer;
use crate::support::namespace::Namespace;
use crate::support::outbox::Outbox;
use crate::support::private_kafka::PrivateKafka;
use crate::support::process;
use crate::support::proxy::{Network, Proxy};
use crate::support::router::Router;
use crate::support::settings::Settings;

const BROKER: &str = "broker.test";

/// Logged when the router has lost Postgres but cannot start the next session yet.
const NOT_ENDED: &str = "the session is over, and its Kafka client has not ended yet";

/// A router in a network namespace of its own, which connects to its broker by name.
struct Setup {
    outbox: Outbox,
    kafka: Kafka,
    to_kafka: Proxy,
    settings: Settings,
    names: NameServer,
    namespace: Namespace,
    _to_postgres: Proxy,
    _broker: PrivateKafka,
}

impl Setup {
    /// The resolver waits `timeout` seconds for an answer, and asks `attempts` times.
    async fn new(mode: &str, timeout: u32, attempts: u32) -> Option<Self> {
        let namespace = Namespace::new()?;
        let names = NameServer::new(&namespace, timeout, attempts);
        let to_kafka = Proxy::at(namespace.host, "127.0.0.1:9");
        let broker = PrivateKafka::behind_name(&to_kafka, BROKER).await;
        let (outbox, kafka) = (Outbox::new().await, broker.client());
        let to_postgres = Proxy::at(namespace.host, outbox.address());
        let port = to_kafka.port();
        let settings = Settings::new(&outbox, &kafka)
            .reached_at(&outbox, &to_postgres.address())
            .set("delivery.mode", mode)
            .set("postgres.wal_sender_timeout", "4s")
            // some stop while a record is in flight that no broker can acknowledge
            .set("delivery.shutdown_timeout", "10s")
            .set("kafka.'bootstrap.servers'", format!("{BROKER}:{port}"))
            .set("kafka.'socket.timeout.ms'", 1_000)
            .set("kafka.'request.timeout.ms'", 1_000);
        Some(Setup {
            outbox,
            kafka,
            to_kafka,
            settings,
            names,
            namespace,
            _to_postgres: to_postgres,
            _broker: broker,
        })
    }

    fn router(&self) -> Router {
        Router::inside_with(&self.settings, &self.namespace, self.names.resolv_conf())
    }

    /// Gets a page of the router's admin endpoint.
    fn page(&self, router: &Router, path: &str) -> Option<String> {
        let [program, prefix @ ..] = self.namespace.prefix();
        let port = router.admin_port()?;
        let get = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{port} && printf 'GET {path} HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3"
        );
        let mut command = Command::new(program);
        command.args(prefix).args(["bash", "-c", &get]).stdin(Stdio::null());
        Some(String::from_utf8(process::output(&mut command).stdout).unwrap()).filter(|page| !page.is_empty())
    }

    /// Takes down the network, and the name server with it, while a record is in flight. Returns when the router waits for the
    /// broker's address.
    async fn cut_off(&self, router: &Router) {
        self.to_kafka.set(Network::TO_SERVER_LOST);
        self.outbox.insert_numbers("order", "a", 4..7).await;
        eventually("a record is in flight", async || {
            let page = self.page(router, "/status")?;
            let (_, body) = page.split_once("\r\n\r\n")?;
            let status: serde_json::Value = serde_json::from_str(body).unwrap();
            (status["in_flight"]["records"].as_u64()? > 0).then_some(())
        })
        .await;
        self.namespace.down();
        wait_for_dns_query(router).await;
    }

    /// Waits until the log has `text`. Until then `/healthz` must report that the main loop is running.
    async fn healthy_until(&self, router: &mut Router, text: &str) {
        eventually(&format!("the log has {text:?}"), async || {
            router.assert_running();
            let health = self.page(router, "/healthz")?;
            assert!(health.starts_with("HTTP/1.0 200"), "{health}\n{}", router.log());
            router.log().contains(text).then_some(())
        })
        .await;
    }
}

/// Waits until the router queries a name server: it has a udp(7) socket to port 53, see proc(5).
async fn wait_for_dns_query(router: &Router) {
    eventually("the router queries a name server", async || {
        let sockets = std::fs::read_to_string(format!("/proc/{}/net/udp", router.pid())).ok()?;
        sockets
            .lines()
            .any(|line| line.split_whitespace().nth(2).is_some_and(|to| to.ends_with(":0035")))
            .then_some(())
    })
    .await;
}

async fn cut_off_and_stopped(mode: &str) {
    // the resolver waits 5 times 30 s, longer than any wait of the test
    let Some(setup) = Setup::new(mode, 30, 5).await else { return };
    let mut router = setup.router();
    setup.outbox.insert_numbers("order", "a", 1..4).await;
    setup.outbox.all_confirmed().await;
    setup.cut_off(&router).await;
    setup.healthy_until(&mut router, NOT_ENDED).await;
    router.stop().await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn network_and_name_server_down_do_not_delay_probe_or_stop_in_at_least_once() {
    cut_off_and_stopped("at-least-once").await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn network_and_name_server_down_do_not_delay_probe_or_stop_in_exactly_once() {
    cut_off_and_stopped("exactly-once").await;
}

/// Only the position is being committed, which happens once a second if Postgres has written WAL without events.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn network_and_name_server_down_do_not_delay_stop_during_a_commit() {
    let Some(setup) = Setup::new("exactly-once", 30, 5).await else { return };
    let mut router = setup.router();
    setup.outbox.insert_numbers("order", "a", 1..2).await;
    setup.outbox.all_confirmed().await;
    setup.to_kafka.set(Network::TO_SERVER_LOST);
    setup.outbox.execute("CREATE TABLE other (n int); INSERT INTO other VALUES (1)").await;
    router.logs("no broker can be reached").await;
    setup.cut_off(&router).await;
    setup.healthy_until(&mut router, NOT_ENDED).await;
    router.stop().await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn network_and_name_server_down_and_up_lose_nothing_and_reorder_nothing() {
    let Some(setup) = Setup::new("at-least-once", 20, 1).await else { return };
    let mut router = setup.router();
    setup.outbox.insert_numbers("order", "a", 1..4).await;
    setup.outbox.all_confirmed().await;
    setup.cut_off(&router).await;
    setup.healthy_until(&mut router, NOT_ENDED).await;
    setup.namespace.up();
    setup.to_kafka.set(Network::OPEN);
    setup.outbox.insert_numbers("order", "a", 7..10).await;
    setup.outbox.all_confirmed().await;
    router.stop().await;
    same(&setup.outbox, &setup.kafka.records(&setup.outbox.name).await, Repeats::Restarts(1)).await;
}

/// A starting router reports that no broker answers although the name server has not replied yet, and stops at once.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn network_name_server_that_does_not_answer_is_reported_and_does_not_delay_stop() {
    let Some(setup) = Setup::new("at-least-once", 30, 5).await else { return };
    setup.names.mute();
    let mut router = setup.router();
    wait_for_dns_query(&router).await;
    setup.healthy_until(&mut router, "no Kafka broker answers at broker.test").await;
    router.stop().await;
    // also during the query
    let router = setup.router();
    wait_for_dns_query(&router).await;
    router.stop().await;
}
