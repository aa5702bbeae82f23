//! Sessions with the database, and transactions that are rolled back unless they are committed.

use std::error::Error as StdError;
use std::io;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};

pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;
pub(crate) type Session = Box<dyn Deref<Target = Client> + Send + Sync>;
type Connecting = Pin<Box<dyn Future<Output = Result<Session, BoxError>> + Send>>;

/// Opens sessions, or takes them from a pool.
#[derive(Clone)]
pub(crate) struct Connect {
    connect: Arc<dyn Fn() -> Connecting + Send + Sync>,
}

impl Connect {
    /// The client of a session is mutable, because nobody else may use it.
    pub(crate) fn new<C, F, S, E>(connect: C) -> Self
    where
        C: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<S, E>> + Send + 'static,
        S: DerefMut<Target = Client> + Send + Sync + 'static,
        E: Into<BoxError>,
    {
        let connect = move || -> Connecting {
            let session = connect();
            Box::pin(async move {
                match session.await {
                    Ok(session) => Ok(Box::new(session) as Session),
                    Err(error) => Err(error.into()),
                }
            })
        };
        Connect { connect: Arc::new(connect) }
    }

    pub(crate) async fn session(&self) -> Result<Session, BoxError> {
        (self.connect)().await
    }
}

/// A session with an open transaction. Rolls back on drop.
pub(crate) struct Open {
    session: Arc<Session>,
    ended: bool,
}

impl Open {
    /// Of a session in which a transaction is about to begin.
    pub(crate) fn new(session: Arc<Session>) -> Self {
        Open { session, ended: false }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.session
    }

    /// The session, for use while the transaction ends and afterwards.
    pub(crate) fn session(&self) -> Arc<Session> {
        Arc::clone(&self.session)
    }

    pub(crate) async fn commit(mut self) -> Result<(), Error> {
        self.session.batch_execute("COMMIT").await?;
        self.ended = true;
        Ok(())
    }

    /// If it fails the session has ended, and the transaction with it.
    pub(crate) async fn roll_back(mut self) {
        self.ended = self.session.batch_execute("ROLLBACK").await.is_ok();
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // the pool gets the session back after that
        if let Ok(runtime) = Handle::try_current() {
            let session = Arc::clone(&self.session);
            runtime.spawn(async move { session.batch_execute("ROLLBACK").await });
        }
    }
}

/// Whether an error without a SQLSTATE means that the connection is gone. Otherwise a value had an unexpected type, or a query did
/// not return exactly one row.
pub(crate) fn lost_connection(error: &Error) -> bool {
    error.is_closed() || find_source(error, |source| source.is::<io::Error>().then_some(())).is_some()
}

/// Whether it may succeed when the transaction is repeated: connection lost, server going down, out of a resource, cancelled, or in
/// conflict with another transaction.
pub(crate) fn is_transient(error: &Error) -> bool {
    match error.code() {
        None => lost_connection(error),
        Some(code) => {
            matches!(code.code().get(..2), Some("08" | "53" | "57"))
                || is_conflict(code)
                // a primary that was demoted, or a standby
                || *code == SqlState::READ_ONLY_SQL_TRANSACTION
        }
    }
}

/// Whether another transaction was in the way.
pub(crate) fn is_conflict(code: &SqlState) -> bool {
    code.code().starts_with("40") || *code == SqlState::LOCK_NOT_AVAILABLE
}

/// The first result for an error or one of its sources.
pub(crate) fn find_source<T>(
    error: &(dyn StdError + 'static),
    found: impl Fn(&(dyn StdError + 'static)) -> Option<T>,
) -> Option<T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = found(error) {
            return Some(found);
        }
        next = error.source();
    }
    None
}
