//! One insert on its way: read, routed, handed to the sink, and counted.

use super::window::{InFlight, Window};
use crate::error::{Error, Peer};
use crate::lsn::Lsn;
use crate::monitor::Monitor;
use crate::outbox::{Outbox, OutboxError, OutboxEvent};
use crate::postgres::pgoutput::{Insert, PgTimestamp};
use crate::postgres::quoting::literal;
use crate::progress::{Change, OutOfStep, Partial, Progress, Sequence};
use crate::routing::Router;
use crate::sink::kafka::{KafkaSink, NotSent};

/// What came of one change.
pub(super) enum Handled {
    Done,
    HeldBack,
}

/// What an insert needs of the relay, apart from the stream that its bytes are borrowed from.
pub(super) struct Sending<'r> {
    pub(super) outbox: &'r Outbox,
    pub(super) router: &'r mut Router,
    pub(super) sink: &'r mut KafkaSink,
    pub(super) progress: &'r mut Progress,
    pub(super) window: &'r mut Window,
    pub(super) pending: &'r mut Option<Change>,
    pub(super) monitor: &'r Monitor,
    pub(super) commit_time: PgTimestamp,
    pub(super) final_lsn: Lsn,
    pub(super) slot: &'r str,
    pub(super) alone_up_to: Option<Partial>,
    pub(super) alone: &'r mut Option<String>,
}

pub(super) enum Stuck {
    /// The topic, and the id of the event that waits for it.
    NeedsTopic(String, String),
    Failed(Error),
}

impl Sending<'_> {
    pub(super) fn insert(&mut self, insert: &Insert<'_>) -> Result<Handled, Stuck> {
        if self.window.is_full() {
            return Ok(Handled::HeldBack);
        }
        let change = match self.pending.take() {
            Some(change) => change,
            None => self.progress.change().map_err(|error| Stuck::Failed(out_of_step(error)))?,
        };
        let Change::New(sequence) = change else { return Ok(Handled::Done) };
        let event = self.outbox.event(insert).map_err(|error| Stuck::Failed(not_readable(&error)))?;
        let Some(event) = event else {
            self.monitor.ignored_changes(1);
            self.progress.acknowledge(sequence);
            return Ok(Handled::Done);
        };
        let alone = self.alone_up_to.is_some_and(|last| self.progress.up_to(sequence) <= Some(last));
        // nor may the record after it share a batch with it
        if (alone || self.alone.is_some()) && !self.window.is_empty() {
            *self.pending = Some(change);
            return Ok(Handled::HeldBack);
        }
        self.send(&event, sequence, alone)
    }

    fn send(&mut self, event: &OutboxEvent<'_>, sequence: Sequence, alone: bool) -> Result<Handled, Stuck> {
        let record = self.router.route(event, self.commit_time).map_err(|error| {
            Stuck::Failed(unsendable(event, &error.to_string(), &unroutable(self.slot, self.final_lsn)))
        })?;
        let sent = match self.sink.send(&record, sequence) {
            Ok(sent) => sent,
            Err(NotSent::TopicUnknown) => {
                *self.pending = Some(Change::New(sequence));
                return Err(Stuck::NeedsTopic(record.topic.to_owned(), event.printable_id()));
            }
            Err(NotSent::Full) => {
                *self.pending = Some(Change::New(sequence));
                return Ok(Handled::HeldBack);
            }
            Err(NotSent::Impossible { reason, remedy }) => {
                let remedy = format!("Nothing was skipped. {remedy}");
                return Err(Stuck::Failed(unsendable(event, &reason, &remedy)));
            }
        };
        let in_flight = InFlight { bytes: record.size(), commit_time: self.commit_time, topic: sent.topic };
        self.window.sent(sequence, in_flight);
        if record.key.is_none() {
            self.monitor.keyless_events(1);
        }
        if record.headers_dropped > 0 {
            self.monitor.headers_dropped(u64::from(record.headers_dropped));
        }
        if sent.timestamp_replaced {
            self.monitor.timestamps_replaced(1);
        }
        *self.alone = alone.then(|| format!("{} to the topic {}", event.printable_id(), record.topic));
        Ok(Handled::Done)
    }
}

pub(super) fn out_of_step(error: OutOfStep) -> Error {
    Error::transient(Peer::Postgres, format!("the replication stream is out of step: {error}"))
}

pub(super) fn not_readable(error: &OutboxError) -> Error {
    Error::not_safe(
        error.to_string(),
        "Nothing was skipped. Rows are read as the table was when they were written, so altering it once more helps later \
         rows only: for this one correct `[outbox] columns` or `[route]`, and start the router again",
    )
}

/// The row is in the log for good: correcting or deleting it in the table changes nothing for the router.
fn unroutable(slot: &str, final_lsn: Lsn) -> String {
    // a transaction is left out by a position behind the beginning of its commit
    let past = Lsn(final_lsn.0 + 1);
    format!(
        "Nothing was skipped. Correct what writes such rows; this one is in the log already, so set `[route] topic` or \
         `[outbox] columns` so that it can be sent, or leave its whole transaction out: \
         SELECT pg_replication_slot_advance({}, '{past}')",
        literal(slot)
    )
}

fn unsendable(event: &OutboxEvent<'_>, reason: &str, remedy: &str) -> Error {
    Error::not_safe(format!("the event with id {} cannot be sent: {reason}", event.printable_id()), remedy)
}
