//! Typed calls of the inbox and the idempotency keys in Postgres, which `outbox-router init --consumer` installs.
//!
//! Everything happens in the transaction of the client that is passed. A consumer that claims an event and changes its own rows
//! in one transaction has the effect of the event once, however often it is delivered:
//!
//! ```no_run
//! # async fn consume(client: &mut tokio_postgres::Client) -> Result<bool, tokio_postgres::Error> {
//! use outbox_consumer::{Claim, Inbox};
//!
//! let inbox = Inbox::new("shipping");
//! let transaction = client.transaction().await?;
//! match inbox.claim(&transaction, "3f1c").await? {
//!     Claim::Fresh => drop(transaction.execute("INSERT INTO parcels (order_id) VALUES (42)", &[]).await?),
//!     Claim::Done(_) => {}
//!     // under a lease or in the queue: it is not processed yet, so do not acknowledge it
//!     Claim::Busy(_) => return Ok(false),
//! }
//! transaction.commit().await?;
//! Ok(true)
//! # }
//! ```
//!
//! A call is one round trip and leaves nothing in the session, so it works behind a transaction pooler.

#[cfg(any(feature = "kafka", feature = "tower"))]
mod hex;
#[cfg(feature = "tower")]
pub mod idempotency;
#[cfg(feature = "kafka")]
pub mod kafka;
mod keys;
mod lease;
mod queue;
#[cfg(any(feature = "kafka", feature = "tower"))]
mod session;
mod token;

use std::time::SystemTime;

pub use keys::{Begun, IdempotencyKey, KeyTimes, KnownKey, StoredResponse};
pub use queue::QueuedEvent;
pub use token::Token;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, GenericClient, Row};

/// A parameter of a statement, with its type: the server need not be asked for it, and nothing stays prepared.
type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The inbox of one consumer: a name of 1 to 255 characters under which events are remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inbox {
    consumer: String,
}

/// What a claim found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// The caller does the work.
    Fresh,
    /// The event was processed; with the JSON text of the result that was stored for it.
    Done(Option<String>),
    /// Somebody else has it: under a lease until then, or in the queue.
    Busy(Option<SystemTime>),
}

impl Claim {
    fn of(row: &Row) -> Result<Self, Error> {
        Ok(match row.try_get("outcome")? {
            "fresh" => Claim::Fresh,
            "done" => Claim::Done(row.try_get("result")?),
            _ => Claim::Busy(row.try_get("busy_until")?),
        })
    }
}

impl Inbox {
    /// The inbox of `consumer`.
    pub fn new(consumer: impl Into<String>) -> Self {
        Inbox { consumer: consumer.into() }
    }

    /// Claims an event for the client's transaction. Waits for a concurrent claim of the same event to end.
    ///
    /// # Errors
    /// Postgres refuses, for example an empty id (22023), or with 40001 in stricter isolation than READ COMMITTED.
    pub async fn claim(&self, client: &impl GenericClient, event_id: &str) -> Result<Claim, Error> {
        let sql = "SELECT outcome, result::text, busy_until FROM outbox_router.inbox_claim($1, $2)";
        let parameters: [Parameter<'_>; 2] = [(&self.consumer, Type::TEXT), (&event_id, Type::TEXT)];
        Claim::of(&client.query_typed_one(sql, &parameters).await?)
    }

    /// Claims up to 10,000 events in one round trip, and returns the fresh ones in the given order.
    ///
    /// # Errors
    /// As [`Inbox::claim`], and with 55P03 if one of the events is under a lease.
    pub async fn claim_batch(
        &self,
        client: &impl GenericClient,
        event_ids: &[&str],
    ) -> Result<Vec<String>, Error> {
        let sql = "SELECT * FROM outbox_router.inbox_claim($1, $2)";
        let parameters: [Parameter<'_>; 2] = [(&self.consumer, Type::TEXT), (&event_ids, Type::TEXT_ARRAY)];
        let rows = client.query_typed(sql, &parameters).await?;
        rows.iter().map(|row: &Row| row.try_get(0)).collect()
    }

    /// Whether the transaction with this id has claimed one of these events, and was committed.
    #[cfg(feature = "kafka")]
    pub(crate) async fn claimed_by(
        &self,
        client: &impl GenericClient,
        event_ids: &[&str],
        xid: &str,
    ) -> Result<bool, Error> {
        let sql = "SELECT EXISTS (SELECT FROM outbox_router.inbox_claimed_by($1, $2, $3::xid8))";
        let parameters: [Parameter<'_>; 3] =
            [(&self.consumer, Type::TEXT), (&event_ids, Type::TEXT_ARRAY), (&xid, Type::TEXT)];
        client.query_typed_one(sql, &parameters).await?.try_get(0)
    }

    /// Stores the JSON that duplicates of an event get, in the transaction that claimed it.
    ///
    /// # Errors
    /// As [`Inbox::claim`], and with 55000 if the event is not claimed or has a result.
    pub async fn store_result(
        &self,
        client: &impl GenericClient,
        event_id: &str,
        json: &str,
    ) -> Result<(), Error> {
        let sql = "SELECT outbox_router.inbox_result($1, $2, $3::jsonb)";
        let parameters: [Parameter<'_>; 3] =
            [(&self.consumer, Type::TEXT), (&event_id, Type::TEXT), (&json, Type::TEXT)];
        client.query_typed(sql, &parameters).await.map(drop)
    }

    /// Whether `version` is above the last one of the aggregate; true once.
    ///
    /// # Errors
    /// As [`Inbox::claim`].
    pub async fn newer(
        &self,
        client: &impl GenericClient,
        aggregate: &str,
        version: i64,
    ) -> Result<bool, Error> {
        self.is_newer(client, aggregate, (&version, Type::INT8)).await
    }

    /// The same with the text of `${source.sequence}`, which starts again when the outbox moves to another cluster.
    ///
    /// # Errors
    /// As [`Inbox::claim`], and with 22023 for another text, or after a version of the application's own.
    pub async fn newer_in_log(
        &self,
        client: &impl GenericClient,
        aggregate: &str,
        sequence: &str,
    ) -> Result<bool, Error> {
        self.is_newer(client, aggregate, (&sequence, Type::TEXT)).await
    }

    async fn is_newer(
        &self,
        client: &impl GenericClient,
        aggregate: &str,
        sequence: Parameter<'_>,
    ) -> Result<bool, Error> {
        let sql = "SELECT outbox_router.inbox_newer($1, $2, $3)";
        let parameters: [Parameter<'_>; 3] =
            [(&self.consumer, Type::TEXT), (&aggregate, Type::TEXT), sequence];
        client.query_typed_one(sql, &parameters).await?.try_get(0)
    }
}
