//! The events of one partition in a batch: one transaction, repeated until it is committed or the loop has to stop.

use std::collections::HashSet;
use std::error::Error as StdError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metrics::counter;
use tokio::sync::watch;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::counters::{CLAIMS, PARKED};
use super::error::{ConsumeError, place, range};
use super::event::Event;
use super::{Handler, KafkaConsumer};
use crate::Inbox;
use crate::session::{BoxError, Connect, Open, Session, find_source, is_transient};

/// Leaves a setting that ends with the transaction. The functions of the queue look several times, so their snapshots must follow
/// one another.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL outbox_consumer.is_open = 'yes'";

/// Whether the transaction that began so is still open.
const IS_OPEN: &str =
    "SELECT pg_catalog.current_setting('outbox_consumer.is_open', true) IS NOT DISTINCT FROM 'yes'";

/// What all partitions share.
pub(super) struct Worker<H> {
    pub(super) handler: H,
    pub(super) inbox: Inbox,
    connect: Connect,
    sessions: Mutex<Vec<Arc<Session>>>,
    attempts: u32,
    park: bool,
    stopping: watch::Receiver<bool>,
}

/// How a partition's part of a batch ended.
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
    /// The transaction cannot be committed. The event is known if each one was checked.
    Swallowed(Option<&'a Event>),
    /// A handler has ended the transaction. The event is known if each one was checked.
    Ended(Option<&'a Event>),
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

    pub(super) fn of_handler(open: &Open, event: &'a Event, error: BoxError) -> Self {
        let transient = find_source(&*error, |source| {
            // a statement that always takes too long must not be tried for ever
            let passes =
                |error: &&Error| is_transient(error) && error.code() != Some(&SqlState::QUERY_CANCELED);
            source.downcast_ref::<Error>().filter(passes).map(drop)
        });
        if transient.is_some() || open.client().is_closed() {
            Failed::Transient(error)
        } else {
            Failed::Handler(event, error)
        }
    }
}

/// How often the same failed in a row.
#[derive(Debug, Default)]
struct Failures {
    /// The offset of the event; `None` for the commit.
    of: Option<i64>,
    count: u32,
}

impl Failures {
    /// The handler of this event failed once more.
    fn of_event(&mut self, offset: i64) -> u32 {
        self.add(Some(offset))
    }

    /// The commit was refused once more.
    fn of_commit(&mut self) -> u32 {
        self.add(None)
    }

    fn add(&mut self, of: Option<i64>) -> u32 {
        self.count = if self.of == of { self.count + 1 } else { 1 };
        self.of = of;
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
        loop {
            let failed = match self.attempt(events, &parked, checked).await {
                Ok(()) => return Ok(Outcome::Committed),
                Err(failed) => failed,
            };
            in_a_row += 1;
            match failed {
                Failed::Transient(error) => tracing::warn!(error, "a batch is tried again"),
                Failed::NoSession(error) => return Err(ConsumeError::session(error)),
                Failed::Refused(error, None) => return Err(ConsumeError::database(&range(events), error)),
                Failed::Refused(error, Some(event)) => {
                    return Err(ConsumeError::database(&place(event), error));
                }
                Failed::Swallowed(Some(event)) => return Err(ConsumeError::swallowed(event)),
                Failed::Ended(Some(event)) => return Err(ConsumeError::ended(event)),
                // it is not known which handler it was
                Failed::Swallowed(None) | Failed::Ended(None) => checked = true,
                Failed::Handler(event, error) if !checked => {
                    failures.of_event(event.offset);
                    tracing::warn!(error, "a batch is tried again, with a check after each event");
                    checked = true;
                }
                Failed::Handler(event, error) => {
                    let failures_of_it = failures.of_event(event.offset);
                    if failures_of_it < self.attempts {
                        tracing::warn!(error, event = place(event), "the handler failed");
                    } else if self.park {
                        tracing::error!(error, event = place(event), "the event is parked");
                        parked.insert(&event.id);
                        (failures, in_a_row) = (Failures::default(), 0);
                    } else {
                        return Err(ConsumeError::handler(event, failures_of_it, error));
                    }
                }
                Failed::Commit(error) => {
                    if failures.of_commit() >= self.attempts {
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
    ) -> Result<(), Failed<'a>> {
        let open = self.open().await?;
        let of = |error| Failed::of(error, None);
        let behind = self.waiting(&open, events).await?;
        let (held, claimed) = held_back(events, parked, behind);
        let ids: Vec<&str> = claimed.iter().map(|event| event.id.as_str()).collect();
        let fresh = self.inbox.claim_batch(open.client(), &ids).await.map_err(of)?;
        let mut fresh: HashSet<String> = fresh.into_iter().collect();
        let claims = (fresh.len() as u64, (claimed.len() - fresh.len()) as u64);
        // The claims have waited for a former owner of the partition, which may have parked an event meanwhile.
        let todo: Vec<&Event> = claimed.into_iter().filter(|event| fresh.remove(&event.id)).collect();
        if !self.waiting(&open, todo.iter().copied()).await?.is_empty() {
            return Err(Failed::Transient("another member has parked an event of the same aggregate".into()));
        }
        for event in &todo {
            if let Err(error) = self.handler.handle(open.client(), event).await {
                return Err(Failed::of_handler(&open, event, error.into()));
            }
            if checked {
                check(&open, Some(event)).await?;
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
        check(&open, None).await?;
        self.commit(open).await?;
        counter!(CLAIMS, "outcome" => "fresh").increment(claims.0);
        counter!(CLAIMS, "outcome" => "done").increment(claims.1);
        counter!(PARKED).increment(put);
        Ok(())
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

/// Whether the transaction has neither failed nor ended since it began. The last handler was that of `handled`.
async fn check<'a>(open: &Open, handled: Option<&'a Event>) -> Result<(), Failed<'a>> {
    let row = open.client().query_typed_one(IS_OPEN, &[]).await;
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
    use super::Failures;

    #[test]
    fn each_event_and_the_commit_have_as_many_attempts() {
        let mut failures = Failures::default();
        assert_eq!([(); 3].map(|()| failures.of_event(0)), [1, 2, 3]);
        assert_eq!([(); 2].map(|()| failures.of_event(7)), [1, 2]);
        assert_eq!([(); 2].map(|()| failures.of_commit()), [1, 2]);
        assert_eq!(failures.of_event(7), 1);
        // after an event was parked
        assert_eq!(Failures::default().of_commit(), 1);
    }
}
