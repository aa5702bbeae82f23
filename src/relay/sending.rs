//! One insert on its way: read, routed, handed to the sink, and counted.

use super::window::{InFlight, Window};
use crate::error::{Definite, Error, Peer};
use crate::lsn::Lsn;
use crate::monitor::Monitor;
use crate::outbox::{Outbox, OutboxError};
use crate::positions::Replay;
use crate::postgres::pgoutput::{Insert, LogicalMessage};
use crate::progress::{Change, OutOfStep, Partial, Progress};
use crate::routing::{Origin, Routed, Router};
use crate::sink::kafka::{KafkaSink, NotSent};

/// How many changes there may be between the oldest that is not acknowledged and the newest. One bit is kept for each,
/// also for those that are no events.
const MAX_SPAN: u64 = 1 << 27;

/// The parts that an insert passes, and what is remembered between two of them.
pub(super) struct Sending {
    pub(super) outbox: Outbox,
    pub(super) router: Router,
    pub(super) sink: KafkaSink,
    pub(super) progress: Progress,
    /// What is sent again on purpose, and says so.
    pub(super) replay: Option<Replay>,
    pub(super) window: Window,
    pub(super) monitor: Monitor,
    /// The place in the stream: of the transaction under way, and of the change within it.
    pub(super) origin: Origin,
    /// The number of a change that was looked at and could not be dealt with yet.
    pub(super) pending: Option<Change>,
    /// Changes up to and including this one are sent one at a time.
    pub(super) alone_up_to: Option<Partial>,
    /// The record that was sent last, if it was sent so.
    pub(super) sent_alone: Option<SentAlone>,
}

/// A record that is under way alone, for a message about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentAlone {
    /// The event's id, and the topic.
    pub event: String,
    /// What can be done to go on without it.
    pub way_past: String,
}

/// What came of one insert.
pub(super) enum Handled {
    Done,
    /// Something has to be acknowledged first.
    HeldBack,
    /// The topic has to be prepared first.
    NeedsTopic(Waiting),
    /// It cannot be sent.
    Failed(Error),
}

/// An event that waits for its topic.
pub(super) struct Waiting {
    pub(super) topic: String,
    pub(super) id: String,
    way_past: String,
}

/// What may be an event.
#[derive(Clone, Copy)]
pub(super) enum Written<'a> {
    Row(Insert<'a>),
    Message(LogicalMessage<'a>),
}

impl Sending {
    /// Takes one change of the stream on its way.
    pub(super) fn change(&mut self, written: Written<'_>) -> Handled {
        if self.window.is_full() || self.progress.span() >= MAX_SPAN {
            return Handled::HeldBack;
        }
        let change = match self.pending.take() {
            Some(change) => change,
            None => match self.progress.change() {
                Ok(change) => change,
                Err(error) => return Handled::Failed(out_of_step(error)),
            },
        };
        let Change::New(sequence) = change else { return Handled::Done };
        let event = match written {
            Written::Row(insert) => self.outbox.event(&insert),
            Written::Message(message) => self.outbox.message(&message),
        };
        let event = match event {
            Ok(Some(event)) => event,
            Ok(None) => {
                self.monitor.ignored_changes(1);
                self.progress.acknowledge(sequence);
                return Handled::Done;
            }
            Err(error @ (OutboxError::Message { .. } | OutboxError::MissingMember { .. })) => {
                let way_past = way_past(self.origin.final_lsn);
                return Handled::Failed(Error::not_safe(
                    error.to_string(),
                    format!(
                        "Nothing was skipped. Write messages with outbox_router.emit_message; this one is in the log \
                         already: correct `[outbox] columns` or `[route]` if it is they that are wrong, or {way_past}"
                    ),
                ));
            }
            Err(error) => return Handled::Failed(not_readable(&error)),
        };
        self.origin.ordinal = self.progress.ordinal(sequence);
        let Origin { final_lsn, commit_time, ordinal, .. } = self.origin;
        let alone = self.alone_up_to.is_some_and(|last| Partial { final_lsn, changes: ordinal } <= last);
        // nor may the record after it share a batch with it
        if (alone || self.sent_alone.is_some()) && !self.window.is_empty() {
            self.pending = Some(change);
            return Handled::HeldBack;
        }

        let again = |replay: &Replay| replay.until.covers(final_lsn, ordinal);
        self.router
            .marking(self.replay.as_ref().filter(|replay| again(replay)).map(|replay| replay.mark.as_str()));
        let failed = |reason: &str, remedy: &str| {
            let way_past = way_past(final_lsn);
            Handled::Failed(unsendable(&event.printable_id(), reason, remedy, &way_past))
        };
        let record = match self.router.route(&event, &self.origin) {
            Ok(Routed::Record(record)) => record,
            Ok(Routed::Dropped) => {
                self.monitor.events_dropped(1);
                self.progress.acknowledge(sequence);
                return Handled::Done;
            }
            Err(error) => return failed(&error.to_string(), error.remedy()),
        };
        let sent = match self.sink.send(&record, sequence) {
            Ok(sent) => sent,
            Err(NotSent::TopicUnknown) => {
                self.pending = Some(change);
                return Handled::NeedsTopic(Waiting {
                    topic: record.topic.to_owned(),
                    id: event.printable_id(),
                    way_past: way_past(final_lsn),
                });
            }
            Err(NotSent::Full) => {
                self.pending = Some(change);
                return Handled::HeldBack;
            }
            Err(NotSent::Impossible { reason, remedy }) => return failed(&reason, &remedy),
        };
        let (bytes, memory) = (record.size(), record.memory());
        self.window.sent(sequence, InFlight { bytes, memory, commit_time, topic: sent.topic });
        if record.key.is_none() {
            self.monitor.keyless_events(1);
        }
        if record.headers_dropped > 0 {
            self.monitor.headers_dropped(u64::from(record.headers_dropped));
        }
        if let Some(violation) = record.violation
            && self.monitor.contract_violated(&violation.contract)
        {
            let id = event.printable_id();
            tracing::warn!(
                "the event with id {id} was sent although {violation}; further ones of this contract are counted in \
                 contract_violations_total"
            );
        }
        if sent.timestamp_replaced {
            self.monitor.timestamps_replaced(1);
        }
        self.sent_alone = alone.then(|| SentAlone {
            event: format!("{} to the topic {}", event.printable_id(), record.topic),
            way_past: way_past(final_lsn),
        });
        Handled::Done
    }
}

/// An UPDATE of an outbox row, which is no event.
pub(super) fn updated(table: &str, final_lsn: Lsn) -> Error {
    Error::not_safe(
        format!("a row of the outbox table {table} was updated, and `[outbox] on_update` is \"stop\""),
        format!(
            "Nothing was skipped. Correct what updates rows, and set `[outbox] on_update` to \"warn\" to go on; or, if its \
             transaction inserts no events, {}",
            way_past(final_lsn)
        ),
    )
}

pub(super) fn out_of_step(error: OutOfStep) -> Error {
    Error::transient(Peer::Postgres, format!("the replication stream is out of step: {error}"))
}

pub(super) fn not_readable(error: &OutboxError) -> Error {
    if let OutboxError::Renamed { table, now } = error {
        return Error::not_safe(
            error.to_string(),
            format!(
                "Nothing was skipped. Write {now} for {table} in `[outbox] table`, or rename it back, and start the router again: \
                 what was written under either name is read then"
            ),
        );
    }
    Error::not_safe(
        error.to_string(),
        "Nothing was skipped. Rows are read as the table was when they were written, so altering it once more helps later \
         rows only: for this one correct `[outbox] columns` or `[route]`, and start the router again",
    )
}

/// Why the topic that an event waits for cannot be had.
pub(super) fn without_topic(waiting: &Waiting, error: Error) -> Error {
    match error {
        Error::Definite(Definite { what, remedy, .. }) => {
            unsendable(&waiting.id, &what, &remedy, &waiting.way_past)
        }
        transient @ Error::Transient(_) => transient,
    }
}

fn unsendable(id: &str, reason: &str, remedy: &str, way_past: &str) -> Error {
    Error::not_safe(
        format!("the event with id {id} cannot be sent: {reason}"),
        format!("Nothing was skipped. {remedy}, or {way_past}"),
    )
}

/// The row is in the log for good: correcting or deleting it in the table changes nothing for the router. True only when
/// everything before the transaction is acknowledged, which the relay waits for.
fn way_past(final_lsn: Lsn) -> String {
    // a transaction is left out by a position behind the beginning of its commit
    let past = Lsn(final_lsn.0 + 1);
    format!("leave its whole transaction out: outbox-router slot advance --to {past}")
}
