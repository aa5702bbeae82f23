//! The positions topic, where each router stores its checkpoints under its name.
//!
//! In at-least-once mode it has a producer of its own, so a refused event does not take a checkpoint with it, and vice versa. One record is in
//! flight at a time, so checkpoints are stored in the order of their positions.

mod creation;
mod reader;
mod writer;

use std::sync::Arc;

use pg_logical::{Lsn, Secret};
use rdkafka::producer::{Producer, PurgeConfig, ThreadedProducer};
use tokio_util::task::AbortOnDropHandle;

use super::checkpoint_failure::NotCommitted;
use super::client::Client;
use super::producers::fence;
use super::publisher::Publisher;
use super::record_limits::TopicLimits;
use super::stale_metadata::StaleMetadata;
use super::{PARTITION, discard, properties};
use crate::checkpoint::Checkpoint;
use crate::config::{Config, DeliveryMode};
use crate::error::{Error, ErrorCode, Peer};
use creation::prepare;
pub use creation::{TopicSettings, create_positions_command};
pub(super) use creation::{refusal_of_all, what};
use reader::OPEN_TRANSACTION_TIMEOUT;
pub use reader::StoredCheckpoints;
pub use writer::WriterState;
use writer::{Reports, Shared};

/// How a router stores checkpoints.
pub enum CheckpointStore {
    /// Not at all, because `positions_topic` is switched off.
    Off,
    /// With a producer of its own, after the events.
    Separate(Box<CheckpointTopic>),
    /// In the transactions of the events. Holds the topic's name.
    Transactional(String),
}

impl CheckpointStore {
    /// Makes sure that the topic exists.
    ///
    /// # Errors
    /// The topic cannot be created or used, or a client cannot be created.
    pub(crate) async fn open(config: &Arc<Config>, sink: &Publisher) -> Result<Self, Error> {
        let Some(topic) = &config.delivery.positions_topic else { return Ok(CheckpointStore::Off) };
        let limits = prepare(config, topic).await?;
        if let Some(policy) = limits.cleanup_policy.filter(|policy| deletes_checkpoints(policy)) {
            let what = format!("{}. {IF_DELETED}", deleted(topic, &policy));
            sink.topic_cache.warn_of_policy(&what, &alter_command(config, topic, COMPACT));
        }
        Ok(match config.delivery.mode {
            DeliveryMode::ExactlyOnce => CheckpointStore::Transactional(topic.clone()),
            DeliveryMode::AtLeastOnce => {
                CheckpointStore::Separate(Box::new(CheckpointTopic::of(config, topic.clone())?))
            }
        })
    }

    /// The checkpoints that may count under the router's name, whoever wrote them, without fencing or waiting for anybody.
    /// The caller holds the slot's lock and passes the slot's `confirmed` position.
    ///
    /// # Errors
    /// The topic cannot be read, or contains what this version does not understand.
    pub(crate) async fn read_candidates(
        &self,
        config: &Config,
        confirmed: Lsn,
        sink: &Publisher,
    ) -> Result<StoredCheckpoints, Error> {
        let topic = match self {
            CheckpointStore::Off => return Ok(StoredCheckpoints::nothing()),
            CheckpointStore::Separate(topic) => &topic.topic,
            CheckpointStore::Transactional(topic) => topic,
        };
        sink.unless_positions_are_stuck(reader::read_without_waiting(config, topic, confirmed)).await
    }

    /// The checkpoint under the router's name, once nobody else writes there. `stored` is the result of
    /// [`CheckpointStore::read_candidates`].
    ///
    /// # Errors
    /// As [`CheckpointStore::read_candidates`].
    pub(crate) async fn read(
        &self,
        config: &Config,
        confirmed: Lsn,
        stored: StoredCheckpoints,
        sink: &Publisher,
    ) -> Result<Option<Checkpoint>, Error> {
        match self {
            CheckpointStore::Off => Ok(None),
            CheckpointStore::Separate(topic) => {
                sink.unless_positions_are_stuck(topic.settled(confirmed, stored)).await
            }
            CheckpointStore::Transactional(topic) => {
                // open transactions have ended by now, because the producers have fenced earlier routers
                let read = reader::read(config, topic, confirmed, OPEN_TRANSACTION_TIMEOUT);
                sink.unless_positions_are_stuck(read).await
            }
        }
    }

    /// Writes the first checkpoint of a session, and waits for its acknowledgement.
    ///
    /// # Errors
    /// It is refused, or is not acknowledged in time.
    pub(crate) async fn begin(&mut self, first: &Checkpoint, sink: &mut Publisher) -> Result<(), Error> {
        let topic = match self {
            CheckpointStore::Off => return Ok(()),
            CheckpointStore::Separate(topic) => {
                return sink.unless_positions_are_stuck(topic.begin(first)).await;
            }
            CheckpointStore::Transactional(topic) => topic,
        };
        let commit = sink.commit(first);
        let committed = async {
            let committed = match commit {
                Ok(mut commit) => commit.done().await,
                Err(failed) => Err(failed),
            };
            committed.map(|_| ()).map_err(|NotCommitted { reason, remedy }| {
                let what = format!("the position cannot be committed to the topic {topic}: {reason}");
                if remedy.is_empty() {
                    Error::transient(Peer::Kafka, what)
                } else {
                    Error::refused(ErrorCode::PositionsTopic, what, remedy)
                }
            })
        };
        sink.unless_positions_are_stuck(committed).await
    }

    /// Ends the client, if there is one.
    pub async fn close(self) {
        if let CheckpointStore::Separate(topic) = self {
            topic.close().await;
        }
    }
}

/// The producer of one session that writes checkpoints after the events.
pub struct CheckpointTopic {
    config: Arc<Config>,
    topic: String,
    producer: Client<ThreadedProducer<Reports>>,
    shared: Arc<Shared>,
    state: WriterState,
    stale_metadata: Arc<StaleMetadata>,
    /// Creates the topic again after it was deleted. Ends with the session.
    preparing: Option<AbortOnDropHandle<Result<TopicLimits, Error>>>,
}

impl CheckpointTopic {
    /// Makes sure that the topic exists. `None` if it is switched off.
    ///
    /// # Errors
    /// The topic cannot be created or used, or a client cannot be created.
    pub async fn open(config: &Arc<Config>) -> Result<Option<Self>, Error> {
        let Some(topic) = config.delivery.positions_topic.clone() else { return Ok(None) };
        prepare(config, &topic).await?;
        Self::of(config, topic).map(Some)
    }

    /// The topic, which exists.
    fn of(config: &Arc<Config>, topic: String) -> Result<Self, Error> {
        let shared = Arc::new(Shared::new(config, &topic));
        let producer = writer::producer(config, &shared)?;
        Ok(CheckpointTopic {
            config: Arc::clone(config),
            topic,
            producer,
            shared,
            state: WriterState::default(),
            stale_metadata: Arc::default(),
            preparing: None,
        })
    }

    /// The checkpoint under the router's name, whoever wrote it. The caller holds the slot's lock, so a router that still
    /// has an open transaction under this name has ended or is frozen. `confirmed`: the slot's position.
    ///
    /// # Errors
    /// The topic cannot be read, or contains what this version does not understand.
    pub(crate) async fn read(&self, confirmed: Lsn) -> Result<Option<Checkpoint>, Error> {
        let stored = reader::read_without_waiting(&self.config, &self.topic, confirmed).await?;
        self.settled(confirmed, stored).await
    }

    async fn settled(&self, confirmed: Lsn, stored: StoredCheckpoints) -> Result<Option<Checkpoint>, Error> {
        if let Some(checkpoint) = stored.settled() {
            return Ok(checkpoint);
        }
        // without the privilege to fence, the transaction ends when it times out
        if let Err(error) = fence(&self.config).await {
            tracing::debug!(peer = "kafka", %error, "transactions under this name");
        }
        reader::read(&self.config, &self.topic, confirmed, OPEN_TRANSACTION_TIMEOUT).await
    }

    /// Purges and ends the client.
    pub async fn close(self) {
        self.producer.purge(PurgeConfig::default().queue().inflight().non_blocking());
        discard(self.producer).await;
    }
}

/// Reads a checkpoint without writing anything, for commands. `None`: the topic does not exist, or has no checkpoint, or checkpoints are
/// off. `confirmed`: the slot's position, if known.
///
/// # Errors
/// The topic cannot be read, or contains what this version does not understand.
pub async fn look_up(config: &Config, confirmed: Option<Lsn>) -> Result<Option<Checkpoint>, Error> {
    let Some(topic) = &config.delivery.positions_topic else { return Ok(None) };
    // commands do not try again by themselves, so wait until any transaction has timed out
    let wait_limit = properties::transaction_timeout(config) + OPEN_TRANSACTION_TIMEOUT;
    reader::read(config, topic, confirmed.unwrap_or_default(), wait_limit).await
}

/// The setting that keeps the last checkpoint of each router.
pub const COMPACT: &str = "cleanup.policy=compact";

/// Whether a topic with this `cleanup.policy` deletes checkpoints that still count.
pub fn deletes_checkpoints(policy: &str) -> bool {
    policy.contains("delete")
}

/// What `run` and `check` say of such a topic.
pub fn deleted(topic: &str, policy: &str) -> String {
    format!("the topic {topic} deletes old checkpoints (cleanup.policy = {policy})")
}

/// What that means.
pub const IF_DELETED: &str = "A router that has written none for longer than the topic keeps them cannot tell at its next start whether \
                              its slot was moved";

/// The command that changes a setting of a topic.
pub fn alter_command(config: &Config, topic: &str, setting: &str) -> String {
    let servers = config.kafka.properties.get("bootstrap.servers").map_or("", Secret::reveal);
    format!("kafka-configs.sh --bootstrap-server {servers} --alter --topic {topic} --add-config {setting}")
}
