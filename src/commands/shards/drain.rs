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
const LET_GO: Duration = Duration::from_secs(10);

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

/// The sessions that hold the locks of the old slots, so that no router reads on.
pub(super) struct Locks(Vec<Session>);

impl Locks {
    /// Waits for the routers that hold the locks of the existing slots to stop, and takes the locks.
    pub(super) async fn wait(shards: &[Arc<Config>]) -> Result<Self, Error> {
        Self::of(shards, None).await
    }

    /// Takes the locks of the existing slots. Only sessions that were just closed may still hold them.
    pub(super) async fn take(shards: &[Arc<Config>]) -> Result<Self, Error> {
        Self::of(shards, Some(LET_GO)).await
    }

    async fn of(shards: &[Arc<Config>], within: Option<Duration>) -> Result<Self, Error> {
        let mut sessions = Vec::new();
        for shard in shards {
            let mut session = session(std::slice::from_ref(shard)).await?;
            free(&mut session, &shard.postgres.slot, within).await?;
            sessions.push(session);
        }
        Ok(Locks(sessions))
    }

    pub(super) async fn give_back(self) {
        for session in self.0 {
            session.close().await;
        }
    }
}

/// An ordinary session, named after the first shard.
pub(super) async fn session(shards: &[Arc<Config>]) -> Result<Session, Error> {
    let Some(shard) = shards.first() else { return Err(Error::usage("There is no shard", "Name one")) };
    let name = format!("{} shards", shard.name);
    connect(shard, &Startup { application_name: &name, ..Startup::default() }).await
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
    let catalog = Catalog::look(session, &config.postgres, &config.outbox).await?;
    let confirmed = catalog.slot.and_then(|slot| slot.confirmed_flush_lsn);
    let remembered = match &config.delivery.positions_topic {
        Some(topic) => look_up(config, topic, confirmed).await?,
        None => None,
    };
    if let Some(remembered) = remembered {
        return Ok((remembered.slot == config.postgres.slot).then_some(remembered.position));
    }
    Ok(Some(Position { flush: confirmed.unwrap_or_default(), partial: None }))
}
