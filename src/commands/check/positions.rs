//! The checkpoints in Kafka: whether the topic retains them, and whether the next start would resume there.

use std::time::Duration;

use pg_logical::Lsn;
use pg_logical::connect::Startup;
use pg_logical::session::Session;
use tokio::sync::OnceCell;

use super::finding::Findings;
use super::kafka::KafkaState;
use super::shards;
use super::topics::durability;
use crate::checkpoint::{Checkpoint, ResumeConflict, Resumption, SlotRecord, Stopped};
use crate::commands::connect;
use crate::config::Config;
use crate::error::{Error, ErrorCode, Remedy, Step};
use crate::postgres::catalog::{Catalog, slots_of_other_shards};
use crate::postgres::timeline;
use crate::quantity::bytes;
use crate::sink::kafka::checkpoint_topic::{
    COMPACT, IF_DELETED, TopicSettings, alter_command, create_positions_command, deleted,
    deletes_checkpoints, look_up,
};
use crate::sink::kafka::cluster_info::Settings;
use crate::supervisor::resume_facts::{ResumeFacts, read_slot_record};

/// The size of a record with the checkpoint of a router that reads one table, in bytes.
const USUAL: u64 = 2 << 10;

/// The size of a record with many tables, or with parked events that are retried.
const ROOM: u64 = 16 << 10;

/// How long to wait for transactions that have written to the tables.
const WRITERS_PATIENCE: Duration = Duration::from_secs(5);

/// The slot and publication of one router, to compare with its checkpoint.
pub(super) struct RouterState {
    /// The router's name; with shards, the name of one shard.
    name: String,
    catalog: Catalog,
    confirmed: Lsn,
    /// Whether somebody is reading the slot.
    active: bool,
    /// The record of the slot in the router's schema.
    record: Option<SlotRecord>,
    /// This router's slots for another number of shards.
    other_slots: Vec<String>,
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
        Ok(Some(RouterState {
            name: config.name.clone(),
            catalog: catalog.clone(),
            confirmed,
            active: slot.active_pid.is_some(),
            record: read_slot_record(config, session).await?,
            other_slots: slots_of_other_shards(session, config.base_slot(), &config.slots_of_all_shards())
                .await?,
        }))
    }

    /// What a start would decide now. The server is asked after the checkpoint was read, so its log contains what a running
    /// router has stored meanwhile.
    async fn decide(
        &self,
        config: &Config,
        checkpoint: Option<&Checkpoint>,
    ) -> Result<Result<Resumption, ResumeConflict>, Error> {
        let walsender = Startup { replication: true, ..Startup::default() };
        let mut session = connect(config, "check", walsender).await?;
        let system = timeline::identify(&mut session).await?;
        // the position of a slot that is being read moves, so it proves nothing about a checkpoint for it
        let moving = checkpoint.filter(|checkpoint| {
            let same_slot = checkpoint.slot == config.postgres.slot;
            self.active && same_slot && checkpoint.system_identifier == system.identifier
        });
        let facts = ResumeFacts {
            catalog: &self.catalog,
            confirmed: moving.map_or(self.confirmed, |known| self.confirmed.min(known.position.flush)),
            system: &system,
            log_mismatch: None,
            record: self.record.as_ref(),
            left_out: &OnceCell::new(),
            patience: Some(WRITERS_PATIENCE),
        };
        let decided = facts.decide(config, &mut session, checkpoint, None).await;
        session.close().await;
        decided
    }

    /// Whether another router is known to have read the slot.
    fn is_read_by_another(&self) -> bool {
        let router = self.record.as_ref().and_then(|record| record.router.as_ref());
        router.is_some_and(|router| *router != self.name)
    }
}

pub(super) async fn check(
    config: &Config,
    kafka_state: Option<&KafkaState>,
    states: &[RouterState],
    findings: &mut Findings,
) {
    let Some(topic) = &config.delivery.positions_topic else {
        for state in states {
            shards::check_other_slots(config, None, &state.other_slots, findings).await;
        }
        return findings.warning(
            "positions_topic",
            "no checkpoints are stored in Kafka (`[delivery] positions_topic` is false): after a crash of Postgres the last minutes \
             are sent again, and the router does not notice a slot that was moved or recreated while it was stopped",
            "Remove the setting, and grant what `outbox-router init --print-acls` prints",
        );
    };
    let Some(kafka_state) = kafka_state else { return };
    match (&kafka_state.positions, &kafka_state.may_create_positions) {
        (None, Some(Err(error))) => {
            findings.failure("positions_topic", error.clone(), "Check `[topics]` and the brokers' logs");
        }
        (None, Some(Ok((settings, None)))) => {
            findings.ok("positions_topic", format!("{topic} will be created, with {settings}"));
        }
        (None, Some(Ok((settings, Some(refused))))) => {
            let what = format!(
                "{topic} will be created with {settings}, because the brokers refuse more: {refused}"
            );
            match settings {
                TopicSettings::Defaults => findings.warning(
                    "positions_topic",
                    format!("{what}. {IF_DELETED}"),
                    Remedy::steps([Step::new("Create it with settings that the brokers accept")
                        .typing(create_positions_command(config, topic))]),
                ),
                _ => findings.ok("positions_topic", what),
            }
        }
        (None, None) => findings.error(
            "positions_topic",
            ErrorCode::PositionsTopic,
            format!("the topic {topic} does not exist and `[topics] create` is false"),
            Remedy::steps([Step::new("Create it, or set `create = true`")
                .typing(create_positions_command(config, topic))]),
        ),
        (Some((found, settings)), _) => {
            let policy = settings.as_ref().and_then(|settings| settings.get("cleanup.policy"));
            if let Some(policy) = policy.filter(|policy| deletes_checkpoints(policy)) {
                findings.warning(
                    "positions_topic",
                    format!("{}{}. {IF_DELETED}", deleted(topic, policy), retention(settings.as_ref())),
                    Remedy::steps([Step::new("Keep the last checkpoint of each router")
                        .typing(alter_command(config, topic, COMPACT))]),
                );
            }
            checkpoint_size(config, topic, settings.as_ref(), findings);
            durability(found, settings.as_ref(), kafka_state.capped, findings);
        }
    }
    // without the topic too, because then the checkpoint may be lost
    for shard in config.every_shard() {
        let state = states.iter().find(|state| state.name == shard.name);
        check_checkpoint(&shard, state, findings).await;
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
    let remedy = Remedy::steps([Step::new("Set Kafka's default").typing(alter_command(
        config,
        topic,
        "max.message.bytes=1048588",
    ))]);
    if limit < USUAL {
        findings.error("positions_topic", ErrorCode::PositionsTopic, what, remedy)
    } else {
        findings.warning("positions_topic", what, remedy)
    }
}

async fn check_checkpoint(config: &Config, state: Option<&RouterState>, findings: &mut Findings) {
    let checkpoint = match look_up(config, state.map(|state| state.confirmed)).await {
        Ok(checkpoint) => checkpoint,
        Err(error) => return findings.failure("position", error, "Check the brokers' logs"),
    };
    let name = &config.name;
    let known = match &checkpoint {
        Some(checkpoint) => format!("the checkpoint of {name} is at {}", checkpoint.position.flush),
        None => format!("no checkpoint is stored for {name}"),
    };
    let Some(state) = state else { return };
    shards::check_other_slots(config, checkpoint.as_ref(), &state.other_slots, findings).await;
    let decided = match state.decide(config, checkpoint.as_ref()).await {
        Ok(decided) => decided,
        Err(error) => {
            let what = format!("{known}; whether a start resumes there was not checked: {error}");
            return findings.skipped("position", what);
        }
    };
    if checkpoint.is_none() && state.active && !state.is_read_by_another() {
        let what =
            format!("{known}, and somebody reads the slot: what a start decides depends on where that ends");
        return findings.skipped("position", what);
    }
    let stopped = checkpoint.as_ref().and_then(|checkpoint| checkpoint.stopped.as_ref());
    if let (Ok(_), Some(Stopped { code, what, remedy }), false) = (&decided, stopped, state.active) {
        return findings.refused(
            "position",
            *code,
            format!("{known}, where the router has stopped: {what}"),
            (*code).into(),
            remedy.clone().or(
                "If the cause is gone",
                [Step::new("Start the router: it continues, and this message disappears")],
            ),
        );
    }
    match decided {
        Err(conflict) => findings.failure("position", conflict.refusal(config.shard), ""),
        Ok(Resumption { unknown_slot: Some((what, remedy)), .. }) => {
            findings.warning("position", what, remedy);
        }
        Ok(Resumption { check: Some(_), .. }) => findings.ok(
            "position",
            format!("{known}; only a start can tell whether the log before it is still the one that the router has read"),
        ),
        Ok(_) if checkpoint.is_none() => {
            findings.ok("position", format!("{known}: the router starts at the slot's position"));
        }
        Ok(_) => findings.ok("position", known),
    }
}
