//! The last run of the old shards: they deliver what was committed before one position. After that nobody may read them.

use std::sync::Arc;
use std::time::Duration;

use pg_logical::Lsn;
use pg_logical::connect::Startup;
use pg_logical::session::Session;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::commands::connect;
use crate::config::{CatchUp, Config};
use crate::contracts::Contracts;
use crate::error::Error;
use crate::monitor::Monitor;
use crate::postgres::catalog::{self, Catalog};
use crate::postgres::slot_lock;
use crate::progress::Position;
use crate::sink::kafka::checkpoint_topic::look_up;
use crate::supervisor::{self, Router, RunOptions};
use crate::terminal;

/// How long the server may take to end a session that was closed.
pub(super) const LET_GO: Duration = Duration::from_secs(10);

/// How often the server is asked whether the session has ended.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// Runs the routers of `shards` until everything that was committed before `until` is delivered.
pub(super) async fn deliver(shards: &[Arc<Config>], until: Lsn) -> Result<(), Error> {
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
    let options = RunOptions { accept_gap: None, until: Some(until) };
    supervisor::run_all(routers, options, &CancellationToken::new()).await
}

/// Takes the locks of the existing slots, so that no router reads on. Without `within`, it waits for the routers that hold them
/// to stop. The sessions that are returned hold the locks.
pub(super) async fn lock(shards: &[Arc<Config>], within: Option<Duration>) -> Result<Vec<Session>, Error> {
    let mut locks = Vec::new();
    for shard in shards {
        let mut session = connect(shard, "shards", Startup::default()).await?;
        free(&mut session, &shard.postgres.slot, within).await?;
        locks.push(session);
    }
    Ok(locks)
}

pub(super) async fn unlock(locks: Vec<Session>) {
    for session in locks {
        session.close().await;
    }
}

async fn free(session: &mut Session, slot: &str, within: Option<Duration>) -> Result<(), Error> {
    let reads = format!(
        "SELECT s.active_pid FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = {}",
        pg_logical::quoting::literal(slot)
    );
    let deadline = within.map(|within| Instant::now() + within);
    let (mut locked, mut told) = (false, false);
    loop {
        locked = locked || slot_lock::try_take(session, slot).await?;
        let reader: Option<i32> = session.query_one(&reads).await?.and_then(|pid| pid.parse().ok());
        if locked && reader.is_none() {
            return Ok(());
        }
        let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if late || !told && deadline.is_none() {
            let holder = match reader {
                Some(pid) => catalog::holder(session, pid).await?,
                None => slot_lock::named_holder(session, slot)
                    .await?
                    .map_or_else(|| "another".to_owned(), |(_, of)| of),
            };
            if late {
                return Err(Error::refused(
                    format!("the slot {slot} is still read by {holder}"),
                    "Stop every router with the old number of shards, its standbys too, and run this again; nothing was handed over",
                ));
            }
            told = true;
            terminal::print(&format!(
                "Waiting until the slot {slot} is free: {holder} reads it. Stop that router.\n"
            ))?;
        }
        sleep(ASK_AGAIN).await;
    }
}

/// The stored position up to which a shard has delivered. `None`: the record belongs to another router by now.
pub(super) async fn delivered(config: &Config, session: &mut Session) -> Result<Option<Position>, Error> {
    let catalog = Catalog::query(session, &config.postgres, &config.outbox).await?;
    let confirmed = catalog.slot.and_then(|slot| slot.confirmed_flush_lsn);
    Ok(match look_up(config, confirmed).await? {
        Some(remembered) => (remembered.slot == config.postgres.slot).then_some(remembered.position),
        None => Some(Position { flush: confirmed.unwrap_or_default(), partial: None }),
    })
}
