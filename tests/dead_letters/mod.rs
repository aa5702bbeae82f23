//! `[dead_letters] policy = "park"`: an event that cannot be sent holds up its aggregate, and nothing else.

mod decisions;
mod killed;
mod locked;
mod parked;
mod shown;
mod stopped;
mod takeover;

use rdkafka::error::KafkaError;

use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::Ran;
use crate::support::private_kafka::PrivateKafka;
use crate::support::settings::Settings;

pub(crate) const MODES: [&str; 2] = ["at-least-once", "exactly-once"];

/// A payload of 3,000 bytes and some.
fn large(n: u32) -> String {
    format!("{{\"n\": {n}, \"text\": \"{}\"}}", "x".repeat(3_000))
}

/// An outbox with the table that `init` makes, and a router that parks there.
pub(crate) struct Setting {
    pub(crate) outbox: Outbox,
    kafka: Kafka,
    pub(crate) settings: Settings,
}

impl Setting {
    pub(crate) async fn new(mode: &str) -> Self {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        let settings =
            Settings::new(&outbox, &kafka).set("delivery.mode", mode).set("dead_letters.policy", "park");
        let table = include_str!("../../migrations/V2__dead_letters.sql");
        outbox.execute(&format!("CREATE SCHEMA IF NOT EXISTS outbox_router; {table}")).await;
        Setting { outbox, kafka, settings }
    }

    /// One with a broker of its own.
    async fn on_broker(mode: &str, broker: &PrivateKafka) -> Self {
        let mut setting = Self::new(mode).await;
        setting.kafka = broker.client();
        let bootstrap = setting.kafka.bootstrap.as_str();
        setting.settings = setting.settings.clone().set("kafka.'bootstrap.servers'", bootstrap);
        setting
    }

    /// One whose broker, and nobody before it, refuses what is larger than 5,000 bytes compressed.
    async fn refusing(mode: &str, partitions: i32) -> Self {
        let mut setting = Self::new(mode).await;
        setting.settings = setting.settings.clone().set("kafka.'compression.type'", "lz4");
        let limit = [("max.message.bytes", "5000")];
        setting.kafka.create_topic(&setting.outbox.topic("order"), partitions, &limit).await;
        setting
    }

    /// An event of an aggregate that no topic can be made for.
    pub(crate) async fn poison(&self, aggregate: &str, n: u32) -> String {
        self.outbox.insert("two words", aggregate, &format!("{{\"n\": {n}}}")).await
    }

    /// The numbers that consumers of committed transactions see of an aggregate.
    async fn seen(&self, aggregate: &str) -> Vec<u64> {
        self.seen_now(aggregate).await.unwrap()
    }

    /// A topic that was just made may not be readable yet.
    async fn seen_now(&self, aggregate: &str) -> Result<Vec<u64>, KafkaError> {
        let records = self.kafka.committed(&self.outbox.name).await?;
        let of_it = records.iter().filter(|record| record.key() == Some(aggregate));
        Ok(of_it.map(|record| record.number()).collect())
    }

    /// Waits until they are these.
    pub(crate) async fn sees(&self, aggregate: &str, expected: Vec<u64>) {
        let mut last = Vec::new();
        for _ in 0..200 {
            last = self.seen_now(aggregate).await.unwrap_or_default();
            if last.len() >= expected.len() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert_eq!(last, expected, "of {aggregate}");
    }

    /// The numbers, reasons and decisions of an aggregate's parked events.
    async fn rows(&self, aggregate: &str) -> Vec<(String, String)> {
        let sql = format!(
            "SELECT c->>'value', d.reason FROM outbox_router.dead_letters d, json_array_elements(d.event->'columns') c \
             WHERE c->>'name' = 'payload' AND d.aggregate_id = '{aggregate}' ORDER BY d.final_lsn, d.change"
        );
        self.outbox.query(&sql).await.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// Waits until so many rows are parked.
    pub(crate) async fn parks(&self, count: i64) {
        eventually(&format!("{count} events are parked"), async || {
            let rows = self.outbox.query("SELECT count(*) FROM outbox_router.dead_letters").await;
            (rows[0].get::<_, i64>(0) == count).then_some(())
        })
        .await;
    }

    /// Runs `dead-letters` with these arguments.
    fn dead_letters(&self, arguments: &[&str]) -> Ran {
        let ran = self.settings.run(&[&["dead-letters"], arguments].concat());
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        ran
    }
}
