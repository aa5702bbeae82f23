//! Creates, changes and deletes topics.

use std::sync::LazyLock;
use std::time::Duration;

use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::eventually::eventually;
use super::kafka::{Kafka, REQUEST, client, is_of};

/// More than a change takes on a busy machine.
const CHANGE: Duration = Duration::from_secs(60);

impl Kafka {
    fn admin(&self) -> AdminClient<DefaultClientContext> {
        client(&self.bootstrap).create().unwrap()
    }

    /// Creates a topic, and returns when the broker shows it.
    pub(crate) async fn create_topic(&self, topic: &str, partitions: i32, config: &[(&str, &str)]) {
        self.create_replicated_topic(topic, partitions, 1, config).await;
    }

    /// The same with this many replicas.
    pub(crate) async fn create_replicated_topic(
        &self,
        topic: &str,
        partitions: i32,
        replicas: i32,
        config: &[(&str, &str)],
    ) {
        self.create(topic, partitions, TopicReplication::Fixed(replicas), config).await;
    }

    /// The same with one partition, whose replicas are on these brokers.
    pub(crate) async fn create_topic_on(&self, topic: &str, brokers: &[i32], config: &[(&str, &str)]) {
        self.create(topic, 1, TopicReplication::Variable(&[brokers]), config).await;
    }

    async fn create(
        &self,
        topic: &str,
        partitions: i32,
        replication: TopicReplication<'_>,
        config: &[(&str, &str)],
    ) {
        let mut new = NewTopic::new(topic, partitions, replication);
        for (name, value) in config {
            new = new.set(name, value);
        }
        let mut repeated = false;
        let results = loop {
            match self.admin().create_topics([&new], &wait_for_brokers()).await {
                // librdkafka replaced the connection under the request
                Err(KafkaError::AdminOp(Code::DestroyBroker)) => repeated = true,
                results => break results.unwrap(),
            }
        };
        for result in results {
            match result {
                Err((_, Code::TopicAlreadyExists)) if repeated => {}
                result => drop(result.unwrap()),
            }
        }
        eventually(&format!("the broker shows the topic {topic}"), async || {
            (self.partitions(topic).await > 0).then_some(())
        })
        .await;
    }

    /// Creates a topic unless it exists.
    pub(crate) async fn ensure_topic(&self, topic: &str, partitions: i32) {
        let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        for result in self.admin().create_topics([&new], &wait_for_brokers()).await.unwrap() {
            assert!(matches!(result, Ok(_) | Err((_, Code::TopicAlreadyExists))), "{result:?}");
        }
    }

    /// Adds partitions to a topic, and returns when the broker shows them.
    pub(crate) async fn add_partitions(&self, topic: &str, count: usize) {
        let more = NewPartitions::new(topic, count);
        let results = self.admin().create_partitions([&more], &AdminOptions::new()).await.unwrap();
        results.into_iter().for_each(|result| drop(result.unwrap()));
        eventually(&format!("the broker shows {count} partitions of {topic}"), async || {
            (self.partitions(topic).await == count).then_some(())
        })
        .await;
    }

    /// Replaces the configuration of a topic, and returns when the broker shows it.
    pub(crate) async fn alter_topic(&self, topic: &str, config: &[(&str, &str)]) {
        let mut altered = AlterConfig::new(ResourceSpecifier::Topic(topic));
        for (name, value) in config {
            altered = altered.set(name, value);
        }
        let (admin, options) = (self.admin(), AdminOptions::new());
        let results = admin.alter_configs([&altered], &options).await.unwrap();
        results.into_iter().for_each(|result| drop(result.unwrap()));
        eventually(&format!("topic {topic} has its new configuration"), async || {
            let described =
                admin.describe_configs([&ResourceSpecifier::Topic(topic)], &options).await.unwrap();
            let described = described.into_iter().next().unwrap().unwrap();
            let now = |name: &str| described.get(name).and_then(|entry| entry.value.clone());
            config.iter().all(|(name, value)| now(name).as_deref() == Some(*value)).then_some(())
        })
        .await;
    }

    /// Waits until a setting of a topic has this value: brokers answer a change before they show it.
    pub(crate) async fn wait_for_setting(&self, topic: &str, name: &str, value: &str) {
        let resource = [&ResourceSpecifier::Topic(topic)];
        eventually(&format!("{name} of topic {topic} is {value}"), async || {
            let described = self.admin().describe_configs(resource, &AdminOptions::new()).await;
            let resource = described.unwrap().into_iter().next().unwrap().ok()?;
            (resource.get(name)?.value.as_deref() == Some(value)).then_some(())
        })
        .await;
    }

    /// Deletes topics that are no longer needed.
    pub(crate) async fn delete_topics(&self, topics: &[String]) {
        let topics: Vec<_> = topics.iter().map(String::as_str).collect();
        for result in self.admin().delete_topics(&topics, &wait_for_brokers()).await.unwrap() {
            result.unwrap();
        }
    }

    /// Deletes a topic, and returns when it is gone.
    pub(crate) async fn delete_topic(&self, topic: &str) {
        self.delete_topics(&[topic.to_owned()]).await;
        let what = format!("topic {topic} is gone");
        eventually(&what, async || (self.partitions(topic).await == 0).then_some(())).await;
    }
}

/// Deletes the topics of a test from the shared broker: those whose names contain its name as a word. The cost of a request for the
/// list of topics grows with their number, so topics that are left behind slow down every later test.
pub(super) async fn discard_topics(name: &str) -> Result<(), KafkaError> {
    static ADMIN: LazyLock<AdminClient<DefaultClientContext>> = LazyLock::new(|| Kafka::shared().admin());
    let metadata = ADMIN.inner().fetch_metadata(None, REQUEST)?;
    let names = metadata.topics().iter().map(|topic| topic.name());
    let of_test: Vec<&str> =
        names.filter(|topic| topic.match_indices(name).any(|(at, _)| is_of(&topic[at..], name))).collect();
    if !of_test.is_empty() {
        ADMIN.delete_topics(&of_test, &AdminOptions::new()).await?;
    }
    Ok(())
}

/// The brokers answer once the change is complete.
fn wait_for_brokers() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(CHANGE)).request_timeout(Some(2 * CHANGE))
}
