//! The pipeline: turns a change into a record. `outbox` decodes it, `contracts` validates it, `routing` makes the record. No I/O.

use pg_logical::pgoutput::{Insert, LogicalMessage, Message};
use pg_logical::{Lsn, Oid, PgTimestamp};

use crate::checkpoint::Replay;
use crate::config::OnUpdate;
use crate::dead_letters::OriginalEvent;
use crate::error::{Error, ErrorCode, Remedy, Step};
use crate::monitor::Monitor;
use crate::outbox::{Outbox, OutboxError, OutboxEvent};
use crate::progress::{Landmark, Partial};
use crate::routing::{Origin, Routed, Router};
use crate::shards::{self, Shard};
use crate::unsendable::{Unsendable, WITHOUT_EVENT};

/// Logged once per session; further updates are only counted, as ignored changes.
const ROW_UPDATED: &str =
    "a row of the outbox was updated, which does not change its event: the router sends only inserts";

/// Turns changes into records.
pub struct Pipeline {
    outbox: Outbox,
    router: Router,
    /// The range of events that a reset has requested again.
    replay: Option<Replay>,
    /// The current transaction.
    transaction: Origin,
    /// The end of the server's log when the session began.
    head: Lsn,
    on_update: OnUpdate,
    /// Whether an update was logged in this session.
    update_logged: bool,
    present: PresentColumns,
    /// Events are rows that were read from the table, not from the log.
    of_table_rows: bool,
    monitor: Monitor,
}

/// What the outbox tables had when the session began, which earlier rows in the log may lack.
#[derive(Debug, Clone, Default)]
pub struct PresentColumns {
    /// Tables and columns.
    pub columns: Vec<(String, String)>,
    /// The steps for a row that was written while the publication's column list left out a column.
    pub remedy: Vec<Step>,
}

impl PresentColumns {
    /// For a transaction from before the session; later ones were not written under an earlier column list.
    fn of(&self, final_lsn: Lsn, head: Lsn) -> Option<&Self> {
        (final_lsn < head).then_some(self)
    }
}

/// A change that may be an event.
#[derive(Clone, Copy)]
pub enum Change<'a> {
    /// An inserted row of any table.
    Row(Insert<'a>),
    /// A transactional message with the outbox's prefix.
    Message(LogicalMessage<'a>),
}

/// An event, and its record or why it has none.
pub struct PipelineOutput<'a> {
    /// The event.
    pub event: Event<'a>,
    /// Its record, or why it cannot be sent.
    pub routed: Result<Routed<'a>, Unsendable>,
}

/// An event, with its place in the log.
pub struct Event<'a> {
    /// Its columns by meaning.
    pub row: OutboxEvent<'a>,
    /// Its place in the log.
    pub origin: Origin,
    /// The value of the replay header, if a reset has requested the event again.
    pub replay: Option<&'a str>,
    /// The shard of this router.
    pub shard: Option<Shard>,
    /// Whether it is a parked event that is retried.
    pub retried: bool,
    /// Whether its row was read from the table, not from the log.
    pub of_table_row: bool,
    written: Written<'a>,
}

/// The event in its original form.
enum Written<'a> {
    Row(&'a Outbox, Insert<'a>),
    Message(LogicalMessage<'a>),
    Parked(&'a OriginalEvent),
}

impl Pipeline {
    /// Creates a pipeline for a session that starts when the log ends at `head`. `replay`: the range of events that a reset has
    /// requested again.
    pub fn new(
        outbox: Outbox,
        router: Router,
        replay: Option<Replay>,
        head: Lsn,
        on_update: OnUpdate,
        monitor: Monitor,
    ) -> Self {
        let transaction =
            Landmark { final_lsn: Lsn::INVALID, xid: 0, commit_time: PgTimestamp::default() }.into();
        Pipeline {
            outbox,
            router,
            replay,
            transaction,
            head,
            on_update,
            update_logged: false,
            present: PresentColumns::default(),
            of_table_rows: false,
            monitor,
        }
    }

    /// The same, with what the tables have now.
    pub fn with_present_columns(self, present: PresentColumns) -> Self {
        Pipeline { present, ..self }
    }

    /// A pipeline for rows that were read from the table, not from the log.
    pub fn of_table_rows(self) -> Self {
        Pipeline { of_table_rows: true, ..self }
    }

    /// Begins a transaction; the following changes belong to it.
    pub fn begin(&mut self, transaction: Landmark) {
        self.transaction = transaction.into();
    }

    /// The place of the last processed change in the log.
    pub fn origin(&self) -> Origin {
        self.transaction
    }

    /// When the current transaction was committed.
    pub fn commit_time(&self) -> PgTimestamp {
        self.transaction.commit_time
    }

    /// Processes the change with this number in its transaction. `None` if it is not an event.
    ///
    /// # Errors
    /// The change cannot be decoded, and the router has to stop before it.
    pub fn process<'a>(
        &'a mut self,
        change: Change<'a>,
        ordinal: u64,
    ) -> Result<Option<PipelineOutput<'a>>, Error> {
        let Pipeline { outbox, router, replay, transaction, head, present, monitor, of_table_rows, .. } =
            self;
        transaction.ordinal = ordinal;
        let (origin, shard) = (*transaction, outbox.shard());
        match output(outbox, router, replay.as_ref(), change, origin, *of_table_rows) {
            Ok(None) => {
                // a message that is no event belongs to another shard
                if matches!(change, Change::Row(_)) {
                    monitor.counts().ignored_changes.add(1);
                }
                Ok(None)
            }
            Err(error) => {
                let place = Partial { final_lsn: origin.final_lsn, changes: ordinal };
                Err(decode_error(&error, place, shard, present.of(origin.final_lsn, *head)))
            }
            output => Ok(output.ok().flatten()),
        }
    }

    /// What [`Pipeline::process`] will return for a later change at `origin`; `None` if it is not an event or cannot be decoded.
    pub fn preview<'a>(&'a mut self, change: Change<'a>, origin: Origin) -> Option<PipelineOutput<'a>> {
        let Pipeline { outbox, router, replay, of_table_rows, .. } = self;
        output(outbox, router, replay.as_ref(), change, origin, *of_table_rows).ok().flatten()
    }

    /// Handles a message that is not an event. `already_delivered`: the changes after it were delivered before.
    ///
    /// # Errors
    /// The router has to stop before it.
    pub fn metadata(&mut self, message: &Message<'_>, already_delivered: bool) -> Result<(), Error> {
        match message {
            Message::Relation(relation) => {
                let before_session = self.transaction.final_lsn < self.head;
                match self.outbox.relation(relation, before_session) {
                    Ok(()) => {}
                    // reported only if a row follows that was not delivered
                    Err(error) if already_delivered => self.outbox.unreadable(relation.id, error),
                    Err(error) => {
                        return Err(layout_error(
                            &error,
                            self.present.of(self.transaction.final_lsn, self.head),
                        ));
                    }
                }
            }
            Message::Type(named) => self.outbox.type_name(named),
            Message::Update(_) | Message::Delete(_) | Message::Truncate(_) if already_delivered => {}
            // only inserts are events, but a publication may also publish these
            Message::Update(update) => self.row_updated(update.relation)?,
            Message::Delete(_) | Message::Truncate(_) => self.monitor.counts().ignored_changes.add(1),
            _ => {}
        }
        Ok(())
    }

    /// Handles an update. The application may expect that updating an outbox row changes the event.
    fn row_updated(&mut self, relation: Oid) -> Result<(), Error> {
        if let Some(table) = self.outbox.table_of(relation) {
            let (table, lsn) = (table.to_string(), self.transaction.final_lsn);
            let first = !std::mem::replace(&mut self.update_logged, true);
            match self.on_update {
                OnUpdate::Stop => return Err(update_error(&table, lsn, self.outbox.shard())),
                OnUpdate::Error if first => {
                    tracing::error!(table, position = %lsn, "{ROW_UPDATED}");
                }
                OnUpdate::Warn if first => {
                    tracing::warn!(table, position = %lsn, "{ROW_UPDATED}");
                }
                OnUpdate::Error | OnUpdate::Warn => {}
            }
        }
        self.monitor.counts().ignored_changes.add(1);
        Ok(())
    }
}

impl From<Landmark> for Origin {
    /// The place before the transaction's first change.
    fn from(Landmark { final_lsn, xid, commit_time }: Landmark) -> Self {
        Origin { final_lsn, xid, commit_time, ordinal: 0 }
    }
}

/// Decodes and routes a change; `None` if it is not an event.
fn output<'a>(
    outbox: &'a mut Outbox,
    router: &'a mut Router,
    replay: Option<&'a Replay>,
    change: Change<'a>,
    origin: Origin,
    of_table_row: bool,
) -> Result<Option<PipelineOutput<'a>>, OutboxError> {
    let shard = outbox.shard();
    let (row, written) = match change {
        Change::Row(insert) => {
            let outbox = &*outbox;
            (outbox.event(&insert)?, Written::Row(outbox, insert))
        }
        Change::Message(message) => (outbox.message(&message)?, Written::Message(message)),
    };
    let Some(row) = row else { return Ok(None) };
    let replay = replay_mark(replay, &origin);
    router.set_replay_mark(replay);
    let routed = router.route(&row, &origin).map_err(Unsendable::from);
    let event = Event { row, origin, replay, shard, retried: false, of_table_row, written };
    Ok(Some(PipelineOutput { event, routed }))
}

impl PipelineOutput<'_> {
    /// Counts an event that was dropped.
    pub fn count_dropped(&self, monitor: &Monitor) {
        if let Ok(Routed::Dropped) = &self.routed {
            monitor.counts().events_dropped.add(1);
        }
    }

    /// Counts a record that was sent.
    pub fn count_sent(&self, monitor: &Monitor) {
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
                "the event with id {id} was sent although {violation}; further violations of this contract are only counted, in \
                 contract_violations_total"
            );
        }
    }
}

impl<'a> Event<'a> {
    /// A parked event, decoded from `original`.
    pub fn parked(row: OutboxEvent<'a>, origin: Origin, original: &'a OriginalEvent) -> Self {
        let (replay, shard, written) = (None, None, Written::Parked(original));
        Event { row, origin, replay, shard, retried: true, of_table_row: false, written }
    }

    /// Its place in the log.
    pub fn place(&self) -> Partial {
        Partial { final_lsn: self.origin.final_lsn, changes: self.origin.ordinal }
    }

    /// The event in its original form, to be parked.
    pub fn original(&self) -> OriginalEvent {
        match &self.written {
            Written::Row(outbox, insert) => outbox.complete_row(insert),
            Written::Message(message) => {
                OriginalEvent::Message(String::from_utf8_lossy(message.content).into_owned())
            }
            Written::Parked(original) => (*original).clone(),
        }
    }

    /// The steps with which an operator can go on without this event.
    pub fn how_to_skip(&self) -> [Step; 2] {
        if self.of_table_row {
            return delete_row(&self.row);
        }
        let Origin { final_lsn, ordinal, .. } = self.origin;
        how_to_skip(final_lsn, Some(ordinal.saturating_sub(1)), self.shard)
    }

    /// The error that stops the router before this event.
    pub fn stop_error(&self, why: &Unsendable) -> Error {
        Error::not_safe(
            why.reason.code(),
            format!("the event with id {} cannot be sent: {}", self.row.printable_id(), why.what),
            why.remedy_or(self.how_to_skip()),
        )
    }
}

/// The value of the replay header, if a reset has requested the event again.
fn replay_mark<'a>(replay: Option<&'a Replay>, origin: &Origin) -> Option<&'a str> {
    replay
        .filter(|replay| replay.until.covers(origin.final_lsn, origin.ordinal))
        .map(|replay| replay.mark.as_str())
}

/// The error for an UPDATE of an outbox row if `[outbox] on_update` is "stop".
fn update_error(table: &str, final_lsn: Lsn, shard: Option<Shard>) -> Error {
    Error::not_safe(
        ErrorCode::RowUpdated,
        format!("a row of the outbox table {table} was updated, and `[outbox] on_update` is \"stop\""),
        Remedy::steps([Step::new(
            "Correct the program that updates rows, set `[outbox] on_update` to \"warn\", and start the router again. Nothing was skipped",
        )])
        .or("To leave the setting, if no event follows in the transaction of the update", how_to_skip(final_lsn, None, shard)),
    )
}

fn decode_error(
    error: &OutboxError,
    place: Partial,
    shard: Option<Shard>,
    present: Option<&PresentColumns>,
) -> Error {
    if !matches!(error, OutboxError::Message { .. } | OutboxError::MissingMember { .. }) {
        return layout_error(error, present);
    }
    Error::not_safe(
        ErrorCode::MessageUndecodable,
        error.to_string(),
        Remedy::steps([
            Step::new(
                "Correct `[outbox] columns` or `[route]` if they are wrong, and start the router again. Nothing was skipped. The message \
                 cannot be corrected, because it is in the log already",
            ),
            Step::new("Let applications write messages with outbox_router.emit_message, which rejects invalid ones"),
        ])
        .or(WITHOUT_EVENT, how_to_skip(place.final_lsn, Some(place.changes.saturating_sub(1)), shard)),
    )
}

fn layout_error(error: &OutboxError, present: Option<&PresentColumns>) -> Error {
    if let OutboxError::Renamed { table, now } = error {
        return Error::not_safe(
            ErrorCode::TableRenamed,
            error.to_string(),
            format!(
                "Replace {table} by {now} in `[outbox] table`, or rename the table back, and start the router again: it then reads rows \
                 written under either name. Nothing was skipped"
            ),
        );
    }
    let remedy = Remedy::steps([Step::new(
        "The row is decoded with the columns that the table had when it was written, so ALTER TABLE does not help. Correct `[outbox] columns` \
         or `[route]`, and start the router again. Nothing was skipped",
    )]);
    let remedy = match (error, present) {
        (OutboxError::MissingColumn { table, column, .. }, Some(present))
            if present.columns.iter().any(|known| known.0 == *table && known.1 == *column) =>
        {
            remedy.or(
                "If a column list of the publication left out the column, which the table has, when the row was written",
                present.remedy.clone(),
            )
        }
        _ => remedy,
    };
    Error::not_safe(ErrorCode::RowUndecodable, error.to_string(), remedy)
}

/// The steps for an event that was not read from the log.
fn delete_row(row: &OutboxEvent<'_>) -> [Step; 2] {
    [
        Step::new(format!("Delete the row of {} with this id", row.table())),
        Step::new("Start the router again").typing("outbox-router run"),
    ]
}

/// The steps that skip a change and what follows it in its transaction. `sent`: how many changes before it are done; `None`: it
/// is not known. Correcting or deleting the row in the table would not help, because the log still has it. The command is safe
/// only once everything before the change is acknowledged, which the loop waits for.
fn how_to_skip(final_lsn: Lsn, sent: Option<u64>, shard: Option<Shard>) -> [Step; 2] {
    // the slot skips a transaction if its position is after the start of the commit record
    let past = Lsn(final_lsn.0 + 1);
    let command = format!("outbox-router slot advance --to {past}{}", shards::argument(shard));
    let what = match sent {
        None => "the rest of its transaction".to_owned(),
        Some(0) => "its whole transaction, of which nothing was sent".to_owned(),
        Some(1) => "the rest of its transaction, from this event on (any event in its first change was sent)"
            .to_owned(),
        Some(sent) => {
            format!(
                "the rest of its transaction, from this event on (any event in its first {sent} changes was sent)"
            )
        }
    };
    [
        Step::new(format!("Count what would be skipped: {what}")).typing(format!("{command} --dry-run")),
        Step::new("Skip it, and start the router again")
            .typing(command)
            .typing(format!("outbox-router run{}", shards::argument(shard))),
    ]
}
