//! Typed calls of the inbox as a queue.

use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_postgres::{Error, GenericClient};

use crate::{Inbox, Parameter, Token};

/// An event of the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedEvent {
    /// The id that it was put with.
    pub id: String,
    /// What was put.
    pub payload: Vec<u8>,
    /// Its aggregate.
    pub aggregate: Option<String>,
    /// Its sequence.
    pub sequence: Option<String>,
    /// Counts from 1.
    pub attempt: i32,
    /// The token of the lease, if there is one.
    pub token: Option<Token>,
}

impl Inbox {
    /// Stores an event for a worker. False: it is a duplicate.
    ///
    /// # Errors
    /// As [`Inbox::claim`], and with 55P03 while the event is under a lease.
    pub async fn put(
        &self,
        client: &impl GenericClient,
        event_id: &str,
        payload: &[u8],
        aggregate: Option<&str>,
        sequence: Option<&str>,
    ) -> Result<bool, Error> {
        let sql = "SELECT outbox_router.inbox_put($1, $2, $3, $4, $5) = 'new'";
        let parameters: [Parameter<'_>; 5] = [
            (&self.consumer, Type::TEXT),
            (&event_id, Type::TEXT),
            (&payload, Type::BYTEA),
            (&aggregate, Type::TEXT),
            (&sequence, Type::TEXT),
        ];
        client.query_typed_one(sql, &parameters).await?.try_get(0)
    }

    /// Takes up to 500 events, or 100 if the queue keeps the order of aggregates: in the client's transaction, or under a lease.
    ///
    /// # Errors
    /// As [`Inbox::claim`].
    pub async fn next(
        &self,
        client: &impl GenericClient,
        max_events: i32,
        lease: Option<Duration>,
    ) -> Result<Vec<QueuedEvent>, Error> {
        let sql = "SELECT event_id, payload, aggregate, sequence, attempt, token \
                   FROM outbox_router.inbox_next($1, $2, make_interval(secs => $3))";
        let lease = lease.map(|lease| lease.as_secs_f64());
        let parameters: [Parameter<'_>; 3] =
            [(&self.consumer, Type::TEXT), (&max_events, Type::INT4), (&lease, Type::FLOAT8)];
        let rows = client.query_typed(sql, &parameters).await?;
        rows.iter()
            .map(|row| {
                Ok(QueuedEvent {
                    id: row.try_get(0)?,
                    payload: row.try_get(1)?,
                    aggregate: row.try_get(2)?,
                    sequence: row.try_get(3)?,
                    attempt: row.try_get(4)?,
                    token: row.try_get::<_, Option<_>>(5)?.map(Token),
                })
            })
            .collect()
    }

    /// Ends an event that was taken. False: it was done before, or another worker has it.
    ///
    /// # Errors
    /// As [`Inbox::claim`], and with 55000 for an event that was neither taken in this transaction nor has a token.
    pub async fn done(&self, client: &impl GenericClient, event: &QueuedEvent) -> Result<bool, Error> {
        let sql = "SELECT outbox_router.inbox_done($1, $2::text, $3)";
        let token = event.token.map(|token| token.0);
        let parameters: [Parameter<'_>; 3] =
            [(&self.consumer, Type::TEXT), (&event.id, Type::TEXT), (&token, Type::UUID)];
        client.query_typed_one(sql, &parameters).await?.try_get(0)
    }

    /// Ends the events that one call of [`Inbox::next`] returned, and returns how many were not ended before.
    ///
    /// # Errors
    /// As [`Inbox::done`].
    pub async fn done_all(&self, client: &impl GenericClient, events: &[QueuedEvent]) -> Result<i64, Error> {
        let sql = "SELECT outbox_router.inbox_done($1, $2::text[], $3)";
        let ids: Vec<&str> = events.iter().map(|event| event.id.as_str()).collect();
        let token = events.first().and_then(|event| event.token).map(|token| token.0);
        let parameters: [Parameter<'_>; 3] =
            [(&self.consumer, Type::TEXT), (&ids, Type::TEXT_ARRAY), (&token, Type::UUID)];
        client.query_typed_one(sql, &parameters).await?.try_get(0)
    }

    /// Puts an event off until its next attempt, or for good after 8. Without a lease: after a rollback, in a new transaction.
    /// False: it was done before, or another worker has it.
    ///
    /// # Errors
    /// As [`Inbox::claim`].
    pub async fn fail(
        &self,
        client: &impl GenericClient,
        event: &QueuedEvent,
        error: &str,
    ) -> Result<bool, Error> {
        let sql = "SELECT outbox_router.inbox_fail($1, $2, $3, $4) IS NOT NULL";
        let token = event.token.map(|token| token.0);
        let parameters: [Parameter<'_>; 4] = [
            (&self.consumer, Type::TEXT),
            (&event.id, Type::TEXT),
            (&error, Type::TEXT),
            (&token, Type::UUID),
        ];
        client.query_typed_one(sql, &parameters).await?.try_get(0)
    }

    /// Returns those of these aggregates that have an event in the queue.
    ///
    /// # Errors
    /// As [`Inbox::claim`].
    pub async fn waiting(
        &self,
        client: &impl GenericClient,
        aggregates: &[&str],
    ) -> Result<Vec<String>, Error> {
        let sql = "SELECT outbox_router.inbox_waiting($1, $2)";
        let parameters: [Parameter<'_>; 2] = [(&self.consumer, Type::TEXT), (&aggregates, Type::TEXT_ARRAY)];
        let rows = client.query_typed(sql, &parameters).await?;
        rows.iter().map(|row| row.try_get(0)).collect()
    }
}
