//! Topics of a test's own on the broker that all tests share.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};

use super::place::variable;

/// Makes a topic with one replica and these settings.
pub(crate) async fn create_topic(name: &str, partitions: i32, settings: &[(&str, &str)]) {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", variable("TEST_KAFKA"));
    let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
    let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
    for (name, value) in settings {
        topic = topic.set(name, value);
    }
    for result in admin.create_topics([&topic], &AdminOptions::new()).await.unwrap() {
        result.unwrap();
    }
}

/// A broker of a test's own; dropped, it is gone with its data.
pub(crate) struct Private {
    instance: String,
}

impl Private {
    /// Brings one up with these lines in its `server.properties`.
    pub(crate) fn start(settings: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let instance = format!("test-kafka-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let broker = Private { instance };
        let mut up = broker.services("up");
        up.args(["--only", "kafka"]);
        for setting in settings {
            up.args(["--kafka-setting", setting]);
        }
        let ran = up.output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        broker
    }

    /// A variable of `scripts/services env`.
    pub(crate) fn variable(&self, name: &str) -> String {
        let lines = String::from_utf8(self.services("env").output().unwrap().stdout).unwrap();
        let start = format!("export {name}=");
        lines.lines().find_map(|line| line.strip_prefix(&start)).unwrap().to_owned()
    }

    /// How many records the first partition of a topic holds.
    pub(crate) fn records(&self, topic: &str) -> i64 {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.variable("TEST_KAFKA"));
        let consumer: BaseConsumer = config.create().unwrap();
        let found = consumer.fetch_watermarks(topic, 0, Duration::from_secs(2));
        found.map_or(0, |(low, high)| high - low)
    }

    fn services(&self, command: &str) -> Command {
        let mut services = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/services"));
        services.args([command, "--instance", &self.instance]);
        services
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let down = self.services("down").output();
        if !std::thread::panicking() {
            assert!(down.unwrap().status.success(), "instance {} did not go down", self.instance);
        }
    }
}
