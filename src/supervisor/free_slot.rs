//! The slot for this router alone: its lock, and the wait for who has it.

use std::time::{Duration, Instant};

use pg_logical::session::Session;

use super::connections::awake;
use super::session_state::SessionState;
use super::stored_state;
use crate::config::{Config, Postgres};
use crate::error::{Error, Peer};
use crate::monitor::{Monitor, State};
use crate::postgres::catalog::{self, Catalog, Missing, Slot};
use crate::postgres::slot_lock;
use crate::source::slot::HeldLock;

/// How often a slot that another holds is looked at. A standby takes over within a second.
const SLOT_WAIT: Duration = Duration::from_millis(100);

/// How long the server may take to end the process of our own last session or attempt before that is told.
const LEFT_BEHIND: Duration = Duration::from_secs(5);

/// How often a router that waits looks at what is kept outside of it.
const SHOW_EVERY: Duration = Duration::from_secs(3);

/// How long a session that asks for a lock takes to stand in line for it, or nearly always. One that does not may find that a
/// standby is active.
const IN_LINE: Duration = Duration::from_millis(20);

/// Looks at the catalogues until nobody else reads the slot.
pub(super) async fn free_slot(
    session: &mut Session,
    looks: &mut Session,
    config: &Config,
    monitor: &Monitor,
    memory: &mut SessionState,
) -> Result<(Catalog, Slot), Error> {
    let missing = if memory.was_active { Missing::WhileRunning } else { Missing::AtStart };
    let wal_level = looks.query_one("SHOW wal_level").await?.unwrap_or_default();
    if wal_level != "logical" {
        return Err(Error::refused(
            format!("wal_level is {wal_level}, and logical replication needs logical"),
            "Set wal_level = logical in postgresql.conf (on Amazon RDS the parameter rds.logical_replication = 1) and \
             restart Postgres",
        ));
    }
    let mut wait = Wait {
        before: monitor.current_state(),
        since: Instant::now(),
        left_behind: memory.server_process,
        told: None,
    };
    memory.handed_over = match memory.lock.take() {
        Some(held) => take_over(session, held, &config.postgres, memory.server_process).await?,
        None => false,
    };
    let mut shown: Option<Instant> = None;
    // first of all, and for as long as the session lasts
    while !slot_lock::try_take(session, &config.postgres.slot).await? {
        let holder = slot_lock::named_holder(session, &config.postgres.slot).await?;
        if let Some((pid, holder)) = holder
            && wait.is_to_be_told(pid)
        {
            wait.tell(config, monitor, memory, pid, &holder);
        }
        if wait.told.is_some() && shown.is_none_or(|shown| shown.elapsed() >= SHOW_EVERY) {
            stored_state::show(looks, config, monitor).await?;
            shown = Some(Instant::now());
        }
        tokio::time::sleep(SLOT_WAIT).await;
    }
    memory.server_process = Some(session.backend_pid());
    awake(config, session, stored_state::show(looks, config, monitor)).await?;
    let found = loop {
        let look = async { Ok(Catalog::query(looks, &config.postgres, &config.outbox).await?) };
        let catalog = awake(config, session, look).await?;
        catalog.check(config.source(), missing)?;
        let Some(slot) = catalog.slot.clone() else {
            return Err(Error::transient(Peer::Postgres, "the slot's row is gone"));
        };
        let Some(pid) = slot.active_pid else { break (catalog, slot) };
        if wait.is_to_be_told(pid) {
            let holder = catalog::holder(looks, pid).await?;
            wait.tell(config, monitor, memory, pid, &holder);
        }
        // not idle meanwhile
        session.query("SELECT 1").await?;
        tokio::time::sleep(SLOT_WAIT).await;
    };
    wait.end(monitor);
    Ok(found)
}

/// Takes the lock over from the last session. Others ask for it and ask again, so who waits in between comes before them. Says
/// whether it was there to be taken over: then this is the server of the last session, and its log the one that was read.
async fn take_over(
    session: &mut Session,
    held: HeldLock,
    postgres: &Postgres,
    last: Option<i32>,
) -> Result<bool, Error> {
    let slot = &postgres.slot;
    if last.is_none() || slot_lock::holder(session, slot).await? != last {
        return Ok(false);
    }
    let (taken, ()) = tokio::join!(slot_lock::take(session, slot), async {
        tokio::time::sleep(IN_LINE).await;
        drop(held);
    });
    taken?;
    Ok(true)
}

/// The wait for whoever has the slot.
struct Wait {
    /// The state as it was before.
    before: State,
    since: Instant,
    /// The server process of our own last session or attempt.
    left_behind: Option<i32>,
    /// The server process that was told of last.
    told: Option<i32>,
}

impl Wait {
    /// Of what is left of our own last session or attempt only when it lasts: its reason is worth more.
    fn is_to_be_told(&self, pid: i32) -> bool {
        let ours = self.left_behind == Some(pid);
        self.told != Some(pid) && (!ours || self.since.elapsed() >= LEFT_BEHIND)
    }

    /// Says whom the router waits for.
    fn tell(
        &mut self,
        config: &Config,
        monitor: &Monitor,
        memory: &mut SessionState,
        pid: i32,
        holder: &str,
    ) {
        self.told = Some(pid);
        let reason = format!("the slot {} is held by {holder}", config.postgres.slot);
        tracing::info!(peer = "postgres", reason, "waiting for the slot");
        monitor.state(State::Waiting { reason });
        // what is left of our own last session delivers nothing, so positions and lag are as they were
        if self.left_behind == Some(pid) {
            return;
        }
        monitor.waits();
        // Somebody else reads the slot, and may move it by what it delivers: where positions are not in Kafka, our own is
        // history then.
        if config.delivery.positions_topic.is_none() {
            memory.remembered = None;
        }
    }

    /// A start that takes long is not taken for a wait.
    fn end(self, monitor: &Monitor) {
        match self.told {
            None => {}
            told if told == self.left_behind => monitor.state(self.before),
            Some(_) => monitor.state(State::Connecting { peer: Peer::Postgres }),
        }
    }
}
