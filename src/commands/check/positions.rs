//! The positions stored in Kafka: whether they are kept, and whether the next start would use them.

use pg_logical::session::Session;
use pg_logical::{Lsn, Secret};

use super::finding::Findings;
use super::kafka::Seen;
use super::topics::durability;
use crate::checkpoint::{self, ResumeConflict, SlotRecord, StreamDefinition};
use crate::config::{Config, DeliveryMode};
use crate::error::Error;
use crate::postgres::catalog::Catalog;
use crate::postgres::slot_record;
use crate::sink::kafka::checkpoint_topic::look_up;

/// What the catalogues say about this router.
pub(super) struct Ours {
    /// The router's name; with shards, the name of one shard.
    name: String,
    confirmed: Lsn,
    /// Whether a router is reading the slot.
    active: bool,
    definition: StreamDefinition,
    /// What the router's schema says about the slot; `None` with at-least-once delivery.
    record: Option<SlotRecord>,
}

impl Ours {
    /// `None` if there is no slot, which is a finding of its own.
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
        Ok(Some(Ours {
            name: config.name.clone(),
            confirmed,
            active: slot.active_pid.is_some(),
            definition: catalog.stream_definition(&config.outbox),
            record,
        }))
    }

    /// Why a start without a stored position would be refused.
    fn not_new(&self, config: &Config) -> Option<ResumeConflict> {
        checkpoint::not_new(&self.name, &config.postgres.slot, self.confirmed, self.record.as_ref()?)
    }
}

pub(super) async fn judge(config: &Config, seen: Option<&Seen>, ours: &[Ours], findings: &mut Findings) {
    let Some(topic) = &config.delivery.positions_topic else {
        return findings.warning(
            "positions_topic",
            "positions are not remembered in Kafka (`[delivery] positions_topic` is empty): after a crash of Postgres the \
             last minutes are sent again, and a slot that was moved or made again while the router was away goes unnoticed",
            "Take the setting away, and grant what `outbox-router init --print-acls` prints",
        );
    };
    let Some(seen) = seen else { return };
    match &seen.positions {
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
                        "the topic {topic} is not only compacted (cleanup.policy = {}): positions expire",
                        policy.unwrap_or_default()
                    ),
                    format!(
                        "kafka-configs.sh --bootstrap-server {} --alter --topic {topic} --add-config cleanup.policy=compact",
                        config.kafka.properties.get("bootstrap.servers").map_or("", Secret::reveal)
                    ),
                );
            }
            durability(found, settings.as_ref(), findings);
            for shard in config.every_shard() {
                let ours = ours.iter().find(|ours| ours.name == shard.name);
                remembered(&shard, ours, findings).await;
            }
        }
    }
}

async fn remembered(config: &Config, ours: Option<&Ours>, findings: &mut Findings) {
    let remembered = match look_up(config, ours.map(|ours| ours.confirmed)).await {
        Ok(Some(remembered)) => remembered,
        Ok(None) => {
            if let Some(gap) = ours.and_then(|ours| ours.not_new(config)) {
                let remedy = gap.full_remedy(config.shard);
                return findings.error("position", gap.what, remedy);
            }
            let what = format!(
                "nothing is remembered for {}: the router starts at the slot's position",
                config.name
            );
            return findings.ok("position", what);
        }
        Err(error) => return findings.failure("position", error, "Look at the brokers' logs"),
    };
    let Some(ours) = ours else { return };
    let position = remembered.position.flush;
    let run = "`outbox-router run` stops there, and says what may be missing and how to go on";
    if remembered.slot != config.postgres.slot {
        let what = format!("the position of {} is that of another slot, {}", config.name, remembered.slot);
        findings.error("position", what, run);
    } else if ours.confirmed > position && !ours.active {
        let what = format!(
            "the slot is confirmed up to {}, and the router has delivered up to {position}",
            ours.confirmed
        );
        findings.error("position", what, run);
    } else if ours.definition.altered_since(&remembered.definition) {
        let what = format!(
            "the publication, or an outbox table, was altered or made again after the router was at {position}"
        );
        findings.error("position", what, run);
    } else {
        findings.ok("position", format!("{position} is remembered for {}", config.name));
    }
}
