//! What a start compares its checkpoint with. `check` makes the same decision from the same facts.

use std::time::Duration;

use pg_logical::session::Session;
use pg_logical::{Lsn, QueryError};
use tokio::sync::OnceCell;

use super::connections::keep_alive;
use crate::checkpoint::{
    self, Alteration, Checkpoint, LeftOut, LogMismatch, ResumeConflict, Resumption, SlotRecord, StartFacts,
    StreamDefinition, System,
};
use crate::config::{Config, DeliveryMode};
use crate::error::{Error, Step};
use crate::postgres::catalog::{self, Catalog};
use crate::postgres::log_comparison::compare;
use crate::postgres::{bookmarks, slot_record, timeline};
use crate::shards;

/// What was read from Postgres.
pub(crate) struct ResumeFacts<'a> {
    pub(crate) catalog: &'a Catalog,
    /// The slot's `confirmed_flush_lsn`.
    pub(crate) confirmed: Lsn,
    pub(crate) system: &'a System,
    /// The mismatch that the last session's resume check found.
    pub(crate) log_mismatch: Option<LogMismatch>,
    /// The result of [`read_slot_record`].
    pub(crate) record: Option<&'a SlotRecord>,
    /// What the comparison of log and stream has found, once it was needed.
    pub(crate) left_out: &'a OnceCell<LeftOut>,
    /// How long that waits for transactions that have written to the tables; `None`: until they end.
    pub(crate) patience: Option<Duration>,
}

impl ResumeFacts<'_> {
    /// Where a start resumes if `before` is the checkpoint that counts, or why it may not. `session` is a replication session.
    ///
    /// # Errors
    /// The server refuses, or the session is lost.
    pub(crate) async fn decide(
        &self,
        config: &Config,
        session: &mut Session,
        before: Option<&Checkpoint>,
        accepted: Option<Lsn>,
    ) -> Result<Result<Resumption, ResumeConflict>, Error> {
        let ResumeFacts { catalog, confirmed, system, log_mismatch, record, .. } = *self;
        let history = match before {
            Some(before) => timeline::history(session, system, before.timeline).await?,
            None => None,
        };
        let definition = catalog.stream_definition(&config.outbox);
        let left_out = self.left_out(config, session, before, &definition).await?;
        let position = before.map_or(confirmed, |before| before.position.flush);
        let recovery = catalog.recovery_steps(config.source(), position);
        // an ordinary start needs no bookmark
        let bookmark = if position < confirmed || before.is_none() && record.is_some() {
            bookmarks::last_before(session, &config.postgres.slot, position).await?
        } else {
            None
        };
        let bookmark = bookmark
            .map(|to| format!("outbox-router slot reset --to {to}{}", shards::argument(config.shard)));
        // All rows: those of a transaction that was open at the checkpoint may have any lower transaction id.
        let save = Step::new("As an administrator, save the rows of the table")
            .sql("CREATE SCHEMA IF NOT EXISTS outbox_router");
        let rows = catalog::send_from_table(
            config.source(),
            &catalog.named,
            None,
            save,
            &format!("--accept-gap {confirmed}"),
        );
        let run = format!("outbox-router run{}", shards::argument(config.shard));
        let found = StartFacts {
            router: &config.name,
            slot: &config.postgres.slot,
            confirmed,
            system,
            history: history.as_deref(),
            definition: &definition,
            left_out,
            recovery: &recovery,
            log_mismatch,
            record,
            exactly_once: config.delivery.mode == DeliveryMode::ExactlyOnce,
            bookmark: bookmark.as_deref(),
            rows: rows.as_deref(),
            run: &run,
        };
        Ok(checkpoint::resume(before, &found, accepted))
    }

    /// Compares the log with the stream if `definition` may be another one than that of `before`. The server has to be the same.
    async fn left_out(
        &self,
        config: &Config,
        session: &mut Session,
        before: Option<&Checkpoint>,
        definition: &StreamDefinition,
    ) -> Result<Option<&LeftOut>, Error> {
        let Some(before) = before.filter(|before| before.system_identifier == self.system.identifier) else {
            return Ok(None);
        };
        let perhaps = matches!(
            definition.alteration_since(&before.definition),
            Alteration::Renamed | Alteration::Touched
        );
        if !perhaps || !definition.has_table_of(&before.definition) {
            return Ok(None);
        }
        let hosts = vec![session.info().host.clone()];
        let compared = self
            .left_out
            .get_or_try_init(|| compare(config.source(), &self.catalog.tables, hosts, self.patience));
        keep_alive(config, session, compared).await.map(Some)
    }
}

/// The slot's row in the router's schema; `None` if there are no checkpoints that could be lost. At-least-once mode goes on
/// without it if the server refuses to read it.
///
/// # Errors
/// The session is lost, or in exactly-once mode the server refuses.
pub(crate) async fn read_slot_record(
    config: &Config,
    session: &mut Session,
) -> Result<Option<SlotRecord>, Error> {
    if config.delivery.positions_topic.is_none() {
        return Ok(None);
    }
    match (slot_record::read(session, &config.postgres.slot).await, config.delivery.mode) {
        (Ok(record), _) => Ok(Some(record)),
        (Err(QueryError::Server { error, .. }), DeliveryMode::AtLeastOnce) => {
            tracing::warn!(
                peer = "postgres", %error,
                "{} cannot be read; the router goes on without it, and cannot tell whether a missing checkpoint was lost",
                SlotRecord::TABLE
            );
            Ok(None)
        }
        (Err(error), _) => Err(error.into()),
    }
}
