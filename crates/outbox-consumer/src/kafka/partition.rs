//! A batch, the events of one partition: one transaction, repeated until it is committed or the loop has to stop.

use std::collections::HashSet;
use std::error::Error as StdError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metrics::counter;
use tokio::sync::watch;

use super::counters::{CLAIMS, PARKED};
use super::error::{ConsumeError, place, range};
use super::event::Event;
use super::failed::{Failed, INTERRUPTIONS};
use super::transaction::{check, xid};
use super::{Handler, KafkaConsumer};
use crate::Inbox;
use crate::session::{Connect, Open, Session, is_transient};

/// The functions of the queue look several times, so their snapshots must follow one another.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

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

/// The claims of an attempt.
struct Claims {
    xid: String,
    /// The ids that were fresh, in the order of their events.
    events: Vec<String>,
    /// How many of them were handled.
    handled: usize,
}

impl Claims {
    fn unhandled(&self) -> &[String] {
        self.events.get(self.handled..).unwrap_or_default()
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
        let mut claims: Option<Claims> = None;
        loop {
            let tried = self.attempt(events, &parked, checked, &mut claims).await;
            let Err(failed) = tried else { return Ok(Outcome::Committed) };
            in_a_row += 1;
            let interrupted = matches!(failed, Failed::Interrupted(..));
            match failed {
                Failed::Transient(error) => tracing::warn!(error, "a batch is tried again"),
                Failed::Committed => {
                    let unhandled = claims.as_ref().map(Claims::unhandled).unwrap_or_default();
                    return Err(ConsumeError::committed(&range(events), unhandled));
                }
                Failed::NoSession(error) => return Err(ConsumeError::session(error)),
                Failed::Refused(error, None) => {
                    let what = self.find_refused(events).await.map_or_else(|| range(events), place);
                    return Err(ConsumeError::database(&what, error));
                }
                Failed::Refused(error, Some(event)) => {
                    return Err(ConsumeError::database(&place(event), error));
                }
                Failed::Swallowed(Some(event)) => return Err(ConsumeError::swallowed(event)),
                Failed::Ended(Some(event)) => return Err(ConsumeError::ended(event)),
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
        claims: &mut Option<Claims>,
    ) -> Result<(), Failed<'a>> {
        let open = self.open().await?;
        let behind = self.waiting(&open, events).await?;
        let (held, claimed) = held_back(events, parked, behind);
        let ids: Vec<&str> = claimed.iter().map(|event| event.id.as_str()).collect();
        // sent in this order, in one round trip
        let (fresh, xid) = tokio::join!(
            biased;
            self.inbox.claim_batch(open.client(), &ids),
            xid(&open),
        );
        let (fresh, xid) = (fresh.map_err(|error| Failed::of(error, None))?, xid?);
        let mut fresh: HashSet<String> = fresh.into_iter().collect();
        if let Some(last) = claims.as_ref() {
            self.check_undone(&open, last, &fresh).await?;
        }
        let outcomes = (fresh.len() as u64, (claimed.len() - fresh.len()) as u64);
        // The claims have waited for a former owner of the partition, which may have parked an event meanwhile.
        let todo: Vec<&Event> = claimed.into_iter().filter(|event| fresh.remove(&event.id)).collect();
        if !self.waiting(&open, todo.iter().copied()).await?.is_empty() {
            return Err(Failed::Transient("another member has parked an event of the same aggregate".into()));
        }
        let claims_of_this =
            Claims { xid, events: todo.iter().map(|event| event.id.clone()).collect(), handled: 0 };
        let this = claims.insert(claims_of_this);
        for event in &todo {
            if let Err(error) = self.handler.handle(open.client(), event).await {
                return Err(Failed::of_handler(&open, event, error.into(), checked));
            }
            this.handled += 1;
            if checked {
                check(&open, &this.xid, Some(event)).await?;
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
        check(&open, &this.xid, None).await?;
        // it may succeed although its answer is lost
        *claims = None;
        self.commit(open).await?;
        counter!(CLAIMS, "outcome" => "fresh").increment(outcomes.0);
        counter!(CLAIMS, "outcome" => "done").increment(outcomes.1);
        counter!(PARKED).increment(put);
        Ok(())
    }

    /// Whether a handler has committed the claims of the last attempt, so that these events are not fresh again. The new claims have
    /// waited for the end of that transaction.
    async fn check_undone<'a>(
        &self,
        open: &Open,
        last: &Claims,
        fresh: &HashSet<String>,
    ) -> Result<(), Failed<'a>> {
        let gone: Vec<&str> =
            last.events.iter().filter(|id| !fresh.contains(*id)).map(String::as_str).collect();
        if gone.is_empty() {
            return Ok(());
        }
        let committed = self.inbox.claimed_by(open.client(), &gone, &last.xid).await;
        match committed.map_err(|error| Failed::of(error, None))? {
            false => Ok(()),
            true => Err(Failed::Committed),
        }
    }

    /// The event that the inbox refuses, if it is one of these.
    async fn find_refused<'a>(&self, events: &'a [Event]) -> Option<&'a Event> {
        for event in events {
            let open = self.open().await.ok()?;
            let claimed = self.inbox.claim_batch(open.client(), &[&event.id]).await;
            open.roll_back().await;
            if claimed.is_err_and(|error| error.code().is_some_and(|code| code.code().starts_with("22"))) {
                return Some(event);
            }
        }
        None
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
