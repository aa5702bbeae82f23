//! What is looked at all the time: the router's own account of itself, its memory, and the log that its slot holds back.

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

use crate::accounts::{self, Account};
use crate::allowance::{Look, Mark, Session};
use crate::intake::lock;
use crate::stage::process::peak_memory;
use crate::stage::router::status;
use crate::writers::connect;

const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A router that is frozen does not answer.
const ANSWER: Duration = Duration::from_millis(250);
const WEIGH_EVERY: Duration = Duration::from_millis(50);

/// What something took at one moment, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weight {
    pub(crate) at: Instant,
    /// Log that the slot holds back.
    pub(crate) retained: Option<u64>,
    /// The most memory that the process ever had.
    pub(crate) memory: Option<u64>,
}

/// Everything that was seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) looks: Vec<Look>,
    pub(crate) weights: Vec<Weight>,
    pub(crate) marks: Vec<Mark>,
    pub(crate) sessions: Vec<Session>,
    /// What the router said of itself when it was asked in peace.
    pub(crate) accounts: Vec<Account>,
    /// From when to when it could not say anything: it had been killed, told to stop, or frozen.
    pub(crate) excused: Vec<(Instant, Option<Instant>)>,
}

/// At work until dropped.
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
        let looking = tokio::spawn(look(Arc::clone(&admin), log.to_owned(), Arc::clone(&seen)));
        let weighing = weigh(postgres.to_owned(), slot, Arc::clone(&process), Arc::clone(&seen));
        let asking = accounts::ask(Arc::clone(&admin), Arc::clone(&process), Arc::clone(&seen));
        Watch { seen, process, admin, tasks: [looking, tokio::spawn(weighing), tokio::spawn(asking)] }
    }

    /// Which process the router is from now on, and where it answers.
    pub(crate) fn follow(&self, process: u32, admin: SocketAddr) {
        *lock(&self.admin) = admin;
        self.process.store(process, Ordering::Relaxed);
        self.can_speak();
    }

    /// The router cannot say anything from now on, until `can_speak`.
    pub(crate) fn cannot_speak(&self) {
        self.can_speak();
        lock(&self.seen).excused.push((Instant::now(), None));
    }

    pub(crate) fn can_speak(&self) {
        if let Some((_, until)) = lock(&self.seen).excused.last_mut() {
            until.get_or_insert_with(Instant::now);
        }
    }

    /// Takes the memory of the router once more: it is about to end.
    pub(crate) fn last_words(&self) {
        self.cannot_speak();
        let memory = peak_memory(self.process.load(Ordering::Relaxed)).ok();
        lock(&self.seen).weights.push(Weight { at: Instant::now(), retained: None, memory });
    }

    /// Where the log ended when it was looked at last.
    pub(crate) fn end_of_log(&self) -> Option<Lsn> {
        lock(&self.seen).marks.last().map(|mark| mark.end)
    }

    /// What the router said last of how far everything is acknowledged, and is remembered.
    pub(crate) fn remembered(&self) -> Option<Lsn> {
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

async fn look(admin: Arc<Mutex<SocketAddr>>, log: PathBuf, seen: Arc<Mutex<Seen>>) {
    let mut read = 0;
    loop {
        let at = Instant::now();
        let text = new_lines(&log, &mut read);
        let sessions = text.lines().filter_map(first_session);
        lock(&seen).sessions.extend(sessions.map(|first| Session { at, first }));
        let admin = *lock(&admin);
        if let Ok(Ok(status)) = timeout(ANSWER, status(admin)).await {
            let look = Look {
                at,
                ready: status.ready,
                active: status.state == StateKind::Active,
                in_flight: status.in_flight.records,
                flushed: status.positions.flushed.and_then(|lsn| lsn.parse().ok()),
                remembered: status.positions.remembered.and_then(|lsn| lsn.parse().ok()),
            };
            lock(&seen).looks.push(look);
        }
        sleep(LOOK_EVERY).await;
    }
}

/// What was added to the log since it was read up to `read`, without a last line that is not whole.
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

/// Whether a session is the first of its process, if the line reports one.
fn first_session(line: &str) -> Option<bool> {
    line.contains("connected; events flow").then(|| line.ends_with("again=false"))
}

async fn weigh(postgres: String, slot: &'static str, process: Arc<AtomicU32>, seen: Arc<Mutex<Seen>>) {
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
        let weight = Weight { at, retained: answer.and_then(|(_, retained)| retained), memory };
        lock(&seen).weights.push(weight);
        lock(&seen).marks.extend(answer.map(|(end, _)| Mark { at: asked, end }));
        sleep(WEIGH_EVERY).await;
    }
}

/// Where the log ends, and how much of it the slot holds back.
async fn end_and_retained(client: &Client, slot: &str) -> anyhow::Result<(Lsn, Option<u64>)> {
    let sql = "SELECT pg_current_wal_lsn()::text, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint \
               FROM pg_replication_slots WHERE slot_name = $1";
    let row = timeout(Duration::from_secs(5), client.query_one(sql, &[&slot])).await;
    let row = row.context("Postgres does not answer")??;
    let retained: Option<i64> = row.try_get(1)?;
    Ok((row.try_get::<_, &str>(0)?.parse()?, retained.and_then(|bytes| u64::try_from(bytes).ok())))
}
