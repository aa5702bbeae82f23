//! A private broker.

use std::process::{Command, Stdio};

use super::instance::Instance;
use super::kafka::Kafka;
use super::place::Ran;
use super::process;
use super::proxy::Proxy;
use super::shared;
use super::signal::{Signal, send};

/// Settings of a broker with ACLs. The users `outbox-router` and `admin` log in at the extra port with the password `secret`.
/// `admin` may do everything.
pub(crate) const AUTHORIZING: [&str; 7] = [
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    // the controller and the tool that adds ACLs connect anonymously
    "super.users=User:ANONYMOUS;User:admin",
    "listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{extra_port},CONTROLLER://127.0.0.1:{controller_port}",
    "advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{extra_port}",
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms=PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule \
     required user_outbox-router=\"secret\" user_admin=\"secret\";",
];

/// The class of one of Kafka's own tools. Kafka 4.0 moved one.
fn tool_class(class: &str) -> &str {
    match (std::env::var("TEST_KAFKA_VERSION").as_deref(), class) {
        (Ok("3.9"), "org.apache.kafka.tools.AclCommand") => "kafka.admin.AclCommand",
        _ => class,
    }
}

/// The arguments of `java` that run one of Kafka's own tools. It ends before the JVM's second compiler would pay off.
pub(crate) fn tool_arguments(class: &str) -> [String; 7] {
    let archive = format!("-XX:SharedArchiveFile={}", shared::variable("TEST_KAFKA_CLASSES"));
    let class_path = shared::variable("TEST_KAFKA_CLASSPATH");
    let [c1, gc, quiet, cp] =
        ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:cds=off", "-cp"].map(str::to_owned);
    [c1, gc, archive, quiet, cp, class_path, tool_class(class).to_owned()]
}

/// Runs one of Kafka's own tools.
pub(crate) fn kafka_tool(class: &str, arguments: &[&str]) -> Ran {
    let mut java = Command::new("java");
    java.args(tool_arguments(class)).args(arguments).stdin(Stdio::null());
    Ran::of(process::output(&mut java))
}

/// A private broker. Deleted on drop.
pub(crate) struct PrivateKafka {
    instance: Instance,
}

impl PrivateKafka {
    /// Starts a broker with settings as `name=value`.
    pub(crate) async fn start(settings: &[&str]) -> Self {
        // the controller must not fence a broker that is frozen, or gets no processor time for a while
        let patient = ["broker.session.timeout.ms=60000"];
        PrivateKafka { instance: Instance::up("kafka", &[], &[&patient, settings].concat()) }
    }

    /// Starts a broker with the short session of `scripts/services`: after SIGKILL it can start again once that has expired.
    pub(crate) async fn that_is_killed() -> Self {
        PrivateKafka { instance: Instance::up("kafka", &[], &[]) }
    }

    /// Starts a broker whose second listener is reached through `proxy`.
    pub(crate) async fn behind(proxy: &Proxy) -> Self {
        Self::advertised(proxy, &proxy.address()).await
    }

    /// The same with a host name for the address of the proxy.
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
        proxy.forward_to(broker.extra());
        broker
    }

    pub(crate) fn client(&self) -> Kafka {
        Kafka::at(self.instance.variable("TEST_KAFKA"))
    }

    /// The address of the second listener, if a setting uses `{extra_port}`.
    pub(crate) fn extra(&self) -> &str {
        self.instance.variable("TEST_KAFKA_EXTRA")
    }

    /// The process of the broker.
    pub(crate) fn pid(&self) -> u32 {
        self.instance.pid()
    }

    /// The broker's log.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.instance.variable("TEST_KAFKA_LOG")).unwrap()
    }

    /// Freezes the process. It keeps its connections but answers nothing.
    pub(crate) fn freeze(&self) {
        assert!(send(Signal::Stop, self.instance.pid()));
    }

    /// Lets the frozen process continue.
    pub(crate) fn thaw(&self) {
        assert!(send(Signal::Continue, self.instance.pid()));
    }

    /// Returns when the broker has stopped.
    pub(crate) fn stop(&self) {
        self.instance.stop(&[]);
    }

    /// Kills the broker.
    pub(crate) fn kill(&self) {
        self.instance.kill();
    }

    /// Starts the broker again with the same data and port.
    pub(crate) fn start_again(&self) {
        self.start_again_with(&[]);
    }

    /// The same with more settings.
    pub(crate) fn start_again_with(&self, settings: &[&str]) {
        self.instance.start(settings);
    }
}
