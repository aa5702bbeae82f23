//! The inbox and idempotency keys of a consumer, in whatever database they are installed.

pub mod events;

use std::collections::BTreeMap;

use pg_logical::conninfo::ConnInfo;
use pg_logical::session::Session;
use serde::Serialize;

use crate::advice::OrRemedy;
use crate::error::{Error, ErrorCode, Remedy, Step, shell_word};

/// The outcomes of `inbox_claim` and `inbox_start` that are counted.
pub const CLAIMS: [&str; 3] = ["fresh", "done", "busy"];

/// What is counted of the queue.
pub const QUEUE: [&str; 5] = ["put", "duplicate", "processed", "retried", "failed"];

/// The outcomes of `idempotency_begin`.
pub const REQUESTS: [&str; 5] = ["new", "replay", "mismatch", "in_progress", "expired"];

/// What to do about a role that may not.
pub const PRIVILEGE_REMEDY: &str = "Connect with --url as the administrator who ran `outbox-router init --consumer`, or as a superuser; for status and maintain, the role \
     that was given to init with --role is enough";

/// Fails if the functions are not installed.
///
/// # Errors
/// They are not, or the connection fails.
pub async fn check(session: &mut Session, conninfo: &ConnInfo) -> Result<(), Error> {
    // the last function that init creates; everybody may read pg_proc
    let installed = "SELECT EXISTS (SELECT FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace \
                     WHERE n.nspname = 'outbox_router' AND p.proname = 'consumer_counters')";
    if session.query_one(installed).await?.as_deref() == Some("t") {
        return Ok(());
    }
    let (place, dbname) = (&session.info().place, &conninfo.dbname);
    let url = format!("postgres://ADMINISTRATOR@HOST/{dbname}");
    Err(Error::refused(
        ErrorCode::InboxMissing,
        format!("the database {dbname} of Postgres at {place} has no inbox"),
        Remedy::steps([Step::new(
            "Give the consumer's database with --url. If this is it, install the inbox",
        )
        .typing(format!("outbox-router init --consumer --url {}", shell_word(&url)))]),
    ))
}

/// How many events of a consumer are in which state.
#[derive(Debug, Clone, Serialize)]
pub struct InboxNumbers {
    /// The consumer.
    pub consumer: String,
    /// In the queue, for their first or next attempt.
    pub waiting: u64,
    /// In the queue, without an attempt left.
    pub failed: u64,
    /// Under a lease.
    pub leased: u64,
    /// Their lease has expired before they were processed.
    pub expired: u64,
    /// Of those that wait or are expired.
    pub oldest_unprocessed_seconds: f64,
}

/// What the functions counted since they were installed.
#[derive(Debug, Clone, Serialize)]
pub struct Counters {
    /// By outcome.
    pub claims: BTreeMap<&'static str, u64>,
    /// By what became of an event.
    pub queue: BTreeMap<&'static str, u64>,
    /// Events whose sequence was stale.
    pub sequences_skipped: u64,
    /// By outcome.
    pub requests: BTreeMap<&'static str, u64>,
}

/// What is known of a database.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// In the order of their names.
    pub consumers: Vec<InboxNumbers>,
    /// Of all consumers.
    #[serde(flatten)]
    pub counters: Counters,
}

impl Status {
    /// Asks for it. The time that this takes does not depend on the size of the tables.
    ///
    /// # Errors
    /// Postgres refuses, or the connection fails.
    pub async fn query(session: &mut Session) -> Result<Self, Error> {
        let rows = session
            .query(
                "SELECT consumer, waiting, failed, leased, expired, extract(epoch FROM oldest) FROM outbox_router.inbox_status()",
            )
            .await
            .map_err(|error| error.or_remedy(PRIVILEGE_REMEDY))?;
        let consumers = rows.iter().map(|row| {
            let number = |column| row.get(column).and_then(|text| text.parse().ok()).unwrap_or(0);
            InboxNumbers {
                consumer: row.get(0).unwrap_or_default().to_owned(),
                waiting: number(1),
                failed: number(2),
                leased: number(3),
                expired: number(4),
                oldest_unprocessed_seconds: row.get(5).and_then(|text| text.parse().ok()).unwrap_or(0.0),
            }
        });
        let consumers = consumers.collect();
        let rows = session.query("SELECT name, value FROM outbox_router.consumer_counters()").await;
        let rows = rows.map_err(|error| error.or_remedy(PRIVILEGE_REMEDY))?;
        let counted = |name: &str| {
            let row = rows.iter().find(|row| row.get(0) == Some(name));
            row.and_then(|row| row.get(1)?.parse().ok()).unwrap_or(0)
        };
        let all = |of: &str, outcomes: &[&'static str]| {
            outcomes.iter().map(|outcome| (*outcome, counted(&format!("{of}_{outcome}_total")))).collect()
        };
        let counters = Counters {
            claims: all("inbox", &CLAIMS),
            queue: all("inbox", &QUEUE),
            sequences_skipped: counted("inbox_skipped_total"),
            requests: all("idempotency", &REQUESTS),
        };
        Ok(Status { consumers, counters })
    }
}

/// How many rows were deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Deleted {
    /// Events that were processed long ago.
    pub events: u64,
    /// Idempotency keys that are forgotten.
    pub keys: u64,
}

/// Deletes up to `batch` events and as many keys.
///
/// # Errors
/// Postgres refuses, or the connection fails.
pub async fn expire(session: &mut Session, batch: u64) -> Result<Deleted, Error> {
    let mut deleted = [0; 2];
    for (function, deleted) in ["inbox_expire", "idempotency_expire"].into_iter().zip(&mut deleted) {
        let answer = session.query_one(&format!("SELECT outbox_router.{function}({batch})")).await;
        let answer = answer.map_err(|error| error.or_remedy(PRIVILEGE_REMEDY))?;
        *deleted = answer.and_then(|text| text.parse().ok()).unwrap_or(0);
    }
    let [events, keys] = deleted;
    Ok(Deleted { events, keys })
}
