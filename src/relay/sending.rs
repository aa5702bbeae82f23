//! One insert on its way: read, routed, handed to the sink, and counted.

use pg_logical::Lsn;
use pg_logical::pgoutput::{Insert, LogicalMessage};

use super::parking::Parking;
use super::window::Window;
use crate::checkpoint::Replay;
use crate::dead_letters::{DeadLetter, Key, OriginalEvent, text};
use crate::error::{Error, Peer};
use crate::monitor::Monitor;
use crate::outbox::{Field, Outbox, OutboxError, OutboxEvent};
use crate::progress::{Change, OutOfStep, Partial, Progress, Sequence};
use crate::routing::{Origin, Routed, Router};
use crate::shards::{self, Shard};
use crate::sink::InFlight;
use crate::sink::kafka::{KafkaSink, NotSent};
use crate::unsendable::{Reason, Unsendable};

/// How many changes there may be between the oldest that is not acknowledged and the newest. One bit is kept for each,
/// also for those that are no events.
const MAX_SPAN: u64 = 1 << 27;

/// Of a parked event: it is counted as such.
const NO_TOPIC: usize = usize::MAX;

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
    /// Events that cannot be sent, where they do not stop the router.
    pub(super) parking: Option<Parking>,
    /// Changes up to and including this one are sent one at a time.
    pub(super) alone_up_to: Option<Partial>,
    /// This one is sent alone too, and when everything before it is certain.
    pub(super) alone_after_commit: Option<Partial>,
    /// The record that was sent last, if it was sent so.
    pub(super) sent_alone: Option<SentAlone>,
    /// Records sent in this turn.
    pub(super) sent: usize,
    /// Before this turn records were sent that are not committed yet.
    pub(super) uncommitted: bool,
    /// The next change is not sent before everything else is committed.
    pub(super) waits_for_commit: bool,
}

/// A record that is under way alone, for a message about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentAlone {
    /// The event's id, and the topic.
    pub event: String,
    /// What can be done to go on without it.
    pub way_past: String,
    /// Whether everything before it is certain, so that it can be gone on without it.
    pub nothing_before: bool,
}

/// What came of one insert.
pub(super) enum Handled {
    Done,
    /// Something has to be acknowledged first.
    HeldBack,
    /// It cannot be sent.
    Failed(Error),
}

/// What helps where no more aggregates may be parked.
const MORE_ROOM: &str = "raise `[dead_letters] max_aggregates`, or decide what is parked (outbox-router dead-letters list) and start the \
                         router again, which does first what is decided";

/// What is kept of an event that is parked, besides all of it.
pub(super) struct About {
    printable_id: String,
    source: String,
    id: Option<String>,
    aggregate_type: Option<String>,
    aggregate_id: Option<String>,
    event_type: Option<String>,
}

impl About {
    fn of(event: &OutboxEvent<'_>) -> Self {
        let text = |field| event.field(field).map(|value| text(value).into_owned());
        let table = event.table();
        let separator = if table.schema == "message" { ':' } else { '.' };
        About {
            printable_id: event.printable_id(),
            source: format!("{}{separator}{}", table.schema, table.name),
            id: text(Field::Id),
            aggregate_type: text(Field::AggregateType),
            aggregate_id: text(Field::AggregateId),
            event_type: text(Field::EventType),
        }
    }
}

/// What may be an event.
#[derive(Clone, Copy)]
pub(super) enum Written<'a> {
    Row(Insert<'a>),
    Message(LogicalMessage<'a>),
}

impl Sending {
    /// Whether no record is under way.
    pub(super) fn is_settled(&self) -> bool {
        self.window.is_empty() && self.parking.as_ref().is_none_or(Parking::is_settled)
    }

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
        let shard = self.outbox.shard();
        let event = match written {
            Written::Row(insert) => self.outbox.event(&insert),
            Written::Message(message) => self.outbox.message(&message),
        };
        let event = match event {
            Ok(Some(event)) => event,
            Ok(None) => {
                // a message is another shard's
                if matches!(written, Written::Row(_)) {
                    self.monitor.ignored_changes(1);
                }
                self.progress.acknowledge(sequence);
                return Handled::Done;
            }
            Err(error @ (OutboxError::Message { .. } | OutboxError::MissingMember { .. })) => {
                let way_past = way_past(self.origin.final_lsn, shard);
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
        let this = Partial { final_lsn, changes: ordinal };
        if let Some(parking) = &mut self.parking {
            if parking.is_alone() {
                self.pending = Some(change);
                return Handled::HeldBack;
            }
            let behind = || {
                Unsendable::new(
                    Reason::Behind,
                    "an earlier event of its aggregate is parked",
                    "It follows when that one is sent or thrown away",
                )
            };
            let key = Key { final_lsn, change: ordinal };
            if event.field(Field::AggregateId).is_none() && parking.is_there(key) {
                self.progress.acknowledge(sequence);
                return Handled::Done;
            }
            let held = parking.holds(event.field(Field::AggregateId), key);
            if let Some(why) = parking.refused(this).or_else(|| held.then(behind)) {
                let about = About::of(&event);
                return self.park_or_stop(sequence, about, written, &why);
            }
        }
        let to_blame = Some(this) == self.alone_after_commit;
        let alone = to_blame || self.alone_up_to.is_some_and(|last| this <= last);
        let nothing_before = !self.uncommitted && self.sent == 0;
        self.waits_for_commit = to_blame && !nothing_before;
        // nor may the record after it share a batch with it
        if self.waits_for_commit || (alone || self.sent_alone.is_some()) && !self.window.is_empty() {
            self.pending = Some(change);
            return Handled::HeldBack;
        }

        self.router.marking(mark(self.replay.as_ref(), final_lsn, ordinal));
        let record = match self.router.route(&event, &self.origin) {
            Ok(Routed::Record(record)) => record,
            Ok(Routed::Dropped) => {
                self.monitor.events_dropped(1);
                self.progress.acknowledge(sequence);
                return Handled::Done;
            }
            Err(error) => {
                let about = About::of(&event);
                return self.park_or_stop(sequence, about, written, &error.into());
            }
        };
        let sent = match self.sink.send(&record, sequence) {
            Ok(sent) => sent,
            Err(NotSent::Later) => {
                self.pending = Some(change);
                return Handled::HeldBack;
            }
            Err(NotSent::Impossible(why)) => {
                let about = About::of(&event);
                return self.park_or_stop(sequence, about, written, &why);
            }
        };
        self.sent += 1;
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
            way_past: way_past(final_lsn, shard),
            nothing_before,
        });
        Handled::Done
    }

    /// Parks an event, or stops at it.
    fn park_or_stop(
        &mut self,
        sequence: Sequence,
        about: About,
        written: Written<'_>,
        why: &Unsendable,
    ) -> Handled {
        let Origin { final_lsn, xid, commit_time, ordinal } = self.origin;
        let Some(parking) = &mut self.parking else {
            let way_past = way_past(final_lsn, self.outbox.shard());
            return Handled::Failed(unsendable(&about.printable_id, &why.what, &why.remedy, &way_past));
        };
        let letter = DeadLetter {
            key: Key { final_lsn, change: ordinal },
            xid,
            commit_time,
            source: about.source.clone(),
            event_id: about.id.clone(),
            aggregate_type: about.aggregate_type.clone(),
            aggregate_id: about.aggregate_id.clone(),
            event_type: about.event_type.clone(),
            reason: why.reason,
            detail: why.detail(),
            whole: match written {
                Written::Row(insert) => self.outbox.whole(&insert),
                Written::Message(message) => {
                    OriginalEvent::Message(String::from_utf8_lossy(message.content).into_owned())
                }
            },
            replay: mark(self.replay.as_ref(), final_lsn, ordinal).map(str::to_owned),
        };
        let memory = letter.size();
        if let Err(too_many) = parking.park(sequence, letter, &self.monitor) {
            if parking.may_make_room() {
                self.pending = Some(Change::New(sequence));
                return Handled::HeldBack;
            }
            let (what, remedy) =
                (format!("{}; and {too_many}", why.what), format!("{}, or {MORE_ROOM}", why.remedy));
            let way_past = way_past(final_lsn, self.outbox.shard());
            return Handled::Failed(unsendable(&about.printable_id, &what, &remedy, &way_past));
        }
        self.window.sent(sequence, InFlight { bytes: 0, memory, commit_time, topic: NO_TOPIC });
        Handled::Done
    }

    /// Sends parked events again as far as they may be.
    pub(super) fn retry(&mut self) {
        let Some(parking) = &mut self.parking else { return };
        while !self.window.is_full() && !parking.has_one_alone() {
            let sequence = parking.number();
            let settled = parking.is_settled() && self.window.is_empty();
            let Some((letter, alone)) = parking.next(&self.monitor) else { return };
            if alone && !settled {
                parking.wants_alone();
                return;
            }
            let (Key { final_lsn, change }, commit_time) = (letter.key, letter.commit_time);
            let origin = Origin { final_lsn, xid: letter.xid, commit_time, ordinal: change };
            let mut row = self.outbox.kept_row(&letter.source);
            let event = match self.outbox.read_whole(&mut row, &letter.whole) {
                Ok(event) => event,
                Err(error) => {
                    let remedy = "Correct `[outbox] columns` or `[route]`";
                    parking.failed(&Unsendable::new(Reason::Unroutable, error.to_string(), remedy));
                    continue;
                }
            };
            self.router.marking(letter.replay.as_deref());
            let record = match self.router.route(&event, &origin) {
                Ok(Routed::Record(record)) => record,
                Ok(Routed::Dropped) => {
                    self.monitor.events_dropped(1);
                    parking.dropped();
                    continue;
                }
                Err(error) => {
                    parking.failed(&error.into());
                    continue;
                }
            };
            match self.sink.send(&record, sequence) {
                Ok(sent) => {
                    let (bytes, memory) = (record.size(), record.memory());
                    self.sent += 1;
                    self.window.sent_besides(bytes);
                    parking.sent(InFlight { bytes, memory, commit_time, topic: sent.topic }, alone);
                }
                Err(NotSent::Later) => return,
                Err(NotSent::Impossible(why)) => parking.failed(&why),
            }
        }
    }
}

/// The mark of an event that a reset has asked for again.
fn mark(replay: Option<&Replay>, final_lsn: Lsn, ordinal: u64) -> Option<&str> {
    replay.filter(|replay| replay.until.covers(final_lsn, ordinal)).map(|replay| replay.mark.as_str())
}

/// An UPDATE of an outbox row, which is no event.
pub(super) fn updated(table: &str, final_lsn: Lsn, shard: Option<Shard>) -> Error {
    Error::not_safe(
        format!("a row of the outbox table {table} was updated, and `[outbox] on_update` is \"stop\""),
        format!(
            "Nothing was skipped. Correct what updates rows, and set `[outbox] on_update` to \"warn\" to go on; or, if its \
             transaction inserts no events, {}",
            way_past(final_lsn, shard)
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

fn unsendable(id: &str, reason: &str, remedy: &str, way_past: &str) -> Error {
    Error::not_safe(
        format!("the event with id {id} cannot be sent: {reason}"),
        format!("Nothing was skipped. {remedy}, or {way_past}"),
    )
}

/// The row is in the log for good: correcting or deleting it in the table changes nothing for the router. True only when
/// everything before the transaction is acknowledged, which the relay waits for.
fn way_past(final_lsn: Lsn, shard: Option<Shard>) -> String {
    // a transaction is left out by a position behind the beginning of its commit
    let past = Lsn(final_lsn.0 + 1);
    let shard = shards::argument(shard);
    format!("leave its whole transaction out: outbox-router slot advance --to {past}{shard}")
}
