//! Typed calls of the inbox for handlers that work without a transaction.

use std::time::{Duration, SystemTime};

use tokio_postgres::types::Type;
use tokio_postgres::{Error, GenericClient};

use crate::{Claim, Inbox, Parameter, Token};

impl Inbox {
    /// Leases an event for 1 second to a day. The `token` is a new one; with the same one the call may be repeated if its answer was
    /// lost. A lease that has expired is taken over.
    ///
    /// # Errors
    /// As [`Inbox::claim`].
    pub async fn start(
        &self,
        client: &impl GenericClient,
        event_id: &str,
        token: Token,
        lease: Duration,
    ) -> Result<Claim, Error> {
        let sql = "SELECT outcome, result::text, busy_until \
                   FROM outbox_router.inbox_start($1, $2, make_interval(secs => $3), $4)";
        let parameters: [Parameter<'_>; 4] = [
            (&self.consumer, Type::TEXT),
            (&event_id, Type::TEXT),
            (&lease.as_secs_f64(), Type::FLOAT8),
            (&token.0, Type::UUID),
        ];
        Claim::of(&client.query_typed_one(sql, &parameters).await?)
    }

    /// Prolongs a lease, also that of an event of the queue, and returns until when. `None`: it has expired, or another holder
    /// has taken it over.
    ///
    /// # Errors
    /// As [`Inbox::claim`].
    pub async fn extend(
        &self,
        client: &impl GenericClient,
        event_id: &str,
        token: Token,
        lease: Duration,
    ) -> Result<Option<SystemTime>, Error> {
        let sql = "SELECT outbox_router.inbox_extend($1, $2, $3, make_interval(secs => $4))";
        let parameters: [Parameter<'_>; 4] = [
            (&self.consumer, Type::TEXT),
            (&event_id, Type::TEXT),
            (&token.0, Type::UUID),
            (&lease.as_secs_f64(), Type::FLOAT8),
        ];
        client.query_typed_one(sql, &parameters).await?.try_get(0)
    }

    /// Marks a leased event as processed, with the JSON that duplicates get. False: another holder has taken it over, and nothing
    /// was changed.
    ///
    /// # Errors
    /// As [`Inbox::claim`].
    pub async fn finish(
        &self,
        client: &impl GenericClient,
        event_id: &str,
        token: Token,
        json: Option<&str>,
    ) -> Result<bool, Error> {
        let sql = "SELECT outbox_router.inbox_finish($1, $2, $3, $4::jsonb)";
        let parameters: [Parameter<'_>; 4] = [
            (&self.consumer, Type::TEXT),
            (&event_id, Type::TEXT),
            (&token.0, Type::UUID),
            (&json, Type::TEXT),
        ];
        client.query_typed_one(sql, &parameters).await?.try_get(0)
    }
}
