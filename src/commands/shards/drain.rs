//! The last run of the old shards: they deliver the events committed before one position, and are locked then.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use pg_logical::Lsn;
use pg_logical::connect::Startup;
use pg_logical::session::Session;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::commands::connect;
use crate::commands::progress::CommandProgress;
use crate::config::{CatchUp, Config};
use crate::contracts::Contracts;
use crate::error::{Error, ErrorCode};
use crate::monitor::Monitor;
use crate::postgres::catalog::{self, Catalog};
use crate::postgres::slot_lock;
use crate::progress::Position;
use crate::sink::kafka::checkpoint_topic::look_up;
use crate::supervisor::{self, Router, RunOptions};

/// How long the server may take to end a session that was closed.
pub(super) const SESSION_END_TIMEOUT: Duration = Duration::from_secs(10);

/// How often to look how much is delivered.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// How often to check whether the slot is free.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Runs the routers of `shards` until everything that was committed before `until` is delivered.
pub(super) async fn deliver(shards: &[Arc<Config>], until: Lsn, quiet: bool) -> Result<(), Error> {
    let contracts = match shards.first() {
        Some(shard) => Contracts::configured(shard)?.map(Arc::new),
        None => None,
    };
    let mut routers = Vec::new();
    for shard in shards {
        // a short run needs no bookmarks or heartbeat
        let mut config = Config { bookmarks: None, heartbeat: None, ..Config::clone(shard) };
        config.postgres.catch_up = CatchUp::Stream;
        let monitor = Monitor::new(&config.name);
        routers.push(Router { contracts: contracts.clone(), config, monitor });
    }
    let options = RunOptions { accept_gap: None, until: Some(until), hands_over: true };
    let monitors: Vec<Monitor> = routers.iter().map(|router| router.monitor.clone()).collect();
    let stop = CancellationToken::new();
    let mut running = pin!(supervisor::run_all(routers, options, &stop));
    let mut delivery = Delivery::new(until, quiet);
    loop {
        tokio::select! {
            ended = &mut running => return ended,
            () = sleep(PROGRESS_INTERVAL) => delivery.show(&monitors),
        }
    }
}

/// How much of the log the routers have delivered.
struct Delivery {
    until: Lsn,
    /// Where each of them began, once it is known.
    starts: Vec<Option<Lsn>>,
    progress: CommandProgress,
}

impl Delivery {
    fn new(until: Lsn, quiet: bool) -> Self {
        Delivery {
            until,
            starts: Vec::new(),
            progress: CommandProgress::of_log_in_lines("delivering events", quiet),
        }
    }

    fn show(&mut self, monitors: &[Monitor]) {
        self.starts.resize(monitors.len(), None);
        let (mut done, mut total) = (0, 0);
        for (start, monitor) in self.starts.iter_mut().zip(monitors) {
            let flushed = monitor.snapshot().positions.flushed.and_then(|lsn| lsn.parse().ok());
            let begin = start.or(flushed);
            let (Some(begin), Some(flushed)) = (begin, flushed) else { continue };
            *start = Some(begin);
            let length = self.until.bytes_since(begin);
            total += length;
            done += flushed.bytes_since(begin).min(length);
        }
        if total > 0 {
            self.progress.show(done, total);
        }
    }
}

/// Takes the locks of the slots, so that no router reads them. Without `within`, it waits until the routers that hold them
/// stop. The returned sessions hold the locks.
pub(super) async fn lock(shards: &[Arc<Config>], within: Option<Duration>) -> Result<Vec<Session>, Error> {
    let mut locks = Vec::new();
    for shard in shards {
        let mut session = connect(shard, "shards", Startup::default()).await?;
        lock_slot(&mut session, &shard.postgres.slot, within).await?;
        locks.push(session);
    }
    Ok(locks)
}

/// Waits a moment until no other run of this command is active, and keeps others out until the returned session ends. Two runs
/// at once would find each other's work half done.
pub(super) async fn lock_command(config: &Config) -> Result<Session, Error> {
    let mut session = connect(config, "shards", Startup::default()).await?;
    // a slot's name has no spaces, so this is the name of no slot
    let name = format!("{} shards change", config.base_slot());
    let deadline = Instant::now() + SESSION_END_TIMEOUT;
    while !slot_lock::try_take(&mut session, &name).await? {
        if Instant::now() < deadline {
            sleep(RETRY_INTERVAL).await;
            continue;
        }
        let Some((pid, holder)) = slot_lock::named_holder(&mut session, &name).await? else { continue };
        return Err(Error::refused(
            ErrorCode::ShardChangeRefused,
            format!(
                "another `outbox-router shards change` is running: {holder}; this one has changed nothing, and nothing is missing"
            ),
            format!(
                "Wait until it ends, and look at its output; `outbox-router check` shows which slots exist. This command, run again, then says \
                 that the change is complete, or completes it. If nobody runs the other one any more, end its session: SELECT \
                 pg_terminate_backend({pid})"
            ),
        ));
    }
    Ok(session)
}

pub(super) async fn unlock(locks: Vec<Session>) {
    for session in locks {
        session.close().await;
    }
}

/// Takes the lock of one slot, and waits until nothing reads the slot.
async fn lock_slot(session: &mut Session, slot: &str, within: Option<Duration>) -> Result<(), Error> {
    let reads = format!(
        "SELECT s.active_pid FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = {}",
        pg_logical::quoting::literal(slot)
    );
    let deadline = within.map(|within| Instant::now() + within);
    let (mut locked, mut announced) = (false, false);
    loop {
        locked = locked || slot_lock::try_take(session, slot).await?;
        let reader: Option<i32> = session.query_one(&reads).await?.and_then(|pid| pid.parse().ok());
        if locked && reader.is_none() {
            return Ok(());
        }
        let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if late || !announced && deadline.is_none() {
            let holder = match reader {
                Some(pid) => catalog::holder(session, pid).await?,
                None => slot_lock::named_holder(session, slot)
                    .await?
                    .map_or_else(|| "another session".to_owned(), |(_, of)| of),
            };
            if late {
                return Err(Error::refused(
                    ErrorCode::ShardChangeRefused,
                    format!("{holder} still reads the slot {slot}"),
                    "Stop every router with the old number of shards, including standbys, and run this command again; nothing was handed over",
                ));
            }
            announced = true;
            tracing::warn!("waiting for the slot {slot}, which {holder} reads: stop that router");
        }
        sleep(RETRY_INTERVAL).await;
    }
}

/// The stored position up to which a shard has delivered. `None` if the checkpoint belongs to another slot.
pub(super) async fn delivered(config: &Config, session: &mut Session) -> Result<Option<Position>, Error> {
    let catalog = Catalog::query(session, &config.postgres, &config.outbox).await?;
    let confirmed = catalog.slot.and_then(|slot| slot.confirmed_flush_lsn);
    Ok(match look_up(config, confirmed).await? {
        Some(checkpoint) => (checkpoint.slot == config.postgres.slot).then_some(checkpoint.position),
        None => Some(Position { flush: confirmed.unwrap_or_default(), partial: None }),
    })
}
