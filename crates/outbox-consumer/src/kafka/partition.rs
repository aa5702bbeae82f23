//! A batch, the events of one partition: one transaction, repeated until it is committed or the loop has to stop.

use std::collections::HashSet;
use std::error::Error as StdError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metrics::counter;
use tokio::sync::watch;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::counters::{CLAIMS, PARKED};
use super::error::{ConsumeError, place, range};
use super::event::Event;
use super::{Handler, KafkaConsumer};
use crate::Inbox;
use crate::session::{BoxError, Connect, Open, Session, find_source, is_conflict, is_transient};

/// The functions of the queue look several times, so their snapshots must follow one another.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// The transaction's id.
const XID: &str = "SELECT pg_catalog.pg_current_xact_id()::text";

/// Whether this transaction is still open.
const IS_OPEN: &str = "SELECT coalesce(pg_catalog.pg_current_xact_id_if_assigned()::text = $1, false)";

/// `committed`, `aborted` or `in progress`.
const STATUS: &str = "SELECT pg_catalog.pg_xact_status($1::xid8)";

/// How many times as often an event is tried if its handler does not fail, but the session ends meanwhile.
pub(super) const INTERRUPTIONS: u32 = 4;

/// What all partitions share.
pub(super) struct Worker<H> {
    pub(super) handler: H,
    pub(super) inbox: Inbox,
    connect: Connect,
    sessions: Mutex<Vec<Arc<Session>>>,
    pub(super) attempts: u32,
    park: bool,
    stopping: watch::Receiver<bool>,
}

/// How a batch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Committed,
    /// The loop was asked to stop first.
    Interrupted,
}

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
    /// A handler has ended the transaction. The event is known if each one was checked.
    Ended(Option<&'a Event>),
    /// A handler has committed the transaction, with the claims of events that were not handled.
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
    fn to_connect(error: BoxError) -> Self {
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

/// What failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The handler of the event at this offset.
    Handler(i64),
    /// The session, while that handler worked.
    Session(i64),
    Commit,
}

/// How often the same failed in a row.
#[derive(Debug, Default)]
struct Failures {
    step: Option<Step>,
    count: u32,
}

impl Failures {
    fn add(&mut self, step: Step) -> u32 {
        self.count = if self.step == Some(step) { self.count + 1 } else { 1 };
        self.step = Some(step);
        self.count
    }
}

/// Longer with each failure, up to 5 s.
pub(super) fn pause(failures: u32) -> Duration {
    Duration::from_millis(100 << failures.min(6)).min(Duration::from_secs(5))
}

impl<H: Handler> Worker<H> {
    pub(super) fn new(handler: H, consumer: &KafkaConsumer, stopping: watch::Receiver<bool>) -> Self {
        Worker {
            handler,
            inbox: consumer.inbox.clone(),
            connect: consumer.connect.clone(),
            sessions: Mutex::default(),
            attempts: consumer.attempts,
            park: consumer.park,
            stopping,
        }
    }

    /// Processes events of one partition, in their order.
    pub(super) async fn process(&self, events: &[Event]) -> Result<Outcome, ConsumeError> {
        let mut parked: HashSet<&str> = HashSet::new();
        // checks after each handler whether it has swallowed an error
        let mut checked = false;
        let (mut failures, mut in_a_row) = (Failures::default(), 0);
        // the transaction of the last attempt, unless its COMMIT was sent
        let mut undone: Option<String> = None;
        loop {
            let tried = match undone.take() {
                None => Ok(()),
                Some(xid) => self.is_undone(&xid).await.inspect_err(|_| undone = Some(xid)),
            };
            let tried = match tried {
                Ok(()) => self.attempt(events, &parked, checked, &mut undone).await,
                failed => failed,
            };
            let Err(failed) = tried else { return Ok(Outcome::Committed) };
            in_a_row += 1;
            let interrupted = matches!(failed, Failed::Interrupted(..));
            match failed {
                Failed::Transient(error) => tracing::warn!(error, "a batch is tried again"),
                Failed::Committed => return Err(ConsumeError::committed(&range(events))),
                Failed::NoSession(error) => return Err(ConsumeError::session(error)),
                Failed::Refused(error, None) => return Err(ConsumeError::database(&range(events), error)),
                Failed::Refused(error, Some(event)) => {
                    return Err(ConsumeError::database(&place(event), error));
                }
                Failed::Swallowed(Some(event)) => return Err(ConsumeError::swallowed(event)),
                Failed::Ended(Some(event)) => {
                    return Err(match self.is_undone(undone.as_deref().unwrap_or_default()).await {
                        Err(Failed::Committed) => ConsumeError::committed(&range(events)),
                        _ => ConsumeError::ended(event),
                    });
                }
                // it is not known which handler it was
                Failed::Swallowed(None) | Failed::Ended(None) => checked = true,
                Failed::Handler(event, error) | Failed::Interrupted(event, error) => {
                    let (step, attempts) = match interrupted {
                        true => (Step::Session(event.offset), self.attempts.saturating_mul(INTERRUPTIONS)),
                        false => (Step::Handler(event.offset), self.attempts),
                    };
                    checked |= !interrupted;
                    let count = failures.add(step);
                    if count < attempts {
                        tracing::warn!(error, event = place(event), "the handler failed");
                    } else if self.park {
                        tracing::error!(error, event = place(event), "the event is parked");
                        parked.insert(&event.id);
                        (failures, in_a_row) = (Failures::default(), 0);
                    } else {
                        return Err(ConsumeError::handler(event, count, error));
                    }
                }
                Failed::Commit(error) => {
                    if failures.add(Step::Commit) >= self.attempts {
                        return Err(ConsumeError::commit(events, error));
                    }
                    tracing::warn!(error = &error as &dyn StdError, "a commit was refused");
                }
            }
            if self.stops_within(pause(in_a_row)).await {
                return Ok(Outcome::Interrupted);
            }
        }
    }

    /// Waits, and returns whether the loop was asked to stop.
    pub(super) async fn stops_within(&self, time: Duration) -> bool {
        let mut stopping = self.stopping.clone();
        // an error: the loop is gone
        tokio::time::timeout(time, stopping.wait_for(|stopping| *stopping)).await.is_ok()
    }

    async fn attempt<'a>(
        &self,
        events: &'a [Event],
        parked: &HashSet<&str>,
        checked: bool,
        undone: &mut Option<String>,
    ) -> Result<(), Failed<'a>> {
        let open = self.open().await?;
        let of = |error| Failed::of(error, None);
        let behind = self.waiting(&open, events).await?;
        let (held, claimed) = held_back(events, parked, behind);
        let ids: Vec<&str> = claimed.iter().map(|event| event.id.as_str()).collect();
        // sent in this order, in one round trip
        let (fresh, xid) = tokio::join!(biased; self.inbox.claim_batch(open.client(), &ids), open.client().query_typed_one(XID, &[]));
        let (fresh, xid) = (fresh.map_err(of)?, xid.and_then(|row| row.try_get(0)).map_err(of)?);
        let xid: &String = undone.insert(xid);
        let mut fresh: HashSet<String> = fresh.into_iter().collect();
        let claims = (fresh.len() as u64, (claimed.len() - fresh.len()) as u64);
        // The claims have waited for a former owner of the partition, which may have parked an event meanwhile.
        let todo: Vec<&Event> = claimed.into_iter().filter(|event| fresh.remove(&event.id)).collect();
        if !self.waiting(&open, todo.iter().copied()).await?.is_empty() {
            return Err(Failed::Transient("another member has parked an event of the same aggregate".into()));
        }
        for event in &todo {
            if let Err(error) = self.handler.handle(open.client(), event).await {
                return Err(Failed::of_handler(&open, event, error.into(), checked));
            }
            if checked {
                check(&open, xid, Some(event)).await?;
            }
        }
        let mut put = 0;
        for event in held {
            let (json, aggregate) = (event.to_json(), event.aggregate());
            let new = self.inbox.put(open.client(), &event.id, &json, aggregate.as_deref(), None).await;
            put += u64::from(new.map_err(|error| match Failed::of(error, None) {
                Failed::Refused(error, _) => Failed::Refused(error, Some(event)),
                failed => failed,
            })?);
        }
        // COMMIT of a transaction that has failed is a rollback without an error
        check(&open, xid, None).await?;
        *undone = None;
        self.commit(open).await?;
        counter!(CLAIMS, "outcome" => "fresh").increment(claims.0);
        counter!(CLAIMS, "outcome" => "done").increment(claims.1);
        counter!(PARKED).increment(put);
        Ok(())
    }

    /// An error unless this transaction was rolled back.
    pub(super) async fn is_undone<'a>(&self, xid: &str) -> Result<(), Failed<'a>> {
        let open = self.open().await?;
        let row = open.client().query_typed_one(STATUS, &[(&xid, Type::TEXT)]).await;
        let status: Option<String> =
            row.and_then(|row| row.try_get(0)).map_err(|error| Failed::of(error, None))?;
        self.commit(open).await?;
        match status.as_deref() {
            Some("committed") => Err(Failed::Committed),
            Some("in progress") => {
                Err(Failed::Transient("the transaction of the last attempt has not ended".into()))
            }
            _ => Ok(()),
        }
    }

    /// The aggregates of these events that wait in the queue.
    async fn waiting<'a>(
        &self,
        open: &Open,
        events: impl IntoIterator<Item = &Event>,
    ) -> Result<HashSet<String>, Failed<'a>> {
        let aggregates: HashSet<String> = events.into_iter().filter_map(Event::aggregate).collect();
        if !self.park || aggregates.is_empty() {
            return Ok(HashSet::new());
        }
        let aggregates: Vec<&str> = aggregates.iter().map(String::as_str).collect();
        let waiting = self.inbox.waiting(open.client(), &aggregates).await;
        Ok(waiting.map_err(|error| Failed::of(error, None))?.into_iter().collect())
    }

    /// A session with a transaction that has begun.
    pub(super) async fn open<'a>(&self) -> Result<Open, Failed<'a>> {
        let known = self.sessions.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let session = match known.filter(|session| !session.is_closed()) {
            Some(session) => session,
            None => Arc::new(self.connect.session().await.map_err(Failed::to_connect)?),
        };
        let open = Open::new(session);
        open.client().batch_execute(BEGIN).await.map_err(|error| Failed::of(error, None))?;
        Ok(open)
    }

    pub(super) async fn commit<'a>(&self, open: Open) -> Result<(), Failed<'a>> {
        let session = open.session();
        open.commit().await.map_err(|error| {
            if is_transient(&error) { Failed::Transient(error.into()) } else { Failed::Commit(error) }
        })?;
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).push(session);
        Ok(())
    }
}

/// The id of the transaction.
pub(super) async fn xid<'a>(open: &Open) -> Result<String, Failed<'a>> {
    let row = open.client().query_typed_one(XID, &[]).await;
    row.and_then(|row| row.try_get(0)).map_err(|error| Failed::of(error, None))
}

/// Whether this transaction has neither failed nor ended. The last handler was that of `handled`.
pub(super) async fn check<'a>(open: &Open, xid: &str, handled: Option<&'a Event>) -> Result<(), Failed<'a>> {
    let row = open.client().query_typed_one(IS_OPEN, &[(&xid, Type::TEXT)]).await;
    match row.and_then(|row| row.try_get(0)) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failed::Ended(handled)),
        Err(error) => Err(Failed::of(error, handled)),
    }
}

/// Those that are put into the queue, and those that are claimed: an event is behind one of its aggregate that waits.
fn held_back<'a>(
    events: &'a [Event],
    parked: &HashSet<&str>,
    mut behind: HashSet<String>,
) -> (Vec<&'a Event>, Vec<&'a Event>) {
    events.iter().partition(|event| {
        let aggregate = event.aggregate();
        if parked.contains(event.id.as_str()) {
            behind.extend(aggregate);
            return true;
        }
        aggregate.is_some_and(|aggregate| behind.contains(&aggregate))
    })
}

#[cfg(test)]
mod tests {
    use super::{Failures, Step};

    #[test]
    fn only_the_same_in_a_row_counts() {
        let mut failures = Failures::default();
        assert_eq!([(); 3].map(|()| failures.add(Step::Handler(0))), [1, 2, 3]);
        assert_eq!([(); 2].map(|()| failures.add(Step::Handler(7))), [1, 2]);
        assert_eq!([(); 2].map(|()| failures.add(Step::Commit)), [1, 2]);
        assert_eq!(failures.add(Step::Handler(7)), 1);
        assert_eq!(failures.add(Step::Session(7)), 1);
        // after an event was parked
        assert_eq!(Failures::default().add(Step::Commit), 1);
    }
}
