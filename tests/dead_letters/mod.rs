//! `[dead_letters] policy = "park"`: an event that cannot be sent blocks its aggregate, and nothing else.

mod decisions;
mod killed;
mod locked;
mod parked;
mod status;
mod stopped;
mod takeover;

use rdkafka::error::KafkaError;

use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::{Ran, succeeded};
use crate::support::private_kafka::PrivateKafka;
use crate::support::settings::{MODES, Settings};

/// A payload of just over 3,000 bytes.
fn large(n: u32) -> String {
    format!("{{\"n\": {n}, \"text\": \"{}\"}}", "x".repeat(3_000))
}

/// An outbox with the dead-letter table, and settings of a router that parks events.
pub(crate) struct Setup {
    pub(crate) outbox: Outbox,
    kafka: Kafka,
    pub(crate) settings: Settings,
}

impl Setup {
    pub(crate) async fn new(mode: &str) -> Self {
        Self::of(Outbox::new().await, mode).await
    }

    async fn of(outbox: Outbox, mode: &str) -> Self {
        let kafka = Kafka::shared();
        let settings =
            Settings::new(&outbox, &kafka).set("delivery.mode", mode).set("dead_letters.policy", "park");
        outbox.create_dead_letters_table().await;
        Setup { outbox, kafka, settings }
    }

    /// The same with a private broker.
    async fn on_broker(mode: &str, broker: &PrivateKafka) -> Self {
        let mut setup = Self::new(mode).await;
        setup.kafka = broker.client();
        let bootstrap = setup.kafka.bootstrap.as_str();
        setup.settings = setup.settings.clone().set("kafka.'bootstrap.servers'", bootstrap);
        setup
    }

    /// The same with a topic that limits compressed batches to 5,000 bytes. Only the broker can refuse a record because of it.
    async fn refusing(mode: &str, partitions: i32) -> Self {
        let mut setup = Self::new(mode).await;
        setup.settings = setup.settings.clone().set("kafka.'compression.type'", "lz4");
        let limit = [("max.message.bytes", "5000")];
        setup.kafka.create_topic(&setup.outbox.topic("order"), partitions, &limit).await;
        setup
    }

    /// Inserts an event whose topic name is invalid, and returns its id.
    pub(crate) async fn poison(&self, aggregate: &str, n: u32) -> String {
        self.outbox.insert("two words", aggregate, &format!("{{\"n\": {n}}}")).await
    }

    /// The numbers that consumers of committed transactions see of an aggregate.
    async fn seen(&self, aggregate: &str) -> Vec<u64> {
        self.seen_now(aggregate).await.unwrap()
    }

    /// The same. Returns an error if a new topic cannot be read yet.
    async fn seen_now(&self, aggregate: &str) -> Result<Vec<u64>, KafkaError> {
        let records = self.kafka.committed(&self.outbox.name).await?;
        let of_it = records.iter().filter(|record| record.key() == Some(aggregate));
        Ok(of_it.map(|record| record.number()).collect())
    }

    /// Waits until consumers see this many numbers of an aggregate, and asserts that they are these.
    pub(crate) async fn sees(&self, aggregate: &str, expected: Vec<u64>) {
        let what = format!("{} events of {aggregate} are seen", expected.len());
        let seen = eventually(&what, async || {
            self.seen_now(aggregate).await.ok().filter(|seen| seen.len() >= expected.len())
        });
        assert_eq!(seen.await, expected, "of {aggregate}");
    }

    /// Payload and reason of each parked event of an aggregate.
    async fn rows(&self, aggregate: &str) -> Vec<(String, String)> {
        let sql = format!(
            "SELECT c->>'value', d.reason FROM outbox_router.dead_letters d, json_array_elements(d.event->'columns') c \
             WHERE c->>'name' = 'payload' AND d.aggregate_id = '{aggregate}' ORDER BY d.final_lsn, d.change"
        );
        self.outbox.query(&sql).await.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// The number of parked events.
    async fn parked(&self) -> i64 {
        self.outbox.query("SELECT count(*) FROM outbox_router.dead_letters").await[0].get(0)
    }

    /// Waits until exactly this many events are parked.
    pub(crate) async fn parks(&self, count: i64) {
        eventually(&format!("{count} events are parked"), async || {
            (self.parked().await == count).then_some(())
        })
        .await;
    }

    /// Runs `dead-letters` with these arguments.
    fn dead_letters(&self, arguments: &[&str]) -> Ran {
        succeeded(self.settings.run(&[&["dead-letters"], arguments].concat()), &[])
    }
}
