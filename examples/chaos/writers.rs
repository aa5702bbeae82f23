//! The application: several writers that change aggregates and insert events into the outbox in the same transactions. Some
//! transactions roll back, roll back to savepoints, delete their rows, or lose their connection.
//!
//! Each aggregate counts its events under a row lock that is held until the commit. So the numbers are in commit order, and a
//! rollback leaves no gap.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};
use tokio_postgres::{Client, NoTls, Transaction};

use crate::event::{Id, id_of};

/// The aggregate types of the small transactions.
const TYPES: [&str; 2] = ["order", "customer"];
/// The aggregate type of the large transactions.
pub(crate) const LARGE: &str = "batch";
/// All aggregate types; each has its own topic.
pub(crate) const ALL_TYPES: [&str; 3] = ["order", "customer", LARGE];

const WRITERS: u64 = 4;
/// Few, so that writers contend for the same aggregates.
const AGGREGATES: u32 = 200;
const LARGE_AGGREGATES: i64 = 10;
/// How often something happens: once in this many transactions.
const ROLLBACK_ONE_IN: u32 = 10;
const SAVEPOINT_ONE_IN: u32 = 10;
const DELETE_ONE_IN: u32 = 10;
const DISCONNECT_ONE_IN: u32 = 1_000;
/// With `--park`, once in this many times the events of a statement are larger than some routers can send.
const LARGE_ONE_IN: u32 = 500;

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
const RECONNECT_AFTER: Duration = Duration::from_millis(20);

/// `$1`: aggregate, `$2`: number of events, `$3`: event type, `$4`: payload, `$5`: headers.
const EMIT: &str = "\
    WITH next AS (UPDATE aggregates SET events = events + $2 WHERE id = $1 RETURNING id, type, events) \
    INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, headers) \
    SELECT type, id, $3, $4::text::jsonb || jsonb_build_object('sequence', events - $2 + n), $5::text::jsonb \
    FROM next, generate_series(1, $2) n ORDER BY n RETURNING id::text";

/// `$1`: number of events per aggregate, `$2`: headers, `$3`: how many days ago they say to have been created.
const EMIT_LARGE: &str = "\
    WITH next AS (UPDATE aggregates SET events = events + $1 WHERE type = 'batch' RETURNING id, type, events) \
    INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, headers, created_at) \
    SELECT type, id, 'Imported', jsonb_build_object('sequence', events - $1 + n, 'text', md5(n::text)), $2::text::jsonb, \
    CASE $3::int WHEN 0 THEN clock_timestamp() ELSE date_trunc('day', now(), 'UTC') - $3 * interval '1 day' END \
    FROM next, generate_series(1, $1) n ORDER BY n RETURNING id::text";

/// Creates the application's own table; `outbox-router init` creates the outbox.
pub(crate) async fn create_table(postgres: &Client) -> anyhow::Result<()> {
    let mut sql =
        "CREATE TABLE aggregates (id text PRIMARY KEY, type text NOT NULL, events bigint NOT NULL);"
            .to_owned();
    for (kind, count) in
        [(TYPES[0], AGGREGATES), (TYPES[1], AGGREGATES / 4), (LARGE, LARGE_AGGREGATES as u32)]
    {
        sql += &format!(
            "INSERT INTO aggregates SELECT '{kind}-' || n, '{kind}', 0 FROM generate_series(1, {count}) n;"
        );
    }
    postgres
        .batch_execute(&sql)
        .await
        .context("create the table `aggregates`; the campaign needs servers that have not been used before")
}

/// Connects. The connection runs as a task until the client is dropped.
pub(crate) async fn connect(url: &str) -> anyhow::Result<Client> {
    let connecting = tokio_postgres::connect(url, NoTls);
    let (client, connection) = timeout(CONNECT_TIMEOUT, connecting).await?.context("connect to Postgres")?;
    // the client's next query reports its error
    tokio::spawn(connection);
    Ok(client)
}

/// What the writers know of their transactions.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// Each event whose COMMIT succeeded, and when the writer received the answer.
    pub(crate) committed: HashMap<Id, Instant>,
    /// Events that were certainly rolled back and must never arrive.
    pub(crate) rolled_back: HashSet<Id>,
    /// The number of events whose COMMIT was not answered. Only the server knows their outcome.
    pub(crate) in_doubt: u64,
    /// Events that were deleted by the transactions that inserted them.
    pub(crate) never_visible: HashSet<Id>,
    pub(crate) transactions: u64,
    pub(crate) rollbacks: u64,
    pub(crate) savepoint_rollbacks: u64,
    pub(crate) large: u64,
    pub(crate) largest: u64,
}

/// [`Written`], shared by the writers.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    written: Mutex<Written>,
    rows: AtomicU64,
}

impl Ledger {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of committed rows.
    pub(crate) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    fn record(&self, events: Events, outcome: Outcome) {
        let at = Instant::now();
        let mut written = self.lock();
        written.transactions += 1;
        written.rolled_back.extend(events.undone);
        match outcome {
            Outcome::Committed => {
                self.rows.fetch_add(events.inserted.len() as u64, Ordering::Relaxed);
                written.committed.extend(events.inserted.into_iter().map(|id| (id, at)));
                written.never_visible.extend(events.deleted);
            }
            Outcome::RolledBack => {
                written.rollbacks += 1;
                written.rolled_back.extend(events.inserted);
            }
            Outcome::InDoubt => written.in_doubt += events.inserted.len() as u64,
        }
    }
}

/// The events of a transaction.
#[derive(Default)]
struct Events {
    /// Committed if the transaction commits.
    inserted: Vec<Id>,
    /// Rolled back to a savepoint.
    undone: Vec<Id>,
    /// Those of `inserted` that were deleted again.
    deleted: Vec<Id>,
}

enum Outcome {
    Committed,
    RolledBack,
    InDoubt,
}

/// The running writers; dropping it ends them.
pub(crate) struct Writers {
    tasks: JoinSet<anyhow::Result<()>>,
    end: Arc<AtomicBool>,
}

impl Writers {
    /// Starts them, at `rate` rows per second in total. The same `seed` makes the same choices.
    pub(crate) fn start(url: &str, ledger: &Arc<Ledger>, rate: u64, seed: u64, large: bool) -> Self {
        let mut tasks = JoinSet::new();
        let end = Arc::new(AtomicBool::new(false));
        for number in 0..WRITERS {
            let writer = Writer {
                url: url.to_owned(),
                ledger: Arc::clone(ledger),
                end: Arc::clone(&end),
                per_second: rate as f64 / WRITERS as f64,
                seed: seed.wrapping_add(number << 32),
                large,
            };
            tasks.spawn(writer.run());
        }
        Writers { tasks, end }
    }

    /// Fails if a writer has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.tasks.try_join_next() {
            None => Ok(()),
            Some(ended) => ended.context("a writer panicked")?.context("a writer failed"),
        }
    }

    /// Ends the writers after their current transactions.
    pub(crate) async fn finish(mut self) -> anyhow::Result<()> {
        self.end.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.context("a writer panicked")?.context("a writer failed")?;
        }
        Ok(())
    }
}

struct Writer {
    url: String,
    ledger: Arc<Ledger>,
    end: Arc<AtomicBool>,
    per_second: f64,
    seed: u64,
    /// Whether some events are larger than some routers can send.
    large: bool,
}

impl Writer {
    async fn run(self) -> anyhow::Result<()> {
        let mut number = 0;
        let mut due = tokio::time::Instant::now();
        while !self.end.load(Ordering::Relaxed) {
            let Ok(mut client) = connect(&self.url).await else {
                sleep(RECONNECT_AFTER).await;
                continue;
            };
            while !self.end.load(Ordering::Relaxed) {
                // seeded per transaction, so that one that fails halfway does not change the choices of the next
                let mut random = StdRng::seed_from_u64(self.seed.wrapping_add(number));
                number += 1;
                // do not catch up after an outage
                due = due.max(tokio::time::Instant::now() - Duration::from_millis(100));
                sleep_until(due).await;
                match self.transaction(&mut client, &mut random).await {
                    Ok(rows) => due += Duration::from_secs_f64(rows.max(1) as f64 / self.per_second),
                    // any other error is a mistake of the campaign
                    Err(error) if is_outage(&error) => break,
                    Err(error) => return Err(error.into()),
                }
                if one_in(&mut random, DISCONNECT_ONE_IN) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Runs one transaction; returns the number of rows inserted.
    async fn transaction(
        &self,
        client: &mut Client,
        random: &mut StdRng,
    ) -> Result<usize, tokio_postgres::Error> {
        let mut events = Events::default();
        let mut transaction = client.transaction().await?;
        if let Err(error) = self.changes(&mut transaction, random, &mut events).await {
            // COMMIT was not sent
            self.ledger.record(events, Outcome::RolledBack);
            return Err(error);
        }
        let rows = events.inserted.len();
        if one_in(random, ROLLBACK_ONE_IN) {
            let end = transaction.rollback().await;
            self.ledger.record(events, Outcome::RolledBack);
            return end.map(|()| rows);
        }
        let end = transaction.commit().await;
        self.ledger.record(events, if end.is_ok() { Outcome::Committed } else { Outcome::InDoubt });
        end.map(|()| rows)
    }

    async fn changes(
        &self,
        transaction: &mut Transaction<'_>,
        random: &mut StdRng,
        events: &mut Events,
    ) -> Result<(), tokio_postgres::Error> {
        // always in this order, so that writers do not deadlock
        for kind in TYPES {
            if kind != TYPES[0] && !one_in(random, 4) {
                continue;
            }
            let count = if kind == TYPES[0] { AGGREGATES } else { AGGREGATES / 4 };
            let aggregate = format!("{kind}-{}", random.random_range(1..=count));
            if one_in(random, SAVEPOINT_ONE_IN) {
                let savepoint = transaction.savepoint("rolled_back").await?;
                let undone = self.emit(&savepoint, &aggregate, random).await?;
                events.undone.extend(undone);
                savepoint.rollback().await?;
                self.ledger.lock().savepoint_rollbacks += 1;
            } else if one_in(random, SAVEPOINT_ONE_IN) {
                let savepoint = transaction.savepoint("released").await?;
                let inserted = self.emit(&savepoint, &aggregate, random).await?;
                events.inserted.extend(inserted);
                savepoint.commit().await?;
            }
            events.inserted.extend(self.emit(transaction, &aggregate, random).await?);
            if one_in(random, DELETE_ONE_IN) {
                let sql = "DELETE FROM outbox WHERE aggregate_type = $1 AND aggregate_id = $2 \
                           AND xmin = pg_current_xact_id()::xid RETURNING id::text";
                events.deleted.extend(ids(&transaction.query(sql, &[&kind, &aggregate]).await?)?);
            }
        }
        Ok(())
    }
}

impl Writer {
    /// Inserts one to four events of one aggregate; returns their ids.
    async fn emit(
        &self,
        transaction: &Transaction<'_>,
        aggregate: &str,
        random: &mut StdRng,
    ) -> Result<Vec<Id>, tokio_postgres::Error> {
        let count = i64::from(random.random_range(1..=4_u32));
        // texts that are easily mangled by a wrong encoding or escape
        const WORDS: [&str; 8] =
            ["Grüße", "\"by hand\"", "a\\b", "🚚", "line\nbreak", "it's", "plain", "\u{1}"];
        let words: Vec<&str> =
            (0..random.random_range(0..30)).filter_map(|_| WORDS.choose(random).copied()).collect();
        let mut text = words.join(" ");
        if self.large && one_in(random, LARGE_ONE_IN) {
            text += &"large ".repeat(600);
        }
        let payload = serde_json::json!({ "text": text }).to_string();
        let trace: u128 = random.random();
        let headers =
            serde_json::json!({ "traceparent": format!("00-{trace:032x}-01"), "n": count, "tenant": null });
        let headers = headers.to_string();
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&aggregate, &count, &"Changed", &payload, &headers];
        let rows = transaction.query(EMIT, &parameters).await?;
        ids(&rows)
    }
}

fn ids(rows: &[tokio_postgres::Row]) -> Result<Vec<Id>, tokio_postgres::Error> {
    rows.iter().map(|row| row.try_get(0).map(|text| id_of(text).unwrap_or_default())).collect()
}

/// Commits one large transaction of `rows` rows, about half of them after a savepoint that is released. A tenth as many more rows
/// are rolled back to a savepoint. Repeats it after an outage of the server.
pub(crate) async fn large(url: &str, ledger: &Ledger, rows: u64, seed: u64) -> anyhow::Result<u64> {
    large_of_age(url, ledger, rows, seed, 0).await
}

/// The same with rows of a day that was so many days ago.
pub(crate) async fn large_of_age(
    url: &str,
    ledger: &Ledger,
    rows: u64,
    seed: u64,
    days: i32,
) -> anyhow::Result<u64> {
    let headers = serde_json::json!({ "batch": seed }).to_string();
    let each = (rows as i64 / LARGE_AGGREGATES).max(2);
    loop {
        let mut events = Events::default();
        let end = async {
            let mut client = connect(url).await.map_err(|_| None)?;
            let mut transaction = client.transaction().await.map_err(Some)?;
            let half = emit_large(&transaction, each / 2, &headers, days).await.map_err(Some)?;
            events.inserted.extend(half);
            let savepoint = transaction.savepoint("rolled_back").await.map_err(Some)?;
            events.undone.extend(emit_large(&savepoint, each / 10 + 1, &headers, days).await.map_err(Some)?);
            savepoint.rollback().await.map_err(Some)?;
            let savepoint = transaction.savepoint("released").await.map_err(Some)?;
            let half = emit_large(&savepoint, each - each / 2, &headers, days).await.map_err(Some)?;
            events.inserted.extend(half);
            savepoint.commit().await.map_err(Some)?;
            transaction.commit().await.map_err(Some)
        }
        .await;
        match end {
            Ok(()) => {
                let count = events.inserted.len() as u64;
                ledger.record(events, Outcome::Committed);
                let mut written = ledger.lock();
                written.large += 1;
                written.largest = written.largest.max(count);
                return Ok(count);
            }
            Err(Some(error)) if !is_outage(&error) => return Err(error).context("a large transaction"),
            Err(_) => {
                ledger.record(events, Outcome::InDoubt);
                sleep(RECONNECT_AFTER).await;
            }
        }
    }
}

async fn emit_large(
    transaction: &Transaction<'_>,
    each: i64,
    headers: &str,
    days: i32,
) -> Result<Vec<Id>, tokio_postgres::Error> {
    ids(&transaction.query(EMIT_LARGE, &[&each, &headers, &days]).await?)
}

/// Whether the error is a lost connection or a shutdown of the server (SQLSTATE 57P..), and not an answer to the statement.
fn is_outage(error: &tokio_postgres::Error) -> bool {
    error.code().is_none_or(|code| code.code().starts_with("57P"))
}

fn one_in(random: &mut StdRng, times: u32) -> bool {
    random.random_range(0..times) == 0
}
