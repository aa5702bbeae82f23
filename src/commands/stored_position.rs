//! The position as stored in the slot and in Kafka, for commands that move it.

use std::sync::Arc;
use std::time::Duration;

use pg_logical::Lsn;
use pg_logical::connect::Startup;
use pg_logical::session::Session;
use time::OffsetDateTime;

use super::connect;
use super::init::alter_failover;
use crate::checkpoint::{Checkpoint, LogFingerprint, Replay, StreamDefinition, System};
use crate::config::Config;
use crate::error::{Error, Peer};
use crate::postgres::catalog::{Catalog, Missing, Slot, check_shards};
use crate::postgres::slot_record;
use crate::postgres::timeline;
use crate::progress::Position;
use crate::shards::{Ids, Shard};
use crate::sink::kafka::checkpoint_topic::{CheckpointTopic, look_up};

/// How long Kafka may take to create or open the positions topic.
const OPEN_TIMEOUT: Duration = Duration::from_secs(15);

/// What Postgres and Kafka store about the position, before it is moved.
pub(super) struct StoredPosition {
    /// A walsender session.
    pub(super) session: Session,
    pub(super) system: System,
    pub(super) catalog: Catalog,
    pub(super) topic: Option<CheckpointTopic>,
    pub(super) checkpoint: Option<Checkpoint>,
}

impl StoredPosition {
    pub(super) async fn load(config: &Arc<Config>) -> Result<Self, Error> {
        let walsender = Startup { replication: true, ..Startup::default() };
        let mut session = connect(config, "slot", walsender).await?;
        let system = timeline::identify(&mut session).await?;
        let catalog = Catalog::query(&mut session, &config.postgres, &config.outbox).await?;
        // reads without creating the topic, because a dry run must not change anything
        let confirmed = catalog.slot.as_ref().and_then(|slot| slot.confirmed_flush_lsn);
        let checkpoint = look_up(config, confirmed).await?;
        Ok(StoredPosition { session, system, catalog, topic: None, checkpoint })
    }

    /// Opens the positions topic for writing. Unlike the router, a command does not wait long for a broker.
    pub(super) async fn open(&mut self, config: &Arc<Config>) -> Result<(), Error> {
        let late = |_| {
            Err(Error::transient(Peer::Kafka, "the positions topic cannot be opened: Kafka does not answer"))
        };
        let opened = tokio::time::timeout(OPEN_TIMEOUT, CheckpointTopic::open(config)).await;
        self.topic = opened.unwrap_or_else(late)?;
        Ok(())
    }

    /// Reads the checkpoint again. Call it while holding the slot's lock, so that no router can write it afterwards.
    pub(super) async fn read_again(&mut self) -> Result<(), Error> {
        self.checkpoint = match &self.topic {
            Some(topic) => topic.read(self.confirmed()).await?,
            None => None,
        };
        Ok(())
    }

    pub(super) fn slot(&self) -> Option<&Slot> {
        self.catalog.slot.as_ref()
    }

    fn confirmed(&self) -> Lsn {
        self.slot().and_then(|slot| slot.confirmed_flush_lsn).unwrap_or(Lsn::INVALID)
    }

    /// The shard of `config` and the type of its aggregate ids, which decide whether a logical message belongs to the shard.
    /// `None` without shards or without messages.
    pub(super) async fn shard(&mut self, config: &Config) -> Result<Option<(Shard, Ids)>, Error> {
        let Some(shard) = config.shard.filter(|_| config.outbox.message_prefix.is_some()) else {
            return Ok(None);
        };
        let found = [(config.source(), &self.catalog)];
        let ids = check_shards(&mut self.session, &found, Missing::AtStart).await?;
        Ok(Some((shard, ids)))
    }

    /// The position of the checkpoint or, without one, of the slot.
    pub(super) fn position(&self) -> Position {
        match &self.checkpoint {
            Some(checkpoint) => checkpoint.position,
            None => Position { flush: self.confirmed(), partial: None },
        }
    }

    /// Writes a checkpoint at which the router resumes.
    pub(super) async fn write(
        &mut self,
        config: &Config,
        position: Position,
        replay: Option<Replay>,
        definition: Option<StreamDefinition>,
    ) -> Result<(), Error> {
        let Some(topic) = &mut self.topic else { return Ok(()) };
        let known = self.checkpoint.as_ref();
        let definition = definition.unwrap_or_else(|| self.catalog.stream_definition(&config.outbox));
        topic
            .begin(&Checkpoint {
                // without a checkpoint, greater than the epoch of any running router
                epoch: known.map_or_else(seconds, Checkpoint::epoch_of_reset),
                slot: config.postgres.slot.clone(),
                system_identifier: self.system.identifier.clone(),
                timeline: self.system.timeline,
                position,
                // the slot is moved to the same position
                fingerprint: LogFingerprint::Quiet { from: position.flush },
                definition,
                replay,
                // a move does not affect parked events
                parked: known.and_then(|known| known.parked),
                retried: known.map(|known| known.retried.clone()).unwrap_or_default(),
                backfill: known.and_then(|known| known.backfill.clone()),
                // the record is not part of a transaction
                exactly_once: false,
                stopped: None,
            })
            .await?;
        // a start in exactly-once mode must not take the slot for a new one
        Ok(slot_record::claim(&mut self.session, &config.postgres.slot, &config.name).await?)
    }

    /// Sets `failover` on a slot that replaced one with `failover`, because a copied slot does not have it. A failure is
    /// returned as a warning, because the router can use the slot without it.
    pub(super) async fn allow_failover(&mut self, slot: &str) -> String {
        if self.slot().and_then(|slot| slot.failover) != Some(true) {
            return String::new();
        }
        match self.session.query(&alter_failover(slot)).await {
            Ok(_) => String::new(),
            Err(error) => format!(
                " Standbys no longer keep a copy of the slot, because `failover` could not be set: {error}. Stop the router and run \
                 `outbox-router init`, which sets it."
            ),
        }
    }

    pub(super) async fn close(self) {
        self.session.close().await;
        if let Some(topic) = self.topic {
            topic.close().await;
        }
    }
}

/// Seconds since 1970.
fn seconds() -> u64 {
    u64::try_from(OffsetDateTime::now_utc().unix_timestamp()).unwrap_or(1)
}
