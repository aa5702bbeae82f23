//! The position as it is kept, in the slot and in Kafka, for commands that move it.

use std::sync::Arc;
use std::time::Duration;

use pg_logical::Lsn;
use pg_logical::connect::Startup;
use pg_logical::session::Session;
use time::OffsetDateTime;

use super::connect;
use super::init::alter_failover;
use crate::checkpoint::{Checkpoint, LogFingerprint, Reading, Replay, System};
use crate::config::Config;
use crate::error::{Error, Peer};
use crate::postgres::catalog::{Catalog, Missing, Slot, shards_verdict};
use crate::postgres::slot_record;
use crate::postgres::timeline;
use crate::progress::Position;
use crate::shards::{Ids, Shard};
use crate::sink::kafka::checkpoint_topic::{CheckpointTopic, look_up};

/// How long Kafka may take to make the topic of the positions, or to show it.
const OPEN_TIMEOUT: Duration = Duration::from_secs(15);

/// What there is before a move.
pub(super) struct Kept {
    /// A walsender session.
    pub(super) session: Session,
    pub(super) system: System,
    pub(super) catalog: Catalog,
    pub(super) topic: Option<CheckpointTopic>,
    pub(super) remembered: Option<Checkpoint>,
}

impl Kept {
    pub(super) async fn look(config: &Arc<Config>) -> Result<Self, Error> {
        let name = format!("{} slot", config.name);
        let startup = Startup { replication: true, application_name: &name, settings: &[] };
        let mut session = connect(config, &startup).await?;
        let system = timeline::identify(&mut session).await?;
        let catalog = Catalog::look(&mut session, &config.postgres, &config.outbox).await?;
        // without making the topic: what is only shown leaves no trace
        let confirmed = catalog.slot.as_ref().and_then(|slot| slot.confirmed_flush_lsn);
        let remembered = match &config.delivery.positions_topic {
            Some(topic) => look_up(config, topic, confirmed).await?,
            None => None,
        };
        Ok(Kept { session, system, catalog, topic: None, remembered })
    }

    /// What it takes to write a position. Nobody waits for a broker here as long as a router does.
    pub(super) async fn open(&mut self, config: &Arc<Config>) -> Result<(), Error> {
        let late =
            |_| Err(Error::transient(Peer::Kafka, "the topic of the positions is not to be had: no answer"));
        let opened = tokio::time::timeout(OPEN_TIMEOUT, CheckpointTopic::open(config)).await;
        self.topic = opened.unwrap_or_else(late)?;
        Ok(())
    }

    /// Again, while nobody else writes.
    pub(super) async fn read(&mut self) -> Result<(), Error> {
        self.remembered = match &self.topic {
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

    /// The shard that `config` is of, with what the ids of its aggregates are, where messages have to be dealt out by that.
    pub(super) async fn shard(&mut self, config: &Config) -> Result<Option<(Shard, Ids)>, Error> {
        let Some(shard) = config.shard.filter(|_| config.outbox.message_prefix.is_some()) else {
            return Ok(None);
        };
        let found = [(config.source(), &self.catalog)];
        let ids = shards_verdict(&mut self.session, &found, Missing::AtStart).await?;
        Ok(Some((shard, ids)))
    }

    /// What is acknowledged, as far as is known.
    pub(super) fn position(&self) -> Position {
        match &self.remembered {
            Some(remembered) => remembered.position,
            None => Position { flush: self.confirmed(), partial: None },
        }
    }

    /// Writes where the router is to go on.
    pub(super) async fn write(
        &mut self,
        config: &Config,
        position: Position,
        replay: Option<Replay>,
        reading: Option<Reading>,
    ) -> Result<(), Error> {
        let Some(topic) = &mut self.topic else { return Ok(()) };
        let known = self.remembered.as_ref();
        let reading = reading.unwrap_or_else(|| self.catalog.reading(&config.outbox));
        topic
            .begin(&Checkpoint {
                // greater than any that a running router knows, if its topic was deleted
                epoch: known.map_or_else(seconds, Checkpoint::epoch_of_reset),
                slot: config.postgres.slot.clone(),
                system_identifier: self.system.identifier.clone(),
                timeline: self.system.timeline,
                position,
                // slot and position are at one place
                tail: LogFingerprint::Quiet { from: position.flush },
                reading,
                replay,
                // rows of parked events stay where they are
                parked: known.and_then(|known| known.parked),
                retried: known.map(|known| known.retried.clone()).unwrap_or_default(),
                // by itself
                exactly_once: false,
            })
            .await?;
        // the slot's position is this router's now
        Ok(slot_record::claim(&mut self.session, &config.postgres.slot, &config.name).await?)
    }

    /// A copied slot is none that standbys keep a copy of, even where the slot before was. What keeps it from being made
    /// one is a sentence, and no error: the slot serves as it is.
    pub(super) async fn allow_failover(&mut self, slot: &str) -> String {
        if self.slot().and_then(|slot| slot.failover) != Some(true) {
            return String::new();
        }
        match self.session.query(&alter_failover(slot)).await {
            Ok(_) => String::new(),
            Err(error) => format!(
                " No standby keeps a copy of the slot any more, as it did before: {error}. Stop the router and run \
                 `outbox-router init`, which lets them."
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

/// Since 1970.
fn seconds() -> u64 {
    u64::try_from(OffsetDateTime::now_utc().unix_timestamp()).unwrap_or(1)
}
