//! Middleware for write APIs: a request with an idempotency key has its effect once, and its repetitions get the same response.
//!
//! ```
//! # fn layer() -> Result<(), Box<dyn std::error::Error>> {
//! use outbox_consumer::idempotency::{IdempotencyLayer, Scope};
//! use tokio_postgres::NoTls;
//!
//! // or from a pool
//! let connect = || async {
//!     let (client, connection) = tokio_postgres::connect("host=db dbname=shop", NoTls).await?;
//!     tokio::spawn(connection);
//!     Ok::<_, tokio_postgres::Error>(Box::new(client))
//! };
//! let layer = IdempotencyLayer::new(connect, |request| {
//!     let caller = request.extensions.get::<String>()?; // as your authentication knows it
//!     Some(Scope::new(caller, "POST /orders"))
//! });
//! # drop(layer);
//! # Ok(())
//! # }
//! ```
//!
//! The handler works in the [`Transaction`] that it finds in the request's extensions. The middleware stores the response in it,
//! commits it, and only then answers. With [`IdempotencyLayer::lease`] there is no transaction.
//!
//! | handler | stored | work in the transaction |
//! |---|---|---|
//! | responds with a status below 500 | yes | committed |
//! | the same with 4xx after a statement failed | yes | rolled back |
//! | the same with 2xx or 3xx after a statement failed; the client gets 500 | no | rolled back |
//! | responds with 5xx, fails or panics; its body fails or is larger than 16 MiB | no | rolled back |
//!
//! A handler goes on when its client has gone away. Requests with a safe method, such as GET, are passed on as they are.
//!
//! Metrics: `outbox_consumer_requests_total{outcome}` and `outbox_consumer_fail_open_total`.

mod failure;
mod problem;
mod request;
mod response;
mod service;
mod transaction;

use std::error::Error;
use std::fmt;
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use http::header;
use http::request::Parts;
use tokio_postgres::Client;
use tower_layer::Layer;

use crate::keys::KeyTimes;
use crate::session::{BoxError, Connect};

pub use request::Scope;
pub use service::Idempotency;
pub use transaction::{Transaction, TransactionClient, TransactionEnded};

type ScopeOf = dyn Fn(&Parts) -> Option<Scope> + Send + Sync;

/// A time that is outside of its bounds.
#[derive(Debug)]
pub struct InvalidTime {
    setting: &'static str,
    value: Duration,
    bounds: &'static str,
}

impl fmt::Display for InvalidTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {:?}: pass {}", self.setting, self.value, self.bounds)
    }
}

impl Error for InvalidTime {}

/// What all clones of a layer and of its services share.
#[derive(Clone)]
struct Settings {
    connect: Connect,
    scope: Arc<ScopeOf>,
    header: HeaderName,
    times: KeyTimes,
    stored_headers: Vec<HeaderName>,
    max_request_body: usize,
    unprocessable_mismatch: bool,
    fail_open: bool,
}

/// Wraps a service in [`Idempotency`].
#[derive(Clone)]
pub struct IdempotencyLayer {
    settings: Settings,
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer").field("header", &self.settings.header).finish_non_exhaustive()
    }
}

impl IdempotencyLayer {
    /// `connect` returns a session for one request: a connection, or one of a pool. `scope` returns the caller and the route, or
    /// `None` if the caller is not known, which is answered with 401.
    pub fn new<C, F, S, E>(
        connect: C,
        scope: impl Fn(&Parts) -> Option<Scope> + Send + Sync + 'static,
    ) -> Self
    where
        C: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<S, E>> + Send + 'static,
        S: DerefMut<Target = Client> + Send + Sync + 'static,
        E: Into<BoxError>,
    {
        service::register_counters();
        let settings = Settings {
            connect: Connect::new(connect),
            scope: Arc::new(scope),
            header: HeaderName::from_static("idempotency-key"),
            times: KeyTimes::default(),
            stored_headers: vec![
                header::CONTENT_TYPE,
                header::CONTENT_ENCODING,
                header::CONTENT_LANGUAGE,
                header::CONTENT_LOCATION,
                header::ETAG,
                header::LAST_MODIFIED,
                header::LINK,
                header::LOCATION,
            ],
            max_request_body: 2 << 20,
            unprocessable_mismatch: false,
            fail_open: false,
        };
        IdempotencyLayer { settings }
    }

    /// The request's header with the key; `Idempotency-Key` by default.
    #[must_use]
    pub fn header(mut self, name: HeaderName) -> Self {
        self.settings.header = name;
        self
    }

    /// How long a response is replayed: 1 to 72 hours, 24 by default. For as long again the key is answered with 410.
    ///
    /// # Errors
    /// Another time.
    pub fn ttl(mut self, ttl: Duration) -> Result<Self, InvalidTime> {
        within("ttl", ttl, 3600, 72 * 3600, "1 to 72 hours")?;
        self.settings.times.ttl = ttl;
        Ok(self)
    }

    /// How long a duplicate waits for the first request: up to a minute, 2 seconds by default.
    ///
    /// # Errors
    /// Another time.
    pub fn wait(mut self, wait: Duration) -> Result<Self, InvalidTime> {
        within("wait", wait, 0, 60, "0 to 1 minute")?;
        self.settings.times.wait = wait;
        Ok(self)
    }

    /// No transaction, for handlers that call other systems: the key is leased for this long, 1 second to a day. If the process
    /// dies meanwhile, a repetition after that time runs again.
    ///
    /// # Errors
    /// Another time.
    pub fn lease(mut self, lease: Duration) -> Result<Self, InvalidTime> {
        within("lease", lease, 1, 24 * 3600, "1 second to 1 day")?;
        self.settings.times.lease = Some(lease);
        Ok(self)
    }

    /// Stores this header of the response too. By default the content's type, encoding, language and location, and etag,
    /// last-modified, link and location are stored.
    #[must_use]
    pub fn also_store(mut self, header: HeaderName) -> Self {
        self.settings.stored_headers.push(header);
        self
    }

    /// The largest body of a request, in bytes; 2 MiB by default. A larger one is answered with 413.
    #[must_use]
    pub fn max_request_body(mut self, bytes: usize) -> Self {
        self.settings.max_request_body = bytes;
        self
    }

    /// Answers a key that was used for another request with 422, as the IETF draft does, instead of 409.
    #[must_use]
    pub fn unprocessable_mismatch(mut self) -> Self {
        self.settings.unprocessable_mismatch = true;
        self
    }

    /// Runs the handler without a key, and without a [`Transaction`], while there is no store, instead of answering 503. A
    /// duplicate then has its effect twice.
    ///
    /// There is no store if it refuses or ends connections, or if tokio-postgres or I/O is the source of the error that `connect`
    /// returns. A pool without a free session, a lock that is not granted or a cancelled statement does not count.
    #[must_use]
    pub fn fail_open(mut self) -> Self {
        self.settings.fail_open = true;
        self
    }
}

fn within(
    setting: &'static str,
    value: Duration,
    least: u64,
    most: u64,
    bounds: &'static str,
) -> Result<(), InvalidTime> {
    let fits = value >= Duration::from_secs(least) && value <= Duration::from_secs(most);
    if fits { Ok(()) } else { Err(InvalidTime { setting, value, bounds }) }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotency::new(inner, self.settings.clone())
    }
}
