//! The positions topic: where routers remember what they have delivered, each under its name.
//!
//! It has a client of its own: an event that is refused must not take the position with it, nor the other way round. One
//! record is under way at a time, so positions are in the topic in the order in which they were true.

mod reader;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;

use rdkafka::producer::{Producer, PurgeConfig, ThreadedProducer};
use tokio_util::task::AbortOnDropHandle;

use super::context::AdminContext;
use super::lost_sight::LostSight;
use super::topics::TopicKeeper;
use super::{discard, properties};
use crate::config::{Config, Topics};
use crate::error::{Definite, Error, Exit};
use crate::positions::Remembered;
pub use writer::Written;
use writer::{Reports, Shared};

/// Whatever the number of the topic's partitions, so that more of them move nothing.
const PARTITION: i32 = 0;

/// Small segments, compacted soon: a start reads the topic as a whole.
const TOPIC_CONFIG: [(&str, &str); 5] = [
    ("cleanup.policy", "compact"),
    ("segment.bytes", "1048576"),
    ("segment.ms", "600000"),
    ("min.cleanable.dirty.ratio", "0.01"),
    ("max.compaction.lag.ms", "600000"),
];

/// The client of one session.
pub struct PositionsTopic {
    config: Arc<Config>,
    topic: String,
    producer: ThreadedProducer<Reports>,
    shared: Arc<Shared>,
    written: Written,
    lost_sight: Arc<LostSight>,
    /// Makes the topic again. Ends with the session.
    preparing: Option<AbortOnDropHandle<Result<(), Error>>>,
}

impl PositionsTopic {
    /// Makes sure that the topic is there. `None` if it is switched off.
    ///
    /// # Errors
    /// The topic cannot be had, or a client cannot be made.
    pub async fn open(config: &Arc<Config>) -> Result<Option<Self>, Error> {
        let Some(topic) = config.delivery.positions_topic.clone() else { return Ok(None) };
        prepare(config, &topic).await?;
        let shared = Arc::new(Shared::default());
        let producer = writer::producer(config, &shared)?;
        let config = Arc::clone(config);
        Ok(Some(PositionsTopic {
            config,
            topic,
            producer,
            shared,
            written: Written::default(),
            lost_sight: Arc::default(),
            preparing: None,
        }))
    }

    /// What is remembered under the router's name, whoever wrote it.
    ///
    /// # Errors
    /// The topic cannot be read, or holds what this version does not know.
    pub async fn read(&self) -> Result<Option<Remembered>, Error> {
        reader::read(&self.config, &self.topic).await
    }

    /// Purges and ends the client.
    pub async fn close(self) {
        self.producer.purge(PurgeConfig::default().queue().inflight());
        discard(self.producer).await;
    }
}

/// Looks a position up without writing anything, for commands. `None`: there is no such topic, or nothing in it.
///
/// # Errors
/// As [`PositionsTopic::read`].
pub async fn look_up(config: &Config, topic: &str) -> Result<Option<Remembered>, Error> {
    reader::read(config, topic).await
}

/// The topic as the router makes it.
pub(super) fn wanted(config: &Config) -> Topics {
    let setting = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Topics {
        partitions: Some(1),
        config: TOPIC_CONFIG.iter().map(setting).collect::<BTreeMap<_, _>>(),
        allow: Vec::new(),
        ..config.topics.clone()
    }
}

async fn prepare(config: &Config, topic: &str) -> Result<(), Error> {
    let admin = properties::make(&properties::client(config), AdminContext::default())?;
    let keeper = Arc::new(TopicKeeper::new(admin, wanted(config), Arc::default()));
    let prepared = Arc::clone(&keeper).prepare(topic.to_owned()).await;
    // joining librdkafka's threads blocks
    drop(tokio::task::spawn_blocking(move || drop(keeper)));
    match prepared {
        Ok(_) => Ok(()),
        // no event waits for this one
        Err(Error::Definite(Definite { what, remedy, .. })) => Err(Definite {
            exit: Exit::Refused,
            what: format!("the topic of the positions cannot be had: {what}"),
            remedy: format!(
                "{remedy}; `[delivery] positions_topic` names it, and an empty text does without"
            ),
        }
        .into()),
        transient => transient.map(drop),
    }
}
