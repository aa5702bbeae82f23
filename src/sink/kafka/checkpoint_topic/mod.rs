//! The positions topic: where routers remember what they have delivered, each under its name.
//!
//! It has a client of its own: an event that is refused must not take the position with it, nor the other way round. One
//! record is under way at a time, so positions are in the topic in the order in which they were true.

mod reader;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;

use pg_logical::Lsn;
use rdkafka::producer::{Producer, PurgeConfig, ThreadedProducer};
use tokio_util::task::AbortOnDropHandle;

use super::client::Client;
use super::context::AdminContext;
use super::position_report::NotCommitted;
use super::producers::shut_out;
use super::publisher::Publisher;
use super::stale_metadata::StaleMetadata;
use super::topics::TopicKeeper;
use super::{PARTITION, discard, properties};
use crate::checkpoint::Checkpoint;
use crate::config::{Config, DeliveryMode, Topics};
use crate::error::{Definite, Error, Exit, Peer};
use reader::AMPLE;
pub use reader::Seen;
pub use writer::Written;
use writer::{Reports, Shared};

/// Small segments, compacted soon: a start reads the topic as a whole.
const TOPIC_CONFIG: [(&str, &str); 5] = [
    ("cleanup.policy", "compact"),
    ("segment.bytes", "1048576"),
    ("segment.ms", "600000"),
    ("min.cleanable.dirty.ratio", "0.01"),
    ("max.compaction.lag.ms", "600000"),
];

/// How a router remembers.
pub enum CheckpointStore {
    /// Not at all: `positions_topic` is empty.
    Off,
    /// By a client of its own, after the events.
    After(Box<CheckpointTopic>),
    /// With the events, in their transactions.
    With(String),
}

impl CheckpointStore {
    /// Makes sure that the topic is there.
    ///
    /// # Errors
    /// The topic cannot be had, or a client cannot be made.
    pub async fn open(config: &Arc<Config>) -> Result<Self, Error> {
        match (config.delivery.mode, &config.delivery.positions_topic) {
            (DeliveryMode::ExactlyOnce, Some(topic)) => {
                prepare(config, topic).await?;
                Ok(CheckpointStore::With(topic.clone()))
            }
            _ => Ok(CheckpointTopic::open(config)
                .await?
                .map_or(CheckpointStore::Off, |topic| CheckpointStore::After(Box::new(topic)))),
        }
    }

    /// What may be remembered under the router's name, whoever wrote it. Nobody is shut out or waited for. Who looks holds the
    /// slot's lock, and knows up to where the slot is `confirmed`.
    ///
    /// # Errors
    /// The topic cannot be read, or holds what this version does not know.
    pub(crate) async fn look(
        &self,
        config: &Config,
        confirmed: Lsn,
        sink: &Publisher,
    ) -> Result<Seen, Error> {
        match self {
            CheckpointStore::Off => Ok(Seen::nothing()),
            CheckpointStore::After(topic) => {
                sink.unless_positions_are_stuck(reader::look(config, &topic.topic, confirmed)).await
            }
            CheckpointStore::With(topic) => {
                sink.unless_positions_are_stuck(reader::look(config, topic, confirmed)).await
            }
        }
    }

    /// What is remembered under the router's name, once nobody else writes there. `seen`: what a look has shown before that.
    ///
    /// # Errors
    /// As [`CheckpointStore::look`].
    pub(crate) async fn read(
        &self,
        config: &Config,
        confirmed: Lsn,
        seen: Seen,
        sink: &Publisher,
    ) -> Result<Option<Checkpoint>, Error> {
        match self {
            CheckpointStore::Off => Ok(None),
            CheckpointStore::After(topic) => {
                sink.unless_positions_are_stuck(topic.settled(confirmed, seen)).await
            }
            CheckpointStore::With(topic) => {
                // what was left open is ended by now: the producers have taken over
                let read = reader::read(config, topic, confirmed, AMPLE);
                sink.unless_positions_are_stuck(read).await
            }
        }
    }

    /// Writes the position that a session starts with, and waits for it.
    ///
    /// # Errors
    /// It is refused, or is not acknowledged in time.
    pub(crate) async fn begin(&mut self, first: &Checkpoint, sink: &mut Publisher) -> Result<(), Error> {
        let topic = match self {
            CheckpointStore::Off => return Ok(()),
            CheckpointStore::After(topic) => {
                return sink.unless_positions_are_stuck(topic.begin(first)).await;
            }
            CheckpointStore::With(topic) => topic,
        };
        let commit = sink.commit(first);
        let committed = async {
            let committed = match commit {
                Ok(mut commit) => commit.done().await,
                Err(failed) => Err(failed),
            };
            committed.map_err(|NotCommitted { reason, remedy }| {
                let what = format!("the position cannot be committed to the topic {topic}: {reason}");
                match remedy {
                    "" => Error::transient(Peer::Kafka, what),
                    remedy => Error::refused(what, remedy),
                }
            })
        };
        sink.unless_positions_are_stuck(committed).await
    }

    /// Ends the client, if there is one.
    pub async fn close(self) {
        if let CheckpointStore::After(topic) = self {
            topic.close().await;
        }
    }
}

/// The client of one session that writes positions after the events.
pub struct CheckpointTopic {
    config: Arc<Config>,
    topic: String,
    producer: Client<ThreadedProducer<Reports>>,
    shared: Arc<Shared>,
    written: Written,
    lost_sight: Arc<StaleMetadata>,
    /// Makes the topic again. Ends with the session.
    preparing: Option<AbortOnDropHandle<Result<(), Error>>>,
}

impl CheckpointTopic {
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
        Ok(Some(CheckpointTopic {
            config,
            topic,
            producer,
            shared,
            written: Written::default(),
            lost_sight: Arc::default(),
            preparing: None,
        }))
    }

    /// What is remembered under the router's name, whoever wrote it. Who reads holds the slot's lock, so a router that
    /// delivers exactly once under this name and is not done yet is one that is gone, or frozen. `confirmed`: by the slot.
    ///
    /// # Errors
    /// The topic cannot be read, or holds what this version does not know.
    pub(crate) async fn read(&self, confirmed: Lsn) -> Result<Option<Checkpoint>, Error> {
        let seen = reader::look(&self.config, &self.topic, confirmed).await?;
        self.settled(confirmed, seen).await
    }

    async fn settled(&self, confirmed: Lsn, seen: Seen) -> Result<Option<Checkpoint>, Error> {
        if let Some(remembered) = seen.settled() {
            return Ok(remembered);
        }
        // without the right to: it ends when it has timed out
        if let Err(error) = shut_out(&self.config).await {
            tracing::debug!(peer = "kafka", %error, "transactions under this name");
        }
        reader::read(&self.config, &self.topic, confirmed, AMPLE).await
    }

    /// Purges and ends the client.
    pub async fn close(self) {
        self.producer.purge(PurgeConfig::default().queue().inflight().non_blocking());
        discard(self.producer).await;
    }
}

/// Looks a checkpoint up without writing anything, for commands. `None`: there is no such topic, or nothing in it, or positions are
/// not kept in Kafka. `confirmed`: by the slot, where it is known.
///
/// # Errors
/// The topic cannot be read, or holds what this version does not know.
pub async fn look_up(config: &Config, confirmed: Option<Lsn>) -> Result<Option<Checkpoint>, Error> {
    let Some(topic) = &config.delivery.positions_topic else { return Ok(None) };
    // who runs a command again and again waits for the same
    let patience = properties::transaction_timeout(config) + AMPLE;
    reader::read(config, topic, confirmed.unwrap_or_default(), patience).await
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
    match keeper.prepare(topic.to_owned()).await {
        Ok(_) => Ok(()),
        // no event waits for this one
        Err(Error::Definite(Definite { what, remedy, .. })) => {
            let optional = config.delivery.mode == DeliveryMode::AtLeastOnce && config.shards.count == 1;
            let without = if optional { ", and an empty text does without" } else { "" };
            Err(Definite {
                exit: Exit::Refused,
                what: format!("the topic of the positions cannot be had: {what}"),
                remedy: format!("{remedy}; `[delivery] positions_topic` names it{without}"),
            }
            .into())
        }
        transient => transient.map(drop),
    }
}
