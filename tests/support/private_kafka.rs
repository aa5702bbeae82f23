//! A broker of a test's own.

use std::process::{Command, Stdio};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::instance::Instance;
use super::kafka::Kafka;
use super::place::Ran;
use super::process;
use super::proxy::Proxy;
use super::shared;
use super::signal::{Signal, send};

/// No more private brokers than this at a time.
static PLACES: Semaphore = Semaphore::const_new(3);

/// Settings of one with ACLs, where `outbox-router` comes in by the extra port with the password `secret`, and so does
/// `admin`, who may do everything.
pub(crate) const AUTHORIZING: [&str; 7] = [
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    // the controller, and the tool that grants, come in without a name
    "super.users=User:ANONYMOUS;User:admin",
    "listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{extra_port},CONTROLLER://127.0.0.1:{controller_port}",
    "advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{extra_port}",
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms=PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule \
     required user_outbox-router=\"secret\" user_admin=\"secret\";",
];

/// Runs one of Kafka's own tools.
pub(crate) fn kafka_tool(class: &str, arguments: &[&str]) -> Ran {
    let class_path = shared::variable("TEST_KAFKA_CLASSPATH");
    let mut java = Command::new("java");
    // over before the JVM's second compiler has done anything for it
    java.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", &class_path, class])
        .args(arguments)
        .stdin(Stdio::null());
    Ran::of(process::output(&mut java))
}

/// A private broker; dropped, it is gone with its data.
pub(crate) struct PrivateKafka {
    instance: Instance,
    _place: SemaphorePermit<'static>,
}

impl PrivateKafka {
    /// Brings one up with settings as `name=value`.
    pub(crate) async fn start(settings: &[&str]) -> Self {
        let place = PLACES.acquire().await.unwrap();
        PrivateKafka { instance: Instance::up("kafka", &[], settings), _place: place }
    }

    /// Brings one up whose second listener clients reach through `proxy`, which leads there from then on.
    pub(crate) async fn behind(proxy: &Proxy) -> Self {
        Self::advertised(proxy, &proxy.address()).await
    }

    /// The same with a name for the address of the proxy.
    pub(crate) async fn behind_name(proxy: &Proxy, name: &str) -> Self {
        Self::advertised(proxy, &format!("{name}:{}", proxy.port())).await
    }

    async fn advertised(proxy: &Proxy, address: &str) -> Self {
        let broker = Self::start(&[
            "listeners=PLAINTEXT://127.0.0.1:{port},NETWORK://127.0.0.1:{extra_port},CONTROLLER://127.0.0.1:{controller_port}",
            &format!("advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},NETWORK://{address}"),
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,NETWORK:PLAINTEXT,CONTROLLER:PLAINTEXT",
        ])
        .await;
        proxy.lead_to(broker.extra());
        broker
    }

    pub(crate) fn client(&self) -> Kafka {
        Kafka::at(self.instance.variable("TEST_KAFKA"))
    }

    /// The address of a second listener, if a setting uses `{extra_port}`.
    pub(crate) fn extra(&self) -> &str {
        self.instance.variable("TEST_KAFKA_EXTRA")
    }

    /// The process of the broker.
    pub(crate) fn pid(&self) -> u32 {
        self.instance.pid()
    }

    /// What the broker has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.instance.variable("TEST_KAFKA_LOG")).unwrap()
    }

    /// Freezes the process: it keeps its connections and says nothing.
    pub(crate) fn freeze(&self) {
        assert!(send(Signal::Stop, self.instance.pid()));
    }

    /// Lets a frozen one go on.
    pub(crate) fn thaw(&self) {
        assert!(send(Signal::Continue, self.instance.pid()));
    }

    /// Comes back when it is down.
    pub(crate) fn stop(&self) {
        self.instance.stop(&[]);
    }

    /// Ends it at once.
    pub(crate) fn kill(&self) {
        self.instance.kill();
    }

    /// Starts it again with the same data and port.
    pub(crate) fn start_again(&self) {
        self.start_again_with(&[]);
    }

    /// The same with more settings.
    pub(crate) fn start_again_with(&self, settings: &[&str]) {
        self.instance.start(settings);
    }
}
