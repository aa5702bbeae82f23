//! The name server goes with the network: a thread of the Kafka client waits for it, and nothing else does.

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

/// What the router says when it has lost Postgres, and cannot begin anew yet.
const NOT_ENDED: &str = "the session is over, and its Kafka client has not ended yet";

/// A router in a network of its own, and a broker that it knows by name.
struct Setting {
    outbox: Outbox,
    kafka: Kafka,
    to_kafka: Proxy,
    settings: Settings,
    names: NameServer,
    namespace: Namespace,
    _to_postgres: Proxy,
    _broker: PrivateKafka,
}

impl Setting {
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
            .set("kafka.'bootstrap.servers'", format!("{BROKER}:{port}"))
            .set("kafka.'socket.timeout.ms'", 1_000)
            .set("kafka.'request.timeout.ms'", 1_000);
        Some(Setting {
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

    /// A page of the router's admin endpoint.
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

    /// A record is under way when the network goes, and the name server with it. Comes back when that is asked for the broker.
    async fn cut_off(&self, router: &Router) {
        self.to_kafka.set(Network::TO_SERVER_LOST);
        self.outbox.insert_numbers("order", "a", 4..7).await;
        eventually("a record is under way", async || {
            let page = self.page(router, "/status")?;
            let (_, body) = page.split_once("\r\n\r\n")?;
            let status: serde_json::Value = serde_json::from_str(body).unwrap();
            (status["in_flight"]["records"].as_u64()? > 0).then_some(())
        })
        .await;
        self.namespace.down();
        asks(router).await;
    }

    /// Waits until the log has `text`. Meanwhile the probe has to say that the main loop is running.
    async fn healthy_until(&self, router: &mut Router, text: &str) {
        eventually(&format!("the log says {text:?}"), async || {
            router.assert_running();
            let health = self.page(router, "/healthz")?;
            assert!(health.starts_with("HTTP/1.0 200"), "{health}\n{}", router.log());
            router.log().contains(text).then_some(())
        })
        .await;
    }
}

/// Waits until the router's process waits for a name server: udp(7) sockets to port 53, see proc(5).
async fn asks(router: &Router) {
    eventually("a name server is asked", async || {
        let sockets = std::fs::read_to_string(format!("/proc/{}/net/udp", router.pid())).ok()?;
        sockets
            .lines()
            .any(|line| line.split_whitespace().nth(2).is_some_and(|to| to.ends_with(":0035")))
            .then_some(())
    })
    .await;
}

async fn cut_off_and_stopped(mode: &str) {
    // longer than the test waits for anything
    let Some(setting) = Setting::new(mode, 30, 5).await else { return };
    let mut router = setting.router();
    setting.outbox.insert_numbers("order", "a", 1..4).await;
    setting.outbox.all_confirmed().await;
    setting.cut_off(&router).await;
    setting.healthy_until(&mut router, NOT_ENDED).await;
    router.stop().await;
}

#[tokio::test]
async fn network_and_name_server_gone_keep_no_probe_and_no_stop_waiting_in_at_least_once() {
    cut_off_and_stopped("at-least-once").await;
}

#[tokio::test]
async fn network_and_name_server_gone_keep_no_probe_and_no_stop_waiting_in_exactly_once() {
    cut_off_and_stopped("exactly-once").await;
}

/// The position alone is being committed. Where Postgres has written something that is no event, that is due once a second.
#[tokio::test]
async fn network_and_name_server_gone_keep_no_stop_waiting_for_a_commit() {
    let Some(setting) = Setting::new("exactly-once", 30, 5).await else { return };
    let mut router = setting.router();
    setting.outbox.insert_numbers("order", "a", 1..2).await;
    setting.outbox.all_confirmed().await;
    setting.to_kafka.set(Network::TO_SERVER_LOST);
    setting.outbox.execute("CREATE TABLE other (n int); INSERT INTO other VALUES (1)").await;
    router.logs("no broker can be reached").await;
    setting.cut_off(&router).await;
    setting.healthy_until(&mut router, NOT_ENDED).await;
    router.stop().await;
}

#[tokio::test]
async fn network_and_name_server_gone_and_back_lose_nothing_and_reorder_nothing() {
    let Some(setting) = Setting::new("at-least-once", 20, 1).await else { return };
    let mut router = setting.router();
    setting.outbox.insert_numbers("order", "a", 1..4).await;
    setting.outbox.all_confirmed().await;
    setting.cut_off(&router).await;
    setting.healthy_until(&mut router, NOT_ENDED).await;
    setting.namespace.up();
    setting.to_kafka.set(Network::OPEN);
    setting.outbox.insert_numbers("order", "a", 7..10).await;
    setting.outbox.all_confirmed().await;
    router.stop().await;
    same(&setting.outbox, &setting.kafka.records(&setting.outbox.name).await, Repeats::Restarts(1)).await;
}

/// A router that starts finds no broker, says so while the name server is still asked, and stops when it is told to.
#[tokio::test]
async fn network_name_server_that_does_not_answer_keeps_no_start_from_its_reason_and_its_stop() {
    let Some(setting) = Setting::new("at-least-once", 30, 5).await else { return };
    setting.names.mute();
    let mut router = setting.router();
    asks(&router).await;
    setting.healthy_until(&mut router, "no Kafka broker answers at broker.test").await;
    router.stop().await;
    // and while it is looked for
    let router = setting.router();
    asks(&router).await;
    router.stop().await;
}
