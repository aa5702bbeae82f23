//! The session that inserts parked events into the table and deletes them while a router runs.
//!
//! It carries out commands in sequence, and only while the session of the stream holds the slot's lock, so a router that was
//! frozen changes nothing that its successor relies on. If its connection ends, so does the session of the stream, because it
//! is unknown what was carried out.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use pg_logical::Lsn;
use pg_logical::QueryError;
use pg_logical::connect::Startup;
use pg_logical::conninfo::Host;
use pg_logical::lock_wait::{LockWatcher, is_lock_timeout};
use pg_logical::session::{Row, Session};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use super::batches::{Batch, Batches};
use super::messages::{Command, Loaded, Report, Unfinished};
use super::sql::{self, PARKED_ARE_GONE, Waiting, table_remedy};
use super::store::DeadLetterStore;
use crate::advice::{self, LOCK_REMEDY, OrRemedy};
use crate::config::Postgres;
use crate::dead_letters::{DeadLetter, Key, ResolvedRows};
use crate::error::{Effect, Error, ErrorCode, Peer};
use crate::postgres::slot_lock;
use crate::progress::Sequence;

/// How long after a refusal a statement is repeated.
const REPEAT_DELAY: Duration = Duration::from_secs(1);

/// How often the rows are counted, in case somebody else has deleted some.
const COUNT_EVERY: Duration = Duration::from_secs(3);

/// How long a statement waits for a lock before the server gives up. Then the holder of the lock is logged and the statement
/// repeated. So a session that has ended leaves no waiting statement behind, and nobody queues behind one for long.
const LOCK_TIMEOUT: (&str, &str) = ("lock_timeout", "5s");

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The SQLSTATE with which the guard fails if the lock is gone: division by zero.
const LOCK_IS_GONE: &str = "22012";

/// Connects for the router of this name to the server that the stream comes from, where its process is `walsender`. Finishes what
/// was left undone and reads the state. While it waits for a lock on the table, `locked` is told who holds it.
///
/// # Errors
/// The server refuses, or the table does not exist.
pub async fn open(
    router: &str,
    postgres: &Postgres,
    host: Host,
    walsender: i32,
    unfinished: &Unfinished,
    from: Lsn,
    locked: impl Fn(String),
) -> Result<(DeadLetterStore, Loaded), Error> {
    let mut conninfo = postgres.conninfo.clone();
    // other hosts may have a different slot and log
    conninfo.hosts = vec![host];
    let name = format!("{router} dead letters");
    // parked events must be as durable as the server can make them
    let settings = [("synchronous_commit", "on"), LOCK_TIMEOUT];
    let startup = Startup { application_name: &name, settings: &settings, ..Startup::default() };
    let mut session = Session::connect(&conninfo, &startup).await?;
    session.set_answer_timeout(Some(ANSWER_TIMEOUT));
    session.set_watcher(
        LockWatcher::new(&conninfo, session.info(), &name).describing_errors_with(advice::in_words),
    );
    let guard = format!(
        "SELECT 1 / count(*) FROM ({}) held WHERE held.pid = {walsender}",
        slot_lock::holders(&postgres.slot)
    );
    let mut worker = Worker {
        router: router.to_owned(),
        guard,
        session,
        draining: BTreeSet::new(),
        refused: None,
        table_remedy: table_remedy(&postgres.conninfo).to_string(),
        counted: Instant::now(),
    };
    let prepared = worker.prepare(unfinished, from, &locked).await;
    worker.refused = None;
    let loaded = prepared.map_err(|error| match lock_is_gone(&error) {
        true => lock_lost(),
        false => refused(error, postgres),
    })?;
    Ok((DeadLetterStore::of(|commands, reports| worker.run(commands, reports)), loaded))
}

/// Carries out the commands.
struct Worker {
    router: String,
    /// Fails unless the lock is held.
    guard: String,
    session: Session,
    /// Aggregates whose first row only waits for its turn.
    draining: BTreeSet<String>,
    /// Why the last statement was refused, which is logged once.
    refused: Option<String>,
    /// What to do if the table cannot be used, on one line.
    table_remedy: String,
    /// When the rows were last counted.
    counted: Instant,
}

impl Worker {
    /// Finishes what was left undone, and reads the state.
    async fn prepare(
        &mut self,
        unfinished: &Unfinished,
        from: Lsn,
        locked: &impl Fn(String),
    ) -> Result<Loaded, QueryError> {
        let mut resolved = ResolvedRows::default();
        if !unfinished.sent.is_empty() {
            self.repeat_while_locked(&sql::delete(&self.router, &unfinished.sent), locked).await?;
            resolved = ResolvedRows::from_earlier_session(unfinished.sent.clone(), self.end_of_log().await?);
        }
        if let Some((key, reason, detail)) = &unfinished.failed {
            self.repeat_while_locked(&sql::failed(&self.router, *key, *reason, detail), locked).await?;
        }
        Ok(Loaded { resolved, ..self.load(from, locked).await? })
    }

    /// Repeats a statement while another session has the table locked. The router is still starting and does not read reports
    /// yet.
    async fn repeat_while_locked(
        &mut self,
        sql: &str,
        locked: &impl Fn(String),
    ) -> Result<Vec<Row>, QueryError> {
        loop {
            match self.guarded(sql).await {
                Err(error) if is_lock_timeout(&error) => {
                    let what = "the parked events cannot be read; no event is sent until they can be";
                    self.log_refusal(&error, what).into_iter().for_each(locked);
                    tokio::time::sleep(REPEAT_DELAY).await;
                }
                answer => return answer,
            }
        }
    }

    async fn run(mut self, commands: UnboundedReceiver<Command>, reports: UnboundedSender<Report>) {
        let mut batches = Batches::new(commands);
        while let Some(batch) = batches.next().await {
            let done = match batch {
                Batch::Park(rows) => self.park(rows, &reports).await.map(Some),
                Batch::Delete(keys) => self.delete(keys, &reports).await.map(Some),
                Batch::Failed(key, reason, detail) => {
                    let sql = sql::failed(&self.router, key, reason, &detail);
                    self.repeat_until_accepted(&sql, &reports).await.map(|_| None)
                }
                Batch::Fetch(rows) => {
                    self.fetch(rows, &reports).await.map(|rows| Some(Report::Fetched(rows)))
                }
            };
            match done {
                Ok(Some(report)) => drop(reports.send(report)),
                Ok(None) => {}
                Err(error) => {
                    let _ = reports.send(Report::Ended(error));
                    return;
                }
            }
        }
    }

    async fn park(
        &mut self,
        batch: Vec<(Sequence, DeadLetter)>,
        reports: &UnboundedSender<Report>,
    ) -> Result<Report, Error> {
        let insert = sql::insert(&self.router, batch.iter().map(|(_, letter)| letter));
        let new: BTreeSet<Key> =
            self.repeat_until_accepted(&insert, reports).await?.iter().filter_map(sql::key).collect();
        let committed = self.end_of_log().await?;
        let rows = batch.into_iter().map(|(sequence, letter)| {
            let inserted = new.contains(&letter.key);
            (sequence, letter.aggregate_id, inserted)
        });
        Ok(Report::Parked { rows: rows.collect(), committed })
    }

    async fn delete(&mut self, keys: Vec<Key>, reports: &UnboundedSender<Report>) -> Result<Report, Error> {
        let rows = self.repeat_until_accepted(&sql::delete(&self.router, &keys), reports).await?;
        // the rows after them may be next
        self.draining.extend(rows.iter().filter_map(|row| row.get(2).map(str::to_owned)));
        let committed = self.end_of_log().await?;
        // rows that somebody else has deleted count as deleted too
        Ok(Report::Deleted { keys, committed })
    }

    /// The flush LSN, up to which everything committed is flushed.
    async fn end_of_log(&mut self) -> Result<Lsn, QueryError> {
        let end = self.session.query_one("SELECT pg_catalog.pg_current_wal_flush_lsn()").await?;
        let unknown = || pg_logical::Error::transient("the end of the log cannot be read");
        Ok(end.and_then(|end| end.parse().ok()).ok_or_else(unknown)?)
    }

    async fn fetch(
        &mut self,
        expected: Option<u64>,
        reports: &UnboundedSender<Report>,
    ) -> Result<Vec<Waiting>, Error> {
        if let Some(expected) = expected.filter(|_| self.counted.elapsed() >= COUNT_EVERY) {
            self.count(expected, reports).await?;
        }
        let rows = self.repeat_until_accepted(&sql::decided(&self.router), reports).await?;
        let decided: BTreeSet<String> = rows.iter().filter_map(|row| row.get(0).map(str::to_owned)).collect();
        let asked: BTreeSet<String> = decided.union(&self.draining).take(sql::AGGREGATES).cloned().collect();
        let rows = self.repeat_until_accepted(&sql::next(&self.router, asked.iter()), reports).await?;
        if rows.is_empty() {
            // the others wait for a decision, or have no rows left
            self.draining.retain(|aggregate| !asked.contains(aggregate));
        }
        rows.iter().map(|row| sql::waiting(&self.router, row)).collect()
    }

    /// Somebody who deletes a row that others wait behind has decided as well. The next session reads what is left.
    async fn count(&mut self, expected: u64, reports: &UnboundedSender<Report>) -> Result<(), Error> {
        let rows = self.repeat_until_accepted(&sql::count(&self.router, "true"), reports).await?;
        let count = rows.first().and_then(|row| row.get(0));
        self.counted = Instant::now();
        match count.and_then(|count| count.parse::<u64>().ok()) {
            Some(count) if count != expected => Err(Error::transient(
                Peer::Postgres,
                format!(
                    "{} has {count} rows of this router instead of {expected}: somebody has changed it, so the router reads it again",
                    sql::TABLE
                ),
            )),
            _ => Ok(()),
        }
    }

    async fn load(&mut self, from: Lsn, locked: &impl Fn(String)) -> Result<Loaded, QueryError> {
        let without = self.repeat_while_locked(&sql::without_aggregate(&self.router, from), locked).await?;
        let mut loaded =
            Loaded { without_aggregate: without.iter().filter_map(sql::key).collect(), ..Loaded::default() };
        for row in self.repeat_while_locked(&sql::load(&self.router), locked).await? {
            let aggregate = row.get(0).map(str::to_owned);
            if let (Some(aggregate), Some("t")) = (&aggregate, row.get(2)) {
                self.draining.insert(aggregate.clone());
            }
            let number = |n: usize| row.get(n).and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
            let first = row.get(3).and_then(|lsn| lsn.parse().ok()).unwrap_or_default();
            loaded.aggregates.push((aggregate, number(1), Key { final_lsn: first, change: number(4) }));
        }
        Ok(loaded)
    }

    /// Repeats a statement until the server accepts it; the slot waits meanwhile.
    async fn repeat_until_accepted(
        &mut self,
        sql: &str,
        reports: &UnboundedSender<Report>,
    ) -> Result<Vec<Row>, Error> {
        loop {
            match self.guarded(sql).await {
                Ok(rows) => {
                    if self.refused.take().is_some() {
                        tracing::info!(peer = "postgres", "the table of parked events can be used again");
                        let _ = reports.send(Report::Refused(None));
                    }
                    return Ok(rows);
                }
                Err(QueryError::Connection(error)) => return Err(error.into()),
                Err(error) if lock_is_gone(&error) => return Err(lock_lost()),
                // the server is shutting down or ending the session
                Err(error) if error.code().is_none_or(|code| code.code().starts_with("57P")) => {
                    return Err(Error::transient(Peer::Postgres, error.to_string()));
                }
                Err(error) => {
                    let what = "the table of parked events cannot be used; events that cannot be sent, and decisions \
                                about parked ones, wait until it can";
                    if let Some(reason) = self.log_refusal(&error, what) {
                        let _ = reports.send(Report::Refused(Some(reason)));
                    }
                    tokio::time::sleep(REPEAT_DELAY).await;
                }
            }
        }
    }

    /// Logs a refusal; `what` says what it means. Returns the reason, unless it is the same as before.
    fn log_refusal(&mut self, error: &QueryError, what: &str) -> Option<String> {
        let reason = error.to_string();
        if self.refused.as_ref() == Some(&reason) {
            return None;
        }
        let remedy = if is_lock_timeout(error) { LOCK_REMEDY } else { &self.table_remedy };
        tracing::error!(peer = "postgres", reason, remedy, "{what}");
        self.refused = Some(reason.clone());
        Some(reason)
    }

    /// Runs statements in one transaction, because one message is one transaction.
    async fn guarded(&mut self, sql: &str) -> Result<Vec<Row>, QueryError> {
        let lock = sql::lock(&self.router);
        let rows = self.session.query(&format!("{lock}; {}; {sql}", self.guard)).await?;
        // without those of the lock and of the guard
        Ok(rows.into_iter().skip(2).collect())
    }
}

fn refused(error: QueryError, postgres: &Postgres) -> Error {
    let is_gone = error.code().is_some_and(|code| matches!(code.code(), "42P01" | "3F000"));
    let refused = error.or_remedy(table_remedy(&postgres.conninfo)).with_code(ErrorCode::DeadLetterTable);
    if is_gone { refused.meaning(Effect::Lost, PARKED_ARE_GONE) } else { refused }
}

fn lock_is_gone(error: &QueryError) -> bool {
    error.code().is_some_and(|code| code.code() == LOCK_IS_GONE)
}

fn lock_lost() -> Error {
    let what = "this router no longer holds the slot's lock: another has taken over, or will";
    Error::transient(Peer::Postgres, what)
}
