//! Decides where a session resumes.
//!
//! ```text
//!   check   read the checkpoint and decide; a router that is refused has fenced nobody
//!   fence   in exactly-once mode, or after it: fence earlier producers of this name, and end their open transaction
//!   begin   read the checkpoint and decide again, then write the new epoch
//! ```

use std::sync::Arc;

use pg_logical::Lsn;
use pg_logical::session::Session;
use tokio::sync::OnceCell;

use super::backfill;
use super::connections::{keep_alive, transient_if_active};
use super::resume_facts::ResumeFacts;
use super::session_state::SessionState;
use crate::checkpoint::{
    Checkpoint, Handover, LeftOut, LogMismatch, ResumeCheck, Resumption, SlotRecord, Start, System, latest,
};
use crate::config::{Config, DeliveryMode};
use crate::error::{Error, ErrorCode, Remedy, Step};
use crate::postgres::alteration;
use crate::postgres::backfills::Backfill;
use crate::postgres::catalog::{Catalog, Slot};
use crate::postgres::slot_functions;
use crate::sink::kafka::checkpoint_topic::{CheckpointStore, StoredCheckpoints, look_up};
use crate::sink::kafka::properties::transaction_timeout;
use crate::sink::kafka::{Publisher, fence};
use crate::source::slot::no_gap_to_accept;

/// What the start has read from Postgres.
pub(super) struct StartInputs<'a> {
    pub(super) catalog: &'a Catalog,
    pub(super) slot: &'a Slot,
    pub(super) system: &'a System,
    /// This router's slots for another number of shards.
    pub(super) other_slots: &'a [String],
    /// The mismatch that the last session's resume check found, and that session's epoch.
    pub(super) log_mismatch: Option<(u64, LogMismatch)>,
    /// The slot's row in the router's schema, if it could be read and counts.
    pub(super) record: Option<&'a SlotRecord>,
    /// Rows from before the slot that are not sent yet.
    pub(super) backfill: Option<&'a Backfill>,
    /// What the comparison of log and stream has found, once it was needed.
    pub(super) left_out: OnceCell<LeftOut>,
}

impl StartInputs<'_> {
    /// Reads the checkpoint, decides where to resume, logs what is unusual about it, and writes the first checkpoint of the new
    /// epoch.
    pub(super) async fn begin(
        &self,
        config: &Arc<Config>,
        session: &mut Session,
        state: &SessionState,
        publisher: &mut Publisher,
        positions: &mut CheckpointStore,
    ) -> Result<(Checkpoint, Option<ResumeCheck>), Error> {
        *positions = transient_if_active(
            keep_alive(config, session, CheckpointStore::open(config, publisher)).await,
            state,
        )?;
        let confirmed = self.confirmed();
        let seen = transient_if_active(
            keep_alive(config, session, positions.read_candidates(config, confirmed, publisher)).await,
            state,
        )?;
        still_holds_the_lock(session).await?;
        self.check_all(config, session, state, &seen).await?;
        transient_if_active(keep_alive(config, session, publisher.init_transactions()).await, state)?;
        let stored = transient_if_active(
            keep_alive(config, session, positions.read(config, confirmed, seen, publisher)).await,
            state,
        )?;
        still_holds_the_lock(session).await?;
        let before = latest(state.checkpoint.as_ref(), stored);
        let resumption = self.resume(config, session, state, before.as_ref()).await?;
        if let Some(before) = &before {
            if let Some(LeftOut::Unknown(why)) = self.left_out.get() {
                alteration::warn_of_renamed(why);
            }
            alteration::warn_of_rewritten(
                &self.catalog.stream_definition(&config.outbox),
                &before.definition,
            );
        }
        if let Some(former) = self.former_name(config) {
            transient_if_active(
                keep_alive(config, session, Box::pin(end_transactions_of(former, config))).await,
                state,
            )?;
        }
        log_start(config, state, before.as_ref(), &resumption);
        let Resumption { checkpoint, check, .. } = resumption;
        transient_if_active(
            keep_alive(config, session, positions.begin(&checkpoint, publisher)).await,
            state,
        )?;
        Ok((checkpoint, check))
    }

    /// The name of the router that last read the slot, if this one has another name and delivers exactly once.
    fn former_name(&self, config: &Config) -> Option<&str> {
        let reader = self.record?.router.as_deref()?;
        (config.delivery.mode == DeliveryMode::ExactlyOnce && reader != config.name).then_some(reader)
    }

    fn confirmed(&self) -> Lsn {
        self.slot.confirmed_flush_lsn.unwrap_or(Lsn::INVALID)
    }

    /// Fails if the start would be refused with each of the records that may count.
    async fn check_all(
        &self,
        config: &Config,
        session: &mut Session,
        state: &SessionState,
        seen: &StoredCheckpoints,
    ) -> Result<(), Error> {
        let mut refused = Ok(());
        for stored in seen.records() {
            let before = latest(state.checkpoint.as_ref(), stored.cloned());
            match self.resume(config, session, state, before.as_ref()).await {
                Err(Error::Definite(definite)) => refused = Err(Error::Definite(definite)),
                judged => return judged.map(drop),
            }
        }
        refused
    }

    /// Where to resume if `before` is the checkpoint that counts.
    async fn resume(
        &self,
        config: &Config,
        session: &mut Session,
        state: &SessionState,
        before: Option<&Checkpoint>,
    ) -> Result<Resumption, Error> {
        let StartInputs { catalog, system, other_slots, log_mismatch, record, .. } = *self;
        if !other_slots.is_empty() && !state.hands_over {
            keep_alive(config, session, beside_other_shards(config, before, other_slots)).await?;
        }
        let found = ResumeFacts {
            catalog,
            confirmed: self.confirmed(),
            system,
            // a later epoch means that a reset has settled it
            log_mismatch: log_mismatch
                .filter(|(epoch, _)| before.is_some_and(|before| before.epoch == *epoch))
                .map(|(_, other)| other),
            record,
            left_out: &self.left_out,
            patience: None,
        };
        let mut decided = found.decide(config, session, before, state.accepted_gap).await?;
        // what was committed before a new slot is among the rows from before it, except for messages
        if let (Err(conflict), Some(backfill)) = (&decided, self.backfill)
            && conflict.code == ErrorCode::SlotAhead
            && conflict.resume_at == backfill.selection.slot_start
            && backfill.done.rows == 0
            && config.outbox.message_prefix.is_none()
        {
            decided = found.decide(config, session, before, Some(conflict.resume_at)).await?;
        }
        let mut resumption = decided.map_err(|conflict| conflict.refusal(config.shard))?;
        let position = resumption.checkpoint.position.flush;
        let known = resumption.checkpoint.backfill.take();
        if let Some(backfill) = self.backfill
            && backfill::is_due(config, backfill, self.confirmed(), before, position)?
        {
            resumption.checkpoint.backfill = known.or_else(|| Some(backfill.done.clone()));
        }
        Ok(resumption)
    }
}

/// Logs what is unusual about this start.
fn log_start(config: &Config, state: &SessionState, before: Option<&Checkpoint>, resumption: &Resumption) {
    let position = resumption.checkpoint.position;
    if let Some((what, remedy)) = &resumption.unknown_slot {
        tracing::warn!(remedy, "{what}");
    }
    match resumption.start {
        Start::First(_) if resumption.unknown_slot.is_some() => {}
        Start::First(_) if config.delivery.positions_topic.is_some() => {
            tracing::info!(
                name = config.name, position = %position.flush,
                "no checkpoint is stored under this name: the router starts at the slot's position"
            );
        }
        Start::Accepted(_) => {
            let before = before.map(|before| before.position.flush.to_string());
            let before = before.as_deref().unwrap_or("unknown");
            tracing::warn!(before, position = %position.flush, "the gap was accepted: the router resumes after it");
        }
        Start::Resumed(_) if state.accepted_gap.is_some() && resumption.check.is_none() => no_gap_to_accept(),
        Start::First(_) | Start::Resumed(_) => {}
    }
    if let Some(replay) = &resumption.checkpoint.replay {
        tracing::info!(
            position = %position.flush, until = %replay.until.flush, reset = replay.mark,
            "the position was reset: events are sent again with the replay header"
        );
    }
}

/// Ends transactions that the router of this name left open: until they time out, readers of committed records see nothing after them.
async fn end_transactions_of(former: &str, config: &Config) -> Result<(), Error> {
    let former_config = Config { name: former.to_owned(), ..config.clone() };
    match fence(&former_config).await {
        Err(Error::Definite(refused)) => {
            tracing::warn!(
                peer = "kafka",
                reason = %refused,
                "if the router {former} left a transaction open, readers of committed records get no later ones for up to {} s",
                transaction_timeout(config).as_secs()
            );
            Ok(())
        }
        ended => ended,
    }
}

/// A process that was suspended may have lost the lock with its session, and have read what the next router has written since. Against
/// what it knows of the server that looks like another log, and the epoch after that one would make starts prefer this process's
/// checkpoint. So every read of the checkpoint is followed by this.
async fn still_holds_the_lock(session: &mut Session) -> Result<(), Error> {
    session.query("SELECT 1").await?;
    Ok(())
}

/// If this router has slots for another number of shards, only a router that has delivered before may go on, unless a handover
/// runs. Any other would repeat or skip what those slots hold.
pub(crate) async fn beside_other_shards(
    config: &Config,
    before: Option<&Checkpoint>,
    slots: &[String],
) -> Result<(), Error> {
    let handover = look_up(&config.for_handover(), None).await?;
    let (others, count) = (slots.join(", "), config.shards.count);
    if Handover::is_under_way(handover.as_ref()) {
        let target =
            Handover::target(handover.as_ref(), config.base_slot()).filter(|target| *target != count);
        let (again, from) = match target {
            Some(target) => (format!("Set `[shards] count = {target}`, and run it again"), count.to_string()),
            None => ("Run it again".to_owned(), number_of_shards(slots).to_owned()),
        };
        return Err(Error::not_safe(
            ErrorCode::ShardChangeInterrupted,
            format!(
                "`outbox-router shards change` was interrupted, and slots for another number of shards exist: {others}"
            ),
            Remedy::steps([Step::new(format!("{again}: it resumes where it stopped"))
                .typing(format!("outbox-router shards change --from {from}"))]),
        ));
    }
    // the checkpoint may be older than the last change: a slot of the same name may have been created again
    let owner = Handover::owner(handover.as_ref(), config.base_slot());
    if let Some(owner) = owner.filter(|owner| *owner != count) {
        return Err(Error::not_safe(
            ErrorCode::ShardsHandedOver,
            format!(
                "the events of {} were handed over to {owner} shards, whose slots exist ({others}), but this router is configured for {count}",
                config.name
            ),
            format!(
                "If this configuration is out of date, set `[shards] count = {owner}`. To change the number, stop all routers \
                 of the other number and run `outbox-router shards change --from {owner}`: it delivers the events in their slots and \
                 hands over"
            ),
        ));
    }
    if before.is_some_and(|before| before.slot == config.postgres.slot) {
        return Ok(());
    }
    Err(Error::not_safe(
        ErrorCode::OtherShardSlots,
        format!(
            "the router {} has not delivered from the slot {} yet, and it has slots for a number of shards other than {count}: \
             {others}",
            config.name, config.postgres.slot
        ),
        Remedy::steps([Step::new(
            "Stop all routers of the other number, and change the number: this delivers the events in their slots, and hands over",
        )
        .typing(format!("outbox-router shards change --from {}", number_of_shards(slots)))])
        .or(
            "If nobody needs these slots and the events in them",
            [Step::new("Drop them")
                .sql(slots.iter().map(|slot| slot_functions::drop(slot)).collect::<Vec<_>>().join("; "))],
        ),
    ))
}

/// The number of shards to which the first of these slots belongs.
fn number_of_shards(slots: &[String]) -> &str {
    slots.first().and_then(|slot| slot.rsplit_once("_of_")).map_or("1", |(_, number)| number)
}
