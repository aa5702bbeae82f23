//! The topics of the measurements, which are deleted after each, to save disk space.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::types::RDKafkaErrorCode;
use tokio::time::sleep;

const ANSWER: Duration = Duration::from_secs(10);
/// How many topics a request creates. A controller takes at most 10,000 records of metadata.
const PER_REQUEST: usize = 500;
const ASK_EVERY: Duration = Duration::from_millis(50);
/// The brokers may take this long to create all topics of a measurement.
const ALL_TAKE: Duration = Duration::from_secs(120);

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

    /// Creates many topics with one partition each, and waits until the metadata show a leader for each.
    pub(crate) async fn make_many(&self, prefix: &str, count: u64) -> anyhow::Result<()> {
        let names: Vec<String> = (0..count).map(|number| format!("{prefix}.{number}")).collect();
        for names in names.chunks(PER_REQUEST) {
            let topics: Vec<_> =
                names.iter().map(|name| NewTopic::new(name, 1, TopicReplication::Fixed(1))).collect();
            for made in self.0.create_topics(&topics, &AdminOptions::new()).await? {
                made.map_err(|(name, error)| anyhow::anyhow!("the topic {name} cannot be made: {error}"))?;
            }
        }
        let begun = Instant::now();
        while self.count_like(prefix)? != count {
            ensure!(begun.elapsed() < ALL_TAKE, "the brokers do not have {count} topics {prefix}*");
            sleep(ASK_EVERY).await;
        }
        Ok(())
    }

    /// The number of topics with this prefix whose partitions all have leaders.
    pub(crate) fn count_like(&self, prefix: &str) -> anyhow::Result<u64> {
        let metadata = self.0.inner().fetch_metadata(None, ANSWER)?;
        let like = metadata.topics().iter().filter(|topic| topic.name().starts_with(prefix));
        let led = like.filter(|topic| topic.partitions().iter().all(|partition| partition.leader() >= 0));
        Ok(led.count() as u64)
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
