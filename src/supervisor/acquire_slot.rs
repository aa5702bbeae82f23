//! Acquires the slot: takes its lock, and waits for another router that has it.

use std::time::{Duration, Instant};

use pg_logical::session::Session;

use super::connections::keep_alive;
use super::session_state::SessionState;
use super::stored_state;
use crate::config::{Config, Postgres};
use crate::error::{Error, Peer};
use crate::monitor::{Monitor, State};
use crate::postgres::administrator;
use crate::postgres::catalog::{self, Catalog, Missing, Slot};
use crate::postgres::slot_lock;
use crate::source::slot::HeldLock;

/// How often a standby tries to get the slot. It takes over within a second.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long the server may take to end our own previous session before the wait is logged.
const OWN_SESSION_GRACE: Duration = Duration::from_secs(5);

/// How often a waiting router reads the slot and the parked events.
const SHOW_INTERVAL: Duration = Duration::from_secs(3);

/// How long a lock request takes to enter the server's queue, nearly always. If it takes longer, a standby may become active
/// instead.
const QUEUE_DELAY: Duration = Duration::from_millis(20);

/// What a start knows once it has the slot.
pub(super) struct Acquired {
    pub(super) catalog: Catalog,
    pub(super) slot: Slot,
    /// The lock was taken over from the last session, so the server and its log are the same as before.
    pub(super) handed_over: bool,
}

/// Waits until nobody else reads the slot.
pub(super) async fn acquire_slot(
    session: &mut Session,
    catalog_session: &mut Session,
    config: &Config,
    monitor: &Monitor,
    state: &mut SessionState,
) -> Result<Acquired, Error> {
    let missing = if state.was_active { Missing::WhileRunning } else { Missing::AtStart };
    let wal_level = catalog_session.query_one("SHOW wal_level").await?.unwrap_or_default();
    administrator::check_wal_level(&wal_level, &config.postgres.conninfo.hosts)?;
    let mut wait = SlotWait {
        before: monitor.current_state(),
        since: Instant::now(),
        previous: state.last_backend_pid,
        reported: None,
    };
    let handed_over = match state.lock.take() {
        Some(held) => take_over(session, held, &config.postgres, state.last_backend_pid).await?,
        None => false,
    };
    let mut shown: Option<Instant> = None;
    // this session holds the lock until it ends
    while !slot_lock::try_take(session, &config.postgres.slot).await? {
        let holder = slot_lock::named_holder(session, &config.postgres.slot).await?;
        if let Some((pid, holder)) = holder
            && wait.should_report(pid)
        {
            wait.report(config, monitor, state, pid, &holder);
        }
        if wait.reported.is_some() && shown.is_none_or(|shown| shown.elapsed() >= SHOW_INTERVAL) {
            stored_state::show(catalog_session, config, monitor).await?;
            shown = Some(Instant::now());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    state.last_backend_pid = Some(session.backend_pid());
    keep_alive(config, session, stored_state::show(catalog_session, config, monitor)).await?;
    let found = loop {
        let query = async { Ok(Catalog::query(catalog_session, &config.postgres, &config.outbox).await?) };
        let catalog = keep_alive(config, session, query).await?;
        catalog.check(config.source(), missing)?;
        let Some(slot) = catalog.slot.clone() else {
            return Err(Error::transient(Peer::Postgres, "the slot's row is gone"));
        };
        let Some(pid) = slot.active_pid else { break Acquired { catalog, slot, handed_over } };
        if wait.should_report(pid) {
            let mut holder = catalog::holder(catalog_session, pid).await?;
            // another router would have the lock
            if wait.previous != Some(pid) {
                holder.push_str(", which is not a router: stop it");
            }
            wait.report(config, monitor, state, pid, &holder);
        }
        // the server ends idle sessions
        session.query("SELECT 1").await?;
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    wait.end(monitor);
    Ok(found)
}

/// Takes the lock over from the previous session. Standbys poll for it, so a queued request comes before them. Returns whether
/// the previous session still had the lock: then the server, and with it the log, is the same as before.
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
        tokio::time::sleep(QUEUE_DELAY).await;
        drop(held);
    });
    taken?;
    Ok(true)
}

/// The wait for the current holder of the slot.
struct SlotWait {
    /// The monitor's state before the wait.
    before: State,
    since: Instant,
    /// The server process of our own previous session or attempt.
    previous: Option<i32>,
    /// The server process that was logged last as the holder.
    reported: Option<i32>,
}

impl SlotWait {
    /// Our own previous session is reported only if it lasts: its end has a better reason.
    fn should_report(&self, pid: i32) -> bool {
        let ours = self.previous == Some(pid);
        self.reported != Some(pid) && (!ours || self.since.elapsed() >= OWN_SESSION_GRACE)
    }

    /// Logs and shows which process the router waits for.
    fn report(
        &mut self,
        config: &Config,
        monitor: &Monitor,
        state: &mut SessionState,
        pid: i32,
        holder: &str,
    ) {
        self.reported = Some(pid);
        let reason = format!("the slot {} is held by {holder}", config.postgres.slot);
        tracing::info!(peer = "postgres", reason, "waiting for the slot");
        monitor.state(State::Waiting { reason });
        // our own previous session delivers nothing, so position and lag stay as shown
        if self.previous == Some(pid) {
            return;
        }
        monitor.became_standby();
        // Another router reads the slot and may move it. Without positions topic our own position is outdated then.
        if config.delivery.positions_topic.is_none() {
            state.checkpoint = None;
        }
    }

    /// Ends the wait, so that the rest of a long start is not shown as waiting.
    fn end(self, monitor: &Monitor) {
        match self.reported {
            None => {}
            reported if reported == self.previous => monitor.state(self.before),
            Some(_) => monitor.state(State::Connecting { peer: Peer::Postgres }),
        }
    }
}
