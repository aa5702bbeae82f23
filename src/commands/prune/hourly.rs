//! What `run` does about `[retention]`: it deletes old rows every hour.

use std::time::Duration;

use pg_logical::session::Session;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::{before, tables, verify_archive, verify_stored};
use crate::commands::connect_for_long;
use crate::commands::times::now;
use crate::config::{Config, TableName};
use crate::error::{Error, ErrorCode};
use crate::monitor::{Monitor, State};
use crate::outbox::Field;
use crate::postgres::prunes::{Prunable, find_archived, find_prunable, is_running};
use crate::postgres::rows::order::warn_without_index;
use crate::pruning::{self, Request, Target};
use crate::quantity::counted;

/// How often old rows are looked for.
const INTERVAL: Duration = Duration::from_secs(3_600);

/// The wait after a refusal, which somebody may correct.
const RETRY_REFUSED: Duration = Duration::from_secs(300);

/// The wait after a failure that passes by itself.
const RETRY: Duration = Duration::from_secs(60);

/// How often the states of the routers are checked.
const CHECK: Duration = Duration::from_secs(1);

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
    let config = config.clone();
    monitor.retention_enabled();
    let prunes = async move {
        let mut logged = None;
        // after the loss of a slot, somebody may have to save rows before they are deleted
        while stop.run_until_cancelled(active(&monitors)).await.is_some() {
            let pruned = Pass { config: &config, keep, monitor: &monitor, stop: &stop }.run().await;
            if stop.is_cancelled() {
                break;
            }
            let wait = match &pruned {
                Ok(_) => INTERVAL,
                Err(Error::Transient(_)) => RETRY,
                Err(Error::Definite(_)) => RETRY_REFUSED,
            };
            let problem = pruned.as_ref().err().map(ToString::to_string);
            if let Err(error) = &pruned
                && problem != logged
            {
                log(error);
            }
            logged = problem;
            monitor.prune_ended(pruned.map_err(|error| error.to_string()));
            stop.run_until_cancelled(sleep(wait)).await;
        }
    };
    Some(AbortOnDropHandle::new(tokio::spawn(prunes)))
}

/// Waits until every router of this process has verified where it resumes, and delivers.
async fn active(monitors: &[Monitor]) {
    while !monitors.iter().all(|monitor| matches!(monitor.current_state(), State::Active | State::Ended)) {
        sleep(CHECK).await;
    }
}

fn log(error: &Error) {
    match error {
        Error::Definite(definite) if definite.code == ErrorCode::PruneRunning => {
            tracing::info!("old rows are kept for now: {}", definite.what);
        }
        Error::Definite(definite) => {
            tracing::warn!(code = %definite.code, remedy = %definite.remedy, "old rows are kept: {}", definite.what);
        }
        Error::Transient(transient) => tracing::warn!("old rows are kept for now: {transient}"),
    }
}

/// Deletes the rows that are too old now.
struct Pass<'a> {
    config: &'a Config,
    keep: Duration,
    monitor: &'a Monitor,
    stop: &'a CancellationToken,
}

impl Pass<'_> {
    /// Returns how many old rows have to stay; [`SAMPLE`] stands for that or more.
    async fn run(&self) -> Result<u64, Error> {
        // the router goes on, or does not, whatever becomes of this
        let connecting = connect_for_long(self.config, "prune");
        let Some(connected) = self.stop.run_until_cancelled(connecting).await else { return Ok(0) };
        let mut session = connected.map_err(Error::without_router)?;
        let now = now(&mut session).await?;
        let (mut kept, mut failed) = (0, None);
        for table in tables(self.config, None)? {
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
        verify_stored(session, self.config, table, created_at).await?;
        let outbox = table.in_sql();
        // without counting rows in vain
        if is_running(session, &outbox).await? {
            let what = format!("another prune of {table} is running");
            return Err(Error::refused(ErrorCode::PruneRunning, what, "Wait until it has ended"));
        }
        let finding = find_prunable(session, &outbox, until, SAMPLE);
        let Some(found) = self.stop.run_until_cancelled(finding).await else { return Ok(0) };
        let found = found?;
        verify_archive(self.config, table, found.archive.as_deref())?;
        let done = if self.config.retention.archive.is_some() { "archived" } else { "deleted" };
        if found.rows > 0 || found.others >= SAMPLE {
            warn_without_index(session, table, created_at).await?;
            let done = |rows: &str| format!("{done} {rows} of {table}");
            self.delete(session, &outbox, until, &found, Target::Server, done).await?;
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
        self.delete(session, &outbox, until, &found, Target::Archived, done).await
    }

    /// Deletes the rows, and logs what `done` says about them.
    async fn delete(
        &self,
        session: &mut Session,
        outbox: &str,
        until: i64,
        found: &Prunable,
        target: Target<'_>,
        done: impl Fn(&str) -> String,
    ) -> Result<(), Error> {
        let archived = matches!(target, Target::Archived);
        let request = Request { outbox, until, batch: BATCH };
        let mut pruned = 0;
        let ended = pruning::prune(session, &request, found, target, self.stop, |rows| {
            self.monitor.pruned(rows - pruned, archived);
            pruned = rows;
        });
        let ended = ended.await;
        if pruned > 0 {
            tracing::info!("{}", done(&counted(pruned, "old row")));
        }
        ended
    }
}
