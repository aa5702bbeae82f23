//! Polls the router's status and log, its memory, and the WAL that its slot retains, throughout the campaign.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use outbox_router::monitor::StateKind;
use pg_logical::Lsn;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::Client;

use crate::admin_probe::{self, Probe};
use crate::allowance::{Look, Mark, Session};
use crate::intake::lock;
use crate::stage::process::peak_memory;
use crate::stage::router::status;
use crate::writers::connect;

const POLL_EVERY: Duration = Duration::from_millis(20);
/// A frozen router does not answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);
const SAMPLE_EVERY: Duration = Duration::from_millis(50);

/// The resources in use at one moment, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) at: Instant,
    /// WAL that the slot retains.
    pub(crate) retained: Option<u64>,
    /// The peak memory of the process so far.
    pub(crate) memory: Option<u64>,
}

/// Everything that was observed.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) looks: Vec<Look>,
    pub(crate) usage: Vec<Usage>,
    pub(crate) marks: Vec<Mark>,
    pub(crate) sessions: Vec<Session>,
    /// The answers of the admin endpoint to less frequent requests with a longer timeout.
    pub(crate) probes: Vec<Probe>,
    /// From when to when the router could not answer because it was killed, stopped or frozen.
    pub(crate) downtimes: Vec<(Instant, Option<Instant>)>,
}

/// Polls until it is dropped.
pub(crate) struct Watch {
    seen: Arc<Mutex<Seen>>,
    process: Arc<AtomicU32>,
    admin: Arc<Mutex<SocketAddr>>,
    tasks: [JoinHandle<()>; 3],
}

impl Watch {
    pub(crate) fn start(admin: SocketAddr, log: &Path, postgres: &str, slot: &'static str) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let process = Arc::new(AtomicU32::new(0));
        let admin = Arc::new(Mutex::new(admin));
        let polling = tokio::spawn(poll_status(Arc::clone(&admin), log.to_owned(), Arc::clone(&seen)));
        let sampling = sample_usage(postgres.to_owned(), slot, Arc::clone(&process), Arc::clone(&seen));
        let probing = admin_probe::run(Arc::clone(&admin), Arc::clone(&process), Arc::clone(&seen));
        Watch { seen, process, admin, tasks: [polling, tokio::spawn(sampling), tokio::spawn(probing)] }
    }

    /// Sets the router's process and admin address.
    pub(crate) fn follow(&self, process: u32, admin: SocketAddr) {
        *lock(&self.admin) = admin;
        self.process.store(process, Ordering::Relaxed);
        self.end_downtime();
    }

    /// The router cannot answer from now on, until `end_downtime`.
    pub(crate) fn begin_downtime(&self) {
        self.end_downtime();
        lock(&self.seen).downtimes.push((Instant::now(), None));
    }

    pub(crate) fn end_downtime(&self) {
        if let Some((_, until)) = lock(&self.seen).downtimes.last_mut() {
            until.get_or_insert_with(Instant::now);
        }
    }

    /// Begins a downtime, and samples the memory of the router a last time. Call it before the router is ended.
    pub(crate) fn before_end(&self) {
        self.begin_downtime();
        let memory = peak_memory(self.process.load(Ordering::Relaxed)).ok();
        lock(&self.seen).usage.push(Usage { at: Instant::now(), retained: None, memory });
    }

    /// The end of the log at the last sample.
    pub(crate) fn end_of_log(&self) -> Option<Lsn> {
        lock(&self.seen).marks.last().map(|mark| mark.end)
    }

    /// Up to where everything is acknowledged and in a checkpoint, by the router's last status.
    pub(crate) fn checkpointed(&self) -> Option<Lsn> {
        let look = *lock(&self.seen).looks.last()?;
        look.flushed.min(look.remembered)
    }

    pub(crate) fn finish(self) -> Seen {
        std::mem::take(&mut lock(&self.seen))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

async fn poll_status(admin: Arc<Mutex<SocketAddr>>, log: PathBuf, seen: Arc<Mutex<Seen>>) {
    let mut read = 0;
    loop {
        let at = Instant::now();
        add_sessions(&log, &mut read, at, &seen);
        let admin = *lock(&admin);
        if let Ok(Ok(status)) = timeout(ANSWER_TIMEOUT, status(admin)).await {
            let look = Look {
                at,
                ready: status.ready,
                active: status.state == StateKind::Active,
                in_flight: status.in_flight.records,
                flushed: status.positions.flushed.and_then(|lsn| lsn.parse().ok()),
                remembered: status.positions.remembered.and_then(|lsn| lsn.parse().ok()),
            };
            // a status that shows a new session belongs behind its start
            add_sessions(&log, &mut read, at, &seen);
            lock(&seen).looks.push(look);
        }
        sleep(POLL_EVERY).await;
    }
}

/// Adds the sessions that the log has reported since it was read last.
fn add_sessions(log: &Path, read: &mut u64, at: Instant, seen: &Mutex<Seen>) {
    let text = new_lines(log, read);
    let sessions = text.lines().filter_map(first_session);
    lock(seen).sessions.extend(sessions.map(|first| Session { at, first }));
}

/// The complete lines that were added to the log after the offset `read`, which is moved behind them.
fn new_lines(log: &Path, read: &mut u64) -> String {
    let mut more = String::new();
    let text = File::open(log).and_then(|mut file| {
        file.seek(SeekFrom::Start(*read))?;
        file.read_to_string(&mut more)
    });
    more.truncate(more.rfind('\n').map_or(0, |end| end + 1));
    *read += text.map_or(0, |_| more.len() as u64);
    more
}

/// If the line reports the start of a session: whether it is the first one of its process.
fn first_session(line: &str) -> Option<bool> {
    line.contains("connected; events flow").then(|| line.ends_with("again=false"))
}

async fn sample_usage(postgres: String, slot: &'static str, process: Arc<AtomicU32>, seen: Arc<Mutex<Seen>>) {
    let mut client = None;
    loop {
        let at = Instant::now();
        let memory = peak_memory(process.load(Ordering::Relaxed)).ok();
        if client.is_none() {
            client = connect(&postgres).await.ok();
        }
        let asked = Instant::now();
        let answer = match &client {
            Some(client) => end_and_retained(client, slot).await.ok(),
            None => None,
        };
        if answer.is_none() {
            client = None;
        }
        let usage = Usage { at, retained: answer.and_then(|(_, retained)| retained), memory };
        lock(&seen).usage.push(usage);
        lock(&seen).marks.extend(answer.map(|(end, _)| Mark { at: asked, end }));
        sleep(SAMPLE_EVERY).await;
    }
}

/// The end of the log, and the bytes of it that the slot retains, if there is one.
async fn end_and_retained(client: &Client, slot: &str) -> anyhow::Result<(Lsn, Option<u64>)> {
    let sql = "SELECT pg_current_wal_lsn()::text, (SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint \
               FROM pg_replication_slots WHERE slot_name = $1)";
    let row = timeout(Duration::from_secs(5), client.query_one(sql, &[&slot])).await;
    let row = row.context("Postgres does not answer")??;
    let retained: Option<i64> = row.try_get(1)?;
    Ok((row.try_get::<_, &str>(0)?.parse()?, retained.and_then(|bytes| u64::try_from(bytes).ok())))
}
