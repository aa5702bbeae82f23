//! The topics of the measurements, which are deleted after each, to save disk space.

use std::time::Duration;

use anyhow::{Context, bail};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::types::RDKafkaErrorCode;

const ANSWER: Duration = Duration::from_secs(10);

pub(crate) struct Topics(AdminClient<DefaultClientContext>);

impl Topics {
    pub(crate) fn of(brokers: &str) -> anyhow::Result<Self> {
        let client = ClientConfig::new().set("bootstrap.servers", brokers).create();
        Ok(Topics(client.context("create a client")?))
    }

    /// Creates a topic, unless it exists.
    pub(crate) async fn make(&self, name: &str, partitions: u32) -> anyhow::Result<()> {
        let topic = NewTopic::new(name, i32::try_from(partitions)?, TopicReplication::Fixed(1));
        for made in self.0.create_topics([&topic], &AdminOptions::new()).await? {
            match made {
                Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((name, error)) => bail!("the topic {name} cannot be made: {error}"),
            }
        }
        Ok(())
    }

    /// Deletes the topics with this prefix.
    pub(crate) async fn delete_like(&self, prefix: &str) -> anyhow::Result<()> {
        let metadata = self.0.inner().fetch_metadata(None, ANSWER)?;
        let names = metadata.topics().iter().map(|topic| topic.name());
        let names: Vec<&str> = names.filter(|name| name.starts_with(prefix)).collect();
        if !names.is_empty() {
            self.0.delete_topics(&names, &AdminOptions::new()).await?;
        }
        Ok(())
    }
}
