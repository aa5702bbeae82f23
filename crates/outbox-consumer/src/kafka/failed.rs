//! Why an attempt failed.

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::event::Event;
use crate::session::{BoxError, Open, find_source, is_conflict, is_transient};

/// How many times as often an event is tried if its handler does not fail, but the session ends meanwhile.
pub(super) const INTERRUPTIONS: u32 = 4;

/// Why one attempt failed. Nothing of it was committed, unless the connection ended during COMMIT.
pub(super) enum Failed<'a> {
    /// The database is away, or another transaction was in the way.
    Transient(BoxError),
    /// Postgres refuses the user, the password or the database.
    NoSession(BoxError),
    Handler(&'a Event, BoxError),
    /// The session ended while the handler worked, or the server was short of a resource.
    Interrupted(&'a Event, BoxError),
    /// The transaction cannot be committed. The event is known if each one was checked.
    Swallowed(Option<&'a Event>),
    /// A handler has rolled the transaction back. The event is known if each one was checked.
    Ended(Option<&'a Event>),
    /// A handler has committed the transaction, with the claims of events that may not have been handled.
    Committed,
    Commit(Error),
    /// The inbox refuses, and will again: the batch, or this event of it.
    Refused(Error, Option<&'a Event>),
}

impl<'a> Failed<'a> {
    /// Of a statement of the loop itself, after these handlers have returned.
    pub(super) fn of(error: Error, handled: Option<&'a Event>) -> Self {
        if error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION) {
            Failed::Swallowed(handled)
        } else if is_transient(&error) {
            Failed::Transient(error.into())
        } else {
            Failed::Refused(error, None)
        }
    }

    /// Of `connect`: it tells by its sources whether Postgres will refuse again.
    pub(super) fn to_connect(error: BoxError) -> Self {
        let refused = find_source(&*error, |source| {
            let code = source.downcast_ref::<Error>()?.code()?.code();
            matches!(code.get(..2), Some("28" | "3D")).then_some(())
        });
        if refused.is_some() { Failed::NoSession(error) } else { Failed::Transient(error) }
    }

    /// `checked`: no handler before this one has swallowed an error.
    pub(super) fn of_handler(open: &Open, event: &'a Event, error: BoxError, checked: bool) -> Self {
        let code = find_source(&*error, |source| source.downcast_ref::<Error>()?.code().cloned());
        let transient = find_source(&*error, |source| source.downcast_ref::<Error>().map(is_transient));
        match code {
            Some(SqlState::IN_FAILED_SQL_TRANSACTION) if !checked => Failed::Swallowed(None),
            Some(code) if is_conflict(&code) => Failed::Transient(error),
            // a statement that always takes too long
            Some(SqlState::QUERY_CANCELED) => Failed::Handler(event, error),
            _ if transient == Some(true) || open.client().is_closed() => Failed::Interrupted(event, error),
            _ => Failed::Handler(event, error),
        }
    }
}
