//! What the router says of itself to whoever asks it why nothing moves: `/readyz` and `/status`.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use crate::intake::lock;
use crate::stage::process::peak_memory;
use crate::stage::router::{readiness, status};
use crate::watch::Seen;

const ASK_EVERY: Duration = Duration::from_millis(500);
const ANSWER: Duration = Duration::from_secs(3);

/// One attempt to ask both.
#[derive(Debug, Clone)]
pub(crate) struct Account {
    /// When it was asked.
    pub(crate) at: Instant,
    /// Whether there was a process to ask.
    pub(crate) alive: bool,
    /// `None`: it did not answer.
    pub(crate) said: Option<Said>,
}

/// What it answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct Said {
    pub(crate) code: u16,
    pub(crate) readyz: String,
    /// `reason` of `/status`.
    pub(crate) reason: Option<String>,
    /// `positions.not_remembered` of `/status`.
    pub(crate) not_remembered: Option<String>,
    /// How long ago the main loop turned.
    pub(crate) last_turn: Duration,
}

impl Said {
    /// Whether it explains that no event arrives: a probe and a person are both told.
    pub(crate) fn explains_events(&self) -> bool {
        // a state that has a reason is followed by it
        (self.code != 200 || self.readyz.contains(": ")) && self.reason.is_some()
    }

    /// Whether it explains that the position stays: events may flow all the same, so readiness need not say so.
    pub(crate) fn explains_position(&self) -> bool {
        self.explains_events() || self.not_remembered.is_some()
    }

    /// Whether it waits for the slot that another router holds, which is the one that has to explain.
    pub(crate) fn waits(&self) -> bool {
        self.readyz.starts_with("waiting: ")
    }

    /// Whether what it gives as a reason contains all of these.
    pub(crate) fn names(&self, names: &[&str]) -> bool {
        let reasons = || [&self.reason, &self.not_remembered].into_iter().flatten();
        names.iter().all(|name| reasons().any(|reason| reason.contains(name)))
    }
}

/// Asks without end.
pub(crate) async fn ask(admin: Arc<Mutex<SocketAddr>>, process: Arc<AtomicU32>, seen: Arc<Mutex<Seen>>) {
    loop {
        let at = Instant::now();
        let asked = *lock(&admin);
        let said = timeout(ANSWER, answers(asked)).await.ok().and_then(Result::ok);
        let alive = peak_memory(process.load(Ordering::Relaxed)).is_ok();
        // an answer of the one before it says nothing about this one
        if *lock(&admin) == asked {
            lock(&seen).accounts.push(Account { at, alive, said });
        }
        sleep(ASK_EVERY).await;
    }
}

async fn answers(admin: SocketAddr) -> anyhow::Result<Said> {
    let (code, readyz) = readiness(admin).await?;
    let status = status(admin).await?;
    let last_turn = Duration::try_from_secs_f64(status.last_turn_seconds).unwrap_or_default();
    let (reason, not_remembered) = (status.reason, status.positions.not_remembered);
    Ok(Said { code, readyz, reason, not_remembered, last_turn })
}
