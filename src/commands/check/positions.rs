//! The checkpoints in Kafka: whether the topic retains them, and whether the next start would resume there.

use pg_logical::Lsn;
use pg_logical::session::Session;

use super::finding::Findings;
use super::kafka::KafkaState;
use super::topics::durability;
use crate::checkpoint::{self, ResumeConflict, SlotRecord, StreamDefinition};
use crate::config::{Config, DeliveryMode};
use crate::error::Error;
use crate::postgres::catalog::Catalog;
use crate::postgres::slot_record;
use crate::quantity::bytes;
use crate::sink::kafka::checkpoint_topic::{COMPACT, alter_command, look_up};
use crate::sink::kafka::cluster_info::Settings;

/// The size of a record with the checkpoint of a router that reads one table, in bytes.
const USUAL: u64 = 2 << 10;

/// The size of a record with many tables, or with parked events that are retried.
const ROOM: u64 = 16 << 10;

/// The slot and publication of one router, to compare with its checkpoint.
pub(super) struct RouterState {
    /// The router's name; with shards, the name of one shard.
    name: String,
    confirmed: Lsn,
    /// Whether a router is reading the slot.
    active: bool,
    definition: StreamDefinition,
    /// The record of the slot in the router's schema; `None` with at-least-once delivery.
    record: Option<SlotRecord>,
}

impl RouterState {
    /// `None` if there is no slot, which `slot` reports.
    pub(super) async fn of(
        config: &Config,
        catalog: &Catalog,
        session: &mut Session,
    ) -> Result<Option<Self>, Error> {
        let Some(slot) = &catalog.slot else { return Ok(None) };
        let Some(confirmed) = slot.confirmed_flush_lsn else { return Ok(None) };
        let record = match config.delivery.mode {
            DeliveryMode::ExactlyOnce => Some(slot_record::read(session, &config.postgres.slot).await?),
            DeliveryMode::AtLeastOnce => None,
        };
        Ok(Some(RouterState {
            name: config.name.clone(),
            confirmed,
            active: slot.active_pid.is_some(),
            definition: catalog.stream_definition(&config.outbox),
            record,
        }))
    }

    /// Why a start without a checkpoint would be refused.
    fn conflict_without_checkpoint(&self, config: &Config) -> Option<ResumeConflict> {
        checkpoint::not_new(&self.name, &config.postgres.slot, self.confirmed, self.record.as_ref()?)
    }
}

pub(super) async fn check(
    config: &Config,
    kafka_state: Option<&KafkaState>,
    states: &[RouterState],
    findings: &mut Findings,
) {
    let Some(topic) = &config.delivery.positions_topic else {
        return findings.warning(
            "positions_topic",
            "no checkpoints are stored in Kafka (`[delivery] positions_topic` is empty): after a crash of Postgres the last minutes \
             are sent again, and the router does not notice a slot that was moved or recreated while it was stopped",
            "Remove the setting, and grant what `outbox-router init --print-acls` prints",
        );
    };
    let Some(kafka_state) = kafka_state else { return };
    match &kafka_state.positions {
        None if config.topics.create => {
            findings.ok("positions_topic", format!("{topic} will be created"));
        }
        None => findings.error(
            "positions_topic",
            format!("the topic {topic} does not exist and `[topics] create` is false"),
            "Create it with one partition and cleanup.policy=compact, or set `create = true`",
        ),
        Some((found, settings)) => {
            let policy = settings.as_ref().and_then(|settings| settings.get("cleanup.policy"));
            if policy.is_some_and(|policy| policy != "compact") {
                findings.error(
                    "positions_topic",
                    format!(
                        "the topic {topic} deletes old checkpoints (cleanup.policy = {}){}",
                        policy.unwrap_or_default(),
                        retention(settings.as_ref())
                    ),
                    alter_command(config, topic, COMPACT),
                );
            }
            checkpoint_size(config, topic, settings.as_ref(), findings);
            durability(found, settings.as_ref(), kafka_state.capped, findings);
            for shard in config.every_shard() {
                let state = states.iter().find(|state| state.name == shard.name);
                check_checkpoint(&shard, state, findings).await;
            }
        }
    }
}

/// After which time it deletes them, as a clause.
fn retention(settings: Option<&Settings>) -> String {
    match settings.and_then(|settings| settings.number("retention.ms")) {
        Some(retention @ 0..) => format!(" after {} minutes", retention / 60_000),
        _ => String::new(),
    }
}

/// Whether the topic accepts the records of a router.
fn checkpoint_size(config: &Config, topic: &str, settings: Option<&Settings>, findings: &mut Findings) {
    let limit = settings.and_then(|settings| settings.number("max.message.bytes"));
    let Some(limit) = limit.and_then(|limit| u64::try_from(limit).ok()).filter(|limit| *limit < ROOM) else {
        return;
    };
    let what = format!(
        "the topic {topic} accepts at most {} (max.message.bytes), and a checkpoint may need {}",
        bytes(limit),
        bytes(ROOM)
    );
    // Kafka's default
    let remedy = alter_command(config, topic, "max.message.bytes=1048588");
    if limit < USUAL {
        findings.error("positions_topic", what, remedy)
    } else {
        findings.warning("positions_topic", what, remedy)
    }
}

async fn check_checkpoint(config: &Config, state: Option<&RouterState>, findings: &mut Findings) {
    let checkpoint = match look_up(config, state.map(|state| state.confirmed)).await {
        Ok(Some(checkpoint)) => checkpoint,
        Ok(None) => {
            if let Some(conflict) = state.and_then(|state| state.conflict_without_checkpoint(config)) {
                let remedy = conflict.full_remedy(config.shard);
                return findings.error("position", conflict.what, remedy);
            }
            let what = format!(
                "no checkpoint is stored for {}: the router starts at the slot's position",
                config.name
            );
            return findings.ok("position", what);
        }
        Err(error) => return findings.failure("position", error, "Check the brokers' logs"),
    };
    let Some(state) = state else { return };
    let position = checkpoint.position.flush;
    let remedy = "`outbox-router run` stops with the details, and prints how to continue";
    if checkpoint.slot != config.postgres.slot {
        let what = format!("the checkpoint of {} belongs to another slot, {}", config.name, checkpoint.slot);
        findings.error("position", what, remedy);
    } else if state.confirmed > position && !state.active {
        let what = format!(
            "the slot is confirmed up to {}, but the router has delivered only up to {position}",
            state.confirmed
        );
        findings.error("position", what, remedy);
    } else if state.definition.altered_since(&checkpoint.definition) {
        let what = format!(
            "the publication or an outbox table was altered or recreated after the router was at {position}"
        );
        findings.error("position", what, remedy);
    } else {
        findings.ok("position", format!("the checkpoint of {} is at {position}", config.name));
    }
}
