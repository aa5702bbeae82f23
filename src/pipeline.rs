//! From a change to a record: read by `outbox`, judged by `contracts`, routed by `routing`. No I/O.

use pg_logical::pgoutput::{Insert, LogicalMessage, Message};
use pg_logical::{Lsn, Oid, PgTimestamp};

use crate::checkpoint::Replay;
use crate::config::OnUpdate;
use crate::dead_letters::OriginalEvent;
use crate::error::Error;
use crate::monitor::Monitor;
use crate::outbox::{Outbox, OutboxError, OutboxEvent};
use crate::progress::{Landmark, Partial};
use crate::routing::{Origin, Routed, Router};
use crate::shards::{self, Shard};
use crate::unsendable::Unsendable;

/// Logged once a session; the counter of ignored changes has the rest.
const UPDATED: &str =
    "a row of the outbox was updated, which changes nothing of its event: only what is inserted is sent";

/// What makes records of changes.
pub struct Pipeline {
    outbox: Outbox,
    router: Router,
    /// The events that a reset has asked for again.
    replay: Option<Replay>,
    /// The transaction under way.
    transaction: Origin,
    /// The end of the log when the session began.
    head: Lsn,
    on_update: OnUpdate,
    /// An update was logged in this session.
    update_logged: bool,
    monitor: Monitor,
}

/// What may be an event.
#[derive(Clone, Copy)]
pub enum Change<'a> {
    /// A row of some table was inserted.
    Row(Insert<'a>),
    /// A transactional message with the outbox's prefix.
    Message(LogicalMessage<'a>),
}

/// An event and what becomes of it.
pub struct Made<'a> {
    /// The event.
    pub event: Event<'a>,
    /// What the router says of it.
    pub routed: Result<Routed<'a>, Unsendable>,
}

/// An event, with its place in the log.
pub struct Event<'a> {
    /// By meaning.
    pub row: OutboxEvent<'a>,
    /// Its place in the log.
    pub origin: Origin,
    /// The mark that its record bears because a reset has asked for it again.
    pub replay: Option<&'a str>,
    /// Whose part of the log is read.
    pub shard: Option<Shard>,
    /// It was parked, and is sent again.
    pub retried: bool,
    written: Written<'a>,
}

/// As it was written.
enum Written<'a> {
    Row(&'a Outbox, Insert<'a>),
    Message(LogicalMessage<'a>),
    Parked(&'a OriginalEvent),
}

impl Pipeline {
    /// Reads by `outbox` and routes by `router` what was written before and after `head`, the end of the log when the session
    /// begins. `replay`: what a reset has asked for again.
    pub fn new(
        outbox: Outbox,
        router: Router,
        replay: Option<Replay>,
        head: Lsn,
        on_update: OnUpdate,
        monitor: Monitor,
    ) -> Self {
        let transaction =
            Origin { final_lsn: Lsn::INVALID, xid: 0, commit_time: PgTimestamp::default(), ordinal: 0 };
        Pipeline { outbox, router, replay, transaction, head, on_update, update_logged: false, monitor }
    }

    /// The changes that follow are those of this transaction.
    pub fn begin(&mut self, Landmark { final_lsn, xid, commit_time }: Landmark) {
        self.transaction = Origin { final_lsn, xid, commit_time, ordinal: 0 };
    }

    /// When the transaction under way was committed.
    pub fn commit_time(&self) -> PgTimestamp {
        self.transaction.commit_time
    }

    /// Makes a record of the change with this number in its transaction; `None` if it is no event.
    ///
    /// # Errors
    /// It is not readable, and the router has to stop before it.
    pub fn make<'a>(&'a mut self, change: Change<'a>, ordinal: u64) -> Result<Option<Made<'a>>, Error> {
        let Pipeline { outbox, router, replay, transaction, monitor, .. } = self;
        transaction.ordinal = ordinal;
        let origin = *transaction;
        let shard = outbox.shard();
        let (row, written) = match change {
            Change::Row(insert) => {
                let outbox = &*outbox;
                match outbox.event(&insert) {
                    Ok(Some(row)) => (row, Written::Row(outbox, insert)),
                    Ok(None) => {
                        monitor.counts().ignored_changes.add(1);
                        return Ok(None);
                    }
                    Err(error) => return Err(unreadable(&error, origin.final_lsn, shard)),
                }
            }
            Change::Message(message) => match outbox.message(&message) {
                Ok(Some(row)) => (row, Written::Message(message)),
                // another shard's
                Ok(None) => return Ok(None),
                Err(error) => return Err(unreadable(&error, origin.final_lsn, shard)),
            },
        };
        let replay = mark(replay.as_ref(), &origin);
        router.set_replay_mark(replay);
        let routed = router.route(&row, &origin).map_err(Unsendable::from);
        Ok(Some(Made { event: Event { row, origin, replay, shard, retried: false, written }, routed }))
    }

    /// Takes in what is no change. `passed`: of what follows nothing is delivered that was not delivered before.
    ///
    /// # Errors
    /// The router has to stop before it.
    pub fn other(&mut self, message: &Message<'_>, passed: bool) -> Result<(), Error> {
        match message {
            Message::Relation(relation) => {
                let of_the_past = self.transaction.final_lsn < self.head;
                match self.outbox.relation(relation, of_the_past) {
                    Ok(()) => {}
                    // should a row follow that was not delivered, it is told then
                    Err(error) if passed => self.outbox.unreadable(relation.id, error),
                    Err(error) => return Err(not_readable(&error)),
                }
            }
            Message::Type(named) => self.outbox.type_name(named),
            Message::Update(_) | Message::Delete(_) | Message::Truncate(_) if passed => {}
            // A publication may publish more than the router needs. Only what is inserted is an event.
            Message::Update(update) => self.updated(update.relation)?,
            Message::Delete(_) | Message::Truncate(_) => self.monitor.counts().ignored_changes.add(1),
            _ => {}
        }
        Ok(())
    }

    /// A row was updated. If it is one of the outbox, the application may believe that the event changes with it.
    fn updated(&mut self, relation: Oid) -> Result<(), Error> {
        if let Some(table) = self.outbox.table_of(relation) {
            let (table, lsn) = (table.to_string(), self.transaction.final_lsn);
            let first = !std::mem::replace(&mut self.update_logged, true);
            match self.on_update {
                OnUpdate::Stop => return Err(updated(&table, lsn, self.outbox.shard())),
                OnUpdate::Error if first => {
                    tracing::error!(table, position = %lsn, "{UPDATED}");
                }
                OnUpdate::Warn if first => {
                    tracing::warn!(table, position = %lsn, "{UPDATED}");
                }
                OnUpdate::Error | OnUpdate::Warn => {}
            }
        }
        self.monitor.counts().ignored_changes.add(1);
        Ok(())
    }
}

impl Made<'_> {
    /// There was nothing to send.
    pub fn was_dropped(&self, monitor: &Monitor) {
        if let Ok(Routed::Dropped) = &self.routed {
            monitor.counts().events_dropped.add(1);
        }
    }

    /// A record was sent.
    pub fn was_sent(&self, monitor: &Monitor) {
        let Ok(Routed::Record(record)) = &self.routed else { return };
        if record.key.is_none() {
            monitor.counts().keyless_events.add(1);
        }
        if record.headers_dropped > 0 {
            monitor.counts().headers_dropped.add(u64::from(record.headers_dropped));
        }
        if let Some(violation) = record.violation
            && monitor.contract_violated(&violation.contract)
        {
            let id = self.event.row.printable_id();
            tracing::warn!(
                "the event with id {id} was sent although {violation}; further ones of this contract are counted in \
                 contract_violations_total"
            );
        }
    }
}

impl<'a> Event<'a> {
    /// One that was parked as `original`, and read from it.
    pub fn parked(row: OutboxEvent<'a>, origin: Origin, original: &'a OriginalEvent) -> Self {
        Event { row, origin, replay: None, shard: None, retried: true, written: Written::Parked(original) }
    }

    /// Its place among those of all transactions.
    pub fn place(&self) -> Partial {
        Partial { final_lsn: self.origin.final_lsn, changes: self.origin.ordinal }
    }

    /// All of it, as it was written.
    pub fn original(&self) -> OriginalEvent {
        match &self.written {
            Written::Row(outbox, insert) => outbox.whole(insert),
            Written::Message(message) => {
                OriginalEvent::Message(String::from_utf8_lossy(message.content).into_owned())
            }
            Written::Parked(original) => (*original).clone(),
        }
    }

    /// What a person can do to go on without it.
    pub fn how_to_skip(&self) -> String {
        how_to_skip(self.origin.final_lsn, self.shard)
    }

    /// It cannot be sent, and the router stops before it.
    pub fn stops_the_router(&self, why: &Unsendable) -> Error {
        Error::not_safe(
            format!("the event with id {} cannot be sent: {}", self.row.printable_id(), why.what),
            format!("Nothing was skipped. {}, or {}", why.remedy, self.how_to_skip()),
        )
    }
}

/// The mark of an event that a reset has asked for again.
fn mark<'a>(replay: Option<&'a Replay>, origin: &Origin) -> Option<&'a str> {
    replay
        .filter(|replay| replay.until.covers(origin.final_lsn, origin.ordinal))
        .map(|replay| replay.mark.as_str())
}

/// An UPDATE of an outbox row, which is no event.
fn updated(table: &str, final_lsn: Lsn, shard: Option<Shard>) -> Error {
    Error::not_safe(
        format!("a row of the outbox table {table} was updated, and `[outbox] on_update` is \"stop\""),
        format!(
            "Nothing was skipped. Correct what updates rows, and set `[outbox] on_update` to \"warn\" to go on; or, if its \
             transaction inserts no events, {}",
            how_to_skip(final_lsn, shard)
        ),
    )
}

fn unreadable(error: &OutboxError, final_lsn: Lsn, shard: Option<Shard>) -> Error {
    if !matches!(error, OutboxError::Message { .. } | OutboxError::MissingMember { .. }) {
        return not_readable(error);
    }
    Error::not_safe(
        error.to_string(),
        format!(
            "Nothing was skipped. Write messages with outbox_router.emit_message; this one is in the log \
             already: correct `[outbox] columns` or `[route]` if it is they that are wrong, or {}",
            how_to_skip(final_lsn, shard)
        ),
    )
}

fn not_readable(error: &OutboxError) -> Error {
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

/// The row is in the log for good: correcting or deleting it in the table changes nothing for the router. True only when
/// everything before the transaction is acknowledged, which the loop waits for.
fn how_to_skip(final_lsn: Lsn, shard: Option<Shard>) -> String {
    // a transaction is left out by a position behind the beginning of its commit
    let past = Lsn(final_lsn.0 + 1);
    let shard = shards::argument(shard);
    format!("leave its whole transaction out: outbox-router slot advance --to {past}{shard}")
}
