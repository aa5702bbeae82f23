//! The watch: a second session that checks the slot, the publication and the tables while the stream runs.
//!
//! Postgres does not tell a logical stream that its publication was dropped: rows written meanwhile are simply missing from
//! it. Each check reads the server's flush LSN before the catalogues, so a check without findings vouches for the log up to
//! that LSN. The slot is never confirmed past it.

mod check_failure;

use std::sync::Arc;
use std::time::Duration;

use pg_logical::QueryError;
use pg_logical::connect::Startup;
use pg_logical::conninfo::{ConnInfo, Host};
use pg_logical::session::{Row, Session};
use pg_logical::{Lsn, PgTimestamp, lock_wait};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use check_failure::{CheckFailure, within_timeout};

use super::alteration::{altered, judge, warn_of_rewritten, warn_of_unwatched};
use super::bookmarks::{self, Bookmark};
use super::catalog::{Catalog, FLUSH_LSN, Missing, Slot, Table, unwatched};
use super::heartbeat::{Writer, Written};
use super::log_comparison::compare;
use super::open_transaction::OpenTransaction;
use super::slot_headroom;
use super::standby_slots::{self, Unconfirmed};
use crate::advice;
use crate::checkpoint::{Alteration, LeftOut, StreamDefinition};
use crate::config::{Outbox, OutboxSource, Postgres};
use crate::error::{Error, Peer};
use crate::shards::Shard;

/// How often it checks without being asked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a check may take before its session is abandoned.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the slot is not moved during a comparison.
const COMPARES: &str =
    "the publication or an outbox table was altered, and the log is being compared with the stream";

/// The wait event of a walsender that has sent everything; before Postgres 17 it ends in "WAL".
const WAITS_FOR_LOG: &str = "WalSenderWaitForWal";

/// The result of a check.
#[derive(Debug)]
pub enum Report {
    /// The session that streams.
    Walsender {
        /// When the check was requested.
        asked: Instant,
        /// The server process of the session, if it existed after that.
        walsender: Option<Walsender>,
    },
    /// How far the log goes. It comes before each check of the catalogues.
    LogEnd {
        /// The server's flush LSN.
        end: Lsn,
        /// Whether the walsender has sent all of it and waits for more. The flush LSN may be within a record, which cannot be
        /// sent before it is complete.
        sent_all: bool,
    },
    /// The bookmarks that exist.
    Bookmarks(Vec<Bookmark>),
    /// No findings in the catalogues up to this position.
    Healthy {
        /// The end of the log from before the check.
        checked: Lsn,
        /// The slot at that time.
        slot: Box<Slot>,
        /// The open transaction that makes the slot retain much log, if it is one.
        held_by: Option<OpenTransaction>,
        /// The standbys that Postgres waits for and that have not confirmed `checked`.
        unconfirmed: Vec<Unconfirmed>,
        /// The state of the heartbeat; `None`: it is switched off.
        heartbeat: Option<Written>,
    },
    /// The catalogues cannot be checked, for this reason.
    Unhealthy(String),
    /// Events may be missing from the stream, or the server is ending its sessions. Either way the session is over.
    Ended(Error),
}

/// What the server shows about a replication session. As long as it exists, it holds the slot's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Walsender {
    /// The timestamp of the last status update that the server has processed (`reply_time`); `None`: there was none, or it is
    /// `hidden`.
    pub reply_time: Option<PgTimestamp>,
    /// The role may only see that the process exists; the rest takes `pg_read_all_stats`.
    pub hidden: bool,
}

/// A running watch; it ends when this is dropped.
#[derive(Debug)]
pub struct Watch {
    reports: mpsc::Receiver<Report>,
    check_now: Arc<Notify>,
    check_walsender: Arc<Notify>,
    task: JoinHandle<()>,
    host: Host,
}

impl Watch {
    /// Starts to check the server that the stream comes from, where its process is `walsender`. `baseline` is what the
    /// session found at its start, and `unwatched` are the warnings that it logged.
    pub fn start(
        router: &str,
        source: OutboxSource<'_>,
        heartbeat: Option<Duration>,
        host: Host,
        walsender: i32,
        baseline: StreamDefinition,
        unwatched: Vec<(String, String)>,
    ) -> Self {
        // one report at a time: a reader that does not take it needs no second one
        let (sender, reports) = mpsc::channel(1);
        let check_now = Arc::new(Notify::new());
        let mut conninfo = source.postgres.conninfo.clone();
        // other hosts may have a different slot and log
        conninfo.hosts = vec![host.clone()];
        let check_walsender = Arc::new(Notify::new());
        let (check_now_too, check_walsender_too) = (Arc::clone(&check_now), Arc::clone(&check_walsender));
        let heartbeat = heartbeat.map(|every| Writer::new(router, every));
        let watcher = Watcher {
            name: format!("{router} watch"),
            router: source.router.to_owned(),
            postgres: source.postgres.clone(),
            outbox: source.outbox.clone(),
            shard: source.shard,
            checkpoints: source.checkpoints,
            conninfo,
            walsender,
            last: baseline,
            sender,
            check_now: check_now_too,
            check_walsender: check_walsender_too,
            logged_failure: None,
            restart: None,
            next_bookmarks: Instant::now(),
            heartbeat,
            comparison: None,
            unwatched,
        };
        Watch { reports, check_now, check_walsender, task: tokio::spawn(watcher.run()), host }
    }

    /// The next report. Cancel-safe.
    pub async fn report(&mut self) -> Report {
        match self.reports.recv().await {
            Some(report) => report,
            // the task only ends after it has reported the end
            None => std::future::pending().await,
        }
    }

    /// The server that is checked.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Requests a check now.
    pub fn check_now(&self) {
        self.check_now.notify_one();
    }

    /// Requests only [`Report::Walsender`], which costs the server little.
    pub fn check_walsender(&self) {
        self.check_walsender.notify_one();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Watcher {
    /// The `application_name` of its sessions.
    name: String,
    /// The router's name without the number of a shard.
    router: String,
    postgres: Postgres,
    outbox: Outbox,
    shard: Option<Shard>,
    /// Whether the next start finds a checkpoint.
    checkpoints: bool,
    conninfo: ConnInfo,
    walsender: i32,
    /// What the last check found, or the start of the session.
    last: StreamDefinition,
    sender: mpsc::Sender<Report>,
    check_now: Arc<Notify>,
    check_walsender: Arc<Notify>,
    /// Why the last check failed, as it was logged.
    logged_failure: Option<String>,
    /// The slot's `restart_lsn`, and since when it has been the same.
    restart: Option<(Lsn, Instant)>,
    /// When it looks for bookmarks again.
    next_bookmarks: Instant,
    heartbeat: Option<Writer>,
    comparison: Option<Comparison>,
    /// The warnings about tables that were right at the last check, or at the start.
    unwatched: Vec<(String, String)>,
}

/// A comparison of the log with the stream, in a session of its own because it may take long.
struct Comparison {
    /// What had been found when it began.
    definition: StreamDefinition,
    task: AbortOnDropHandle<Result<LeftOut, Error>>,
}

impl Watcher {
    async fn run(mut self) {
        loop {
            let failure = match self.connect().await {
                Ok(mut session) => self.check_repeatedly(&mut session).await,
                // over a unix socket, the server may have ended before it could say why; a new connection is told
                Err(error) => error.into(),
            };
            match failure {
                CheckFailure::Failed(error) => self.failed(error.to_string(), None).await,
                CheckFailure::Locked(reason, remedy) => self.failed(reason, remedy).await,
                CheckFailure::Ended(error) => {
                    // if nobody listens, the session has already ended
                    let _ = self.sender.send(Report::Ended(error)).await;
                    return;
                }
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Logs once that checks fail, and again when another session holds the lock, for which there is `remedy`.
    async fn failed(&mut self, reason: String, remedy: Option<&str>) {
        if self.logged_failure.as_ref().is_none_or(|said| remedy.is_some() && *said != reason) {
            tracing::warn!(
                peer = "postgres",
                reason,
                remedy,
                "the catalogues cannot be read; the slot is not moved until they can"
            );
            self.logged_failure = Some(reason.clone());
        }
        self.report(Report::Unhealthy(reason)).await;
    }

    async fn connect(&self) -> Result<Session, Error> {
        let lock_timeout = lock_wait::lock_timeout(self.postgres.wal_sender_timeout);
        let lock_timeout_ms = lock_timeout.as_millis().to_string();
        let mut settings = vec![("lock_timeout", lock_timeout_ms.as_str())];
        if self.heartbeat.is_some() {
            // the heartbeat does not wait for standbys, because the stream does not either
            settings.push(("synchronous_commit", "local"));
        }
        let startup = Startup { application_name: &self.name, settings: &settings, ..Startup::default() };
        let session = Session::connect(&self.conninfo, &startup);
        let mut session =
            match timeout(CHECK_TIMEOUT, session).await.map(|opened| opened.map_err(Error::from)) {
                // the stream uses the same credentials, so a refusal here must not end it
                Ok(Err(Error::Definite(refused))) => {
                    return Err(Error::transient(Peer::Postgres, refused.to_string()));
                }
                Ok(result) => result?,
                Err(_) => return Err(Error::transient(Peer::Postgres, "no answer to a connection request")),
            };
        let watcher = lock_wait::LockWatcher::new(&self.conninfo, session.info(), &self.name)
            .describing_errors_with(advice::in_words);
        session.set_watcher(watcher.with_lock_timeout(lock_timeout));
        Ok(session)
    }

    /// Checks until something fails.
    async fn check_repeatedly(&mut self, session: &mut Session) -> CheckFailure {
        let mut next_check = Instant::now();
        loop {
            // done first, because the session that streams may depend on it
            match within_timeout(Walsender::query(session, self.walsender)).await {
                Ok(seen) => self.report(seen).await,
                Err(error) => return error,
            }
            if Instant::now() >= next_check {
                match self.check(session).await {
                    Ok(report) => {
                        if self.logged_failure.take().is_some() {
                            tracing::info!(peer = "postgres", "the catalogues can be read again");
                        }
                        self.report(report).await;
                    }
                    // the session can be used again
                    Err(CheckFailure::Locked(reason, remedy)) => self.failed(reason, remedy).await,
                    Err(error) => return error,
                }
                let next = self
                    .heartbeat
                    .as_ref()
                    .map_or(CHECK_INTERVAL, |heartbeat| heartbeat.due_in().min(CHECK_INTERVAL));
                next_check = Instant::now() + next;
            }
            tokio::select! {
                () = sleep_until(next_check) => {}
                () = self.check_now.notified() => next_check = Instant::now(),
                () = self.check_walsender.notified() => {}
            }
        }
    }

    async fn report(&self, report: Report) {
        if self.sender.send(report).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Writes a heartbeat, reports how far the log goes, and checks the catalogues.
    async fn check(&mut self, session: &mut Session) -> Result<Report, CheckFailure> {
        if let Some(heartbeat) = &mut self.heartbeat {
            within_timeout(heartbeat.write(session)).await?;
        }
        let (end, sent_all) = within_timeout(self.log_end(session)).await?;
        // reported by itself, because the catalogues may be locked
        self.report(Report::LogEnd { end, sent_all }).await;
        if Instant::now() >= self.next_bookmarks {
            self.next_bookmarks = Instant::now() + CHECK_INTERVAL;
            let found = within_timeout(bookmarks::list(session, &self.postgres.slot)).await?;
            self.report(Report::Bookmarks(found)).await;
        }
        within_timeout(self.check_catalogues(session, end)).await
    }

    /// The flush LSN, and whether the walsender waits for more log.
    async fn log_end(&self, session: &mut Session) -> Result<(Lsn, bool), CheckFailure> {
        let sql = format!(
            "SELECT ({FLUSH_LSN}), (SELECT a.wait_event FROM pg_catalog.pg_stat_get_activity({}) a)",
            self.walsender
        );
        let rows = session.query(&sql).await?;
        let value = |index| rows.first().and_then(|row| row.get(index));
        let unreadable = || Error::transient(Peer::Postgres, "the flush LSN cannot be read");
        let end = value(0).and_then(|text| text.parse().ok()).ok_or_else(unreadable)?;
        Ok((end, value(1).is_some_and(|event| event.eq_ignore_ascii_case(WAITS_FOR_LOG))))
    }

    /// The catalogues are as expected up to `checked`.
    async fn check_catalogues(
        &mut self,
        session: &mut Session,
        checked: Lsn,
    ) -> Result<Report, CheckFailure> {
        let (postgres, outbox) = (self.postgres.clone(), self.outbox.clone());
        let router = self.router.clone();
        let (shard, checkpoints) = (self.shard, self.checkpoints);
        let source =
            OutboxSource { router: &router, postgres: &postgres, outbox: &outbox, shard, checkpoints };
        let catalog = Catalog::query(session, &postgres, &outbox).await?;
        catalog.check(source, Missing::WhileRunning)?;
        let definition = catalog.stream_definition(&outbox);
        match definition.alteration_since(&self.last) {
            Alteration::None => self.comparison = None,
            Alteration::Replaced => {
                return Err(altered(source, &catalog, &definition.missing_since(&self.last, None)).into());
            }
            Alteration::Renamed | Alteration::Touched => match self.left_out(&catalog, &definition).await? {
                None => return Ok(Report::Unhealthy(COMPARES.to_owned())),
                Some(left_out) => judge(source, &catalog, &self.last, &left_out)?,
            },
        }
        warn_of_rewritten(&definition, &self.last);
        let unwatched = unwatched(source, &catalog.tables);
        warn_of_unwatched(&unwatched, &self.unwatched);
        self.unwatched = unwatched;
        self.last = definition;
        let missing = || Error::transient(Peer::Postgres, "the slot's row is gone");
        let heartbeat = self.heartbeat.as_ref().map(|heartbeat| heartbeat.written().clone());
        let slot = Box::new(catalog.slot.ok_or_else(missing)?);
        let held_by = self.held_by(session, &slot).await?;
        let unconfirmed = standby_slots::unconfirmed(session, &slot.waits_for, checked).await?;
        Ok(Report::Healthy { checked, slot, held_by, unconfirmed, heartbeat })
    }

    /// What the comparison for this definition has found; `None` as long as it runs.
    async fn left_out(
        &mut self,
        catalog: &Catalog,
        definition: &StreamDefinition,
    ) -> Result<Option<LeftOut>, Error> {
        // after another alteration, it has to compare again
        let running = self.comparison.take().filter(|running| running.definition == *definition);
        let Some(running) = running else {
            tracing::info!(
                peer = "postgres",
                "the publication or an outbox table was altered; the log is compared with the stream, and the slot is not moved meanwhile"
            );
            let task = tokio::spawn(self.comparison(catalog.tables.clone()));
            let (definition, task) = (definition.clone(), AbortOnDropHandle::new(task));
            self.comparison = Some(Comparison { definition, task });
            return Ok(None);
        };
        if !running.task.is_finished() {
            self.comparison = Some(running);
            return Ok(None);
        }
        match running.task.await {
            Ok(found) => found.map(Some),
            Err(error) => Err(Error::transient(Peer::Postgres, format!("the log was not compared: {error}"))),
        }
    }

    fn comparison(
        &self,
        tables: Vec<Option<Table>>,
    ) -> impl Future<Output = Result<LeftOut, Error>> + Send + use<> {
        let (postgres, outbox) = (self.postgres.clone(), self.outbox.clone());
        let router = self.router.clone();
        let (shard, checkpoints, hosts) = (self.shard, self.checkpoints, self.conninfo.hosts.clone());
        async move {
            let source =
                OutboxSource { router: &router, postgres: &postgres, outbox: &outbox, shard, checkpoints };
            compare(source, &tables, hosts, None).await
        }
    }

    /// The transaction that makes the slot retain log. It is older than the `restart_lsn` that it holds.
    async fn held_by(
        &mut self,
        session: &mut Session,
        slot: &Slot,
    ) -> Result<Option<OpenTransaction>, QueryError> {
        let Some(lsn) = slot.restart_lsn else { return Ok(None) };
        let (_, since) = *self.restart.insert(match self.restart {
            Some((before, since)) if before == lsn => (lsn, since),
            _ => (lsn, Instant::now()),
        });
        match slot_headroom::may_be_held(slot) {
            true => OpenTransaction::oldest(session, since.elapsed()).await,
            false => Ok(None),
        }
    }
}

impl Walsender {
    /// Calls the function behind `pg_stat_replication`, because the view reads all server processes.
    async fn query(session: &mut Session, pid: i32) -> Result<Report, QueryError> {
        let asked = Instant::now();
        // microseconds since 2000, as in the protocol
        let sql = format!(
            "SELECT (extract(epoch FROM w.reply_time) * 1000000)::bigint - 946684800000000, \
             NOT pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE') \
             FROM pg_catalog.pg_stat_get_wal_senders() w WHERE w.pid = {pid}"
        );
        let rows = session.query(&sql).await?;
        let reply_time = |row: &Row| row.get(0).and_then(|micros| micros.parse().ok()).map(PgTimestamp);
        let walsender = rows
            .first()
            .map(|row| Walsender { reply_time: reply_time(row), hidden: row.get(1) == Some("t") });
        Ok(Report::Walsender { asked, walsender })
    }
}
