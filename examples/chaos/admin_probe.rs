//! Requests `/readyz` and `/status` at intervals, to see whether the router gives a reason when nothing moves.

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
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// One request to both.
#[derive(Debug, Clone)]
pub(crate) struct Probe {
    /// When the request was sent.
    pub(crate) at: Instant,
    /// Whether the router's process existed.
    pub(crate) alive: bool,
    /// `None`: it did not answer.
    pub(crate) answer: Option<Answer>,
}

/// The answers of both endpoints.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) readyz: String,
    /// `reason` of `/status`.
    pub(crate) reason: Option<String>,
    /// `positions.not_remembered` of `/status`.
    pub(crate) not_remembered: Option<String>,
    /// How long ago the main loop last ran.
    pub(crate) last_turn: Duration,
}

impl Answer {
    /// Whether both endpoints explain why no event arrives.
    pub(crate) fn explains_events(&self) -> bool {
        // `/readyz` puts the reason after the state
        (self.code != 200 || self.readyz.contains(": ")) && self.reason.is_some()
    }

    /// Whether it explains why the position does not move. Events may flow meanwhile, so `/readyz` need not explain it.
    pub(crate) fn explains_position(&self) -> bool {
        self.explains_events() || self.not_remembered.is_some()
    }

    /// Whether the router is a standby. Then the router that holds the slot has to give the reason.
    pub(crate) fn is_standby(&self) -> bool {
        self.readyz.starts_with("waiting: ")
    }

    /// Whether its reasons contain all of these texts.
    pub(crate) fn reasons_contain(&self, texts: &[&str]) -> bool {
        let reasons = || [&self.reason, &self.not_remembered].into_iter().flatten();
        texts.iter().all(|text| reasons().any(|reason| reason.contains(text)))
    }
}

/// Sends requests without end.
pub(crate) async fn run(admin: Arc<Mutex<SocketAddr>>, process: Arc<AtomicU32>, seen: Arc<Mutex<Seen>>) {
    loop {
        let at = Instant::now();
        let asked = *lock(&admin);
        let answer = timeout(ANSWER_TIMEOUT, request(asked)).await.ok().and_then(Result::ok);
        let alive = peak_memory(process.load(Ordering::Relaxed)).is_ok();
        // drop the answer of a router that was replaced meanwhile
        if *lock(&admin) == asked {
            lock(&seen).probes.push(Probe { at, alive, answer });
        }
        sleep(ASK_EVERY).await;
    }
}

async fn request(admin: SocketAddr) -> anyhow::Result<Answer> {
    let (code, readyz) = readiness(admin).await?;
    let status = status(admin).await?;
    let last_turn = Duration::try_from_secs_f64(status.last_turn_seconds).unwrap_or_default();
    let (reason, not_remembered) = (status.reason, status.positions.not_remembered);
    Ok(Answer { code, readyz, reason, not_remembered, last_turn })
}
