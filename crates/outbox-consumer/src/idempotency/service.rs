//! The service: from a request to its response.

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use metrics::{Unit, counter, describe_counter};
use tokio_postgres::error::SqlState;
use tower_service::Service;
use tracing::Instrument;

use super::failure::Failure;
use super::problem::Problem;
use super::request::Keyed;
use super::transaction::{self, Transaction};
use super::{Settings, response};
use crate::keys::{Begun, IdempotencyKey, KnownKey, StoredResponse};
use crate::session::{BoxError, Open, is_transient};
use crate::token::Token;

const REQUESTS: &str = "outbox_consumer_requests_total";
const FAIL_OPEN: &str = "outbox_consumer_fail_open_total";
const OUTCOMES: [&str; 8] =
    ["new", "replay", "mismatch", "in_progress", "expired", "invalid", "unavailable", "fail_open"];

/// How long the store may take to begin a request, besides the time to wait for a duplicate.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn register_counters() {
    describe_counter!(REQUESTS, Unit::Count, "Requests that need an idempotency key, by outcome.");
    describe_counter!(FAIL_OPEN, Unit::Count, "Requests that ran without a key, because there was no store.");
    for outcome in OUTCOMES {
        counter!(REQUESTS, "outcome" => outcome).increment(0);
    }
    counter!(FAIL_OPEN).increment(0);
}

fn count(outcome: &'static str) {
    counter!(REQUESTS, "outcome" => outcome).increment(1);
}

fn log(error: &tokio_postgres::Error, what: &str) {
    tracing::error!(error = error as &dyn std::error::Error, "{what}");
}

/// The service of an [`IdempotencyLayer`](super::IdempotencyLayer).
#[derive(Clone)]
pub struct Idempotency<S> {
    inner: S,
    settings: Settings,
}

impl<S> Idempotency<S> {
    pub(super) fn new(inner: S, settings: Settings) -> Self {
        Idempotency { inner, settings }
    }
}

impl<S: fmt::Debug> fmt::Debug for Idempotency<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, B, R> Service<Request<B>> for Idempotency<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
    R: Body + From<Bytes> + Send + 'static,
    R::Data: Send,
    R::Error: Into<BoxError>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // the one that is ready
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        if request.method().is_safe() {
            return Box::pin(inner.call(request));
        }
        let settings = self.settings.clone();
        Box::pin(async move {
            let keyed = match Keyed::read(&settings, request).await {
                Ok(keyed) => keyed,
                Err(problem) => {
                    count("invalid");
                    return Ok(problem.into_response());
                }
            };
            // goes on when the client has gone away
            let answer = tokio::spawn(answer(settings, inner, keyed).in_current_span());
            answer
                .await
                .unwrap_or_else(|_| Ok(Problem::internal("The request was interrupted").into_response()))
        })
    }
}

/// How a request began.
enum Start {
    /// The handler runs.
    Work(Work),
    /// The handler does not run.
    Answer(KnownKey),
}

/// What the handler's response belongs to.
enum Work {
    Transaction(Transaction, Token),
    Lease(Token, Instant),
    /// There is no store.
    Unkeyed,
}

async fn answer<S, B, R>(settings: Settings, mut inner: S, keyed: Keyed) -> Result<Response<R>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: From<Bytes> + Send + 'static,
    R: Body + From<Bytes> + Send + 'static,
    R::Data: Send,
    R::Error: Into<BoxError>,
{
    let Keyed { key, hash, parts, body } = keyed;
    let work = match begin(&settings, &key, &hash).await {
        Ok(Start::Work(work)) => work,
        Ok(Start::Answer(known)) => return Ok(settings.without_work(known)),
        Err(Failure::NoStore) if settings.fail_open => Work::Unkeyed,
        Err(failure) => {
            count(if failure == Failure::Conflict { "in_progress" } else { "unavailable" });
            return Ok(failure.problem().into_response());
        }
    };
    let mut request = Request::from_parts(parts, B::from(body));
    match &work {
        Work::Unkeyed => {
            count("fail_open");
            counter!(FAIL_OPEN).increment(1);
        }
        Work::Transaction(transaction, _) => {
            count("new");
            request.extensions_mut().insert(transaction.clone());
        }
        Work::Lease(..) => count("new"),
    }
    // A panic must not skip what follows. The body is read here, because it may use the transaction.
    let handler = async move {
        let response = inner.call(request).await?;
        Ok(response::read(response).await)
    };
    let problem = match tokio::spawn(handler.in_current_span()).await {
        Ok(Ok(Ok(response))) => return Ok(settings.finish(&key, work, response).await),
        Ok(Ok(Err(error))) => {
            tracing::error!(
                error,
                "the body of a response with an idempotency key failed, or is larger than 16 MiB"
            );
            Ok(Problem::internal("The response could not be read").into_response())
        }
        Ok(Err(error)) => Err(error),
        Err(_) => Ok(Problem::internal("The handler ended abnormally").into_response()),
    };
    settings.free(&key, work).await;
    problem
}

/// Begins the request. A session of a pool may have ended unnoticed, so a second one is tried, with the same token: the answer of
/// the first may have been lost.
async fn begin(settings: &Settings, key: &IdempotencyKey, hash: &[u8]) -> Result<Start, Failure> {
    let token = Token::random();
    let sent = AtomicBool::new(false);
    let tried = tokio::time::timeout(settings.times.wait + BEGIN_TIMEOUT, async {
        match begin_once(settings, key, token, hash, &sent).await {
            Err(Failure::NoStore) => begin_once(settings, key, token, hash, &sent).await,
            begun => begun,
        }
    });
    let begun = tried.await.unwrap_or_else(|_| {
        tracing::error!("the store of the idempotency keys does not answer");
        Err(Failure::Refused)
    });
    let leased = settings.times.lease.is_some() && sent.load(Ordering::Relaxed);
    if leased && matches!(begun, Err(Failure::NoStore | Failure::Refused)) {
        tokio::spawn(release(settings.clone(), key.clone(), token));
    }
    begun
}

/// Frees a key under a lease.
fn no_response() -> StoredResponse {
    StoredResponse { status: 500, ..StoredResponse::default() }
}

/// Frees a key that may be leased although no answer has arrived, or will be soon. Otherwise its repetitions would wait for the end of
/// the lease.
async fn release(settings: Settings, key: IdempotencyKey, token: Token) {
    for seconds in [1, 2, 4, 8, 16, 32] {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        if let Ok(session) = settings.connect.session().await
            && let Ok(true) = key.finish(&**session, token, &no_response()).await
        {
            return;
        }
    }
}

async fn begin_once(
    settings: &Settings,
    key: &IdempotencyKey,
    token: Token,
    hash: &[u8],
    sent: &AtomicBool,
) -> Result<Start, Failure> {
    let session = settings.connect.session().await.map_err(|error| {
        tracing::error!(error, "no session for an idempotency key");
        Failure::to_connect(&*error)
    })?;
    let failure = |error: tokio_postgres::Error| {
        log(&error, "a request with an idempotency key did not begin");
        Failure::of(&error)
    };
    let times = settings.times;
    sent.store(true, Ordering::Relaxed);
    if let Some(lease) = times.lease {
        let until = Instant::now() + lease;
        let begun = key.begin(&**session, token, hash, times).await.map_err(failure)?;
        return Ok(match begun {
            Begun::New => Start::Work(Work::Lease(token, until)),
            Begun::Known(known) => Start::Answer(known),
        });
    }
    let (open, begun) = transaction::begin(session, key, token, hash, times).await.map_err(failure)?;
    Ok(match begun {
        Begun::New => Start::Work(Work::Transaction(Transaction::new(open), token)),
        Begun::Known(known) => {
            open.roll_back().await;
            Start::Answer(known)
        }
    })
}

impl Settings {
    /// The answer of a request that is not new.
    fn without_work<R: From<Bytes>>(&self, known: KnownKey) -> Response<R> {
        let (outcome, problem) = match known {
            KnownKey::Replay(stored) => match response::replayed(stored) {
                Ok(response) => {
                    count("replay");
                    return response;
                }
                Err(error) => {
                    tracing::error!(error, "the stored response of an idempotency key cannot be read");
                    ("unavailable", Problem::internal("The stored response cannot be read"))
                }
            },
            KnownKey::InProgress(retry_after) => ("in_progress", Problem::in_progress(retry_after)),
            KnownKey::Expired => ("expired", Problem::expired()),
            KnownKey::Mismatch => {
                let unprocessable = self.unprocessable_mismatch;
                let status =
                    if unprocessable { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::CONFLICT };
                ("mismatch", Problem::mismatch(status))
            }
        };
        count(outcome);
        problem.into_response()
    }

    /// Stores the response, and returns it if that has succeeded.
    async fn finish<R: From<Bytes>>(
        &self,
        key: &IdempotencyKey,
        work: Work,
        response: Response<Bytes>,
    ) -> Response<R> {
        if !(200..500).contains(&response.status().as_u16()) {
            self.free(key, work).await;
            return response.map(R::from);
        }
        let stored = response::stored(&response, &self.stored_headers);
        let finished = match work {
            Work::Unkeyed => Ok(()),
            Work::Transaction(transaction, token) => commit(key, transaction, token, stored).await,
            Work::Lease(token, until) => self.finish_lease(key, token, until, stored).await,
        };
        match finished {
            Ok(()) => response.map(R::from),
            Err(problem) => problem.into_response(),
        }
    }

    /// Ends a request without a response: its repetition runs again.
    async fn free(&self, key: &IdempotencyKey, work: Work) {
        match work {
            Work::Unkeyed => {}
            Work::Transaction(transaction, _) => {
                if let Some(open) = transaction.take().await {
                    open.roll_back().await;
                }
            }
            Work::Lease(token, until) => {
                // an error was logged, and the lease expires
                let _ = self.finish_lease(key, token, until, no_response()).await;
            }
        }
    }

    /// Tries until the lease has expired, unless the store refuses.
    async fn finish_lease(
        &self,
        key: &IdempotencyKey,
        token: Token,
        until: Instant,
        stored: StoredResponse,
    ) -> Result<(), Problem> {
        loop {
            match self.connect.session().await {
                Err(error) => {
                    tracing::error!(error, "no session to store the response to an idempotency key")
                }
                Ok(session) => match key.finish(&**session, token, &stored).await {
                    Ok(true) => return Ok(()),
                    Ok(false) => {
                        let took_over =
                            "The request took longer than its lease, and another one has taken over";
                        return Err(Problem::unavailable(took_over));
                    }
                    Err(error) => {
                        log(&error, "the response to an idempotency key was not stored");
                        if !is_transient(&error) {
                            return Err(Problem::internal("The response cannot be stored"));
                        }
                    }
                },
            }
            if Instant::now() >= until {
                return Err(Problem::unavailable("The response could not be stored"));
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
}

/// Stores the response in the transaction of the work, and commits it.
async fn commit(
    key: &IdempotencyKey,
    transaction: Transaction,
    token: Token,
    stored: StoredResponse,
) -> Result<(), Problem> {
    let Some(open) = transaction.take().await else {
        return Err(Problem::internal("The transaction has ended"));
    };
    let committed = if (400..500).contains(&stored.status) {
        commit_error(key, open, token, &stored).await
    } else {
        transaction::finish_and_commit(key, open, token, &stored).await
    };
    match committed {
        Ok(true) => Ok(()),
        Ok(false) => {
            tracing::error!(
                "the handler of a request with an idempotency key has ended the transaction itself"
            );
            Err(Problem::internal("The handler has ended the transaction"))
        }
        Err(error) => {
            log(&error, "the transaction of a request with an idempotency key was not committed");
            Err(if is_transient(&error) {
                Problem::unavailable("The transaction was not committed, or its result is not known")
            } else {
                Problem::internal("The transaction could not be committed")
            })
        }
    }
}

/// The same for a response that reports an error of the client. It is stored even if a statement of the handler has failed.
async fn commit_error(
    key: &IdempotencyKey,
    open: Open,
    token: Token,
    stored: &StoredResponse,
) -> Result<bool, tokio_postgres::Error> {
    let mut finished = key.finish(open.client(), token, stored).await;
    let failed = |error: &tokio_postgres::Error| error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION);
    if finished.as_ref().is_err_and(failed) {
        finished = match transaction::undo_work(&open).await {
            Ok(()) => key.finish(open.client(), token, stored).await,
            Err(error) => Err(error),
        };
    }
    if let Ok(true) = finished {
        open.commit().await.map(|()| true)
    } else {
        open.roll_back().await;
        finished
    }
}
