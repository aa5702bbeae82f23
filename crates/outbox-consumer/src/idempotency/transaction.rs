//! The transaction that a handler works in.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};
use tokio_postgres::{Client, Error};

use crate::keys::{Begun, IdempotencyKey, KeyTimes, StoredResponse};
use crate::session::{Open, Session};
use crate::token::Token;

/// The transaction of a request, in the request's extensions. It is committed when the handler has responded and its body has
/// been read.
#[derive(Clone)]
pub struct Transaction {
    open: Arc<Mutex<Option<Open>>>,
}

impl Transaction {
    pub(super) fn new(open: Open) -> Self {
        Transaction { open: Arc::new(Mutex::new(Some(open))) }
    }

    /// The client, for this task alone. The transaction ends after it was dropped, so do not keep it.
    ///
    /// # Errors
    /// The transaction has ended, because the handler has responded.
    pub async fn client(&self) -> Result<TransactionClient<'_>, TransactionEnded> {
        let guard = self.open.lock().await;
        match MutexGuard::try_map(guard, Option::as_mut) {
            Ok(open) => Ok(TransactionClient { open }),
            Err(_) => Err(TransactionEnded),
        }
    }

    pub(super) async fn take(&self) -> Option<Open> {
        self.open.lock().await.take()
    }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").finish_non_exhaustive()
    }
}

/// The client of a [`Transaction`]. It is not mutable: a second transaction in it would end the first.
pub struct TransactionClient<'a> {
    open: MappedMutexGuard<'a, Open>,
}

impl Deref for TransactionClient<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.open.client()
    }
}

impl fmt::Debug for TransactionClient<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionClient").finish_non_exhaustive()
    }
}

/// The handler has responded, and its transaction has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionEnded;

impl fmt::Display for TransactionEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the transaction of the request has ended: use it before the handler responds")
    }
}

impl std::error::Error for TransactionEnded {}

/// Opens a transaction and begins the request in it, in one round trip.
pub(super) async fn begin(
    session: Session,
    key: &IdempotencyKey,
    token: Token,
    hash: &[u8],
    times: KeyTimes,
) -> Result<(Open, Begun), Error> {
    let open = Open::new(Arc::new(session));
    let client = open.client();
    // sent in this order
    let (opened, begun, saved) = tokio::join!(
        biased;
        client.batch_execute("BEGIN"),
        key.begin(client, token, hash, times),
        client.batch_execute("SAVEPOINT outbox_consumer_handler"),
    );
    opened?;
    let begun = begun?;
    saved?;
    Ok((open, begun))
}

/// Stores the response and commits, in one round trip. False: the transaction of the request has ended before, and nothing is
/// stored.
pub(super) async fn finish_and_commit(
    key: &IdempotencyKey,
    open: Open,
    token: Token,
    response: &StoredResponse,
) -> Result<bool, Error> {
    let session = open.session();
    let client: &Client = &session;
    // sent in this order
    let (finished, committed) = tokio::join!(
        biased;
        key.finish_or_fail(client, token, response),
        open.commit(),
    );
    let finished = finished?;
    committed.map(|()| finished)
}

/// Undoes the work after a statement failed, but not the beginning of the request.
pub(super) async fn undo_work(open: &Open) -> Result<(), Error> {
    open.client().batch_execute("ROLLBACK TO SAVEPOINT outbox_consumer_handler").await
}
