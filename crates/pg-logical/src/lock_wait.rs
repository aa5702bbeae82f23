//! Finds out which lock a session waits for, and which session holds it. A second session runs the query, because the first
//! one is busy.
//!
//! Every role may call `pg_blocking_pids` and read `pg_locks`. `pg_stat_activity` shows every role the process, role,
//! database and `application_name` of other sessions; their state and the start of their transaction require
//! `pg_read_all_stats` (Postgres manual, "Viewing Statistics" and "System Information Functions").

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::error::SqlState;

use super::query_error::QueryError;
use super::session::{Row, Session, SessionInfo, Watcher};
use super::startup::Startup;
use crate::conninfo::ConnInfo;
use crate::error::Error;

/// The time before the first check and between checks, unless the session's `lock_timeout` is shorter.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The longest [`lock_timeout`].
const MAX_LOCK_TIMEOUT: Duration = Duration::from_secs(3);

/// How long one check may take, including its connection.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// What a session waits for, as a clause for a message: `waiting for ...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockWait(String);

impl fmt::Display for LockWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The `lock_timeout` of a session that queries the catalogues beside a stream. While it waits for a lock, it cannot check
/// whether the session that holds the slot still exists, so this is a fraction of `wal_sender_timeout`.
pub fn lock_timeout(wal_sender_timeout: Duration) -> Duration {
    MAX_LOCK_TIMEOUT.min(wal_sender_timeout / 4)
}

/// Whether a statement failed because of `lock_timeout`.
pub fn is_lock_timeout(error: &QueryError) -> bool {
    error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

/// Finds out what a session waits for.
#[derive(Debug)]
pub struct LockWatcher {
    conninfo: ConnInfo,
    application_name: String,
    /// The server process of that session.
    pid: i32,
    /// Whether it may go through a pooler.
    pooled: bool,
    /// The time before the first check, and between checks.
    interval: Duration,
    /// Called with each new result of a check.
    report: Option<fn(&LockWait)>,
    /// Describes the failure of a check.
    describe_error: fn(&Error) -> String,
    /// The result of the last check during the last answer.
    found: Option<LockWait>,
}

impl LockWatcher {
    /// A watcher for the session of `info`, which was opened with `conninfo`.
    pub fn new(conninfo: &ConnInfo, info: &SessionInfo, application_name: &str) -> Self {
        let mut conninfo = conninfo.clone();
        // process ids are only valid on this server
        conninfo.hosts = vec![info.host.clone()];
        let application_name = application_name.to_owned();
        LockWatcher {
            conninfo,
            application_name,
            pid: info.backend_pid,
            pooled: info.pooled,
            interval: CHECK_INTERVAL,
            report: None,
            describe_error: |error| error.to_string(),
            found: None,
        }
    }

    /// For a session with this `lock_timeout`: checks often enough to find the lock before the session gives up.
    pub fn with_lock_timeout(self, lock_timeout: Duration) -> Self {
        LockWatcher { interval: CHECK_INTERVAL.min(lock_timeout / 2), ..self }
    }

    /// Calls `report` with each new result.
    pub fn reporting_to(self, report: fn(&LockWait)) -> Self {
        LockWatcher { report: Some(report), ..self }
    }

    /// Describes failures of its own checks with `describe_error` instead of `Display`.
    pub fn describing_errors_with(self, describe_error: fn(&Error) -> String) -> Self {
        LockWatcher { describe_error, ..self }
    }

    /// Boxed, because the compiler sees a recursion: the second session's queries could be watched too.
    fn check<'a>(
        &'a self,
        second: &'a mut Option<Session>,
    ) -> Pin<Box<dyn Future<Output = Result<Option<LockWait>, Error>> + Send + 'a>> {
        Box::pin(async {
            let mut session = match second.take() {
                Some(session) => session,
                None => {
                    let startup = Startup {
                        application_name: &self.application_name,
                        pooled: self.pooled,
                        ..Startup::default()
                    };
                    Session::connect(&self.conninfo, &startup).await?
                }
            };
            let found = find(&mut session, self.pid).await?;
            *second = Some(session);
            Ok(found)
        })
    }
}

impl Watcher for LockWatcher {
    fn delay(&self) -> Duration {
        self.interval
    }

    fn watch(&mut self) -> Pin<Box<dyn Future<Output = Infallible> + Send + '_>> {
        self.found = None;
        Box::pin(async {
            let mut session = None;
            loop {
                let checked = timeout(CHECK_TIMEOUT, self.check(&mut session)).await;
                let checked = checked.unwrap_or_else(|_| {
                    session = None;
                    Ok(Some(unknown("a second session got no answer")))
                });
                let found = checked.unwrap_or_else(|error| {
                    session = None;
                    Some(unknown(&(self.describe_error)(&error)))
                });
                if found != self.found
                    && let (Some(found), Some(report)) = (&found, self.report)
                {
                    report(found);
                }
                self.found = found;
                tokio::time::sleep(self.interval).await;
            }
        })
    }

    fn found(&self) -> Option<String> {
        self.found.as_ref().map(LockWait::to_string)
    }
}

fn unknown(reason: &str) -> LockWait {
    LockWait(format!("waiting for Postgres; the cause is unknown: {reason}"))
}

/// What the server process `pid` waits for; `None` if it waits for no lock and no standby.
///
/// # Errors
/// The server refuses, or the session is lost.
async fn find(session: &mut Session, pid: i32) -> Result<Option<LockWait>, QueryError> {
    let rows = session.query(&query(pid)).await?;
    Ok(rows.first().and_then(describe))
}

/// Follows the chain of blocking sessions to those that do not wait themselves, and returns the one with the oldest
/// transaction.
fn query(pid: i32) -> String {
    format!(
        "WITH RECURSIVE waiting AS (SELECT * FROM pg_catalog.pg_locks WHERE pid = {pid} AND NOT granted LIMIT 1), \
         chain(pid) AS (SELECT pg_catalog.unnest(pg_catalog.pg_blocking_pids({pid})) \
         UNION SELECT b.pid FROM chain c, pg_catalog.unnest(pg_catalog.pg_blocking_pids(c.pid)) b(pid) WHERE c.pid <> 0), \
         blocking AS (SELECT c.pid, a.application_name, a.datname, a.usename, a.state, a.xact_start FROM chain c \
         LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = c.pid AND c.pid <> 0 \
         WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_locks l WHERE l.pid = c.pid AND NOT l.granted)), \
         prepared AS (SELECT p.gid, p.prepared, p.owner, p.database FROM waiting w JOIN pg_catalog.pg_locks h ON h.pid IS NULL AND h.granted \
         AND (h.locktype, h.database, h.relation, h.transactionid, h.virtualxid, h.classid, h.objid, h.objsubid) IS NOT DISTINCT FROM \
         (w.locktype, w.database, w.relation, w.transactionid, w.virtualxid, w.classid, w.objid, w.objsubid) \
         JOIN pg_catalog.pg_locks x ON x.pid IS NULL AND x.locktype = 'transactionid' AND x.virtualtransaction = h.virtualtransaction \
         JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = x.transactionid LIMIT 1) \
         SELECT w.locktype, w.mode, c.relkind, n.nspname || '.' || c.relname, b.pid, \
         (SELECT p.gid FROM prepared p WHERE b.pid = 0), b.application_name, \
         coalesce(b.datname, (SELECT p.database FROM prepared p WHERE b.pid = 0)), \
         coalesce(b.usename, (SELECT p.owner FROM prepared p WHERE b.pid = 0)), b.state, \
         pg_catalog.to_char(coalesce(b.xact_start, (SELECT p.prepared FROM prepared p WHERE b.pid = 0)) AT TIME ZONE 'UTC', \
         'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), (SELECT count(*) FROM blocking) - 1, s.wait_event \
         FROM (SELECT 1) one LEFT JOIN waiting w ON true \
         LEFT JOIN pg_catalog.pg_class c ON c.oid = w.relation \
         AND w.database IN (0, (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())) \
         LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         LEFT JOIN blocking b ON true LEFT JOIN pg_catalog.pg_stat_activity s ON s.pid = {pid} \
         ORDER BY b.xact_start, b.pid LIMIT 1"
    )
}

/// The clause for one row of [`query`].
fn describe(row: &Row) -> Option<LockWait> {
    let value = |index| row.get(index).filter(|text| !text.is_empty());
    let Some(kind) = value(0) else {
        let standby = value(12) == Some("SyncRep");
        let what = "waiting for a standby of synchronous_standby_names to confirm the commit";
        return standby.then(|| LockWait(what.to_owned()));
    };
    let mut text = match (kind, value(3)) {
        ("transactionid" | "virtualxid", _) => "waiting for the end of a transaction".to_owned(),
        (_, Some(name)) => {
            let relation = match value(2) {
                Some("r" | "p") => "table",
                Some("i" | "I") => "index",
                _ => "relation",
            };
            format!("waiting for {} on {relation} {name}", value(1).unwrap_or("a lock"))
        }
        ("advisory", _) => "waiting for an advisory lock".to_owned(),
        (kind, _) => format!("waiting for {} on a {kind}", value(1).unwrap_or("a lock")),
    };
    let Some(pid) = value(4) else { return Some(LockWait(text)) };
    text += &match (pid, value(5)) {
        ("0", Some(gid)) => format!(", blocked by the prepared transaction {gid}"),
        ("0", None) => ", blocked by a prepared transaction (pg_prepared_xacts)".to_owned(),
        (pid, _) => format!(", blocked by server process {pid}"),
    };
    let parts = [
        ("application_name ", value(6)),
        ("database ", value(7)),
        ("role ", value(8)),
        ("", value(9)),
        ("transaction since ", value(10)),
    ];
    let known: Vec<String> =
        parts.iter().filter_map(|(name, value)| Some(format!("{name}{}", (*value)?))).collect();
    if !known.is_empty() {
        text += &format!(" ({})", known.join(", "));
    }
    match value(11) {
        None | Some("0") => {}
        Some(more) => text += &format!(" and {more} more"),
    }
    Some(LockWait(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(values: [&str; 13]) -> Option<String> {
        let row = Row::of(values.iter().map(|value| (!value.is_empty()).then(|| (*value).to_owned())));
        describe(&row).map(|wait| wait.to_string())
    }

    #[test]
    fn a_lock_wait_is_described_as_far_as_it_is_known() {
        let table = ["relation", "RowExclusiveLock", "r", "shop.outbox"];
        let row = |more: [&'static str; 9]| {
            let mut row = [""; 13];
            row[..4].copy_from_slice(&table);
            row[4..].copy_from_slice(&more);
            row
        };
        let all = row([
            "7",
            "",
            "billing",
            "shop",
            "app",
            "idle in transaction",
            "2026-11-24T11:00:00Z",
            "2",
            "relation",
        ]);
        assert_eq!(
            described(all).unwrap(),
            "waiting for RowExclusiveLock on table shop.outbox, blocked by server process 7 (application_name billing, \
             database shop, role app, idle in transaction, transaction since 2026-11-24T11:00:00Z) and 2 more"
        );
        let hidden = row(["7", "", "", "", "", "", "", "0", ""]);
        assert_eq!(
            described(hidden).unwrap(),
            "waiting for RowExclusiveLock on table shop.outbox, blocked by server process 7"
        );
        let prepared = [
            "transactionid",
            "ShareLock",
            "",
            "",
            "0",
            "tx1",
            "",
            "shop",
            "app",
            "",
            "",
            "0",
            "transactionid",
        ];
        assert_eq!(
            described(prepared).unwrap(),
            "waiting for the end of a transaction, blocked by the prepared transaction tx1 (database shop, role app)"
        );
        let mut standby = [""; 13];
        assert_eq!(described(standby), None);
        standby[12] = "SyncRep";
        assert!(described(standby).unwrap().contains("synchronous_standby_names"));
    }
}
