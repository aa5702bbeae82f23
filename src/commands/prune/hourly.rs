//! What `run` does about `[retention]`: it deletes old rows every hour.

use std::time::Duration;

use pg_logical::session::Session;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::{before, tables, verify_archive, verify_stored, whole_periods};
use crate::commands::connect_for_long;
use crate::commands::hourly::{Pass, all_active, repeat, warn};
use crate::commands::times::now;
use crate::config::{Config, TableName};
use crate::error::{Error, ErrorCode};
use crate::monitor::Monitor;
use crate::outbox::Field;
use crate::postgres::prunes::{Prunable, find_archived, find_prunable, is_running};
use crate::postgres::rows::order::warn_without_index;
use crate::pruning::{self, Request, Target};
use crate::quantity::counted;

/// How many rows are deleted in one transaction: few, so that applications hardly notice.
const BATCH: u32 = 500;

/// Counting stops at this number of rows.
const SAMPLE: u64 = 10_000;

/// Deletes old rows until `stop`, or until the handle is dropped. `None`: the configuration keeps all. A failure stops nothing else. The
/// first of the monitors of this process is told about it.
pub(in crate::commands) fn start(
    config: &Config,
    monitors: Vec<Monitor>,
    stop: CancellationToken,
) -> Option<AbortOnDropHandle<()>> {
    let keep = config.retention.keep?;
    let monitor = monitors.first()?.clone();
    monitor.retention_enabled();
    let pass = Prunes { config: config.clone(), keep, monitor, monitors, stop };
    Some(AbortOnDropHandle::new(tokio::spawn(async move { repeat(&pass, &pass.stop).await })))
}

/// Deletes the rows that are too old.
struct Prunes {
    config: Config,
    keep: Duration,
    monitor: Monitor,
    monitors: Vec<Monitor>,
    stop: CancellationToken,
}

impl Pass for Prunes {
    /// After the loss of a slot, somebody may have to save rows before they are deleted.
    async fn ready(&self) {
        all_active(&self.monitors).await;
    }

    async fn perform(&self) -> Result<(), Error> {
        let pruned = self.prune().await;
        if !self.stop.is_cancelled() {
            self.monitor
                .prune_ended(pruned.as_ref().map_or_else(|error| Err(error.to_string()), |kept| Ok(*kept)));
        }
        pruned.map(drop)
    }

    fn log(&self, error: &Error) {
        match error {
            Error::Definite(definite) if definite.code == ErrorCode::PruneRunning => {
                tracing::info!("old rows are kept for now: {}", definite.what);
            }
            _ => warn("old rows are kept", error),
        }
    }
}

impl Prunes {
    /// Returns how many old rows have to stay; [`SAMPLE`] stands for that or more.
    async fn prune(&self) -> Result<u64, Error> {
        // the router goes on, or does not, whatever becomes of this
        let connecting = connect_for_long(&self.config, "prune");
        let Some(connected) = self.stop.run_until_cancelled(connecting).await else { return Ok(0) };
        let mut session = connected.map_err(Error::without_router)?;
        let now = now(&mut session).await?;
        let (mut kept, mut failed) = (0, None);
        for table in tables(&self.config, None)? {
            let mut pruned = self.outbox(&mut session, table, before(now, self.keep)).await;
            if let Some(keep) = self.config.retention.keep_archived {
                let archive = self.archive(&mut session, table, before(now, keep)).await;
                pruned = pruned.and_then(|kept| archive.map(|()| kept));
            }
            match pruned {
                Ok(rows) => kept += rows,
                // the other tables do not have to wait for somebody
                Err(error @ Error::Definite(_)) => failed = failed.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        session.close().await;
        failed.map_or(Ok(kept.min(SAMPLE)), |error| Err(error.without_router()))
    }

    async fn outbox(&self, session: &mut Session, table: &TableName, until: i64) -> Result<u64, Error> {
        // the configuration is refused without a column for it
        let created_at = Field::CreatedAt.column(&self.config.outbox.columns).unwrap_or_default();
        verify_stored(session, &self.config, table, created_at).await?;
        let outbox = table.in_sql();
        // without counting rows in vain
        if is_running(session, &outbox).await? {
            let what = format!("another prune of {table} is running");
            return Err(Error::refused(ErrorCode::PruneRunning, what, "Wait until it has ended"));
        }
        let (until, partitions) = whole_periods(session, table, until).await?;
        let finding = find_prunable(session, &outbox, until, SAMPLE);
        let Some(found) = self.stop.run_until_cancelled(finding).await else { return Ok(0) };
        let found = found?;
        verify_archive(&self.config, table, found.archive.as_deref())?;
        let done = if self.config.retention.archive.is_some() { "archived" } else { "deleted" };
        if found.rows > 0 || partitions > 0 || found.others >= SAMPLE {
            warn_without_index(session, table, created_at).await?;
            let done = |rows: &str| format!("{done} {rows} of {table}");
            let request = Request { outbox: &outbox, until, batch: BATCH, partitions: partitions > 0 };
            self.delete(session, &request, &found, Target::Server, done).await?;
        }
        Ok(found.others)
    }

    async fn archive(&self, session: &mut Session, table: &TableName, until: i64) -> Result<(), Error> {
        let outbox = table.in_sql();
        let finding = find_archived(session, &outbox, until, SAMPLE);
        let Some(found) = self.stop.run_until_cancelled(finding).await else { return Ok(()) };
        let found = found?;
        if found.rows == 0 {
            return Ok(());
        }
        let done = |rows: &str| format!("deleted {rows} from the archive of {table}");
        let request = Request { outbox: &outbox, until, batch: BATCH, partitions: false };
        self.delete(session, &request, &found, Target::Archived, done).await
    }

    /// Deletes the rows, and logs what `done` says about them.
    async fn delete(
        &self,
        session: &mut Session,
        request: &Request<'_>,
        found: &Prunable,
        target: Target<'_>,
        done: impl Fn(&str) -> String,
    ) -> Result<(), Error> {
        let archived = matches!(target, Target::Archived);
        let (mut pruned, mut dropped) = (0, 0);
        let ended = pruning::prune(session, request, found, target, &self.stop, |rows, partitions| {
            self.monitor.pruned(rows - pruned, archived);
            (pruned, dropped) = (rows, partitions);
        });
        let ended = ended.await;
        let mut text = done(&counted(pruned, "old row"));
        if dropped > 0 {
            text += &format!(", and dropped {}", counted(dropped, "partition"));
        }
        if pruned + dropped > 0 {
            tracing::info!("{text}");
        }
        ended
    }
}
