//! Where a session starts.
//!
//! ```text
//!   look    what is remembered is read and judged; a router that is refused has shut nobody out
//!   fence   whoever delivered under this name before is shut out, and what it left open is ended
//!   begin   what is remembered is read and judged again, and the new epoch written
//! ```

use std::sync::Arc;

use pg_logical::Lsn;
use pg_logical::session::Session;

use super::connections::{awake, opened};
use super::session_state::SessionState;
use crate::checkpoint::{
    self, Checkpoint, Handover, OtherLog, ResumeCheck, Resumption, SlotRecord, Start, System, latest,
};
use crate::config::{Config, DeliveryMode};
use crate::error::Error;
use crate::postgres::catalog::{Catalog, Slot};
use crate::postgres::timeline;
use crate::postgres::watch;
use crate::sink::kafka::Publisher;
use crate::sink::kafka::checkpoint_topic::{CheckpointStore, StoredCheckpoints, look_up};
use crate::source::slot::no_gap_to_accept;

/// What a start has found in Postgres.
pub(super) struct Looked<'a> {
    pub(super) catalog: &'a Catalog,
    pub(super) slot: &'a Slot,
    pub(super) system: &'a System,
    /// The router's slots for another number of shards.
    pub(super) other_slots: &'a [String],
    /// What the last session found at the beginning of the stream, and the epoch that it had begun.
    pub(super) other_log: Option<(u64, OtherLog)>,
    /// What the router's schema says of the slot; `None` where events may come twice.
    pub(super) record: Option<&'a SlotRecord>,
}

impl Looked<'_> {
    /// Reads what is remembered, judges it by what was found, says where a start is not what one would expect, and writes
    /// down that a new epoch begins there.
    pub(super) async fn begin(
        &self,
        config: &Arc<Config>,
        session: &mut Session,
        memory: &SessionState,
        sink: &mut Publisher,
        positions: &mut CheckpointStore,
    ) -> Result<(Checkpoint, Option<ResumeCheck>), Error> {
        *positions = opened(awake(config, session, CheckpointStore::open(config)).await, memory)?;
        let confirmed = self.confirmed();
        let seen =
            opened(awake(config, session, positions.read_candidates(config, confirmed, sink)).await, memory)?;
        self.judge_any(config, session, memory, &seen).await?;
        opened(awake(config, session, sink.init_transactions()).await, memory)?;
        let stored =
            opened(awake(config, session, positions.read(config, confirmed, seen, sink)).await, memory)?;
        let before = latest(memory.remembered.as_ref(), stored);
        let resumption = self.resume(config, session, memory, before.as_ref()).await?;
        if let Some(before) = &before {
            watch::warn_of_rewritten(&self.catalog.reading(&config.outbox), &before.reading);
        }
        tell(config, memory, before.as_ref(), &resumption);
        let Resumption { checkpoint, check, .. } = resumption;
        opened(awake(config, session, positions.begin(&checkpoint, sink)).await, memory)?;
        Ok((checkpoint, check))
    }

    fn confirmed(&self) -> Lsn {
        self.slot.confirmed_flush_lsn.unwrap_or(Lsn::INVALID)
    }

    /// Refuses where the router is refused whichever of these records counts.
    async fn judge_any(
        &self,
        config: &Config,
        session: &mut Session,
        memory: &SessionState,
        seen: &StoredCheckpoints,
    ) -> Result<(), Error> {
        let mut refused = Ok(());
        for stored in seen.records() {
            let before = latest(memory.remembered.as_ref(), stored.cloned());
            match self.resume(config, session, memory, before.as_ref()).await {
                Err(Error::Definite(definite)) => refused = Err(Error::Definite(definite)),
                judged => return judged.map(drop),
            }
        }
        refused
    }

    /// Where to go on, if `before` is what counts.
    async fn resume(
        &self,
        config: &Config,
        session: &mut Session,
        memory: &SessionState,
        before: Option<&Checkpoint>,
    ) -> Result<Resumption, Error> {
        let Looked { catalog, slot: _, system, other_slots, other_log, record } = self;
        // those of a router that only delivers its last part are there on purpose
        if !other_slots.is_empty() && memory.until.is_none() {
            awake(config, session, beside_other_shards(config, before, other_slots)).await?;
        }
        let history = match before {
            // an older one has no history that could hold the position
            Some(before) if before.timeline > system.timeline => Some(String::new()),
            Some(before) if before.timeline < system.timeline => {
                Some(timeline::history(session, system.timeline).await?)
            }
            _ => None,
        };
        let reading = catalog.reading(&config.outbox);
        let way_out = catalog.recovery_advice(config.source());
        let found = checkpoint::Found {
            router: &config.name,
            slot: &config.postgres.slot,
            confirmed: self.confirmed(),
            system,
            history: history.as_deref(),
            reading: &reading,
            way_out: &way_out,
            // unless a reset has come in between, which settles it
            other_log: other_log
                .filter(|(epoch, _)| before.is_some_and(|before| before.epoch == *epoch))
                .map(|(_, other)| other),
            record: *record,
        };
        let exactly_once = config.delivery.mode == DeliveryMode::ExactlyOnce;
        checkpoint::resume(before, &found, memory.accepted_gap, exactly_once)
            .map_err(|conflict| conflict.refusal(config.shard))
    }
}

/// Says where a start is not what one would expect.
fn tell(config: &Config, memory: &SessionState, before: Option<&Checkpoint>, resumption: &Resumption) {
    let position = resumption.checkpoint.position;
    match resumption.start {
        Start::First(_) if config.delivery.positions_topic.is_some() => {
            tracing::info!(
                name = config.name, position = %position.flush,
                "no position is remembered under this name: the router starts at the slot's own"
            );
        }
        Start::Accepted(_) => {
            let before = before.map(|before| before.position.flush.to_string());
            let before = before.as_deref().unwrap_or("unknown");
            tracing::warn!(before, position = %position.flush, "the gap was accepted: going on after it");
        }
        Start::Resumed(_) if memory.accepted_gap.is_some() && resumption.check.is_none() => {
            no_gap_to_accept()
        }
        Start::First(_) | Start::Resumed(_) => {}
    }
    if let Some(replay) = &resumption.checkpoint.replay {
        tracing::info!(
            position = %position.flush, until = %replay.until.flush, reset = replay.mark,
            "the position was reset: events are sent again, and marked"
        );
    }
}

/// Where there are slots of it for another number of shards, a router goes on that has delivered before, unless they are
/// handing over. Another one would send what these hold once more, or leave it out.
async fn beside_other_shards(
    config: &Config,
    before: Option<&Checkpoint>,
    slots: &[String],
) -> Result<(), Error> {
    let handover = look_up(&config.of_handover(), None).await?;
    let (others, count) = (slots.join(", "), config.shards.count);
    if Handover::is_under_way(handover.as_ref()) {
        return Err(Error::not_safe(
            format!(
                "`outbox-router shards change` was cut off, and the slots of another number of shards are there: {others}"
            ),
            "Run it again, with the new `[shards] count` and the old number as --from: it goes on where it was",
        ));
    }
    // what is remembered may be of a time before the last change: a slot of the same name can be made again
    let owner = Handover::owner(handover.as_ref(), config.slot_of_all());
    if let Some(owner) = owner.filter(|owner| *owner != count) {
        return Err(Error::not_safe(
            format!(
                "the events of {} were handed over to {owner} shards, whose slots are there ({others}), and this router is one of {count}",
                config.name
            ),
            format!(
                "If this is a configuration from before, set `[shards] count = {owner}`. If the number is to be changed, stop all routers \
                 of the other number and run `outbox-router shards change --from {owner}`: it delivers what their slots hold, and \
                 hands over"
            ),
        ));
    }
    if before.is_some_and(|before| before.slot == config.postgres.slot) {
        return Ok(());
    }
    Err(Error::not_safe(
        format!(
            "the router {} has not delivered from the slot {} yet, and there are slots of it for another number of shards than {count}: \
             {others}",
            config.name, config.postgres.slot
        ),
        "If the number is to be changed, stop all routers of the other number and run `outbox-router shards change --from NUMBER`: it \
         delivers what their slots hold, and hands over. If the slots are left over from something else, drop them: SELECT \
         pg_drop_replication_slot(...)",
    ))
}
