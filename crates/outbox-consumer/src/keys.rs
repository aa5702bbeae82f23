//! Typed calls of the idempotency keys.

use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_postgres::{Error, GenericClient};

use crate::{Parameter, Token};

const FINISH: &str = "SELECT outbox_router.idempotency_finish($1, $2, $3, $4, $5::jsonb, $6)";

/// A key of one caller for one route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    scope: String,
    key: String,
}

/// The response to a request, as it is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredResponse {
    /// 200 to 599.
    pub status: u16,
    /// A JSON text of your own, which a replay returns. The middleware stores an array of pairs: name and value.
    pub headers: Option<String>,
    /// Up to 16 MiB.
    pub body: Option<Vec<u8>>,
}

/// Whether this request does the work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// It does.
    New,
    /// It does not.
    Known(KnownKey),
}

/// A key that is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KnownKey {
    /// The request was processed, with this response.
    Replay(StoredResponse),
    /// The key was used for another request.
    Mismatch,
    /// Another request with the key is running; try again after this time.
    InProgress(Duration),
    /// The key is older than its time to live.
    Expired,
}

/// For how long the key is remembered, waited for and leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyTimes {
    /// 1 to 72 hours.
    pub ttl: Duration,
    /// How long to wait for a request with the same key that is running: up to a minute.
    pub wait: Duration,
    /// 1 second to a day, for work outside of the client's transaction.
    pub lease: Option<Duration>,
}

impl Default for KeyTimes {
    fn default() -> Self {
        KeyTimes { ttl: Duration::from_secs(24 * 3600), wait: Duration::from_secs(2), lease: None }
    }
}

impl IdempotencyKey {
    /// The `key`, 1 to 255 characters of printable ASCII, of a `scope` of 1 to 255 characters: the caller and the route.
    pub fn new(scope: impl Into<String>, key: impl Into<String>) -> Self {
        IdempotencyKey { scope: scope.into(), key: key.into() }
    }

    /// Begins a request whose method, path and body have this hash of 16 to 64 bytes. The `token` is a new one; with the same one
    /// the call may be repeated if its answer was lost.
    ///
    /// # Errors
    /// Postgres refuses, for example a time outside of its bounds (22023), or with 40001 in stricter isolation than READ
    /// COMMITTED.
    pub async fn begin(
        &self,
        client: &impl GenericClient,
        token: Token,
        request_hash: &[u8],
        times: KeyTimes,
    ) -> Result<Begun, Error> {
        let sql = "SELECT outcome, status, headers::text, body, \
                   extract(epoch FROM retry_after)::float8 AS retry_after \
                   FROM outbox_router.idempotency_begin($1, $2, $3, make_interval(secs => $4), \
                   make_interval(secs => $5), make_interval(secs => $6), $7)";
        let lease = times.lease.map(|lease| lease.as_secs_f64());
        let parameters: [Parameter<'_>; 7] = [
            (&self.scope, Type::TEXT),
            (&self.key, Type::TEXT),
            (&request_hash, Type::BYTEA),
            (&times.ttl.as_secs_f64(), Type::FLOAT8),
            (&times.wait.as_secs_f64(), Type::FLOAT8),
            (&lease, Type::FLOAT8),
            (&token.0, Type::UUID),
        ];
        let row = client.query_typed_one(sql, &parameters).await?;
        Ok(Begun::Known(match row.try_get("outcome")? {
            "new" => return Ok(Begun::New),
            "replay" => KnownKey::Replay(StoredResponse {
                status: u16::try_from(row.try_get::<_, i32>("status")?).unwrap_or(500),
                headers: row.try_get("headers")?,
                body: row.try_get("body")?,
            }),
            "mismatch" => KnownKey::Mismatch,
            "expired" => KnownKey::Expired,
            _ => KnownKey::InProgress(
                Duration::try_from_secs_f64(row.try_get("retry_after")?).unwrap_or_default(),
            ),
        }))
    }

    /// Stores the final response, or frees the key after a status of 500 or more under a lease. False: the lease has expired and
    /// another request has the key; nothing was changed.
    ///
    /// # Errors
    /// As [`IdempotencyKey::begin`], and with 55000 for a status of 500 or more without a lease: roll back.
    pub async fn finish(
        &self,
        client: &impl GenericClient,
        token: Token,
        response: &StoredResponse,
    ) -> Result<bool, Error> {
        self.call_finish(client, token, response, FINISH).await
    }

    /// The same for a COMMIT that is sent along: where `finish` would return false, the statement fails, so that the COMMIT rolls
    /// back. This still returns false.
    #[cfg(feature = "tower")]
    pub(crate) async fn finish_or_fail(
        &self,
        client: &impl GenericClient,
        token: Token,
        response: &StoredResponse,
    ) -> Result<bool, Error> {
        let sql = format!("SELECT 1 / ({FINISH})::int = 1");
        match self.call_finish(client, token, response, &sql).await {
            Err(error) if error.code() == Some(&tokio_postgres::error::SqlState::DIVISION_BY_ZERO) => {
                Ok(false)
            }
            finished => finished,
        }
    }

    async fn call_finish(
        &self,
        client: &impl GenericClient,
        token: Token,
        response: &StoredResponse,
        sql: &str,
    ) -> Result<bool, Error> {
        let parameters: [Parameter<'_>; 6] = [
            (&self.scope, Type::TEXT),
            (&self.key, Type::TEXT),
            (&token.0, Type::UUID),
            (&i32::from(response.status), Type::INT4),
            (&response.headers, Type::TEXT),
            (&response.body, Type::BYTEA),
        ];
        client.query_typed_one(sql, &parameters).await?.try_get(0)
    }
}
